"""Linear classification on augmented images: the frozen network runs again on new crops in every epoch.

This is the protocol of the published ImageNet tables (He et al., 2020, arXiv:1911.05722, section 4.1). It costs a
forward pass over the train split per epoch; use `linear.py` if augmentation does not matter.

Shapes: N images, n images of this rank's share of a batch, D features, C classes, and of a layer's map K channels and
h x w cells.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssl_bench.data.pixels import sizes
from ssl_bench.data.reader import Reader
from ssl_bench.data.source import ImageBatch
from ssl_bench.data.views import Views
from ssl_bench.distributed import all_sum, rank, world
from ssl_bench.errors import require
from ssl_bench.evaluate.accuracy import top_accuracies
from ssl_bench.evaluate.linear import check_sgd
from ssl_bench.evaluate.target import Evaluator, Target, captured_outputs, submodules
from ssl_bench.signals import stop_if_asked

# Principal components of the colours of ImageNet's pixels in [0, 1] (Krizhevsky et al., 2012, section 4.1), one in each
# column of the matrix; the numbers are those of facebookarchive/fb.resnet.torch, which OpenSelfSup has too.
COMPONENTS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))
EIGENVALUES = (0.2175, 0.0188, 0.0045)


class LinearOnImages(Evaluator):
    """Test accuracy (top1, top5) of a linear classifier on the backbone, trained on random crops and flips.

    The classifier of the last epoch is tested, never the best one. Each batch is divided over the ranks and the
    gradients are summed, so that any number of ranks trains the same classifier. Yields nothing for raw pixels, which
    have no network to run on crops.

    Args:
        size, mean, std, scale, ratio, interpolation, flip, jitter, jitter_p, grayscale: of the views, as in
            :class:`ssl_bench.data.views.Views`.
        lighting: standard deviation of the factors of the colours' principal components that are added to each view
            before its normalisation (Krizhevsky et al., 2012: 0.1). Gray images stay as they are.
        epochs, batch_size: of the training; ``batch_size`` counts the images of all ranks.
        optimizer: ``sgd`` or ``adam``.
        lr, weight_decay: of the optimizer; ``lr`` is not scaled by the batch size.
        momentum, nesterov: of SGD.
        schedule: ``step`` multiplies the learning rate by ``gamma`` after each of the epochs ``milestones``; ``cosine``
            and ``linear`` decrease it to 0 from step to step; ``constant``.
        milestones, gamma: see ``schedule``.
        init_std: standard deviation of the initial weights; 0 starts from zero.
        layers: None: one classifier, on the backbone's features. Names of modules of the backbone (layer1 ... of a
            ResNet): one classifier on each, all trained on the same views (OpenSelfSup's multi-head). The module's map
            is average-pooled, then normalised per channel by a BN without learned parameters. The metrics are
            layer1_top1 and so on.
        windows: of the pooling, [size, stride] in cells of the map for each of ``layers``, without padding
            (OpenSelfSup's ``specified`` pooling). A window that is larger than the map is the whole map. None: adaptive
            pooling to the largest square of at most ``cells`` numbers (OpenSelfSup's ``adaptive``).
        cells: see ``windows``.
        per_class: also yield the accuracy on the test images of each class (top1_class0 ...).
    """

    needs_labels = True
    takes_labels = True

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
        lighting: float = 0.0,
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
        windows: Sequence[Sequence[int]] | None = None,
        cells: int = 9216,
        per_class: bool = False,
    ) -> None:
        require(epochs >= 1, "epochs", epochs, "1 or more")
        require(batch_size >= 1, "batch_size", batch_size, "1 or more")
        require(lr > 0, "lr", lr, "a positive number")
        check_sgd(momentum, weight_decay)
        require(momentum > 0 or not nesterov, "nesterov", nesterov, "false: momentum is 0")
        whole = all(len(window) == 2 and min(window) >= 1 for window in windows or ())
        fits = windows is None or (whole and len(windows) == len(layers or ()))
        require(fits, "windows", windows, "null, or [size,stride] for each of layers")
        require(lighting >= 0, "lighting", lighting, "0 or more")
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
        self.layers, self.cells, self.windows, self.per_class = layers, cells, windows, per_class
        self.lighting, self.std = lighting, torch.tensor(std or (1.0, 1.0, 1.0))

    def check(self, target: Target) -> None:
        target.labels("train"), target.labels("test")
        if self.layers is not None:
            submodules(self._backbone(target), self.layers)

    def run(self, target: Target) -> Iterator[tuple[str, float]]:
        if target.network is None:
            return
        self.check(target)
        for name, (weight, bias, norm) in self._fit(target).items():
            logits = F.linear(norm(self._test_features(target, name)), weight, bias)
            finite = bool(logits.isfinite().all())
            require(finite, "lr", self.lr, "a lower one: the classifier's outputs are not finite")
            prefix = "" if self.layers is None else f"{name}_"
            ranking = logits.topk(min(5, target.num_classes), dim=1).indices
            for metric, value in top_accuracies(ranking, target.labels("test"), target.num_classes, self.per_class):
                yield f"{prefix}{metric}", value

    def _fit(self, target: Target) -> dict[str, tuple[Tensor, Tensor, "FeatureNorm"]]:
        """Train the classifiers: weight [C, D], bias [C] and normalisation by layer ("" if there is only one)."""
        labels, device = target.labels("train"), target.device
        generator = torch.Generator().manual_seed(target.seed)
        one_image = self._one_image(target)
        heads = {}
        for name, x in one_image.items():
            weight = torch.empty(target.num_classes, x[0].numel()).normal_(std=self.init_std, generator=generator)
            bias = torch.zeros(target.num_classes, device=device, requires_grad=True)
            heads[name] = weight.to(device).requires_grad_(), bias, FeatureNorm(x, self.layers is not None)
        parameters = [p for weight, bias, _ in heads.values() for p in (weight, bias)]
        optimizer: torch.optim.Optimizer
        if self.optimizer == "adam":
            optimizer = torch.optim.Adam(parameters, self.lr, weight_decay=self.weight_decay)
        else:
            options = {"weight_decay": self.weight_decay, "nesterov": self.nesterov}
            optimizer = torch.optim.SGD(parameters, self.lr, self.momentum, **options)  # type: ignore[arg-type]
        steps, step = self.epochs * math.ceil(len(labels) / self.batch_size), 0
        for epoch in range(self.epochs):
            batches = torch.randperm(len(labels), generator=generator).split(self.batch_size)
            shares = [batch[rank() :: world()] for batch in batches]
            read = Reader(target.train, device).batches(share for share in shares if len(share))  # in advance
            for batch in batches:
                stop_if_asked()
                optimizer.param_groups[0]["lr"] = self.lr * self._lr_factor(epoch, step / steps)
                # The last batch can have fewer images than there are ranks.
                images = next(read).images if len(batch) > rank() else None
                views = self._views(images, len(batch), generator, device)
                features = self._features(target, views) if len(views) else {n: x[:0] for n, x in one_image.items()}
                local_labels = labels[batch.to(device, non_blocking=True)[rank() :: world()]]
                loss = torch.zeros((), device=device)
                for name, (weight, bias, norm) in heads.items():
                    logits = F.linear(norm(features[name], len(batch)), weight, bias)
                    loss = loss + F.cross_entropy(logits, local_labels, reduction="sum") / len(batch)
                optimizer.zero_grad(set_to_none=False)
                loss.backward()  # type: ignore[no-untyped-call]
                for parameter in parameters:
                    all_sum(parameter.grad)  # type: ignore[arg-type]
                optimizer.step()
                step += 1
        return {name: (weight.detach(), bias.detach(), norm) for name, (weight, bias, norm) in heads.items()}

    def _lr_factor(self, epoch: int, progress: float) -> float:
        if self.schedule == "cosine":
            return (1 + math.cos(math.pi * progress)) / 2
        if self.schedule == "linear":
            return 1 - progress
        return self.gamma ** sum(epoch >= m for m in self.milestones) if self.schedule == "step" else 1.0

    def _views(self, images: ImageBatch | None, count: int, generator: torch.Generator, device: torch.device) -> Tensor:
        """Make this rank's share of the views of ``count`` images; random numbers are drawn for all of them."""
        uniform, local_rows = self.views.uniform(count, generator), slice(rank(), None, world())
        colours = self._colours(count, generator) if self.lighting else None
        if images is None:
            return uniform[:0]
        uniform = uniform[local_rows].to(device, non_blocking=True)
        views = self.views.apply(images, self.views.parameters(uniform, *sizes(images)))
        if colours is not None and images[0].dtype == torch.uint8 and self.views.normalize.split(images)[0] == 3:
            views[:, :3] += (colours / self.std)[local_rows].to(views, non_blocking=True)[:, :, None, None]
        return views

    def _colours(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw the lighting noise of ``count`` views in [0, 1], [count, 3]."""
        factors = self.lighting * torch.randn(count, 3, generator=generator)
        return factors * torch.tensor(EIGENVALUES) @ torch.tensor(COMPONENTS).T

    def _features(self, target: Target, views: Tensor) -> dict[str, Tensor]:
        """Each classifier's input before its normalisation for some views, [n, D] or the pooled map [n, K, h, w]."""
        if self.layers is None:
            return {"": target.embed(views)["backbone"]}
        windows: Sequence[Sequence[int] | None] = self.windows or [None] * len(self.layers)
        with ExitStack() as stack:  # every layer has its own pooling, inside the pass: the maps are larger
            captured = [
                stack.enter_context(captured_outputs(self._backbone(target), [layer], partial(self._pooled, window)))
                for layer, window in zip(self.layers, windows, strict=True)
            ]
            target.embed(views)
        return {layer: outputs[layer] for layer, outputs in zip(self.layers, captured, strict=True)}

    def _pooled(self, window: Sequence[int] | None, output: Tensor) -> Tensor:
        height, width = output.shape[2:]
        if window is None:
            side = max(1, math.isqrt(self.cells // output.shape[1]))
            return F.adaptive_avg_pool2d(output.float(), (min(side, height), min(side, width)))
        size, stride = window
        return F.avg_pool2d(output.float(), (min(size, height), min(size, width)), stride)

    @staticmethod
    def _backbone(target: Target) -> nn.Module:
        return getattr(target.network, "backbone", None) or target.network  # type: ignore[return-value]

    def _one_image(self, target: Target) -> dict[str, Tensor]:
        """Each classifier's input before its normalisation for the first test image."""
        if self.layers is None:
            return {"": target.features("test")["backbone"][:1]}
        return self._features(target, target.view(target.load(target.test, torch.zeros(1, dtype=torch.int64))))

    def _test_features(self, target: Target, name: str) -> Tensor:
        """A classifier's input before its normalisation for the test split, from test-time views."""
        if self.layers is None:
            return target.features("test")["backbone"]
        ids = torch.arange(len(target.test)).split(target.batch_size)
        return torch.cat([self._features(target, target.view(target.load(target.test, i)))[name] for i in ids])


class FeatureNorm:
    """A BN without learned parameters over the batches of all ranks; it flattens, and only that if not ``enabled``."""

    def __init__(self, like: Tensor, enabled: bool) -> None:
        channels = 1, like.shape[1], 1, 1
        self.enabled, self.mean, self.var = enabled, like.new_zeros(channels), like.new_ones(channels)

    def __call__(self, x: Tensor, count: int | None = None) -> Tensor:
        """Normalise the channels of x [n, K, h, w]: [n, K h w].

        Args:
            x: of this rank.
            count: images of the training batch on all ranks; None: use the running statistics.
        """
        if not self.enabled:
            return x.flatten(1)
        mean, var = self.mean, self.var
        if count is not None:
            cells = count * x.shape[2] * x.shape[3]
            mean = all_sum(x.sum((0, 2, 3), keepdim=True)) / cells
            var = all_sum((x - mean).square().sum((0, 2, 3), keepdim=True)) / cells
            self.mean = self.mean.lerp(mean, 0.1)
            self.var = self.var.lerp(var * cells / max(1, cells - 1), 0.1)
        return ((x - mean) * torch.rsqrt(var + 1e-5)).flatten(1)
