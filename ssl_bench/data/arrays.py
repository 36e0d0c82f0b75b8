"""Images as uint8 arrays: the prepared datasets, memory-mapped from ``<root>/<name>/``.

A dataset is a folder of ``{train,test,unlabeled}_images.npy``, uint8 [N, H, W, C], and ``_labels.npy``, int64 [N].
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ssl_bench.errors import ConfigError

Taken = Tensor | list[Tensor]  # images: uint8 [n, C, H, W], or where sizes differ n times [C, h, w]


class Source:
    """The images of a split, taken by their place in it. What an image is depends on nothing but its place.

    Attributes:
        labels: int64 [N], -1 where there is none, or [N, num_classes] how often each class is in the image.
        nbytes: of all images, where they can be kept on a device; else None.
    """

    labels: Tensor
    nbytes: int | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, ids: Tensor) -> Taken:
        """Images ``ids`` [n]."""
        raise NotImplementedError

    def to(self, device: torch.device) -> "Source":
        """The same, with what it keeps in memory on ``device``, where ``take`` then finds its ids and makes images."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Images(Source):
    """Images of one size. ``parts`` follow one another: image i of the split is image i of the parts in a row."""

    parts: list[Tensor]  # each uint8 [n, C, H, W], channels last in memory, possibly memory-mapped
    labels: Tensor

    def __post_init__(self) -> None:
        for part in self.parts:
            if part.dtype != torch.uint8 or part.ndim != 4:
                raise ValueError(f"images must be uint8 [N, C, H, W], not {part.dtype} {list(part.shape)}")
        count = sum(map(len, self.parts))
        if count != len(self.labels) or count == 0:
            raise ValueError(f"labels must be one per image: {count} images, {len(self.labels)} labels")

    @property
    def nbytes(self) -> int:  # type: ignore[override]
        return sum(part.nbytes for part in self.parts)

    def to(self, device: torch.device) -> "Images":
        """The whole split in the memory of ``device``."""
        count, *shape = len(self.labels), *self.parts[0].shape[1:]
        images = torch.empty(count, *shape, dtype=torch.uint8, device=device, memory_format=torch.channels_last)
        start = 0
        for part in self.parts:
            images[start : (start := start + len(part))] = part  # never a second copy there
        return Images([images], self.labels.to(device))

    def take(self, ids: Tensor) -> Tensor:
        """Images ``ids`` [n] as uint8 [n, C, H, W], channels last in memory."""
        if len(self.parts) == 1:
            return self._rows(self.parts[0], ids)
        first = self.parts[0]
        out = torch.empty(len(ids), *first.shape[1:], dtype=torch.uint8).to(memory_format=torch.channels_last)
        start = 0
        for part in self.parts:
            inside = ((ids >= start) & (ids < start + len(part))).nonzero().flatten()
            out[inside] = self._rows(part, ids[inside] - start)
            start += len(part)
        return out

    @staticmethod
    def _rows(part: Tensor, ids: Tensor) -> Tensor:
        # Whole rows of memory are copied when the channels come last, as they do in the file.
        return part.permute(0, 2, 3, 1).index_select(0, ids).permute(0, 3, 1, 2)


class Dataset:
    """What a run needs to know of its images, and the splits themselves.

    Args:
        root: folder of all datasets (``paths.data``).
        size: height and width of the images.
        channels: of an image.
        num_classes: labels are 0 .. num_classes - 1.
        mean, std: of each channel's values in [0, 1]; channels after those are constants of an image, left as they are.
        epochs: length of a training where the configuration does not say.
        knn_k: neighbours of the kNN evaluator where the configuration does not say.
    """

    def __init__(
        self,
        root: str,
        size: int,
        channels: int,
        num_classes: int,
        mean: Sequence[float],
        std: Sequence[float],
        epochs: int,
        knn_k: int,
    ) -> None:
        if not len(mean) == len(std) <= channels:
            raise ValueError(
                f"mean and std must have one value for each of the {channels} channels or the first of them"
            )
        self.root, self.size, self.channels, self.num_classes = Path(root), size, channels, num_classes
        self.eval_view: dict[str, int] = {}  # further arguments of EvalView, where images have many sizes

    def check(self) -> int:
        """The number of images to pre-train on, from the files' headers alone.

        Raises:
            ConfigError: something is missing; it says which command gets it.
        """
        raise NotImplementedError

    def pretrain(self) -> Source:
        """The images to pre-train on."""
        raise NotImplementedError

    def split(self, name: str) -> Source:
        """The labelled ``train`` or ``test`` split, for evaluation."""
        raise NotImplementedError

    def probes(self) -> "dict[str, Probe]":
        """What a network is judged on. The name stands in the metrics (``linear/digit20/top1``); "" is left out."""
        return {"": Probe(self.split("train"), self.split("test"), self.num_classes)}


@dataclass(frozen=True)
class Probe:
    """A labelled split to learn from, one to be judged on, and how many classes there are."""

    train: Source
    test: Source
    num_classes: int


class ArrayDataset(Dataset):
    """Prepared arrays in ``<root>/<name>/``.

    Args:
        name: the folder.
        torchvision: the class of ``torchvision.datasets`` that ``ssl-bench prepare`` makes the arrays from.
        pretrain: the splits to pre-train on.
    """

    def __init__(self, name: str, torchvision: str, pretrain: Sequence[str], **common: Any) -> None:
        super().__init__(**common)
        self.name, self.torchvision, self.pretrain_splits = name, torchvision, list(pretrain)
        self.folder = self.root / name

    def check(self) -> int:
        sizes = {split: len(self._open(split)[0]) for split in dict.fromkeys([*self.pretrain_splits, "train", "test"])}
        return sum(sizes[split] for split in self.pretrain_splits)

    def pretrain(self) -> Images:
        opened = [self._open(split) for split in self.pretrain_splits]
        return Images([images for images, _ in opened], torch.cat([labels for _, labels in opened]))

    def split(self, name: str) -> Images:
        images, labels = self._open(name)
        return Images([images], labels)

    def _open(self, split: str) -> tuple[Tensor, Tensor]:
        """One split, memory-mapped: uint8 [N, C, H, W] and int64 [N]."""
        paths = [self.folder / f"{split}_{what}.npy" for what in ("images", "labels")]
        for path in paths:
            if not path.is_file():
                raise ConfigError(
                    f"dataset={self.name}: {path} is missing; get it with "
                    f"`ssl-bench prepare dataset={self.name} paths.data={self.root}`, "
                    "or set SSL_BENCH_DATA or paths.data to the folder that has it"
                )
        try:
            images, labels = (np.load(path, mmap_mode="c") for path in paths)  # copy-on-write: nothing writes back
        except (ValueError, OSError, EOFError) as error:
            raise ConfigError(f"dataset={self.name}: {self.folder} has a damaged {split} split ({error})") from error
        expected = (len(labels), self.size, self.size, self.channels)
        if images.dtype != np.uint8 or images.shape != expected or labels.dtype != np.int64:
            raise ConfigError(
                f"dataset={self.name}: {paths[0]} holds {images.dtype} {images.shape} with {labels.dtype} labels, "
                f"but uint8 {expected} with int64 labels are needed"
            )
        return torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(np.array(labels))
