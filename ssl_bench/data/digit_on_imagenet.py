"""DigitOnImageNet: photos that all carry a digit, an easy feature of both views that competes with a hard one.

Chen, Luo and Li, Intriguing Properties of Contrastive Losses (arXiv 2011.02803), section 4.2, as in the notebook
digits_on_tf_flowers of google-research/simclr: the photo is resized to a square, its proportions ignored, and the same
MNIST digit is laid over it in nine places, before any augmentation. The text speaks of a sum, the notebook takes the
brighter pixel. Each image has one digit for good, as the text says; the notebook draws anew in each pass.

N images of a split  n of a batch  M digits to choose from  S side of the square
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from ssl_bench.data.arrays import Probe, Source
from ssl_bench.data.folder import FolderDataset
from ssl_bench.data.multi_digits import mnist, paste
from ssl_bench.data.photos import Photos
from ssl_bench.seeding import stream

PLACES = (0.15, 0.45, 0.75)  # of a digit's upper left corner, as a share of the side


@dataclass(frozen=True, eq=False)
class Marked(Source):
    """Photos as squares with digit ``which`` [N] on each in nine places."""

    photos: Photos
    size: int
    digits: Tensor  # uint8 [M, 28, 28], possibly memory-mapped
    which: Tensor
    add: bool  # the sum of photo and digit, clipped; else the brighter of both
    labels: Tensor

    def take(self, ids: Tensor) -> Tensor:
        """Images ``ids`` [n] as uint8 [n, 3, S, S]."""
        squares = torch.stack(self.photos.map(lambda photo: stretched(photo, self.size), ids.tolist()))
        overlay = torch.zeros(len(ids), self.size, self.size, dtype=torch.uint8)
        for top in PLACES:
            for left in PLACES:
                corner = (torch.full_like(ids, int(self.size * place)) for place in (top, left))
                paste(overlay, self.digits[self.which[ids]], *corner)
        if self.add:
            return (squares.short() + overlay[:, None]).clamp_(max=255).to(torch.uint8)
        return torch.maximum(squares, overlay[:, None])


def stretched(photo: Tensor, size: int) -> Tensor:
    """uint8 [3, h, w] -> uint8 [3, size, size], bilinear with antialiasing."""
    resized = interpolate(photo[None].float(), (size, size), mode="bilinear", antialias=True)
    return resized[0].round_().to(torch.uint8)


class DigitOnImageNet(FolderDataset):
    """Photos in a folder per class with digits. A network is judged on the photo's class and on the digit's.

    Pre-training knows the first ``digits`` images of MNIST's train split. Both probes learn from images with all of
    them, so that they tell what the network sees and not how few digits they were shown, and are tested on MNIST's test
    digits.

    Args:
        digits: how many different ones there are, 1 to 60000.
        combine: ``max``: the brighter of photo and digit; ``sum``: both, clipped at white.
        seed: of which image has which digit.
    """

    def __init__(self, digits: int, combine: Literal["max", "sum"], seed: int, **common: Any) -> None:
        super().__init__(**common)
        if not 1 <= digits <= 60000:
            raise ValueError(f"digits={digits} must be 1 to 60000, the size of MNIST's train split")
        if self.size - int(self.size * PLACES[-1]) < 28:
            raise ValueError(f"size={self.size} leaves no room for digits of 28 pixels: set it to 112 or more")
        self.digits, self.combine, self.seed = digits, combine, seed
        self.mnist = mnist(self.root)
        self.eval_view = {}  # the squares as they are

    def check(self) -> int:
        self.mnist.check()
        return super().check()

    def pretrain(self) -> Marked:
        return self._marked("pretrain", "train", self.digits)[0]

    def split(self, name: str) -> Marked:
        return self._marked(name, name, None)[0]

    def probes(self) -> dict[str, Probe]:
        train, test = self._marked("train", "train", None), self._marked("test", "test", None)
        return {"object": Probe(train[0], test[0], self.num_classes), "digit": Probe(train[1], test[1], 10)}

    def _marked(self, purpose: str, split: str, digits: int | None) -> tuple[Marked, Marked]:
        """A split with digits out of the first few, labelled by the photo and by the digit."""
        photos = self.photos(split)
        images, classes = self.mnist._open(split)
        generator = torch.Generator().manual_seed(stream("digit_on_imagenet", self.seed, purpose))
        which = torch.randint(len(images[:digits]), (len(photos),), generator=generator)
        each = (
            Marked(photos, self.size, images[:digits, 0], which, self.combine == "sum", labels)
            for labels in (photos.labels, classes[which])
        )
        return next(each), next(each)
