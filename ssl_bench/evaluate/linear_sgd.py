"""A linear classifier on cached features with one fixed recipe, as other libraries train it, but without crops.

Features are taken as they are, neither normalised nor standardised. Nothing is chosen.

Shapes: N images, D features, C classes, B batch.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssl_bench.errors import require
from ssl_bench.evaluate.accuracy import top_accuracies
from ssl_bench.evaluate.linear import check_sgd
from ssl_bench.evaluate.sharded import Sharded
from ssl_bench.evaluate.target import Evaluator, Target
from ssl_bench.seeding import stream
from ssl_bench.signals import stop_if_asked


class LinearSGD(Evaluator):
    """Test accuracy (top1, top5) of the classifier of the last epoch, never of the best one.

    Every rank computes the same from the seed.

    Args:
        epochs, batch_size, momentum, weight_decay: of the SGD.
        lr: rate for a batch of 256 images; the rate is lr * batch_size / 256.
        schedule: ``step`` multiplies the rate by ``gamma`` after each of the epochs ``milestones``; ``cosine``
            decreases it from step to step, to the share ``final`` in the last one; ``cosine_epochs`` from epoch to
            epoch, to 0 after the last one.
        milestones, gamma, final: see ``schedule``.
        init_std: standard deviation of the initial weights, with biases of 0; None: as torch.nn.Linear draws both.
        drop_last: leave out the last batch of an epoch if it is smaller than the others.
    """

    needs_labels = True
    takes_labels = True

    def __init__(
        self,
        lr: float,
        epochs: int = 100,
        batch_size: int = 256,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        schedule: Literal["step", "cosine", "cosine_epochs"] = "step",
        milestones: Sequence[int] = (60, 80),
        gamma: float = 0.1,
        final: float = 0.0,
        init_std: float | None = None,
        drop_last: bool = False,
    ) -> None:
        require(lr > 0, "lr", lr, "a positive number")
        require(epochs >= 1, "epochs", epochs, "1 or more")
        require(batch_size >= 1, "batch_size", batch_size, "1 or more")
        require(0 <= final < 1, "final", final, "a share from 0 to below 1")
        require(init_std is None or init_std >= 0, "init_std", init_std, "0 or more, or null")
        check_sgd(momentum, weight_decay)
        self.lr, self.epochs, self.batch_size, self.drop_last = lr * batch_size / 256, epochs, batch_size, drop_last
        self.momentum, self.weight_decay, self.init_std = momentum, weight_decay, init_std
        self.schedule, self.milestones, self.gamma, self.final = schedule, list(milestones), gamma, final

    def check(self, target: Target) -> None:
        target.labels("train"), target.labels("test")

    def run(self, target: Target) -> Iterator[tuple[str, float]]:
        self.check(target)
        generator = torch.Generator().manual_seed(stream("linear_sgd", target.seed))
        features, classes = target.shards("train")["backbone"], target.num_classes
        layer = self.fit(features, target.labels("train"), classes, generator)
        logits = layer(target.features("test")["backbone"]).detach()
        require(bool(logits.isfinite().all()), "lr", self.lr, "a lower one: the classifier's outputs are not finite")
        ranking = logits.topk(min(5, classes), dim=1).indices
        yield from top_accuracies(ranking, target.labels("test"), classes)

    def fit(self, features: Sharded, labels: Tensor, num_classes: int, generator: torch.Generator) -> nn.Linear:
        """Train the classifier on features [N, D] with labels [N]; the CPU generator draws weights and batches."""
        width = features.rows.shape[1]
        layer, bound = nn.Linear(width, num_classes), width**-0.5
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.uniform_(-bound, bound, generator=generator)
            if self.init_std is not None:
                layer.weight.normal_(std=self.init_std, generator=generator)
                layer.bias.zero_()
        layer.to(features.rows)
        optimizer = torch.optim.SGD(layer.parameters(), self.lr, self.momentum, weight_decay=self.weight_decay)
        last = len(labels) % self.batch_size if self.drop_last and len(labels) > self.batch_size else 0
        steps, step = self.epochs * math.ceil((len(labels) - last) / self.batch_size), 0
        for epoch in range(self.epochs):
            order = torch.randperm(len(labels), generator=generator)[: len(labels) - last].to(labels.device)
            for batch in order.split(self.batch_size):
                stop_if_asked()
                optimizer.param_groups[0]["lr"] = self.lr * self._factor(epoch, step / max(1, steps - 1))
                optimizer.zero_grad()
                F.cross_entropy(layer(features.take(batch)), labels[batch]).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                step += 1
        return layer

    def _factor(self, epoch: int, progress: float) -> float:
        """The rate as a share of the first one; ``progress`` is 1 in the last step."""
        if self.schedule == "step":
            return self.gamma ** sum(epoch >= milestone for milestone in self.milestones)
        if self.schedule == "cosine_epochs":
            return (1 + math.cos(math.pi * epoch / self.epochs)) / 2
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * progress)) / 2
