"""The interface of a dataset, and the prepared datasets: uint8 arrays, memory-mapped from ``<root>/<name>/``.

A prepared dataset is a folder of ``{train,test,unlabeled}_images.npy``, uint8 [N, H, W, C], and ``_labels.npy``,
int64 [N].
"""

import os
import shlex
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ssl_bench import files
from ssl_bench.data.content import content_of
from ssl_bench.errors import ConfigError, require

ImageBatch = Tensor | list[Tensor]  # uint8 [n, C, H, W], or n images [C, h, w] if their sizes differ


class MissingData(ConfigError):
    """Files of a dataset are missing."""


class Source:
    """Images of a split, read by their index. An image depends on its index only.

    Attributes:
        labels: int64 [N], -1 for an unlabelled image, or [N, num_classes] with the count of each class in the image.
        nbytes: size of all images if they can be kept on a device, else None.
    """

    labels: Tensor
    nbytes: int | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, ids: Tensor) -> ImageBatch:
        """Read the images ``ids`` [n]."""
        raise NotImplementedError

    def to(self, device: torch.device) -> "Source":
        """Copy the split to ``device``; the ``take`` of the copy expects ids and returns images there."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Images(Source):
    """Images of one size in one or more parts, numbered through from the first part to the last.

    Attributes:
        parts: each uint8 [n, C, H, W], channels last in memory, possibly memory-mapped.
        labels: [N] or [N, num_classes].
    """

    parts: list[Tensor]
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
        """Copy the whole split into the memory of ``device``."""
        count, *shape = len(self.labels), *self.parts[0].shape[1:]
        images = torch.empty(count, *shape, dtype=torch.uint8, device=device, memory_format=torch.channels_last)
        start = 0
        for part in self.parts:
            images[start : (start := start + len(part))] = part  # never a second copy on the device
        return Images([images], self.labels.to(device))

    def take(self, ids: Tensor) -> Tensor:
        """Read the images ``ids`` [n] as uint8 [n, C, H, W], channels last in memory."""
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
        # With the channels last, as in the file, whole rows of memory are copied.
        return part.permute(0, 2, 3, 1).index_select(0, ids).permute(0, 3, 1, 2)


@dataclass(frozen=True, eq=False)
class Chosen(Source):
    """Some of the images of another source.

    Attributes:
        images: the other source.
        ids: [n] of the images in it, in the order of this one.
    """

    images: Source
    ids: Tensor

    @property
    def labels(self) -> Tensor:  # type: ignore[override]
        return self.images.labels[self.ids]

    @property
    def nbytes(self) -> int | None:  # type: ignore[override]
        whole = self.images.nbytes
        return None if whole is None else whole // len(self.images) * len(self.ids)

    def to(self, device: torch.device) -> Images:
        images = self.take(torch.arange(len(self.ids)))
        assert isinstance(images, Tensor), "images of many sizes stay where they are"
        return Images([images.to(device)], self.labels.to(device))

    def take(self, ids: Tensor) -> ImageBatch:
        """Read the images ``ids`` [n] of this part."""
        return self.images.take(self.ids[ids])


def stratified(labels: Tensor, share: float, seed: int) -> Tensor:
    """Draw a share of the images of each class, rounded, at least one; a smaller share is a part of a larger one.

    Args:
        labels: int64 [N], -1 as a class of its own; or [N, C], counts of objects, which are of one class together.
        share: in (0, 1].

    Returns:
        The images, int64 [n], in ascending order.
    """
    # RandomState has the same numbers in every version of NumPy.
    order = torch.from_numpy(np.random.RandomState(seed % 2**32).permutation(len(labels)))
    classes = labels[order] if labels.ndim == 1 else torch.zeros_like(order)
    grouped = order[classes.argsort(stable=True)]
    counts = classes.unique(return_counts=True)[1].tolist()
    return torch.cat([each[: max(1, round(share * len(each)))] for each in grouped.split(counts)]).sort().values


class Dataset(ABC):
    """Base class: the splits of a dataset and the properties of its images.

    The last three arguments are defaults for other parts of the configuration; the dataset itself does not use them.

    Args:
        root: folder of all datasets (``paths.data``).
        size: height and width of the images.
        channels: number of channels of an image.
        num_classes: labels are 0 .. num_classes - 1.
        mean, std: statistics of each channel's values in [0, 1]. Channels without statistics must be constant over the
            image and are not normalised.
        train_images: images in one epoch of pre-training, for cost estimates without the files.
        epochs: default length of a training.
        knn_k: default number of neighbours of the kNN evaluator.
        content: hash of the files that hold the images, which are compared when they are opened; None: any.
        hashes: the hash is one of all bytes, not of a part of them.

    Attributes:
        one_label: whether a label is the number of one class, and not the count of each.
        has_pixels: whether all images have one size, even those of which evaluation takes the centre.

    Raises:
        InvalidValue: ``mean`` and ``std`` do not fit each other or the channels, or a number is too small.
    """

    one_label = True
    has_pixels = False

    def __init__(
        self,
        root: str,
        size: int,
        channels: int,
        num_classes: int,
        mean: Sequence[float],
        std: Sequence[float],
        train_images: int | None = None,
        epochs: int | None = None,
        knn_k: int | None = None,
        content: str | None = None,
        hashes: bool = False,
    ) -> None:
        for name, value, least in (("size", size, 1), ("channels", channels, 1), ("num_classes", num_classes, 0)):
            require(value >= least, name, value, f"{least} or more")
        for name, number in (("train_images", train_images), ("epochs", epochs), ("knn_k", knn_k)):
            require(number is None or number >= 1, name, number, "1 or more, or null")
        require(len(mean) <= channels, "mean", mean, f"at most {channels} numbers, one per channel from the first on")
        require(len(std) == len(mean), "std", std, f"as many numbers as mean has ({len(mean)})")
        self.root, self.size, self.channels, self.num_classes = Path(root), size, channels, num_classes
        self.content, self.hashes = content, hashes
        self.eval_view: dict[str, Any] = {}  # further arguments of EvalView, for images of many sizes

    @abstractmethod
    def check(self) -> int:
        """Count the images to pre-train on, from the headers of the files only.

        Raises:
            ConfigError: a file is missing; the message names the command that makes it.
        """
        raise NotImplementedError

    def files(self) -> Sequence[Path]:
        """The files that hold the images, all below ``root``; none if the package makes the images.

        Raises:
            ConfigError: they cannot be listed.
        """
        return ()

    def found(self) -> dict[str, Any]:
        """Find what the configuration takes from the images: arguments of the constructor with their values.

        Raises:
            ConfigError: there are no images, or they cannot be read.
        """
        count = self.check()
        return {"content": self._content, "train_images": count}

    @cached_property
    def _content(self) -> str:
        try:
            return content_of(self.files(), self.root, self.hashes)
        except OSError as error:
            raise ConfigError(f"dataset: {error.filename} cannot be read ({error.strerror})") from error

    def compare(self) -> None:
        """Refuse files that are not those of the run, when they are opened.

        Raises:
            ConfigError: they have another content, or cannot be read.
        """
        if self.content is not None and self._content != self.content:
            raise ConfigError(
                f"dataset: the images in {self.root} are not those of this run any more ({self._content}, not "
                f"{self.content}): set paths.data to the folder that has them"
            )

    def pretrain(self) -> Source:
        """Open the images to pre-train on."""
        raise NotImplementedError

    def split(self, name: str) -> Source:
        """Open the labelled ``train`` or ``test`` split, for evaluation."""
        raise NotImplementedError

    def class_names(self) -> list[str]:
        """List the names of the classes in the order of their labels; empty if they are not known."""
        return []

    def probes(self) -> "dict[str, Probe]":
        """The classification tasks that a network is evaluated on, by the name in the metrics.

        ``digit20`` becomes ``linear/digit20/top1``; the name "" is left out: ``linear/top1``.
        """
        return {"": Probe(self.split("train"), self.split("test"), self.num_classes)}


@dataclass(frozen=True)
class Probe:
    """One classification task: the labelled splits to train and test a classifier on, and the number of classes.

    Attributes:
        train: what the classifier is trained on.
        test: what it is tested on.
        num_classes: at least 2.
        choose: what settings are chosen by; None: a part of ``train``.
    """

    train: Source
    test: Source
    num_classes: int
    choose: Source | None = None


class ArrayDataset(Dataset):
    """Prepared arrays in ``<root>/<name>/``.

    Args:
        name: the folder.
        torchvision: the class of torchvision from which ``ssl-bench prepare`` makes the arrays, one of those that
            ``data/prepare.py`` lists, or ``ImageFolder``: it makes them from a folder of photos, shrunk to ``size`` x
            ``size``.
        pretrain: the splits to pre-train on.
        held_out: numbers of images of the train split that nothing is trained on: to choose settings by, and to test
            on. They take the place of the test split, and a fixed permutation chooses them, the same in every run.

    Raises:
        InvalidValue: ``held_out`` has a number below 1, or there are other images to pre-train on.
    """

    has_pixels = True

    def __init__(
        self,
        name: str,
        torchvision: str,
        pretrain: Sequence[str],
        held_out: tuple[int, int] | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.name, self.torchvision, self.pretrain_splits = name, torchvision, list(pretrain)
        self.folder, self.held_out = self.root / name, held_out
        valid = held_out is None or (min(held_out) >= 1 and self.pretrain_splits == ["train"])
        remedy = "null or two numbers, [5000,10000] to choose by and to test on, with dataset.pretrain=[train]"
        require(valid, "held_out", held_out, remedy)

    @property
    def splits(self) -> list[str]:
        """Names of all splits that are read, those of pre-training first."""
        return ["train"] if self.held_out else list(dict.fromkeys([*self.pretrain_splits, "train", "test"]))

    def files(self) -> list[Path]:
        return [path for split in self.splits for path in self._paths(split)]

    def _paths(self, split: str) -> list[Path]:
        return [self.folder / f"{split}_{kind}.npy" for kind in ("images", "labels")]

    def check(self) -> int:
        counts = {split: len(self.arrays(split)[0]) for split in self.splits}
        count = sum(counts[split] for split in self.pretrain_splits)
        left, remedy = count - sum(self.held_out or ()), f"numbers with a sum below {count}, the images that there are"
        require(left > 0, "dataset.held_out", self.held_out, remedy)
        return left

    def pretrain(self) -> Source:
        if self.held_out:
            return self.split("train")
        opened = [self.arrays(split) for split in self.pretrain_splits]
        return Images([images for images, _ in opened], torch.cat([labels for _, labels in opened]))

    def split(self, name: str) -> Source:
        if self.held_out is None:
            images, labels = self.arrays(name)
            return Images([images], labels)
        images, labels = self.arrays("train")
        # RandomState has the same numbers in every version of NumPy.
        order = torch.from_numpy(np.random.RandomState(0).permutation(len(labels)))
        choose, test = self.held_out
        parts = order.split([len(labels) - choose - test, choose, test])
        return Chosen(Images([images], labels), dict(zip(("train", "choose", "test"), parts, strict=True))[name])

    def probes(self) -> dict[str, Probe]:
        probe = super().probes()[""]
        return {"": replace(probe, choose=self.split("choose")) if self.held_out else probe}

    def arrays(self, split: str) -> tuple[Tensor, Tensor]:
        """Map one split into memory: uint8 [N, C, H, W] and int64 [N], -1 for an unlabelled image.

        Raises:
            MissingData: a file is missing.
            ConfigError: a file is damaged or empty, or does not fit the dataset or the other file.
        """
        paths = self._paths(split)
        remake = f"`{shlex.join(['ssl-bench', 'prepare', f'dataset={self.name}', f'paths.data={self.root}'])}`"
        for path in paths:
            if not os.path.lexists(path):
                remedy = f"get it with {remake}, or set SSL_BENCH_DATA or paths.data to the folder that has it"
                raise MissingData(f"dataset={self.name}: {path} is missing; {remedy}")
        images, labels = (self._mapped(path, remake) for path in paths)
        self.compare()
        height, width, channels = images.shape[1:] if images.ndim == 4 else (0, 0, 0)
        for path, array, fits, needed in (
            (paths[0], images, images.dtype == np.uint8 and images.ndim == 4, "uint8 [N, height, width, channels]"),
            (paths[1], labels, labels.dtype == np.int64 and labels.ndim == 1, "int64 [N]"),
        ):
            if not fits:
                holds = f"{array.dtype} {list(array.shape)}"
                raise ConfigError(f"dataset={self.name}: {path} holds {holds}, not {needed}: replace it")
        if not height == width == self.size or channels != self.channels:
            raise ConfigError(
                f"dataset={self.name}: {paths[0]} has images of {height} x {width} pixels with {channels} channels, "
                f"not {self.size} x {self.size} with {self.channels}: set dataset.size and channels, or replace it"
            )
        if len(images) != len(labels):
            raise ConfigError(
                f"dataset={self.name}: {paths[0]} has {len(images)} images and {paths[1]} has {len(labels)} labels: "
                f"remove both, and get them with {remake}"
            )
        if len(images) == 0:
            raise ConfigError(f"dataset={self.name}: {paths[0]} has no images: remove it, and get it with {remake}")
        first, last = int(labels.min()), int(labels.max())
        if first < -1 or last >= self.num_classes:
            raise ConfigError(
                f"dataset={self.name}: {paths[1]} has labels from {first} to {last}, not from 0 to "
                f"{self.num_classes - 1} or -1 for an unlabelled image: set dataset.num_classes, or replace it"
            )
        return torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(np.array(labels))

    def _mapped(self, path: Path, remake: str) -> np.ndarray:
        """Map an array into memory, copy-on-write, so that the file stays unchanged. Objects are never unpickled."""
        try:
            files.open_regular(path).close()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return np.lib.format.open_memmap(path, mode="c")
        except OSError as error:
            raise ConfigError(f"dataset={self.name}: {path} cannot be read ({error.strerror or error})") from error
        except Exception as error:  # NumPy raises many kinds of errors, and advises to unpickle the file
            reason = "is cut short, damaged or no array of numbers"
            raise ConfigError(f"dataset={self.name}: {path} {reason}: remove it, and get it with {remake}") from error
