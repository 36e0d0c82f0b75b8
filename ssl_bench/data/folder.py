"""Photos in a folder per class, ``<root>/<folder>/{train,val}/<class>/*.JPEG``, as ImageNet is commonly unpacked."""

import logging
import os
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ssl_bench.data.dataset import Dataset, MissingData
from ssl_bench.data.packed import Packed
from ssl_bench.data.photos import FORMATS, LARGEST, Photos, endings
from ssl_bench.data.source import Source
from ssl_bench.data.splits import difference, few
from ssl_bench.errors import ConfigError, require
from ssl_bench.files import Mark, mark, open_regular, read_bytes

log = logging.getLogger("ssl_bench")
JUNK = {"__macosx", "@eadir", "#recycle", "$recycle.bin", "system volume information", "lost+found", "__pycache__"}
JUNK |= {"thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r"}
LAYOUT = (
    "ImageNet is ILSVRC2012_img_train.tar, which holds one tar per class, each to be unpacked as train/<class>/*.JPEG, "
    "and ILSVRC2012_img_val.tar, whose images are to be sorted into val/<class>/"
)


class Files(Photos):
    """A split with a file for each image.

    Args:
        folder: where they are.
        names: of the files.
        labels, workers, upright: as in :class:`ssl_bench.data.photos.Photos`.
    """

    def __init__(
        self, folder: Path, names: Sequence[str], labels: Tensor, workers: int | None, upright: bool = False
    ) -> None:
        super().__init__(labels, workers, upright)
        self.folder, self.names = folder, names

    def name(self, i: int) -> str:
        return f"{self.folder}/{self.names[i]}"

    place = name

    def encoded(self, i: int) -> Tensor:
        with open_regular(self.name(i), LARGEST) as file:  # a pipe with the name of an image is not waited for
            return torch.from_numpy(np.fromfile(file, dtype=np.uint8))


class Folder(Files):
    """The images of some classes, ordered by class and then by name, as in torchvision's ImageFolder.

    Args:
        folder: the folder of one split.
        classes: names of its subfolders; class i has label i.
        workers: threads that decode.
    """

    def __init__(self, folder: Path, classes: Sequence[str], workers: int | None) -> None:
        self.classes = classes
        listed = [_listed(folder / name) for name in classes]
        if left := sum((others for _, others in listed), Counter[str]()):
            log.warning("%s: left out, no image of %s: %s", folder, ", ".join(FORMATS), text_of_counts(left))
        labels = torch.arange(len(classes)).repeat_interleave(torch.tensor([len(names) for names, _ in listed]))
        names = [f"{name}/{file}" for name, (files, _) in zip(classes, listed, strict=True) for file in files]
        super().__init__(folder, names, labels, workers)


def image_names(folder: Path) -> list[str]:
    """List the names of a folder's images, sorted.

    Raises:
        ConfigError: the folder cannot be read.
    """
    return _listed(folder)[0]


def _listed(folder: Path) -> tuple[list[str], Counter[str]]:
    """The names of a folder's images, sorted, and how many other files it has of each ending."""
    try:
        return _scanned(folder.absolute(), mark(folder.stat()))
    except OSError as error:
        raise _unreadable(folder, error) from error


def _unreadable(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{folder} cannot be read ({error.strerror}): make it readable, or set paths.data to another")


@lru_cache(2**15)  # a run needs it more than once, and listing ImageNet takes seconds
def _scanned(folder: Path, changed: Mark) -> tuple[list[str], Counter[str]]:
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries if is_visible(entry.name))
    return [name for name in names if is_image(name)], Counter(ending(name) for name in names if not is_image(name))


def is_visible(name: str) -> bool:
    """Whether a file or folder is used: it is not hidden, and no operating system has put it there by itself."""
    return not name.startswith(".") and name.lower() not in JUNK


def is_image(name: str) -> bool:
    """Whether a visible file is taken for an image, by its ending."""
    return name.lower().endswith(endings())


def ending(name: str) -> str:
    """The ending of a file's name in lower case, for messages."""
    return Path(name).suffix.lower() or "without an ending"


def text_of_counts(left: Counter[str]) -> str:
    """The number of files of each ending in words, the most first: ``12 .heic, 3 .txt``."""
    return ", ".join(f"{count} {name}" for name, count in left.most_common())


class FolderDataset(Dataset):
    """Photos in a folder per class. Views are crops of the photos; evaluation uses their centres.

    Args:
        folder: name of the folder under ``root``.
        train, test: names of its subfolders for pre-training and for evaluation.
        classes: file that lists the classes to keep, one per line: a file of this package, or an absolute path. None
            keeps all.
        workers: threads that decode; None shares the CPU cores among the processes of this machine.
        resize: length of a photo's short side in evaluation, before its centre of ``size`` x ``size`` is cut out, and
            the largest length of a short side in packed files.
        interpolation: of the resize in evaluation.
        packed: read the packed files of ``ssl-bench prepare``, with photos shrunk and encoded again.
    """

    def __init__(
        self,
        folder: str,
        train: str = "train",
        test: str = "val",
        classes: str | None = None,
        workers: int | None = None,
        resize: int = 256,
        interpolation: Literal["bilinear", "bicubic"] = "bilinear",
        packed: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        require(resize >= self.size, "resize", resize, f"dataset.size ({self.size}) or more")
        require(workers is None or workers >= 1, "workers", workers, "1 or more, or null")
        require(self.channels == 3, "channels", self.channels, "3")
        self.folder, self.workers, self.resize, self.packed = self.root / folder, workers, resize, packed
        self.split_folders = {"train": train, "test": test}
        self.class_file = Path(__file__).parent / classes if classes else None
        self.eval_view = {"resize": resize, "size": self.size, "interpolation": interpolation}
        self._key = f"dataset.folder={folder}"
        self._opened: dict[str, Photos] = {}

    def files(self) -> list[Path]:
        """The packed files, or the photos of all classes in their order."""
        if self.packed:
            paths = [self.packed_path(name) for name in self.split_folders]
            return [path.with_name(path.name + end) for path in paths for end in (".jpegs", ".npz")]
        folders = [self.folder / split / name for split in self.split_folders.values() for name in self.classes()]
        return [folder / name for folder in folders for name in image_names(folder)]

    def check(self) -> int:
        self.check_content()
        if self.packed:
            self.photos("test")
            return len(self.photos("train"))
        return sum(len(image_names(self.folder / self.split_folders["train"] / name)) for name in self.classes())

    def pretrain(self) -> Source:
        return self.photos("train")

    def split(self, name: str) -> Source:
        return self.photos(name)

    def photos(self, name: str) -> Photos:
        """Open the photos of the ``train`` or ``test`` split, once."""
        if name not in self._opened:
            self.check_content()
            self._opened[name] = self._open_packed(name) if self.packed else self.source(name)
        return self._opened[name]

    def _open_packed(self, name: str) -> Packed:
        packed = Packed(self.packed_path(name), self.workers)
        if (count := int(packed.labels.max()) + 1) != self.num_classes:
            raise ConfigError(
                f"dataset.num_classes={self.num_classes}: {packed.path} has {count} classes; set dataset.num_classes "
                f"to {count}"
            )
        return packed

    def source(self, name: str, folder: Path | None = None) -> Folder:
        """Open the unpacked photos of a split in ``folder``, by default in the folder of this dataset."""
        folder = folder or self.folder
        return Folder(folder / self.split_folders[name], self.classes(folder), self.workers)

    def packed_path(self, name: str) -> Path:
        """Path of the packed files of a split, without their endings."""
        classes = self.class_file.stem if self.class_file else "all"
        return self.folder / "packed" / f"{classes}_{self.resize}" / self.split_folders[name]

    def class_names(self) -> list[str]:
        photos = self.photos("train")
        return list(photos.classes) if isinstance(photos, Folder) else []

    def classes(self, folder: Path | None = None) -> list[str]:
        """List the classes of both splits, sorted.

        Raises:
            MissingData: a split is missing.
            ConfigError: a class is missing, a split is empty, the splits have different classes, or their number is
                not ``num_classes``.
        """
        folder, kept = folder or self.folder, self._kept_classes()
        train, test = (folder / name for name in self.split_folders.values())
        present = {path: self._folders(path) for path in (train, test)}
        for path, names in present.items():
            if kept is not None and (absent := sorted(kept - names)):
                raise ConfigError(f"{self._key}: {path} lacks classes of {self.class_file}: {few(absent)}")
        of_train, of_test = (names if kept is None else kept for names in present.values())
        if of_train != of_test:
            differ = difference(of_train, of_test, str(train), str(test))
            raise ConfigError(f"{self._key}: both splits must have the same classes: {differ}")
        if len(of_train) != self.num_classes:
            raise ConfigError(
                f"dataset.num_classes={self.num_classes}: {train} has {len(of_train)} classes; set dataset.num_classes "
                f"to {len(of_train)}, or dataset.folder to another folder"
            )
        for path in (path / name for path in present for name in sorted(of_train)):
            if not image_names(path):
                raise ConfigError(f"{self._key}: {path} has no images ({', '.join(FORMATS)})")
        return sorted(of_train)

    def _folders(self, path: Path) -> set[str]:
        if not path.is_dir():
            raise MissingData(
                f"{self._key}: {path} is missing; {LAYOUT}; set SSL_BENCH_DATA or paths.data to the folder that "
                f"has {self.folder.name}, or dataset.folder, dataset.train and dataset.test to its names"
            )
        try:
            with os.scandir(path) as entries:
                names = {entry.name for entry in entries if entry.is_dir() and is_visible(entry.name)}
        except OSError as error:
            raise _unreadable(path, error) from error
        if not names:
            raise ConfigError(f"{self._key}: {path} has no folders, one for each class; {LAYOUT}")
        return names

    def _kept_classes(self) -> set[str] | None:
        if self.class_file is None:
            return None
        remedy = "set dataset.classes to a file with one class per line"
        try:
            classes = set(read_bytes(self.class_file).decode("utf-8-sig").split())
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is no text in UTF-8"
            raise ConfigError(f"dataset.classes: {self.class_file} cannot be read ({reason}): {remedy}") from error
        if not classes:
            raise ConfigError(f"dataset.classes: {self.class_file} is empty: {remedy}")
        return classes
