"""RandBit: k bits that both views of an image always share, as k extra channels; and images that are only bits.

Chen, Luo and Li, Intriguing Properties of Contrastive Losses (arXiv 2011.02803), sections 4.1 and 4.4, appendix B.
Each image has one fixed random integer u in [0, 2^k); channel j is bit j of u, 0 or 1 over all pixels. Augmentation
leaves these channels unchanged, so views share at least k bits (minus the loss by collisions). Evaluation has them too.

N images of a split  n images of a batch  C channels of the picture
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssl_bench.data.arrays import ArrayDataset
from ssl_bench.data.dataset import Dataset
from ssl_bench.data.folder import FolderDataset
from ssl_bench.data.source import ImageBatch, Images, Source
from ssl_bench.errors import require
from ssl_bench.seeding import stream

MOST = 60  # bits: they fit into an int64, and no network uses nearly as many


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

    @property
    def nbytes(self) -> int | None:  # type: ignore[override]
        return None if self.images.nbytes is None else self.images.nbytes + self.values.nbytes

    def to(self, device: torch.device) -> "WithBits":
        return WithBits(self.images.to(device), self.bits, self.values.to(device))

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
    """Mixin that adds random-bit channels to the images of a dataset.

    Args:
        bits: number k of bits, from 0 to 60.
        seed: of the bits.
        channels: channels of the picture plus ``bits``.
        mean: of the picture's channels only.

    Raises:
        InvalidValue: ``bits`` is outside its range, or ``channels`` is not that sum.
    """

    def __init__(self, bits: int, seed: int, channels: int, mean: Sequence[float], **common: Any) -> None:
        require(0 <= bits <= MOST, "bits", bits, f"a number from 0 to {MOST}")
        expected = len(mean) + bits
        require(
            channels == expected,
            "channels",
            channels,
            f"{expected}, one per number in mean ({len(mean)}) and per bit ({bits})",
        )
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


class BitImages(Dataset):
    """Images that are k constant channels of 0 or 1 and have no classes: at most k bits distinguish them.

    They measure how many bits the distribution term of a loss can encode.

    Args:
        bits: number k of bits, from 1 to 60.
        images: number of images, 2 or more.
        seed: of the bits.
    """

    def __init__(self, bits: int, images: int, seed: int, **common: Any) -> None:
        require(1 <= bits <= MOST, "bits", bits, f"a number from 1 to {MOST}")
        require(images >= 2, "images", images, "2 or more")
        super().__init__(**common)
        self.bits, self.images, self.seed = bits, images, seed

    def check(self) -> int:
        return self.images

    def pretrain(self) -> WithBits:
        return self.split("train")

    def split(self, name: str) -> WithBits:
        """Make a split without labels; evaluators that need labels refuse it."""
        pictures = torch.empty(self.images, 0, self.size, self.size, dtype=torch.uint8)
        unlabelled = Images([pictures], torch.full((self.images,), -1))
        return WithBits.drawn(unlabelled, self.bits, self.seed, name)
