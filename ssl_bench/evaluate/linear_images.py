"""Linear classification on augmented images: the frozen network runs again on new crops in every epoch.

This is the protocol of the published ImageNet tables (He et al., 2020, arXiv:1911.05722, section 4.1). It costs a
forward pass over the train split per epoch; `linear.py` is the one to use where augmentation does not matter.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssl_bench.data.pixels import sizes
from ssl_bench.data.views import Views
from ssl_bench.distributed import all_sum, rank, world
from ssl_bench.evaluate.linear import judged
from ssl_bench.evaluate.target import Target, parts, tapped


class LinearOnImages:
    """Test accuracy (top1, top5) of a linear classifier on the backbone, trained on random crops and flips.

    The last epoch's classifier is tested, never the best one. Each batch is divided over the ranks and the gradients
    are added up, so that any number of ranks trains the same classifier. Raw pixels have no network to run on crops:
    nothing is yielded for them.

    Args:
        size ... std, jitter_p: of the views, as in `ssl_bench.data.views.Views`.
        epochs, batch_size: of the training; the batch size is that of all ranks together.
        optimizer: ``sgd`` or ``adam``.
        lr, weight_decay: of the optimizer. The rate is not scaled by the batch size.
        momentum, nesterov: of SGD.
        schedule: ``step``: the rate times ``gamma`` after each of the epochs ``milestones``; ``cosine`` and ``linear``
            to 0 over the training, from step to step; ``constant``.
        init_std: of the initial weights; 0 starts from zero.
        layers: None: one classifier, on the backbone's features. Names of parts of the backbone (layer1 ... of a
            ResNet): one on each, trained side by side on the same views (OpenSelfSup's multi-head), on the part's map
            averaged to at most ``cells`` numbers and normalised by a BN without learned parameters; yields
            layer1_top1 ....
        per_class: also the accuracy on the test images of each class (top1_class0 ...).
    """

    def __init__(
        self,
        size: int,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        interpolation: str = "bilinear",
        flip: float = 0.5,
        jitter: Sequence[float] | None = None,
        jitter_p: float = 0.8,
        grayscale: float = 0.0,
        epochs: int = 100,
        batch_size: int = 256,
        optimizer: Literal["sgd", "adam"] = "sgd",
        lr: float = 30.0,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        schedule: Literal["step", "cosine", "linear", "constant"] = "step",
        milestones: Sequence[int] = (60, 80),
        gamma: float = 0.1,
        init_std: float = 0.01,
        layers: Sequence[str] | None = None,
        cells: int = 9216,
        per_class: bool = False,
    ) -> None:
        if epochs < 1 or batch_size < 1:
            raise ValueError(f"epochs and batch_size must be at least 1, not {epochs} and {batch_size}")
        if lr <= 0:
            raise ValueError(f"lr must be above 0, not {lr}")
        self.views = Views(
            size,
            scale=scale,
            ratio=ratio,
            interpolation=interpolation,
            flip=flip,
            jitter=jitter,
            jitter_p=jitter_p,
            grayscale=grayscale,
            mean=mean,
            std=std,
        )
        self.epochs, self.batch_size = epochs, batch_size
        self.lr, self.momentum, self.nesterov, self.weight_decay = lr, momentum, nesterov, weight_decay
        self.optimizer = optimizer
        self.schedule, self.milestones, self.gamma, self.init_std = schedule, list(milestones), gamma, init_std
        self.layers, self.cells, self.per_class = layers, cells, per_class

    def check(self, target: Target) -> None:
        target.labels("train"), target.labels("test")
        if self.layers is not None:
            parts(self._backbone(target), self.layers)

    def run(self, target: Target) -> Iterator[tuple[str, float]]:
        if target.network is None:
            return
        self.check(target)
        for name, (weight, bias, norm) in self._fit(target).items():
            logits = F.linear(norm(self._all(target, name)), weight, bias)
            prefix = "" if self.layers is None else f"{name}_"
            for key, value in judged(logits, target.labels("test"), target.num_classes, self.per_class):
                yield f"{prefix}{key}", value

    def _fit(self, target: Target) -> dict[str, tuple[Tensor, Tensor, "Standard"]]:
        """For each classifier by its layer ("": the only one) its weight [C, D], bias [C] and normalisation."""
        labels, device = target.labels("train"), target.device
        generator = torch.Generator().manual_seed(target.seed)
        first = self._first(target)
        heads = {}
        for name, x in first.items():
            weight = torch.empty(target.num_classes, x.shape[1]).normal_(std=self.init_std, generator=generator)
            bias = torch.zeros(target.num_classes, device=device, requires_grad=True)
            heads[name] = weight.to(device).requires_grad_(), bias, Standard(x, self.layers is not None)
        parameters = [p for weight, bias, _ in heads.values() for p in (weight, bias)]
        optimizer: torch.optim.Optimizer
        if self.optimizer == "adam":
            optimizer = torch.optim.Adam(parameters, self.lr, weight_decay=self.weight_decay)
        else:
            options = {"weight_decay": self.weight_decay, "nesterov": self.nesterov}
            optimizer = torch.optim.SGD(parameters, self.lr, self.momentum, **options)  # type: ignore[arg-type]
        steps, step = self.epochs * math.ceil(len(labels) / self.batch_size), 0
        for epoch in range(self.epochs):
            for batch in torch.randperm(len(labels), generator=generator).split(self.batch_size):
                optimizer.param_groups[0]["lr"] = self.lr * self._factor(epoch, step / steps)
                views = self._views(target, batch, generator)
                found = self._features(target, views) if len(views) else {n: x[:0] for n, x in first.items()}
                wanted = labels[batch.to(device, non_blocking=True)[rank() :: world()]]
                loss = torch.zeros((), device=device)
                for name, (weight, bias, norm) in heads.items():
                    x = norm(found[name], len(batch))
                    loss = loss + F.cross_entropy(F.linear(x, weight, bias), wanted, reduction="sum") / len(batch)
                optimizer.zero_grad(set_to_none=False)
                loss.backward()  # type: ignore[no-untyped-call]
                for parameter in parameters:
                    all_sum(parameter.grad)  # type: ignore[arg-type]
                optimizer.step()
                step += 1
        return {name: (weight.detach(), bias.detach(), norm) for name, (weight, bias, norm) in heads.items()}

    def _factor(self, epoch: int, progress: float) -> float:
        if self.schedule == "cosine":
            return (1 + math.cos(math.pi * progress)) / 2
        if self.schedule == "linear":
            return 1 - progress
        return self.gamma ** sum(epoch >= m for m in self.milestones) if self.schedule == "step" else 1.0

    def _views(self, target: Target, batch: Tensor, generator: torch.Generator) -> Tensor:
        """This rank's share of the views of a batch; their numbers are drawn for all of it."""
        uniform, mine = self.views.uniform(len(batch), generator), slice(rank(), None, world())
        if len(batch[mine]) == 0:  # the last batch can have fewer images than there are ranks
            return uniform[:0]
        images = target.load(target.train, batch[mine])
        uniform = uniform[mine].to(target.device, non_blocking=True)
        return self.views.apply(images, self.views.parameters(uniform, *sizes(images)))

    def _features(self, target: Target, views: Tensor) -> dict[str, Tensor]:
        """What each classifier sees of views [n, C, S, S]: [n, D] by the name of its layer."""
        if self.layers is None:
            return {"": target.embed(views)["backbone"]}
        with tapped(self._backbone(target), self.layers, self._averaged) as found:
            target.embed(views)
        return found

    def _averaged(self, output: Tensor) -> Tensor:
        side = max(1, math.isqrt(self.cells // output.shape[1]))
        return F.adaptive_avg_pool2d(output.float(), min(side, output.shape[-1])).flatten(1)

    @staticmethod
    def _backbone(target: Target) -> nn.Module:
        return getattr(target.network, "backbone", None) or target.network  # type: ignore[return-value]

    def _first(self, target: Target) -> dict[str, Tensor]:
        """What each classifier sees of one image, [1, D]."""
        if self.layers is None:
            return {"": target.features("test")["backbone"][:1]}
        return self._features(target, target.view(target.load(target.test, torch.zeros(1, dtype=torch.int64))))

    def _all(self, target: Target, name: str) -> Tensor:
        """Features [N, D] of the test split, from its test-time views."""
        if self.layers is None:
            return target.features("test")["backbone"]
        ids = torch.arange(len(target.test)).split(target.batch_size)
        return torch.cat([self._features(target, target.view(target.load(target.test, i)))[name] for i in ids])


class Standard:
    """A BN without learned parameters over the batches of all ranks; off, the identity."""

    def __init__(self, like: Tensor, on: bool) -> None:
        self.on, self.mean, self.var = on, torch.zeros_like(like[0]), torch.ones_like(like[0])

    def __call__(self, x: Tensor, count: int | None = None) -> Tensor:
        """[n, D], normalised by a batch of ``count`` images in training, by the running statistics without it."""
        if not self.on:
            return x
        mean, var = self.mean, self.var
        if count is not None:
            mean = all_sum(x.sum(0)) / count
            var = all_sum((x - mean).square().sum(0)) / count
            self.mean = self.mean.lerp(mean, 0.1)
            self.var = self.var.lerp(var * count / max(1, count - 1), 0.1)
        return (x - mean) * torch.rsqrt(var + 1e-5)
