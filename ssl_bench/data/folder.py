"""Photos in a folder per class, ``<root>/<folder>/{train,val}/<class>/*.JPEG``, as ImageNet is commonly unpacked."""

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ssl_bench.data.arrays import Dataset, Source
from ssl_bench.data.packed import Packed
from ssl_bench.data.photos import Photos
from ssl_bench.errors import ConfigError

ENDINGS = (".jpeg", ".jpg", ".png", ".webp", ".gif")
LAYOUT = (
    "ImageNet is ILSVRC2012_img_train.tar, which holds one tar per class, each to be unpacked as train/<class>/*.JPEG, "
    "and ILSVRC2012_img_val.tar, whose images are to be sorted into val/<class>/"
)


class Folder(Photos):
    """The images of some classes, class by class in the order given, within a class by name: ImageFolder's order.

    Args:
        folder: of one split.
        classes: its subfolders; class i has label i.
        workers: threads that decode.
    """

    def __init__(self, folder: Path, classes: Sequence[str], workers: int | None) -> None:
        self.folder, self.classes = folder, classes
        files = [images(folder / name) for name in classes]
        labels = torch.arange(len(classes)).repeat_interleave(torch.tensor([len(each) for each in files]))
        self._files = [file for each in files for file in each]
        super().__init__(labels, workers)

    def name(self, i: int) -> str:
        return f"{self.folder}/{self.classes[int(self.labels[i])]}/{self._files[i]}"

    def encoded(self, i: int) -> Tensor:
        return torch.from_numpy(np.fromfile(self.name(i), dtype=np.uint8))


def images(folder: Path) -> list[str]:
    """The names of a folder's images, sorted."""
    return _images(folder.absolute(), folder.stat().st_mtime_ns)


@cache  # a run asks more than once, and listing ImageNet takes seconds
def _images(folder: Path, changed: int) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.name.lower().endswith(ENDINGS))


class FolderDataset(Dataset):
    """Photos in a folder per class. Views are cut out of the photos; evaluation sees their centre.

    Args:
        folder: under ``root``.
        train, test: its subfolders for pre-training and for evaluation.
        classes: a list file of the classes to keep, one a line: one of this package's, or an absolute path. None keeps
            all.
        workers: threads that decode; None shares the CPU cores among the processes of this machine.
        resize: length of a photo's short side in evaluation, before its centre of ``size`` x ``size`` is cut out; in
            packed files it is the length at most.
        packed: read the files that ``ssl-bench prepare`` packs, with photos shrunk and encoded again.
    """

    def __init__(
        self,
        folder: str,
        train: str = "train",
        test: str = "val",
        classes: str | None = None,
        workers: int | None = None,
        resize: int = 256,
        packed: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        if resize < self.size:
            raise ValueError(f"resize={resize} must be size={self.size} or more")
        if workers is not None and workers < 1:
            raise ValueError(f"workers={workers} must be 1 or more, or null")
        if self.channels != 3:
            raise ValueError(f"channels={self.channels} must be 3")
        self.folder, self.names, self.workers = self.root / folder, {"train": train, "test": test}, workers
        self.key, self.resize, self.packed = f"dataset.folder={folder}", resize, packed
        self.list = Path(__file__).parent / classes if classes else None
        self.eval_view = {"resize": resize, "size": self.size}
        self._made: dict[str, Photos] = {}

    def check(self) -> int:
        if self.packed:
            self.photos("test")
            return len(self.photos("train"))
        return sum(len(images(self.folder / self.names["train"] / name)) for name in self.classes())

    def pretrain(self) -> Source:
        return self.photos("train")

    def split(self, name: str) -> Source:
        return self.photos(name)

    def photos(self, name: str) -> Photos:
        """The photos of the ``train`` or ``test`` split, opened once."""
        if name not in self._made:
            self._made[name] = self._open(name) if self.packed else self.source(name)
        return self._made[name]

    def _open(self, name: str) -> Packed:
        packed = Packed(self.pack(name), self.workers)
        if (count := int(packed.labels.max()) + 1) != self.num_classes:
            raise ConfigError(
                f"dataset.num_classes={self.num_classes}: {packed.path} has {count} classes; set dataset.num_classes "
                f"to {count}"
            )
        return packed

    def source(self, name: str, folder: Path | None = None) -> Folder:
        """A split as it lies in ``folder``, or where it belongs."""
        folder = folder or self.folder
        return Folder(folder / self.names[name], self.classes(folder), self.workers)

    def pack(self, name: str) -> Path:
        """Where the packed files of a split are, less their endings."""
        return self.folder / "packed" / f"{self.list.stem if self.list else 'all'}_{self.resize}" / self.names[name]

    def classes(self, folder: Path | None = None) -> list[str]:
        """The classes of both splits, sorted.

        Raises:
            ConfigError: a split or a class is missing or empty, the splits have different classes, or there are not
                ``num_classes``.
        """
        folder, there = folder or self.folder, {}
        wanted = self._wanted()
        for path in (folder / name for name in self.names.values()):
            if not path.is_dir():
                raise ConfigError(
                    f"{self.key}: {path} is missing; {LAYOUT}; set SSL_BENCH_DATA or paths.data to the folder that has "
                    f"{self.folder.name}, or dataset.folder, dataset.train and dataset.test to its names"
                )
            with os.scandir(path) as entries:
                there[path] = {entry.name for entry in entries if entry.is_dir()}
            if wanted is not None:
                if absent := sorted(wanted - there[path]):
                    raise ConfigError(f"{self.key}: {path} lacks classes of {self.list}: {few(absent)}")
                there[path] &= wanted
            if not there[path]:
                raise ConfigError(f"{self.key}: {path} has no folders, one for each class; {LAYOUT}")
        (train, classes), (test, others) = there.items()
        for path, odd in ((train, classes - others), (test, others - classes)):
            if odd:
                raise ConfigError(
                    f"{self.key}: {train} and {test} must have the same classes; {path} alone has {few(sorted(odd))}"
                )
        if len(classes) != self.num_classes:
            raise ConfigError(
                f"dataset.num_classes={self.num_classes}: {train} has {len(classes)} classes; set dataset.num_classes "
                f"to {len(classes)}, or {self.key.split('=')[0]} to another folder"
            )
        for path in there:
            for name in sorted(classes):
                if not images(path / name):
                    raise ConfigError(f"{self.key}: {path / name} has no images ({', '.join(ENDINGS)})")
        return sorted(classes)

    def _wanted(self) -> set[str] | None:
        if self.list is None:
            return None
        try:
            return set(self.list.read_text().split())
        except OSError as error:
            raise ConfigError(f"dataset.classes: {self.list} cannot be read ({error.strerror})") from error


def few(names: Sequence[str]) -> str:
    """The first names and how many more there are."""
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest
