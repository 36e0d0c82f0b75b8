"""RandBit: k bits that both views of an image share for certain, as k further channels; and images of bits alone.

Chen, Luo and Li, Intriguing Properties of Contrastive Losses (arXiv 2011.02803), section 4.4 and appendices B.1, B.2.
An integer u in [0, 2^k) is drawn for each image once and for all; channel j is bit j of u, 0 or 1 over all pixels. No
augmentation touches it, so that views share at least k bits (less what collisions take), and it stays at evaluation.

N images of a split  n of a batch  C channels of the picture
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssl_bench.data.arrays import ArrayDataset, Dataset, Images, Source, Taken
from ssl_bench.data.folder import FolderDataset
from ssl_bench.seeding import stream

MOST = 60  # bits: what an int64 holds, and far more than any network finds


@dataclass(frozen=True, eq=False)
class WithBits(Source):
    """The images of another source and, as ``bits`` further channels of 0 or 255, the bits of ``values`` [N]."""

    images: Source
    bits: int
    values: Tensor

    @classmethod
    def drawn(cls, images: Source, bits: int, *key: int | str) -> "WithBits":
        """With values that are uniform in [0, 2^bits), and the same for the same key."""
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

    def take(self, ids: Tensor) -> Taken:
        """Images ``ids`` [n]: uint8 [n, C + bits, H, W], or n of [C + bits, h, w]."""
        taken = self.images.take(ids)
        channels = binary(self.values[ids], self.bits)[..., None, None] * 255  # [n, bits, 1, 1]
        if isinstance(taken, Tensor):
            return torch.cat([taken, channels.expand(-1, -1, *taken.shape[2:])], 1)
        pairs = zip(taken, channels, strict=True)
        return [torch.cat([image, constant.expand(-1, *image.shape[1:])]) for image, constant in pairs]


def binary(values: Tensor, bits: int) -> Tensor:
    """int64 [n] -> uint8 [n, bits] of 0 and 1, the lowest bit first."""
    return (values[:, None] >> torch.arange(bits, device=values.device) & 1).to(torch.uint8)


class RandBits(Dataset):
    """What is put before a dataset to give its images bits; ``channels`` counts both, ``mean`` the picture's alone.

    Args:
        bits: k, from 0 to 60.
        seed: of the bits.
    """

    def __init__(self, bits: int, seed: int, channels: int, mean: Sequence[float], **common: Any) -> None:
        if not 0 <= bits <= MOST:
            raise ValueError(f"bits={bits} must be 0 to {MOST}")
        if channels != len(mean) + bits:
            raise ValueError(f"channels={channels} must be the {len(mean)} of mean and the {bits} bits")
        super().__init__(channels=channels - bits, mean=mean, **common)
        self.bits, self.seed = bits, seed

    def pretrain(self) -> WithBits:
        return self._with_bits(super().pretrain(), "train")

    def split(self, name: str) -> WithBits:
        return self._with_bits(super().split(name), name)

    def _with_bits(self, images: Source, split: str) -> WithBits:
        # pretrain() of the dataset behind this one may have asked split(), which then gave the bits already
        return images if isinstance(images, WithBits) else WithBits.drawn(images, self.bits, self.seed, split)


class RandBitArrays(RandBits, ArrayDataset):  # type: ignore[misc]
    """Prepared arrays (MNIST, CIFAR-10) with random bits."""


class RandBitFolder(RandBits, FolderDataset):  # type: ignore[misc]
    """Photos in a folder per class (ImageNet) with random bits."""


class BitImages(Dataset):
    """Images that are k constant channels of 0 or 1 and nothing else: at most k bits to be told apart by.

    They have no classes. What they are for is the distribution term of a loss: how many bits it can take up.

    Args:
        bits: k, from 1 to 60.
        images: how many.
        seed: of the bits.
    """

    def __init__(self, bits: int, images: int, seed: int, **common: Any) -> None:
        super().__init__(**common)
        if not 1 <= bits <= MOST:
            raise ValueError(f"bits={bits} must be 1 to {MOST}")
        if images < 2:
            raise ValueError(f"images={images} must be at least 2")
        self.bits, self.images, self.seed = bits, images, seed

    def check(self) -> int:
        return self.images

    def pretrain(self) -> WithBits:
        return self.split("train")

    def split(self, name: str) -> WithBits:
        """Without labels: evaluators that need some refuse it."""
        nothing = Images(
            [torch.empty(self.images, 0, self.size, self.size, dtype=torch.uint8)], torch.full((self.images,), -1)
        )
        return WithBits.drawn(nothing, self.bits, self.seed, name)
