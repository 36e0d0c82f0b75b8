"""Images of the user's own, whose classes and splits are found, not set; and a folder of such images.

``dataset=folder`` reads every image below a folder. Its classes are the names of the folders that the images are in;
its test split is a folder beside ``train``, or a share of the images that is held out.

What is found is written into the configuration (:func:`ssl_bench.config.found.find_images`), and its hash is part of
the run's identity: names and sizes of the images and a checksum of the first and last 4 KiB of each. Neither times nor
the place of the folder count, so a copy is the same dataset.
"""

import hashlib
import os
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Literal

import torch
from torch import Tensor

from ssl_bench.data.arrays import Dataset
from ssl_bench.data.folder import Files, few
from ssl_bench.data.headers import look_at_all
from ssl_bench.data.photos import Photos
from ssl_bench.errors import ConfigError, InvalidValue, require
from ssl_bench.files import open_regular

ENDINGS = (".jpeg", ".jpg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
TESTS = ("test", "val", "valid", "validation")  # names of a test split beside "train", the first that fits
MOST_NEIGHBOURS = 200


@dataclass(frozen=True)
class Listing:
    """All images of a dataset, in a fixed order.

    Attributes:
        names: of each image, without the place of the dataset.
        labels: of each image, -1 without classes.
        test: whether each image is of the test split; None if the dataset has none.
        classes: number of classes.
    """

    names: list[str]
    labels: list[int]
    test: list[bool] | None
    classes: int


class OwnImages(Dataset):
    """Base class of datasets whose classes and splits are found in the data.

    Args:
        test_share: share of the images of each class that is held out for the tests if there is no test split.
        split_seed: chooses them, by their names: a new image moves no other one to the other split.
        skip_broken: largest share of broken images that are left out; more are refused.
        hashes: hash all bytes of each image for the identity of the data, instead of both ends.
        resize: length of an image's short side in evaluation, before its centre of ``size`` x ``size`` is cut out;
            None: 8 / 7 of ``size``, as 256 is of 224.
        workers: threads that decode; None shares the CPU cores among the processes of this machine.
        content: hash of the images; None: to be found.
        num_classes: None: to be found.
    """

    key: str  # the argument that says where the data is

    def __init__(
        self,
        test_share: float = 0.1,
        split_seed: int = 0,
        skip_broken: float = 0.0,
        hashes: bool = False,
        resize: int | None = None,
        workers: int | None = None,
        content: str | None = None,
        num_classes: int | None = None,
        **common: Any,
    ) -> None:
        super().__init__(num_classes=num_classes or 0, **common)
        require(0 < test_share < 1, "test_share", test_share, "a share between 0 and 1, such as 0.1")
        require(0 <= skip_broken < 1, "skip_broken", skip_broken, "a share from 0 to below 1, such as 0.01")
        resize = resize or round(self.size * 8 / 7)
        require(resize >= self.size, "resize", resize, f"dataset.size ({self.size}) or more, or null")
        require(workers is None or workers >= 1, "workers", workers, "1 or more, or null")
        require(self.channels == 3, "channels", self.channels, "3")
        self.test_share, self.split_seed, self.skip_broken, self.hashes = test_share, split_seed, skip_broken, hashes
        self.workers, self.content, self.given_classes = workers, content, num_classes
        self.eval_view = {"resize": resize, "size": self.size}

    @property
    @abstractmethod
    def place(self) -> Path:
        """Where the data is."""

    @abstractmethod
    def listing(self) -> Listing:
        """List all images. Raises ConfigError if there are none."""

    @abstractmethod
    def open_image(self, listing: Listing, i: int) -> BinaryIO:
        """Open image i of the listing."""

    @abstractmethod
    def stamp(self, listing: Listing) -> list[Any]:
        """Plain values that change whenever an image may have changed."""

    @abstractmethod
    def photos(self, listing: Listing, ids: Sequence[int]) -> Photos:
        """The images ``ids`` of the listing as a split."""

    def found(self) -> dict[str, Any]:
        """Find what the configuration takes from the images: arguments of the constructor with their values.

        Raises:
            ConfigError: there are no images, or too many broken ones.
        """
        count, classes = self.check(), self._listing.classes
        require(self.given_classes in (None, classes), "dataset.num_classes", self.given_classes, f"{classes} or null")
        neighbours = max(1, min(MOST_NEIGHBOURS, count // 50))
        return {
            self.key: str(self.place),
            "content": self._look["content"],
            "num_classes": classes,
            "train_images": count,
            "knn_k": neighbours,
        }

    def summary(self) -> str:
        """Say in a sentence what was found."""
        (train, test), broken = self._splits, self._look["broken"]
        kind = f"{self._listing.classes} classes" if self._listing.classes else "no classes"
        held_out = "" if self._listing.test else f" (held out: dataset.test_share={self.test_share:g})"
        names = [f"{name} ({wrong})" for name, wrong in broken.items()]
        left_out = f"; {len(broken)} broken left out: {few(names)}" if broken else ""
        return f"{self.place}: {kind}, {len(train)} images to train on, {len(test)} to test{held_out}{left_out}"

    @cached_property
    def _listing(self) -> Listing:
        return self.listing()

    @cached_property
    def _look(self) -> dict[str, Any]:
        """Look at all images; too many broken ones are refused."""
        listing = self._listing
        found = look_at_all(
            listing.names,
            listing.labels,
            lambda i: self.open_image(listing, i),
            self.hashes,
            [str(self.place), self.stamp(listing)],
        )
        broken, count = found["broken"], len(listing.names)
        if len(broken) > self.skip_broken * count:
            share = max(0.001, -(-1000 * len(broken) // count) / 1000)
            names = few([f"{name} ({wrong})" for name, wrong in broken.items()])
            raise ConfigError(
                f"dataset.skip_broken={self.skip_broken:g}: {len(broken)} of {count} images in {self.place} are "
                f"broken, {names}: replace or remove them, or set dataset.skip_broken to {share:g} to leave them out"
            )
        if self.content not in (None, found["content"]):
            raise ConfigError(
                f"dataset.{self.key}={self.place}: these are not the images of this run any more "
                f"({found['content']}, not {self.content}): set dataset.{self.key} to where they are"
            )
        return found

    @cached_property
    def _splits(self) -> tuple[list[int], list[int]]:
        """The images to train and to test on, without broken ones."""
        listing, broken = self._listing, self._look["broken"]
        kept = [i for i, name in enumerate(listing.names) if name not in broken]
        if listing.test is not None:
            test = {i for i in kept if listing.test[i]}
        else:
            test, members = set[int](), dict[int, list[int]]()
            for i in kept:
                members.setdefault(listing.labels[i], []).append(i)
            for each in members.values():
                count = max(round(self.test_share * len(each)), int(len(each) > 1))
                test.update(sorted(each, key=lambda i: self._lot(listing.names[i]))[:count])
        train = [i for i in kept if i not in test]
        if not train or not test:
            raise ConfigError(f"{self.place} has {len(train)} images to train on and {len(test)} to test: add some")
        return train, sorted(test)

    def _lot(self, name: str) -> str:
        """A number of the image that the seed draws, as text."""
        return hashlib.sha256(f"{self.split_seed}/{name}".encode(errors="surrogateescape")).hexdigest()

    def check(self) -> int:
        return len(self._splits[0])

    def pretrain(self) -> Photos:
        return self.split("train")

    def split(self, name: str) -> Photos:
        return self.photos(self._listing, self._splits[("train", "test").index(name)])


class ImageFiles(Files):
    """Files of a folder, turned upright.

    Args:
        folder: where they are.
        names: of the files.
        labels: int64 [N].
        workers: threads that decode.
    """

    upright = True

    def __init__(self, folder: Path, names: Sequence[str], labels: Tensor, workers: int | None) -> None:
        super().__init__(labels, workers)
        self.folder, self.names = folder, names

    def name(self, i: int) -> str:
        return f"{self.folder}/{self.names[i]}"


class OwnFolder(OwnImages):
    """All images below a folder, also in folders inside folders. Hidden files and folders are left out.

    Args:
        root: the folder.
        classes: ``folders``: an image's class is the folder, below ``root`` or below a split, that it is in; ``none``:
            there are none; ``auto``: ``folders`` if there are two or more of them, and no image beside them.
    """

    key = "root"

    def __init__(self, root: str | None, classes: Literal["auto", "folders", "none"] = "auto", **common: Any) -> None:
        require(bool(root), "root", root, "the folder of your images")
        super().__init__(root=str(root), **common)
        self.classes = classes

    @property
    def place(self) -> Path:
        return self.root.absolute()

    def listing(self) -> Listing:
        require(self.place.is_dir(), "dataset.root", str(self.root), "a folder of images: there is none of that name")
        try:
            names = sorted(_images(self.place))
        except OSError as error:
            raise ConfigError(f"dataset.root={self.root}: {error.filename}: {error.strerror}") from error
        if not names:
            raise ConfigError(f"dataset.root={self.root}: there is no image in it ({', '.join(ENDINGS)})")
        parts = [name.split("/") for name in names]
        tops = {part[0] for part in parts if len(part) > 1}
        alone = tops == {"train"} and all(len(part) > 1 for part in parts)  # a train folder and nothing else
        tests = [name for name in TESTS if name in tops] if "train" in tops else []

        def classes_of(split: str) -> list[str]:
            return self._classes([part[1:] for part in parts if part[0] == split])

        classes = classes_of("train") if tests or alone else self._classes(parts)
        # A test folder without the classes, as of a competition, is no test split here.
        test = next((name for name in tests if classes_of(name) == classes), None)
        if tests and test is None:
            raise ConfigError(
                f"dataset.root={self.root}: train and {tests[0]} must have the same classes, and those of train are "
                f"{few(classes) or 'none'}: rename the folders of one, or set dataset.classes to none"
            )
        kept = [part for part in parts if test is None or part[0] in ("train", test)]
        label, at = {name: i for i, name in enumerate(classes)}, int(bool(test or alone))
        labels = [label[part[at]] if classes else -1 for part in kept]
        is_test = [part[0] == test for part in kept] if test else None
        return Listing(["/".join(part) for part in kept], labels, is_test, len(classes))

    def _classes(self, parts: Sequence[Sequence[str]]) -> list[str]:
        """The names of the classes of images whose paths, in parts, are given; sorted."""
        names = sorted({part[0] for part in parts if len(part) > 1})
        beside = any(len(part) == 1 for part in parts)
        if self.classes == "folders" and (beside or len(names) < 2):
            remedy = "auto or none: it takes two folders or more, and no image beside them"
            raise InvalidValue("dataset.classes", self.classes, remedy)
        return names if self.classes != "none" and len(names) > 1 and not beside else []

    def open_image(self, listing: Listing, i: int) -> BinaryIO:
        return open_regular(self.place / listing.names[i])

    def stamp(self, listing: Listing) -> list[Any]:
        found = [(self.place / name).stat() for name in listing.names]
        return [[each.st_size, each.st_mtime_ns] for each in found]

    def photos(self, listing: Listing, ids: Sequence[int]) -> Photos:
        names, labels = [listing.names[i] for i in ids], torch.tensor([listing.labels[i] for i in ids])
        return ImageFiles(self.place, names, labels, self.workers)


def _images(folder: Path) -> Iterator[str]:
    """Paths of the images below a folder, relative to it. A link to a folder that is being searched is left out."""
    seen = set[str]()
    for path, inside, names in os.walk(folder, onerror=_raise, followlinks=True):
        seen.add(os.path.realpath(path))
        visible = [n for n in inside if n[0] != "." and n not in ("__MACOSX", "@eaDir")]
        inside[:] = [n for n in visible if os.path.realpath(os.path.join(path, n)) not in seen]
        below = os.path.relpath(path, folder)
        start = "" if below == "." else f"{below}/"
        yield from (f"{start}{n}" for n in names if n[0] != "." and n.lower().endswith(ENDINGS))


def _raise(error: OSError) -> None:
    raise error
