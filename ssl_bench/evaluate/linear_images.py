"""Linear classification on augmented images: the frozen network runs again on new crops in every epoch.

This is the protocol of the published ImageNet tables (He et al., 2020, arXiv:1911.05722, section 4.1). It costs a
forward pass over the train split per epoch; use `linear.py` if augmentation does not matter.

Shapes: N images, n images of this rank's share of a batch, D features, C classes, and of a layer's map K channels and
h x w cells.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssl_bench.data.pixels import sizes
from ssl_bench.data.reader import Reader
from ssl_bench.data.source import ImageBatch
from ssl_bench.data.views import Views
from ssl_bench.distributed import rank, world
from ssl_bench.errors import require
from ssl_bench.evaluate.target import Target, captured_outputs, submodules
from ssl_bench.evaluate.trained import Head, Trained

# Principal components of the colours of ImageNet's pixels in [0, 1] (Krizhevsky et al., 2012, section 4.1), one in each
# column of the matrix; the numbers are those of facebookarchive/fb.resnet.torch, which OpenSelfSup has too.
COMPONENTS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))
EIGENVALUES = (0.2175, 0.0188, 0.0045)


@dataclass(eq=False, kw_only=True)
class LinearOnImages(Trained):
    """A linear classifier on the backbone, trained on random crops and flips.

    Each batch is divided over the ranks and the gradients are summed, so that any number of ranks trains the same
    classifier.

    Args:
        size, mean, std, scale, ratio, interpolation, flip, jitter, jitter_p, grayscale: of the views, as in
            :class:`ssl_bench.data.views.Views`.
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
        cells: see ``windows``.
    """

    size: int = field(kw_only=False)
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3 / 4, 4 / 3)
    interpolation: str = "bilinear"
    flip: float = 0.5
    jitter: Sequence[float] | None = None
    jitter_p: float = 0.8
    grayscale: float = 0.0
    lighting: float = 0.0
    lr: float = 30.0
    init_std: float = 0.01
    layers: Sequence[str] | None = None
    windows: Sequence[Sequence[int]] | None = None
    cells: int = 9216
    lr_batch = None

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = all(len(window) == 2 and min(window) >= 1 for window in self.windows or ())
        fits = self.windows is None or (whole and len(self.windows) == len(self.layers or ()))
        require(fits, "windows", self.windows, "null, or [size,stride] for each of layers")
        require(self.lighting >= 0, "lighting", self.lighting, "0 or more")
        of_views = ("scale", "ratio", "interpolation", "flip", "jitter", "jitter_p", "grayscale", "mean", "std")
        self.views = Views(self.size, **{name: getattr(self, name) for name in of_views})

    def check(self, target: Target) -> None:
        super().check(target)
        if self.layers is not None:
            submodules(self._backbone(target), self.layers)

    def logits(self, target: Target) -> dict[str, Tensor]:
        logits = {}
        for name, head in self.fitted(target).items():
            with torch.no_grad():
                logits["" if self.layers is None else f"{name}_"] = head(self._test_features(target, name))
        return logits

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
            views = self._views(images, len(batch), generator, target.device)
            yield self._features(target, views) if len(views) else {name: x[:0] for name, x in one_image.items()}

    def _views(self, images: ImageBatch | None, count: int, generator: torch.Generator, device: torch.device) -> Tensor:
        """Make this rank's share of the views of ``count`` images; random numbers are drawn for all of them."""
        uniform, local_rows = self.views.uniform(count, generator), slice(rank(), None, world())
        colours = self._colours(count, generator) if self.lighting else None
        if images is None:
            return uniform[:0]
        uniform = uniform[local_rows].to(device, non_blocking=True)
        views = self.views.apply(images, self.views.parameters(uniform, *sizes(images)))
        if colours is not None and images[0].dtype == torch.uint8 and self.views.normalize.split(images)[0] == 3:
            colours = (colours / torch.tensor(self.std or (1.0, 1.0, 1.0)))[local_rows]
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
