"""Classifiers that are trained by a fixed recipe: on cached features, on new crops of the images, or with the network.

Shapes: N images, B of a step, n of this rank's share, D features, C classes, and of a layer's map K channels and h x w
cells.
"""

import inspect
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, fields
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor, nn

from ssl_bench.config.ranges import Count, NotNegative, Positive, Probability
from ssl_bench.data.batch import Reader
from ssl_bench.data.source import ImageBatch
from ssl_bench.data.views import Views
from ssl_bench.distributed import all_sum, alone, rank, world
from ssl_bench.errors import require
from ssl_bench.evaluate.accuracy import top_accuracies
from ssl_bench.evaluate.target import Evaluator, Target, captured_outputs, make_views, submodules
from ssl_bench.seeding import stream
from ssl_bench.signals import stop_if_asked

Momentum = Annotated[float, Meta(ge=0, lt=1)]


def cosine(done: float, of: float) -> float:
    """Half a period of a cosine, from 1 to 0."""
    return (1 + math.cos(math.pi * done / of)) / 2


class Head(nn.Module):
    """A linear classifier; if ``normalised``, a BN without learned parameters precedes it, over the batch of all ranks.

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


class Trained(Evaluator, kw_only=True):
    """Test accuracy (top1, top5) of the classifier of the last epoch, never of the best one.

    Args:
        epochs, batch_size: of the training; ``batch_size`` counts the images of all ranks.
        optimizer: ``sgd`` or ``adam``.
        lr: learning rate, see ``lr_batch``.
        momentum, nesterov, weight_decay: of SGD; Adam has the decay only.
        schedule: of the rate. ``step`` multiplies it by ``gamma`` after each of the epochs ``milestones``; ``cosine``
            decreases it from step to step, on images to 0 after the last step and on features to the share ``final`` in
            the last step; ``cosine_epochs`` from epoch to epoch, to 0 after the last one; ``linear`` from step to step,
            to 0 after the last one; ``constant``.
        milestones, gamma, final: see ``schedule``.
        drop_last: leave out the last batch of an epoch if it is smaller than the others.
        per_class: also yield the accuracy on the test images of each class (top1_class0 ...).

    Attributes:
        on: the input of a classifier: cached ``features``, all of which are on every rank, or new crops of the
            ``images``, which are divided over the ranks.
        lr_batch: the rate is lr * batch_size / lr_batch; None: it is ``lr``.
    """

    epochs: Count = 100
    batch_size: Count = 256
    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: Positive
    momentum: Momentum = 0.9
    nesterov: bool = False
    weight_decay: Probability = 0.0
    schedule: Literal["step", "cosine", "cosine_epochs", "linear", "constant"] = "step"
    milestones: Sequence[int] = (60, 80)
    gamma: float = 0.1
    final: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    drop_last: bool = False
    per_class: bool = False

    needs_labels = True
    takes_labels = True
    on: ClassVar[Literal["features", "images"]] = "features"
    lr_batch: ClassVar[int | None] = 256

    def __post_init__(self) -> None:
        require(self.momentum > 0 or not self.nesterov, "nesterov", self.nesterov, "false: momentum is 0")
        self.rate = self.lr * self.batch_size / self.lr_batch if self.lr_batch else self.lr

    def run(self, target: Target) -> Iterator[tuple[str, float]]:
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
        """Train several classifiers on the same batches; the generator draws the batches and the views."""
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


class OnImages(Trained, kw_only=True):
    """Base of classifiers that are trained on random crops and flips of the images. Raw pixels have no network for it.

    Args:
        size, mean, std, scale, ratio, interpolation, flip, grayscale: of the views, as in
            :class:`ssl_bench.data.views.Views`.
    """

    size: int = field(kw_only=False)
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3 / 4, 4 / 3)
    interpolation: str = "bilinear"
    flip: float = 0.5
    grayscale: float = 0.0
    on = "images"
    needs_network = True

    def __post_init__(self) -> None:
        super().__post_init__()
        names = {each.name for each in fields(self)} & inspect.signature(Views).parameters.keys()
        self.views = Views(**{name: getattr(self, name) for name in names})


class LinearSGD(Trained, kw_only=True):
    """A linear classifier on cached features as other libraries train it, but without crops.

    Features are neither normalised nor standardised. No setting is chosen by held-out images. Every rank computes the
    same classifier from the seed.

    Args:
        lr: rate for a batch of 256 images; the rate is lr * batch_size / 256.
        init_std: standard deviation of the initial weights, with biases of 0; None: as torch.nn.Linear draws both.
    """

    lr: Positive = field(kw_only=False)
    init_std: NotNegative | None = None

    def logits(self, target: Target) -> dict[str, Tensor]:
        head = self.fitted(target, torch.Generator().manual_seed(stream("linear_sgd", target.seed)))
        with torch.no_grad():
            return {"": head(target.features("test")["backbone"])}

    def fitted(self, target: Target, generator: torch.Generator) -> Head:
        """Train the classifier; the CPU generator draws weights and batches."""
        features = target.features("train")["backbone"]
        width = features.shape[1]
        weight, bias = torch.empty(target.num_classes, width), torch.empty(target.num_classes)
        for parameter in (weight, bias):
            parameter.uniform_(-(width**-0.5), width**-0.5, generator=generator)
        if self.init_std is not None:
            weight.normal_(std=self.init_std, generator=generator), bias.zero_()
        head = Head(weight, features, bias=bias)
        with alone():
            self.fit({"": head}, target, generator)
        return head


# Principal components of the colours of ImageNet's pixels in [0, 1] (Krizhevsky et al., 2012, section 4.1), one in each
# column of the matrix; the numbers are those of facebookarchive/fb.resnet.torch, which OpenSelfSup has too.
COMPONENTS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))
EIGENVALUES = (0.2175, 0.0188, 0.0045)


class LinearOnImages(OnImages, kw_only=True):
    """A linear classifier on the backbone, trained on random crops and flips.

    This is the protocol of the published ImageNet tables (He et al., 2020, arXiv:1911.05722, section 4.1). It costs a
    forward pass over the train split per epoch: use ``linear`` if augmentation does not matter.

    Each batch is divided over the ranks and the gradients are summed, so that any number of ranks trains the same
    classifier.

    Args:
        jitter, jitter_p: of the views, as in :class:`ssl_bench.data.views.Views`.
        lighting: standard deviation of the factors of the colours' principal components that are added to each view
            before its normalisation (Krizhevsky et al., 2012: 0.1). Gray images stay as they are.
        lr: rate, which is not scaled by the batch size.
        init_std: standard deviation of the initial weights; 0 starts from zero.
        layers: None: one classifier, on the backbone's features. Names of modules of the backbone (layer1 ... of a
            ResNet): one classifier on each, all trained on the same views (OpenSelfSup's multi-head). The module's map
            is average-pooled, then normalised per channel by a BN without learned parameters. The metrics are
            layer1_top1 and so on.
        windows: of the pooling, [size, stride] in cells of the map for each of ``layers``, without padding
            (OpenSelfSup's ``specified`` pooling). A window that is larger than the map is the whole map. None: adaptive
            pooling to the largest square of at most ``cells`` numbers (OpenSelfSup's ``adaptive``).
        cells: most numbers in a pooled map if ``windows`` is None.
    """

    jitter: Sequence[float] | None = None
    jitter_p: float = 0.8
    lighting: NotNegative = 0.0
    lr: Positive = 30.0
    init_std: NotNegative = 0.01
    layers: Sequence[str] | None = None
    windows: Sequence[tuple[Count, Count]] | None = None
    cells: int = 9216
    lr_batch = None

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.windows is None or len(self.windows) == len(self.layers or ())
        require(fits, "windows", self.windows, "null, or [size,stride] for each of layers")

    def check(self, target: Target) -> None:
        super().check(target)
        submodules(self._backbone(target), self.layers or ())

    def logits(self, target: Target) -> dict[str, Tensor]:
        heads = self.fitted(target).items()
        with torch.no_grad():
            return {name and f"{name}_": head(self._test_features(target, name)) for name, head in heads}

    def fitted(self, target: Target) -> dict[str, Head]:
        """Train the classifiers, by layer ("" if there is only one)."""
        generator, heads = torch.Generator().manual_seed(target.seed), {}
        for name, x in self._one_image(target).items():
            weight = torch.empty(target.num_classes, x[0].numel()).normal_(std=self.init_std, generator=generator)
            heads[name] = Head(weight, x, self.layers is not None)
        self.fit(heads, target, generator)
        return heads

    def inputs(
        self, target: Target, batches: Sequence[Tensor], generator: torch.Generator
    ) -> Iterator[dict[str, Tensor]]:
        shares, one_image = [batch[rank() :: world()] for batch in batches], self._one_image(target)
        read = Reader(target.train, target.device).batches(share for share in shares if len(share))  # in advance
        for batch in batches:  # the last one can have fewer images than there are ranks
            images = next(read).images if len(batch) > rank() else None
            views = self._views(images, len(batch), generator)
            yield self._features(target, views) if len(views) else {name: x[:0] for name, x in one_image.items()}

    def _views(self, images: ImageBatch | None, count: int, generator: torch.Generator) -> Tensor:
        """Make this rank's share of the views of ``count`` images; random numbers are drawn for all of them."""
        uniform, local_rows = self.views.uniform(count, generator), slice(rank(), None, world())
        colours = self._colours(count, generator)[local_rows] if self.lighting else None
        if images is None:
            return uniform[:0]
        views = make_views(self.views, uniform[local_rows], images)
        if colours is not None and images[0].dtype == torch.uint8 and self.views.normalize.split(images)[0] == 3:
            colours = colours / torch.tensor(self.std or (1.0, 1.0, 1.0))
            views[:, :3] += colours.to(views, non_blocking=True)[:, :, None, None]
        return views

    def _colours(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw the lighting noise of ``count`` views in [0, 1], [count, 3]."""
        factors = self.lighting * torch.randn(count, 3, generator=generator)
        return factors * torch.tensor(EIGENVALUES) @ torch.tensor(COMPONENTS).T

    def _features(self, target: Target, views: Tensor) -> dict[str, Tensor]:
        """Each classifier's input before its normalisation for some views, [n, D] or the pooled map [n, K, h, w]."""
        if self.layers is None:
            return {"": target.embed(views)["backbone"]}
        # Inside the pass every layer is pooled: the maps are larger.
        with captured_outputs(self._backbone(target), self.layers, self._pooled) as outputs:
            target.embed(views)
        return {layer: outputs[layer] for layer in self.layers}

    def _pooled(self, layer: str, output: Tensor) -> Tensor:
        height, width = output.shape[2:]
        if self.windows is None:
            side = max(1, math.isqrt(self.cells // output.shape[1]))
            return F.adaptive_avg_pool2d(output.float(), (min(side, height), min(side, width)))
        size, stride = self.windows[list(self.layers or ()).index(layer)]
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
