"""MultiDigits: several MNIST digits on one black canvas, of which a network may learn all or suppress some.

Chen, Luo and Li, Intriguing Properties of Contrastive Losses (arXiv 2011.02803), sections 3.1 and 4.3: 112 x 112
pixels, 1 to 16 digits of 28 x 28, each in a cell of its own or anywhere; or two digits of different sizes. The network
is judged on canvases with one digit. Where digits overlap the brighter pixel is seen, which the paper leaves open.

A canvas is a row of a small table (which digits, where) and is painted when it is asked for.

N canvases of a split  n of a batch  K digits on each  M digits to choose from  S side of the canvas  s of a digit
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import interpolate, one_hot

from ssl_bench.data.arrays import ArrayDataset, Dataset, Probe, Source
from ssl_bench.seeding import stream

DIGIT = 28  # side of MNIST's images
MOST = 16  # digits on a canvas


@dataclass(frozen=True, eq=False)
class Canvases(Source):
    """Digit ``which`` [N, K] of each canvas with its upper left corner at ``top``, ``left`` [N, K]."""

    digits: Tensor  # uint8 [M, 28, 28], possibly memory-mapped
    which: Tensor
    top: Tensor
    left: Tensor
    sizes: tuple[int, ...]  # K
    size: int
    labels: Tensor

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        return sum(t.nbytes for t in (self.digits, self.which, self.top, self.left, self.labels))

    def to(self, device: torch.device) -> "Canvases":
        which, top, left = (place.to(device) for place in (self.which, self.top, self.left))
        labels = self.labels.to(device)
        return Canvases(self.digits.to(device), which, top, left, self.sizes, self.size, labels)

    def take(self, ids: Tensor) -> Tensor:
        """Canvases ``ids`` [n] as uint8 [n, 1, S, S]."""
        canvas = torch.zeros(len(ids), self.size, self.size, dtype=torch.uint8, device=ids.device)
        which, top, left = self.which[ids], self.top[ids], self.left[ids]  # [n, K] each
        for i, size in enumerate(self.sizes):
            paste(canvas, scaled(self.digits[which[:, i]], size), top[:, i], left[:, i])
        return canvas[:, None]


def paste(canvas: Tensor, patch: Tensor, top: Tensor, left: Tensor) -> None:
    """Puts patch i of [n, s, s] on canvas i of [n, S, S] at (top, left) [n], the brighter pixel of both; in place."""
    side, rows = patch.shape[-1], torch.arange(len(canvas), device=canvas.device)
    windows = canvas.unfold(1, side, 1).unfold(2, side, 1)  # [n, S-s+1, S-s+1, s, s], a view: the window at each corner
    windows[rows, top, left] = torch.maximum(windows[rows, top, left], patch)


def scaled(digits: Tensor, size: int) -> Tensor:
    """uint8 [n, 28, 28] -> uint8 [n, size, size], bilinear with antialiasing."""
    if size == digits.shape[-1]:
        return digits
    resized = interpolate(digits[:, None].float(), (size, size), mode="bilinear", antialias=True)
    return resized[:, 0].round_().to(torch.uint8)


def mnist(root: Path) -> ArrayDataset:
    """The prepared MNIST, where digits come from."""
    common: dict[str, Any] = {"size": DIGIT, "channels": 1, "num_classes": 10, "mean": [0.0], "std": [1.0]}
    return ArrayDataset("mnist", "MNIST", ["train"], root=str(root), epochs=1, knn_k=1, **common)


class MultiDigits(Dataset):
    """Canvases of MNIST digits, drawn independently and once and for all; as many as MNIST has images.

    Labels for pre-training are the digit's class, or of several digits how often each class is there, [N, 10]. A
    network is judged on one digit of 28 pixels anywhere on the canvas, each of MNIST's digits once; with ``sizes`` on
    one digit of each of these sizes, which the metrics then name (``linear/digit20/top1``).

    Args:
        digits: on a canvas, 1 to 16.
        placement: ``grid``: in cells of 28 x 28, no two in one; ``random``: anywhere inside the canvas.
        sizes: sides of the digits in pixels, one for each; None: 28.
        seed: of the digits and their places.
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
        cells = (self.size // DIGIT) ** 2
        if not 1 <= digits <= MOST:
            raise ValueError(f"digits={digits} must be 1 to {MOST}")
        if self.channels != 1:
            raise ValueError(f"channels={self.channels} must be 1")
        if sizes is not None and len(sizes) != digits:
            raise ValueError(f"sizes={list(sizes)} must be one for each of the {digits} digits: set dataset.digits too")
        if sizes is not None and placement == "grid":
            raise ValueError("sizes are for dataset.placement=random: a cell of the grid holds 28 x 28 pixels")
        if not 1 <= min(sizes or (DIGIT,)) <= max(sizes or (DIGIT,)) <= self.size or self.size < DIGIT:
            raise ValueError(f"size={self.size} must be at least that of a digit ({max(sizes or (DIGIT,))}, {DIGIT})")
        if placement == "grid" and (self.size % DIGIT or digits > cells):
            raise ValueError(
                f"size={self.size} has no {digits} cells of {DIGIT} pixels: set dataset.size to 112, which has 16"
            )
        self.digits, self.placement, self.seed = digits, placement, seed
        self.sizes, self.several = sizes or (DIGIT,) * digits, sizes is not None
        self.mnist = mnist(self.root)

    def check(self) -> int:
        return self.mnist.check()

    def pretrain(self) -> Canvases:
        images, classes = self._open("train")
        generator = torch.Generator().manual_seed(stream("multi_digits", self.seed, "pretrain"))
        which = torch.randint(len(images), (len(images), self.digits), generator=generator)  # [N, K]
        top, left = self._places(len(images), self.sizes, self.placement == "grid", generator)
        each = classes[which]  # [N, K]
        labels = each[:, 0] if self.digits == 1 else one_hot(each, self.num_classes).sum(1)  # [N] or [N, 10]
        return Canvases(images, which, top, left, self.sizes, self.size, labels)

    def split(self, name: str) -> Canvases:
        return self._single(name, DIGIT)

    def probes(self) -> dict[str, Probe]:
        if not self.several:
            return super().probes()
        ends = {size: (self._single("train", size), self._single("test", size)) for size in dict.fromkeys(self.sizes)}
        return {f"digit{size}": Probe(*pair, self.num_classes) for size, pair in ends.items()}

    def _single(self, name: str, size: int) -> Canvases:
        """Every digit of MNIST's ``train`` or ``test`` split, alone on a canvas at a random place."""
        images, classes = self._open(name)
        generator = torch.Generator().manual_seed(stream("multi_digits", self.seed, name, size))
        top, left = self._places(len(images), (size,), False, generator)
        return Canvases(images, torch.arange(len(images))[:, None], top, left, (size,), self.size, classes)

    def _places(self, n: int, sizes: tuple[int, ...], grid: bool, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Upper left corners, [n, K] each, of digits that are inside the canvas."""
        if grid:
            side = self.size // DIGIT
            # The first K of a random order of the cells: K distinct ones, every choice equally likely.
            cells = torch.rand(n, side * side, generator=generator, dtype=torch.float64).argsort(1)[:, : len(sizes)]
            return cells // side * DIGIT, cells % side * DIGIT
        corners = [torch.randint(self.size - size + 1, (n, 2), generator=generator) for size in sizes]
        top, left = torch.stack(corners, dim=1).unbind(2)
        return top, left

    def _open(self, split: str) -> tuple[Tensor, Tensor]:
        """MNIST's ``train`` or ``test``: uint8 [M, 28, 28] and int64 [M]."""
        images, classes = self.mnist._open(split)
        return images[:, 0], classes
