"""Data sets that papers construct to ask one question: bits that all views share, digits on canvases and on photos, and
pairs of Gaussian vectors.

The first three are from Chen, Luo and Li, Intriguing Properties of Contrastive Losses (arXiv 2011.02803), the last one
from Zhu et al., EqCo (arXiv 2010.01929).

N images of a split  n images of a batch  C channels of the picture  K digits on a canvas  M digits to choose from
S side of the canvas  s side of a digit
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from msgspec import Meta
from torch import Tensor
from torch.nn.functional import interpolate, one_hot

from ssl_bench.config.ranges import Count, Positive, TwoOrMore
from ssl_bench.data.arrays import ArrayDataset
from ssl_bench.data.dataset import Dataset, Probe
from ssl_bench.data.folder import FolderDataset
from ssl_bench.data.photos import Photos
from ssl_bench.data.source import ImageBatch, Images, Source
from ssl_bench.errors import ConfigError, require
from ssl_bench.seeding import stream

Bits = Annotated[int, Meta(ge=0, le=60)]  # they fit into an int64, and no network uses nearly as many
DIGIT = 28  # side of MNIST's images
MOST_DIGITS = 16  # on a canvas
CORNERS = (0.15, 0.45, 0.75)  # upper left corner of a digit on a photo, as a share of the side
PAIRS = 1024  # of a split, which has no end: a run asks for a number, of which each rank has a share


# ---- Bits


@dataclass(frozen=True, eq=False)
class WithBits(Source):
    """The images of another source, with the bits of ``values`` [N] as ``bits`` extra channels of 0 or 255."""

    images: Source
    bits: int
    values: Tensor

    @classmethod
    def drawn(cls, images: Source, bits: int, *key: int | str) -> "WithBits":
        """Add values that are uniform in [0, 2^bits), drawn from a generator that ``key`` seeds."""
        generator = torch.Generator().manual_seed(stream("bits", *key))
        return cls(images, bits, torch.randint(2**bits, (len(images),), generator=generator))

    @property
    def labels(self) -> Tensor:  # type: ignore[override]
        return self.images.labels

    def take(self, ids: Tensor) -> ImageBatch:
        """Read the images ``ids`` [n]: uint8 [n, C + bits, H, W], or n times [C + bits, h, w]."""
        pictures = self.images.take(ids)
        channels = binary(self.values[ids], self.bits)[..., None, None] * 255  # [n, bits, 1, 1]
        if isinstance(pictures, Tensor):
            return torch.cat([pictures, channels.expand(-1, -1, *pictures.shape[2:])], 1)
        pairs = zip(pictures, channels, strict=True)
        return [torch.cat([image, constant.expand(-1, *image.shape[1:])]) for image, constant in pairs]


def binary(values: Tensor, bits: int) -> Tensor:
    """int64 [n] -> uint8 [n, bits] of 0 and 1, the lowest bit first."""
    return (values[:, None] >> torch.arange(bits, device=values.device) & 1).to(torch.uint8)


class RandBits(Dataset):
    """RandBit, a mixin: k bits that all views of an image share, as k extra channels (4.1, 4.4, appendix B).

    Each image has one fixed random integer u in [0, 2^k); channel j is bit j of u, 0 or 1 over all pixels. Augmentation
    does not change these channels, so views share at least k bits (less what images with equal integers lose). The
    images of the evaluation have them too.

    Args:
        bits: number k of bits, from 0 to 60.
        seed: of the bits.
        channels: channels of the picture plus ``bits``.
        mean: of the picture's channels only.

    Raises:
        InvalidValue: ``bits`` is outside its range, or ``channels`` is not that sum.
    """

    def __init__(self, bits: Bits, seed: int, channels: int, mean: Sequence[float], **common: Any) -> None:
        remedy = f"{len(mean) + bits}, one per number in mean ({len(mean)}) and per bit ({bits})"
        require(channels == len(mean) + bits, "channels", channels, remedy)
        super().__init__(channels=channels - bits, mean=mean, **common)
        self.bits, self.seed = bits, seed

    def pretrain(self) -> WithBits:
        return self._with_bits(super().pretrain(), "train")

    def split(self, name: str) -> WithBits:
        return self._with_bits(super().split(name), name)

    def _with_bits(self, images: Source, split: str) -> WithBits:
        # pretrain() of the other base class may call split(), which has added the bits already
        return images if isinstance(images, WithBits) else WithBits.drawn(images, self.bits, self.seed, split)


class RandBitArrays(RandBits, ArrayDataset):  # type: ignore[misc]
    """Prepared arrays (MNIST, CIFAR-10) with random bits."""


class RandBitFolder(RandBits, FolderDataset):  # type: ignore[misc]
    """Photos in a folder per class (ImageNet) with random bits."""


@dataclass(kw_only=True, eq=False)
class BitImages(Dataset):
    """Images that are k constant channels of 0 or 1 and have no classes: at most k bits distinguish them.

    They measure how many bits the distribution term of a loss can encode.

    Args:
        bits: number k of bits, from 1 to 60.
        images: number of images, 2 or more.
        seed: of the bits.
    """

    bits: Bits
    images: TwoOrMore
    seed: int

    def check(self) -> int:
        return self.images

    def split(self, name: str) -> WithBits:
        """Make a split without labels; evaluators that need labels refuse it."""
        pictures = torch.empty(self.images, 0, self.size, self.size, dtype=torch.uint8)
        unlabelled = Images([pictures], torch.full((self.images,), -1))
        return WithBits.drawn(unlabelled, self.bits, self.seed, name)


# ---- Digits


@dataclass(frozen=True, eq=False)
class Canvases(Source):
    """Black canvases with the digits ``which`` [N, K], whose upper left corners are at ``top``, ``left`` [N, K].

    A canvas is stored as a row of a small table and painted when it is read. Where digits overlap, the brighter pixel
    counts; the paper leaves this open.

    Attributes:
        digits: uint8 [M, 28, 28], possibly memory-mapped.
        which: [N, K] index of each digit.
        top: [N, K] first row, in pixels.
        left: [N, K] first column, in pixels.
        labels: [N] or [N, num_classes] counts.
        sizes: K sides of the digits, in pixels.
        size: side S of a canvas, in pixels.
    """

    digits: Tensor
    which: Tensor
    top: Tensor
    left: Tensor
    labels: Tensor
    sizes: tuple[int, ...]
    size: int

    def take(self, ids: Tensor) -> Tensor:
        """Paint the canvases ``ids`` [n] as uint8 [n, 1, S, S]."""
        canvas = torch.zeros(len(ids), self.size, self.size, dtype=torch.uint8, device=ids.device)
        which, top, left = self.which[ids], self.top[ids], self.left[ids]  # [n, K] each
        for i, size in enumerate(self.sizes):
            paste(canvas, scaled(self.digits[which[:, i]], size), top[:, i], left[:, i])
        return canvas[:, None]


def paste(canvas: Tensor, patch: Tensor, top: Tensor, left: Tensor) -> None:
    """Paint patch i of [n, s, s] on canvas i of [n, S, S] at (top, left) [n]; the brighter pixel counts; in place."""
    side, rows = patch.shape[-1], torch.arange(len(canvas), device=canvas.device)
    windows = canvas.unfold(1, side, 1).unfold(2, side, 1)  # [n, S-s+1, S-s+1, s, s], a view: the window at each corner
    windows[rows, top, left] = torch.maximum(windows[rows, top, left], patch)


def scaled(images: Tensor, size: int) -> Tensor:
    """Resize to squares, bilinear with antialiasing: uint8 [n, h, w] -> uint8 [n, size, size]."""
    if images.shape[1:] == (size, size):
        return images
    resized = interpolate(images[None].float(), (size, size), mode="bilinear", antialias=True)
    return resized[0].round_().to(torch.uint8)


def mnist(root: Path) -> ArrayDataset:
    """The prepared MNIST, which the digits come from."""
    common: dict[str, Any] = {"size": DIGIT, "channels": 1, "num_classes": 10, "mean": [0.0], "std": [1.0]}
    return ArrayDataset("mnist", "MNIST", ["train"], root=root, **common)


@dataclass(kw_only=True, eq=False)
class MultiDigits(Dataset):
    """Canvases of MNIST digits, as many as MNIST has images. Their digits are drawn once, independently of each other.

    A network may learn all digits or suppress some (sections 3.1 and 4.3: 112 x 112 pixels, 1 to 16 digits of 28 x 28,
    each in a separate cell or anywhere; or two digits of different sizes).

    The label for pre-training is the digit's class, or for several digits the count of each class, [N, 10]. Evaluation
    uses one digit of 28 pixels anywhere on the canvas, each of MNIST's digits once. With ``sizes`` there is one such
    evaluation per size, with its name in the metrics (``linear/digit20/top1``).

    Args:
        digits: number of digits on a canvas, 1 to 16.
        placement: ``grid``: in cells of 28 x 28, at most one per cell; ``random``: anywhere inside the canvas.
        sizes: sides of the digits in pixels, one per digit; None: 28.
        seed: of the digits and their positions.

    Raises:
        InvalidValue: the digits do not fit on the canvas.
    """

    digits: Annotated[int, Meta(ge=1, le=MOST_DIGITS)]
    placement: Literal["random", "grid"]
    sizes: tuple[Count, ...] | None
    seed: int

    def __post_init__(self) -> None:
        super().__post_init__()
        digits, grid = self.digits, self.placement == "grid"
        self.sized, self.one_label = self.sizes is not None, digits == 1
        require(self.channels == 1, "channels", self.channels, "1")
        remedy = f"null, or with dataset.placement=random to {digits} positive numbers, one per digit (dataset.digits)"
        one_each = self.sizes is None or (not grid and len(self.sizes) == digits)
        require(one_each, "sizes", self.sizes, f"{remedy}: a cell of the grid has {DIGIT} x {DIGIT} pixels")
        self.sides: tuple[int, ...] = self.sizes or (DIGIT,) * digits
        largest = max(DIGIT, *self.sides)  # evaluation uses digits of 28 pixels too
        require(self.size >= largest, "size", self.size, f"{largest} or more, the side of the largest digit")
        cells = self.size % DIGIT == 0 and digits <= (self.size // DIGIT) ** 2
        require(not grid or cells, "size", self.size, f"112 for {digits} cells of {DIGIT} pixels")
        self.mnist = mnist(self.root)

    def files(self) -> list[Path]:
        return self.mnist.files()

    def check(self) -> int:
        self.check_content()
        return self.mnist.check()

    def pretrain(self) -> Canvases:
        self.check_content()
        images, classes = self.mnist.arrays("train")
        generator = torch.Generator().manual_seed(stream("multi_digits", self.seed, "pretrain"))
        which = torch.randint(len(images), (len(images), self.digits), generator=generator)  # [N, K]
        top, left = self._corners(len(images), self.sides, self.placement == "grid", generator)
        drawn = classes[which]  # [N, K]
        labels = drawn[:, 0] if self.digits == 1 else one_hot(drawn, self.num_classes).sum(1)  # [N] or [N, 10]
        return Canvases(images[:, 0], which, top, left, labels, self.sides, self.size)

    def split(self, name: str) -> Canvases:
        return self._single(name, DIGIT)

    def probes(self) -> dict[str, Probe]:
        if not self.sized:
            return super().probes()
        splits = {size: (self._single("train", size), self._single("test", size)) for size in dict.fromkeys(self.sides)}
        return {f"digit{size}": Probe(*pair, self.num_classes) for size, pair in splits.items()}

    def _single(self, name: str, size: int) -> Canvases:
        """Put every digit of MNIST's ``train`` or ``test`` split on its own canvas at a random position."""
        self.check_content()
        images, classes = self.mnist.arrays(name)
        generator = torch.Generator().manual_seed(stream("multi_digits", self.seed, name, size))
        top, left = self._corners(len(images), (size,), False, generator)
        return Canvases(images[:, 0], torch.arange(len(images))[:, None], top, left, classes, (size,), self.size)

    def _corners(self, n: int, sizes: tuple[int, ...], grid: bool, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw the upper left corners, two tensors [n, K], of digits inside the canvas."""
        if grid:
            side = self.size // DIGIT
            # The first K cells of a random order: they are distinct, and every choice is equally likely.
            cells = torch.rand(n, side * side, generator=generator, dtype=torch.float64).argsort(1)[:, : len(sizes)]
            return cells // side * DIGIT, cells % side * DIGIT
        corners = [torch.randint(self.size - size + 1, (n, 2), generator=generator) for size in sizes]
        top, left = torch.stack(corners, dim=1).unbind(2)
        return top, left


@dataclass(frozen=True, eq=False)
class Marked(Source):
    """Photos resized to squares, each with its digit ``which`` [N] painted in nine places.

    Attributes:
        photos: the N photos.
        size: side S of the squares, in pixels.
        digits: uint8 [M, 28, 28], possibly memory-mapped.
        which: [N] index of each photo's digit.
        add: combine photo and digit by their sum, clipped; else by the brighter pixel.
        labels: [N] class of each photo, or its digit.
    """

    photos: Photos
    size: int
    digits: Tensor
    which: Tensor
    add: bool
    labels: Tensor

    def take(self, ids: Tensor) -> Tensor:
        """Make the images ``ids`` [n] as uint8 [n, 3, S, S]."""
        squares = torch.stack(self.photos.map(lambda photo: scaled(photo, self.size), ids.tolist()))
        overlay = torch.zeros(len(ids), self.size, self.size, dtype=torch.uint8)
        for corner in product(CORNERS, CORNERS):
            paste(overlay, self.digits[self.which[ids]], *(torch.full_like(ids, int(self.size * x)) for x in corner))
        if self.add:
            return (squares.short() + overlay[:, None]).clamp_(max=255).to(torch.uint8)
        return torch.maximum(squares, overlay[:, None])


@dataclass(kw_only=True, eq=False)
class DigitOnImageNet(FolderDataset):
    """Photos in a folder per class with a digit on each, an easy feature of both views that competes with a hard one.

    Sections 4.1 and 4.2, as in the notebook digits_on_tf_flowers of google-research/simclr: the photo is resized to a
    square without keeping its proportions, and one MNIST digit is painted over it in nine places, before any
    augmentation. The paper's text has a sum of both, the notebook the brighter pixel. Each image keeps its digit, as in
    the text; the notebook draws a new one in each pass.

    Evaluation classifies both the photo and the digit. Pre-training uses the first ``digits`` images of MNIST's train
    split. Both probes train on images with all digits of that split, so their accuracy depends on the network and not
    on the number of digits, and are tested with MNIST's test digits.

    Args:
        digits: number of different digits in pre-training, 1 to 60000.
        combine: ``max``: the brighter pixel of photo and digit; ``sum``: their sum, clipped at white.
        seed: decides which image has which digit.

    Raises:
        InvalidValue: ``digits`` is outside its range, or digits in the nine places do not fit into ``size``.
    """

    digits: Annotated[int, Meta(ge=1, le=60_000)]  # the size of MNIST's train split
    combine: Literal["max", "sum"]
    seed: int

    def __post_init__(self) -> None:
        super().__post_init__()
        to_edge = self.size - int(self.size * CORNERS[-1])
        require(to_edge >= DIGIT, "size", self.size, f"112 or more, so that digits of {DIGIT} pixels fit in")
        self.mnist = mnist(self.root)
        self.eval_view = {}  # evaluation uses the whole squares

    def files(self) -> list[Path]:
        return [*super().files(), *self.mnist.files()]

    def check(self) -> int:
        self.mnist.check()
        return super().check()

    def pretrain(self) -> Marked:
        return self._marked("pretrain", "train", self.digits)[0]

    def split(self, name: str) -> Marked:  # type: ignore[override]
        return self._marked(name, name, None)[0]

    def class_names(self) -> list[str]:
        return []  # two probes with different classes

    def probes(self) -> dict[str, Probe]:
        train, test = self._marked("train", "train", None), self._marked("test", "test", None)
        return {"object": Probe(train[0], test[0], self.num_classes), "digit": Probe(train[1], test[1], 10)}

    def _marked(self, purpose: str, split: str, digits: int | None) -> tuple[Marked, Marked]:
        """Open a split twice, labelled by photo and by digit; ``digits`` limits the choice to MNIST's first images."""
        photos = super().split(split)
        images, classes = self.mnist.arrays(split)
        generator = torch.Generator().manual_seed(stream("digit_on_imagenet", self.seed, purpose))
        which = torch.randint(len(images[:digits]), (len(photos),), generator=generator)
        shown = photos, self.size, images[:digits, 0], which, self.combine == "sum"
        return Marked(*shown, photos.labels), Marked(*shown, classes[which])


# ---- Vectors


@dataclass(frozen=True, eq=False)
class Pairs(Source):
    """Pairs of vectors in place of images.

    X ~ N(0, 1) in d dimensions and Y = rho X + sqrt(1 - rho^2) noise have I(X; Y) = -d/2 log(1 - rho^2) (appendix C).

    Attributes:
        information: of X and Y, in nats, positive.
        dimensions: of X and of Y.
    """

    information: float
    dimensions: int

    @property
    def labels(self) -> Tensor:  # type: ignore[override]
        return torch.full((PAIRS,), -1)

    def draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw ``count`` pairs: x and y, float32 [count, dimensions]."""
        rho = math.sqrt(1 - math.exp(-2 * self.information / self.dimensions))
        x, noise = torch.randn(2, count, self.dimensions, generator=generator)
        return x, rho * x + math.sqrt(1 - rho**2) * noise

    def take(self, ids: Tensor) -> ImageBatch:
        raise ConfigError("dataset=gaussians has pairs of vectors and no images")


@dataclass(kw_only=True, eq=False)
class Gaussians(Dataset):
    """Pairs of correlated Gaussian vectors, whose mutual information is known.

    Args:
        information: mutual information of a pair, in nats.
        dimensions: of each of its vectors.
    """

    has_images = False

    information: Positive
    dimensions: Count

    def check(self) -> int:
        return PAIRS

    def split(self, name: str) -> Pairs:
        return Pairs(self.information, self.dimensions)
