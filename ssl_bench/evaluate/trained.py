"""Classifiers that are trained by a fixed recipe: on cached features, on new crops of the images, or with the network.

Shapes: N images, B of a step, n of this rank's share, D features, C classes, and of a layer's map K channels and h x w
cells.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssl_bench.distributed import all_sum, alone, rank, world
from ssl_bench.errors import require
from ssl_bench.evaluate.accuracy import top_accuracies
from ssl_bench.evaluate.target import Evaluator, Target
from ssl_bench.seeding import stream
from ssl_bench.signals import stop_if_asked


def cosine(done: float, of: float) -> float:
    """Half a period of a cosine, from 1 to 0."""
    return (1 + math.cos(math.pi * done / of)) / 2


def check_sgd(momentum: float, *decays: float) -> None:
    """Refuse settings with which the SGD of a probe cannot converge."""
    require(0 <= momentum < 1, "momentum", momentum, "a number from 0 to below 1")
    valid = len(decays) > 0 and all(0 <= decay <= 1 for decay in decays)
    require(valid, "weight_decay", decays[0] if len(decays) == 1 else decays, "one or more numbers from 0 to 1")


class Head(nn.Module):
    """A linear classifier, after a BN without learned parameters over the batches of all ranks if that is asked for.

    Args:
        weight: [C, D], drawn.
        like: an input [n, D] or [n, K, h, w] with D = K h w, on the device.
        normalised: whether there is a BN, of K channels.
        bias: [C]; None: zeros.
    """

    def __init__(self, weight: Tensor, like: Tensor, normalised: bool = False, bias: Tensor | None = None) -> None:
        super().__init__()
        bias = torch.zeros(len(weight)) if bias is None else bias
        self.weight, self.bias = nn.Parameter(weight.detach().to(like)), nn.Parameter(bias.detach().to(like))
        channels = 1, like.shape[1], 1, 1
        self.normalised, self.mean, self.var = normalised, like.new_zeros(channels), like.new_ones(channels)

    def forward(self, x: Tensor, count: int | None = None) -> Tensor:
        """Logits [n, C] of this rank's inputs.

        Args:
            count: images of the training batch on all ranks; None: use the running statistics.
        """
        if self.normalised:
            mean, var = self.mean, self.var
            if count is not None:
                cells = count * x.shape[2] * x.shape[3]
                mean = all_sum(x.sum((0, 2, 3), keepdim=True)) / cells
                var = all_sum((x - mean).square().sum((0, 2, 3), keepdim=True)) / cells
                self.mean = self.mean.lerp(mean, 0.1)
                self.var = self.var.lerp(var * cells / max(1, cells - 1), 0.1)
            x = (x - mean) * torch.rsqrt(var + 1e-5)
        return F.linear(x.flatten(1), self.weight, self.bias)


@dataclass(eq=False, kw_only=True)
class Trained(Evaluator):
    """Test accuracy (top1, top5) of the classifier of the last epoch, never of the best one.

    Args:
        epochs, batch_size: of the training; ``batch_size`` counts the images of all ranks.
        optimizer: ``sgd`` or ``adam``.
        lr: rate, see ``lr_batch``.
        momentum, nesterov, weight_decay: of SGD; Adam has the decay only.
        schedule: of the rate. ``step`` multiplies it by ``gamma`` after each of the epochs ``milestones``; ``cosine``
            decreases it from step to step, on images to 0 after the last step and on features to the share ``final`` in
            the last step; ``cosine_epochs`` from epoch to epoch, to 0 after the last one; ``linear`` from step to step,
            to 0 after the last one; ``constant``.
        milestones, gamma, final: see ``schedule``.
        drop_last: leave out the last batch of an epoch if it is smaller than the others.
        init_std: standard deviation of the initial weights, with biases of 0; None: as torch.nn.Linear draws both.
        per_class: also yield the accuracy on the test images of each class (top1_class0 ...).

    Attributes:
        on: what a classifier sees: cached ``features``, of which every rank computes all, or new crops of the
            ``images``, which are divided over the ranks. Of raw pixels, which have no network to run on crops, nothing
            is yielded then.
        train: the ``classifier`` alone, or the ``network`` with it.
        lr_batch: images of a batch for which ``lr`` is the rate, which grows with the batch; None: it does not.
    """

    epochs: int = 100
    batch_size: int = 256
    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    schedule: Literal["step", "cosine", "cosine_epochs", "linear", "constant"] = "step"
    milestones: Sequence[int] = (60, 80)
    gamma: float = 0.1
    final: float = 0.0
    drop_last: bool = False
    init_std: float | None = None
    per_class: bool = False

    needs_labels = True
    takes_labels = True
    on: ClassVar[Literal["features", "images"]] = "images"
    train: ClassVar[Literal["classifier", "network"]] = "classifier"
    lr_batch: ClassVar[int | None] = 256

    def __post_init__(self) -> None:
        require(self.epochs >= 1, "epochs", self.epochs, "1 or more")
        least = 2 if self.train == "network" else 1  # for batch statistics
        require(self.batch_size >= least, "batch_size", self.batch_size, f"{least} or more")
        require(0 < self.lr < math.inf, "lr", self.lr, "a positive number")
        require(0 <= self.final < 1, "final", self.final, "a share from 0 to below 1")
        require((self.init_std or 0) >= 0, "init_std", self.init_std, "0 or more, or null")
        check_sgd(self.momentum, self.weight_decay)
        require(self.momentum > 0 or not self.nesterov, "nesterov", self.nesterov, "false: momentum is 0")
        self.rate = self.lr * self.batch_size / self.lr_batch if self.lr_batch else self.lr

    def check(self, target: Target) -> None:
        target.labels("train"), target.labels("test")

    def run(self, target: Target) -> Iterator[tuple[str, float]]:
        if self.on == "images" and target.network is None:
            return
        self.check(target)
        for prefix, logits in self.logits(target).items():
            finite = bool(logits.isfinite().all())
            require(finite, "lr", self.lr, "a lower one: the classifier's outputs are not finite")
            ranking = logits.topk(min(5, target.num_classes), dim=1).indices
            for metric, value in top_accuracies(ranking, target.labels("test"), target.num_classes, self.per_class):
                yield f"{prefix}{metric}", value

    @abstractmethod
    def logits(self, target: Target) -> dict[str, Tensor]:
        """Train; return the logits [N, C] of the test split by the prefix of their metrics."""

    def optimizer_of(self, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        options: dict[str, Any] = {"lr": self.rate, "weight_decay": self.weight_decay}
        if self.optimizer == "adam":
            return torch.optim.Adam(parameters, **options)
        return torch.optim.SGD(parameters, momentum=self.momentum, nesterov=self.nesterov, **options)

    def share_of_rate(self, epoch: int, step: int, steps: int) -> float:
        """The rate of a step of an epoch, both counted from 0, as a share of the first one."""
        if self.schedule == "step":
            return self.gamma ** sum(epoch >= milestone for milestone in self.milestones)
        if self.schedule == "cosine_epochs":
            return cosine(epoch, self.epochs)
        if self.schedule == "cosine":
            last = max(1, steps - 1) if self.on == "features" else steps
            return self.final + (1 - self.final) * cosine(step, last)
        return 1 - step / steps if self.schedule == "linear" else 1.0

    def fit(self, heads: Mapping[str, "Head"], target: Target, generator: torch.Generator) -> None:
        """Train classifiers on the same images; the generator draws these and the views."""
        labels, parameters = target.labels("train"), [p for head in heads.values() for p in head.parameters()]
        optimizer, step = self.optimizer_of(parameters), 0
        last = len(labels) % self.batch_size if self.drop_last and len(labels) > self.batch_size else 0
        steps = self.epochs * math.ceil((len(labels) - last) / self.batch_size)
        for epoch in range(self.epochs):
            batches = torch.randperm(len(labels), generator=generator)[: len(labels) - last].split(self.batch_size)
            for batch, features in zip(batches, self.inputs(target, batches, generator), strict=True):
                stop_if_asked()
                optimizer.param_groups[0]["lr"] = self.rate * self.share_of_rate(epoch, step, steps)
                local_labels = labels[batch.to(labels.device, non_blocking=True)[rank() :: world()]]
                loss = torch.zeros((), device=labels.device)
                for name, head in heads.items():
                    logits = head(features[name], len(batch))
                    loss = loss + F.cross_entropy(logits, local_labels, reduction="sum") / len(batch)
                optimizer.zero_grad(set_to_none=False)
                loss.backward()  # type: ignore[no-untyped-call]
                for parameter in parameters:
                    all_sum(parameter.grad)  # type: ignore[arg-type]
                optimizer.step()
                step += 1

    def inputs(
        self, target: Target, batches: Sequence[Tensor], generator: torch.Generator
    ) -> Iterator[dict[str, Tensor]]:
        """Yield this rank's share of the inputs of each classifier, by name, for each of the batches of an epoch."""
        features = target.features("train")["backbone"]
        return ({"": features[batch.to(features.device)[rank() :: world()]]} for batch in batches)


@dataclass(eq=False, kw_only=True)
class LinearSGD(Trained):
    """A linear classifier on cached features as other libraries train it, but without crops.

    Features are taken as they are, neither normalised nor standardised. Nothing is chosen. Every rank computes the same
    from the seed.

    Args:
        lr: rate for a batch of 256 images; the rate is lr * batch_size / 256.
    """

    lr: float = field(kw_only=False)
    on = "features"

    def logits(self, target: Target) -> dict[str, Tensor]:
        head = self.fitted(target, torch.Generator().manual_seed(stream("linear_sgd", target.seed)))
        with torch.no_grad():
            return {"": head(target.features("test")["backbone"])}

    def fitted(self, target: Target, generator: torch.Generator) -> Head:
        """Train the classifier; the CPU generator draws weights and batches."""
        features = target.features("train")["backbone"]
        layer, bound = nn.Linear(features.shape[1], target.num_classes), features.shape[1] ** -0.5
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.uniform_(-bound, bound, generator=generator)
            if self.init_std is not None:
                layer.weight.normal_(std=self.init_std, generator=generator)
                layer.bias.zero_()
        head = Head(layer.weight, features, bias=layer.bias)
        with alone():
            self.fit({"": head}, target, generator)
        return head
