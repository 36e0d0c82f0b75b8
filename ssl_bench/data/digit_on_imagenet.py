"""DigitOnImageNet: photos with a digit on each, an easy feature of both views that competes with a hard feature.

Chen, Luo and Li, Intriguing Properties of Contrastive Losses (arXiv 2011.02803), sections 4.1 and 4.2, as in the
notebook digits_on_tf_flowers of google-research/simclr: the photo is resized to a square without keeping its
proportions, and one MNIST digit is painted over it in nine places, before any augmentation. The paper's text has a sum
of both, the notebook the brighter pixel. Each image keeps its digit, as in the text; the notebook draws a new one in
each pass.

N images of a split  n images of a batch  M digits to choose from  S side of the square
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from ssl_bench.data.dataset import Probe
from ssl_bench.data.folder import FolderDataset
from ssl_bench.data.multi_digits import DIGIT, labelled_arrays, mnist, paste
from ssl_bench.data.photos import Photos
from ssl_bench.data.source import Source
from ssl_bench.errors import require
from ssl_bench.seeding import stream

CORNERS = (0.15, 0.45, 0.75)  # upper left corner of a digit, as a share of the side


@dataclass(frozen=True, eq=False)
class Marked(Source):
    """Photos as squares with digit ``which`` [N] on each in nine places.

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
        squares = torch.stack(self.photos.map(lambda photo: stretched(photo, self.size), ids.tolist()))
        overlay = torch.zeros(len(ids), self.size, self.size, dtype=torch.uint8)
        for top in CORNERS:
            for left in CORNERS:
                corner = (torch.full_like(ids, int(self.size * share)) for share in (top, left))
                paste(overlay, self.digits[self.which[ids]], *corner)
        if self.add:
            return (squares.short() + overlay[:, None]).clamp_(max=255).to(torch.uint8)
        return torch.maximum(squares, overlay[:, None])


def stretched(photo: Tensor, size: int) -> Tensor:
    """Resize a photo to a square, bilinear with antialiasing: uint8 [3, h, w] -> uint8 [3, size, size]."""
    resized = interpolate(photo[None].float(), (size, size), mode="bilinear", antialias=True)
    return resized[0].round_().to(torch.uint8)


class DigitOnImageNet(FolderDataset):
    """Photos in a folder per class, with digits. Evaluation classifies both the photo and the digit.

    Pre-training uses the first ``digits`` images of MNIST's train split. Both probes train on images with all digits of
    that split, so their accuracy depends on the network and not on the number of digits, and are tested with MNIST's
    test digits.

    Args:
        digits: number of different digits in pre-training, 1 to 60000.
        combine: ``max``: the brighter pixel of photo and digit; ``sum``: their sum, clipped at white.
        seed: decides which image has which digit.

    Raises:
        InvalidValue: ``digits`` is outside its range, or ``size`` leaves no room for them.
    """

    def __init__(self, digits: int, combine: Literal["max", "sum"], seed: int, **common: Any) -> None:
        super().__init__(**common)
        require(1 <= digits <= 60000, "digits", digits, "a number from 1 to 60000, the size of MNIST's train split")
        room = self.size - int(self.size * CORNERS[-1])
        require(room >= DIGIT, "size", self.size, f"112 or more, with room for digits of {DIGIT} pixels")
        self.digits, self.combine, self.seed = digits, combine, seed
        self.mnist = mnist(self.root)
        self.eval_view = {}  # evaluation uses the whole squares

    def files(self) -> list[Path]:
        return [*super().files(), *self.mnist.files()]

    def check(self) -> int:
        self.mnist.check()
        return super().check()

    def pretrain(self) -> Marked:
        return self._marked("pretrain", "train", self.digits)[0]

    def split(self, name: str) -> Marked:
        return self._marked(name, name, None)[0]

    def class_names(self) -> list[str]:
        return []  # two probes with different classes

    def probes(self) -> dict[str, Probe]:
        train, test = self._marked("train", "train", None), self._marked("test", "test", None)
        return {"object": Probe(train[0], test[0], self.num_classes), "digit": Probe(train[1], test[1], 10)}

    def _marked(self, purpose: str, split: str, digits: int | None) -> tuple[Marked, Marked]:
        """Open a split twice, labelled by photo and by digit; ``digits`` limits the choice to MNIST's first images."""
        photos = self.photos(split)
        images, classes = labelled_arrays(self.mnist, split)
        generator = torch.Generator().manual_seed(stream("digit_on_imagenet", self.seed, purpose))
        which = torch.randint(len(images[:digits]), (len(photos),), generator=generator)
        by_photo, by_digit = (
            Marked(photos, self.size, images[:digits, 0], which, self.combine == "sum", labels)
            for labels in (photos.labels, classes[which])
        )
        return by_photo, by_digit
