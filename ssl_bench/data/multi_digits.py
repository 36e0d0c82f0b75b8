"""MultiDigits: several MNIST digits on one black canvas. A network may learn all of them or suppress some.

Chen, Luo and Li, Intriguing Properties of Contrastive Losses (arXiv 2011.02803), sections 3.1 and 4.3: 112 x 112
pixels, 1 to 16 digits of 28 x 28, each in a separate cell or anywhere; or two digits of different sizes. The network is
evaluated on canvases with one digit. Where digits overlap, the brighter pixel counts; the paper leaves this open.

A canvas is stored as a row of a small table (which digits, where) and painted when it is read.

N canvases of a split  n canvases of a batch  K digits on a canvas  M digits to choose from
S side of the canvas  s side of a digit
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import interpolate, one_hot

from ssl_bench.data.arrays import ArrayDataset
from ssl_bench.data.dataset import Dataset, Probe
from ssl_bench.data.source import Source
from ssl_bench.errors import ConfigError, require
from ssl_bench.seeding import stream

DIGIT = 28  # side of MNIST's images
MOST = 16  # digits on a canvas


@dataclass(frozen=True, eq=False)
class Canvases(Source):
    """Canvases with the digits ``which`` [N, K], whose upper left corners are at ``top``, ``left`` [N, K].

    Attributes:
        digits: uint8 [M, 28, 28], possibly memory-mapped.
        which: [N, K] index of each digit.
        top: [N, K] first row, in pixels.
        left: [N, K] first column, in pixels.
        sizes: K sides of the digits, in pixels.
        size: side S of a canvas, in pixels.
        labels: [N] or [N, num_classes] counts.
    """

    digits: Tensor
    which: Tensor
    top: Tensor
    left: Tensor
    sizes: tuple[int, ...]
    size: int
    labels: Tensor

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        return sum(t.nbytes for t in (self.digits, self.which, self.top, self.left, self.labels))

    def to(self, device: torch.device) -> "Canvases":
        which, top, left, labels = (t.to(device) for t in (self.which, self.top, self.left, self.labels))
        return Canvases(self.digits.to(device), which, top, left, self.sizes, self.size, labels)

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


def scaled(digits: Tensor, size: int) -> Tensor:
    """Resize digits, bilinear with antialiasing: uint8 [n, 28, 28] -> uint8 [n, size, size]."""
    if size == digits.shape[-1]:
        return digits
    resized = interpolate(digits[:, None].float(), (size, size), mode="bilinear", antialias=True)
    return resized[:, 0].round_().to(torch.uint8)


def mnist(root: Path) -> ArrayDataset:
    """The prepared MNIST, which the digits come from."""
    common: dict[str, Any] = {"size": DIGIT, "channels": 1, "num_classes": 10, "mean": [0.0], "std": [1.0]}
    return ArrayDataset("mnist", "MNIST", ["train"], root=str(root), **common)


def labelled_arrays(dataset: ArrayDataset, split: str) -> tuple[Tensor, Tensor]:
    """The arrays of a split: uint8 [N, C, H, W] and labels [N] from 0.

    Raises:
        ConfigError: as :meth:`ArrayDataset.arrays`, or an image is not labelled.
    """
    images, labels = dataset.arrays(split)
    if labels.min() < 0:
        path = dataset.folder / f"{split}_labels.npy"
        raise ConfigError(f"dataset={dataset.name}: {path} has unlabelled images (-1): replace it")
    return images, labels


class MultiDigits(Dataset):
    """Canvases of MNIST digits that are drawn independently and then fixed; as many as MNIST has images.

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

    def __init__(
        self,
        digits: int,
        placement: Literal["random", "grid"],
        sizes: tuple[int, ...] | None,
        seed: int,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        grid = placement == "grid"
        require(1 <= digits <= MOST, "digits", digits, f"a number from 1 to {MOST}")
        require(self.channels == 1, "channels", self.channels, "1")
        one_each = sizes is None or (len(sizes) == digits and min(sizes) >= 1)
        require(one_each, "sizes", sizes, f"null or {digits} positive numbers, one per digit (dataset.digits)")
        remedy = f"null, or dataset.placement to random: a cell of the grid has {DIGIT} x {DIGIT} pixels"
        require(sizes is None or not grid, "sizes", sizes, remedy)
        largest = max((DIGIT, *(sizes or ())))  # evaluation uses digits of 28 pixels too
        require(self.size >= largest, "size", self.size, f"{largest} or more, the side of the largest digit")
        cells = self.size % DIGIT == 0 and digits <= (self.size // DIGIT) ** 2
        require(not grid or cells, "size", self.size, f"112 for {digits} cells of {DIGIT} pixels")
        self.digits, self.placement, self.seed, self.one_label = digits, placement, seed, digits == 1
        self.sizes, self.sized = sizes or (DIGIT,) * digits, sizes is not None
        self.mnist = mnist(self.root)

    def files(self) -> list[Path]:
        return self.mnist.files()

    def check(self) -> int:
        self.check_content()
        return self.mnist.check()

    def pretrain(self) -> Canvases:
        images, classes = self._open("train")
        generator = torch.Generator().manual_seed(stream("multi_digits", self.seed, "pretrain"))
        which = torch.randint(len(images), (len(images), self.digits), generator=generator)  # [N, K]
        top, left = self._corners(len(images), self.sizes, self.placement == "grid", generator)
        drawn = classes[which]  # [N, K]
        labels = drawn[:, 0] if self.digits == 1 else one_hot(drawn, self.num_classes).sum(1)  # [N] or [N, 10]
        return Canvases(images, which, top, left, self.sizes, self.size, labels)

    def split(self, name: str) -> Canvases:
        return self._single(name, DIGIT)

    def probes(self) -> dict[str, Probe]:
        if not self.sized:
            return super().probes()
        splits = {size: (self._single("train", size), self._single("test", size)) for size in dict.fromkeys(self.sizes)}
        return {f"digit{size}": Probe(*pair, self.num_classes) for size, pair in splits.items()}

    def _single(self, name: str, size: int) -> Canvases:
        """Put every digit of MNIST's ``train`` or ``test`` split on its own canvas at a random position."""
        images, classes = self._open(name)
        generator = torch.Generator().manual_seed(stream("multi_digits", self.seed, name, size))
        top, left = self._corners(len(images), (size,), False, generator)
        return Canvases(images, torch.arange(len(images))[:, None], top, left, (size,), self.size, classes)

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

    def _open(self, split: str) -> tuple[Tensor, Tensor]:
        """Open MNIST's ``train`` or ``test`` split: uint8 [M, 28, 28] and int64 [M]."""
        self.check_content()
        images, classes = labelled_arrays(self.mnist, split)
        return images[:, 0], classes
