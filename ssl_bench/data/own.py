"""The user's own images, whose classes and splits follow from their names; and a folder of such images.

``dataset=folder`` reads every image below a folder. Classes and a test split are found by :mod:`ssl_bench.data.layout`;
without a test split a share of the images is held out.

What the images decide, such as the number of classes, is written into the configuration
(:func:`ssl_bench.config.from_disk.find_images`), with a hash that is part of the run's identity: of the images' names
and sizes and of the first and last 4 KiB of each. Neither times nor the path of the folder count, so a copy is the same
dataset.
"""

import hashlib
import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Literal

import torch

from ssl_bench.data.dataset import Dataset
from ssl_bench.data.folder import Files, text_of_counts
from ssl_bench.data.headers import look_at_all
from ssl_bench.data.layout import Listing, Tree, find_layout, walk
from ssl_bench.data.photos import FORMATS, Photos
from ssl_bench.data.splits import few
from ssl_bench.errors import ConfigError, InvalidValue, printable, require
from ssl_bench.files import mark, open_regular

MOST_NEIGHBOURS = 200
DARKEST = 0.25  # highest value of all images of more than 8 bits that have their whole range; 14 of 16 bits do not


class OwnImages(Dataset):
    """Base class of datasets whose classes and splits follow from the data.

    Args:
        test_share: share of the images of each class that is held out for the tests if there is no test split.
        split_seed: draws them by their names, so that a new image moves no other one to another split.
        skip_broken: largest share of broken images that are left out; more are refused.
        hashes: hash all bytes of each image for the identity of the data, instead of its first and last 4 KiB.
        resize: length of an image's short side in evaluation, before its centre of ``size`` x ``size`` is cut out;
            None: 8 / 7 of ``size``, as 256 is of 224.
        interpolation: of that resize.
        workers: threads that decode; None shares the CPU cores among the processes of this machine.
        content: hash of the images; None: it is not checked.
        num_classes: None: as many as the data has.
    """

    key: str  # the argument that says where the data is

    def __init__(
        self,
        test_share: float = 0.1,
        split_seed: int = 0,
        skip_broken: float = 0.0,
        hashes: bool = False,
        resize: int | None = None,
        interpolation: Literal["bilinear", "bicubic"] = "bilinear",
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
        self.eval_view = {"resize": resize, "size": self.size, "interpolation": interpolation}

    @property
    @abstractmethod
    def location(self) -> Path:
        """The absolute path of the folder of the data."""

    @abstractmethod
    def listing(self) -> Listing:
        """List all images. Raises ConfigError if there are none."""

    @abstractmethod
    def open_image(self, listing: Listing, i: int) -> BinaryIO:
        """Open image i of the listing."""

    @abstractmethod
    def stamp(self, listing: Listing) -> list[Any]:
        """Plain values that change whenever an image may have changed."""

    def same(self, listing: Listing) -> list[int]:
        """The first image of the listing that is the same file as each one."""
        return list(range(len(listing.names)))

    @abstractmethod
    def photos(self, listing: Listing, ids: Sequence[int]) -> Photos:
        """The images ``ids`` of the listing as a split."""

    def settings_of_images(self) -> dict[str, Any]:
        """Read from the images what the configuration takes from them: arguments of the constructor, with values.

        Raises:
            ConfigError: there are no images, or too many broken ones.
        """
        count, classes = self.check(), len(self._listing.classes)
        require(self.given_classes in (None, classes), "dataset.num_classes", self.given_classes, f"{classes} or null")
        neighbours = max(1, min(MOST_NEIGHBOURS, count // 50))
        return {
            self.key: str(self.location),
            "content": self._look["content"],
            "num_classes": classes,
            "train_images": count,
            "knn_k": neighbours,
        }

    def summary(self) -> str:
        """Describe the classes and splits in a sentence."""
        (train, test), broken, listing = self._splits, self._look["broken"], self._listing
        kind = f"{len(listing.classes)} classes ({few(listing.classes)})" if listing.classes else "no classes"
        held_out = f" ({listing.test_name})" if listing.test else f" (held out: dataset.test_share={self.test_share:g})"
        names = [f"{name} ({wrong})" for name, wrong in broken.items()]
        notes = [*listing.notes, *([f"{len(broken)} broken left out: {few(names)}"] if broken else [])]
        counts = f"{self.location}: {kind}, {len(train)} images to train on, {len(test)} to test{held_out}"
        return printable("; ".join([counts, *notes]))

    def class_names(self) -> list[str]:
        return self._listing.classes

    @cached_property
    def _listing(self) -> Listing:
        return self.listing()

    @cached_property
    def _look(self) -> dict[str, Any]:
        """Look at all images; too many broken ones are refused."""
        listing = self._listing
        look = look_at_all(
            listing.names,
            listing.labels,
            lambda i: self.open_image(listing, i),
            self.hashes,
            [str(self.location), self.stamp(listing)],
        )
        broken, count = look["broken"], len(listing.names)
        if len(broken) > self.skip_broken * count:
            share = max(0.001, -(-1000 * len(broken) // count) / 1000)
            names = few([f"{name} ({wrong})" for name, wrong in broken.items()])
            remedy = f", or set dataset.skip_broken to {share:g} to leave them out" if share < 1 else ""
            raise ConfigError(
                f"dataset.skip_broken={self.skip_broken:g}: {len(broken)} of {count} images in {self.location} are "
                f"broken, {names}: replace or remove them{remedy}"
            )
        if (brightest := look["brightest"]) is not None and brightest < DARKEST:
            raise ConfigError(
                f"dataset.{self.key}={self.location}: the images of more than 8 bits would be almost black: their "
                f"highest value is {brightest:.2g} of the range of their type: save them with the whole range, or with "
                "8 bits"
            )
        if self.content not in (None, look["content"]):
            raise ConfigError(
                f"dataset.{self.key}={self.location}: these are not the images of this run any more "
                f"({look['content']}, not {self.content}): set dataset.{self.key} to where they are"
            )
        return look

    @cached_property
    def _splits(self) -> tuple[list[int], list[int]]:
        """The images to train and to test on, without broken ones."""
        listing, broken, same = self._listing, self._look["broken"], self.same(self._listing)
        kept = [i for i, name in enumerate(listing.names) if name not in broken]
        if lost := {*range(len(listing.classes))}.difference(listing.labels[i] for i in kept):
            names = few([listing.classes[label] for label in sorted(lost)])
            raise ConfigError(f"dataset.{self.key}={self.location}: all images of {names} are broken: replace them")
        if listing.test is not None:
            test = {i for i in kept if listing.test[i]}
        else:
            test, members = set[int](), dict[int, list[int]]()
            for i in kept:
                members.setdefault(listing.labels[i], []).append(i)
            for ids in members.values():
                count = max(round(self.test_share * len(ids)), int(len(ids) > 1))
                drawn = {same[i] for i in sorted(ids, key=lambda i: self._random_key(listing.names[same[i]]))[:count]}
                test.update(i for i in ids if same[i] in drawn)  # all links to one file are in one split
        train = [i for i in kept if i not in test]
        if not train or not test:
            raise ConfigError(f"{self.location} has {len(train)} images to train on and {len(test)} to test: add some")
        first = {same[i]: i for i in reversed(train)}
        if both := [i for i in sorted(test) if same[i] in first]:
            pair = f"{listing.names[both[0]]} is {listing.names[first[same[both[0]]]]}"
            raise ConfigError(
                f"dataset.{self.key}={self.location}: {len(both)} of {len(test)} images to test are also trained on, "
                f"as links to the same files ({pair}): remove the links"
            )
        return train, sorted(test)

    def _random_key(self, name: str) -> str:
        """A text that orders the images at random, from the seed and the image's name."""
        return hashlib.sha256(f"{self.split_seed}/{name}".encode(errors="surrogateescape")).hexdigest()

    def check(self) -> int:
        return len(self._splits[0])

    def pretrain(self) -> Photos:
        return self.split("train")

    def split(self, name: str) -> Photos:
        return self.photos(self._listing, self._splits[("train", "test").index(name)])


class OwnFolder(OwnImages):
    """All images below a folder, also in folders inside folders. Hidden files and folders are left out.

    Args:
        root: the folder.
        classes: ``folders``: an image's class is the highest folder, below ``root`` or below a split, that it is in,
            not counting folders that stand alone; ``none``: there are none; ``auto``: ``folders`` if there are two or
            more of them, and no image beside them.
    """

    key = "root"

    def __init__(self, root: str | None, classes: Literal["auto", "folders", "none"] = "auto", **common: Any) -> None:
        require(bool(root), "root", root, "the folder of your images")
        super().__init__(root=str(root), **common)
        self.classes = classes

    @property
    def location(self) -> Path:
        return self.root.absolute()

    @cached_property
    def _tree(self) -> Tree:
        remedy = "a folder of images: there is none of that name"
        require(self.location.is_dir(), "dataset.root", str(self.root), remedy)
        try:
            return walk(self.location)
        except OSError as error:
            raise ConfigError(f"dataset.root={self.root}: {error.filename}: {error.strerror}") from error

    def listing(self) -> Listing:
        others = text_of_counts(self._tree.others_below())
        if not self._tree.images:
            has = f": it has {others}" if others else ""
            raise ConfigError(f"dataset.root={self.root}: there is no image in it ({', '.join(FORMATS)}){has}")
        try:
            listing = find_layout(self._tree, self.classes)
        except InvalidValue:
            raise
        except ConfigError as error:
            raise ConfigError(f"dataset.root={self.root}: {error}") from error
        loops = [f"{len(self._tree.loops)} links to a folder above them left out: {few(self._tree.loops)}"]
        notes = [*listing.notes, *([f"{others} left out"] if others else []), *(loops if self._tree.loops else [])]
        return replace(listing, notes=notes)

    def same(self, listing: Listing) -> list[int]:
        first: dict[Any, int] = {}
        files = [
            (status.st_dev, status.st_ino) if status and status.st_ino else i
            for i, status in enumerate(self._statuses(listing))
        ]
        return [first.setdefault(file, i) for i, file in enumerate(files)]

    def open_image(self, listing: Listing, i: int) -> BinaryIO:
        return open_regular(self.location / listing.names[i])

    def stamp(self, listing: Listing) -> list[Any]:
        return [status and mark(status) for status in self._statuses(listing)]

    def _statuses(self, listing: Listing) -> list[os.stat_result | None]:
        return [self._tree.images[name] for name in listing.names]

    def photos(self, listing: Listing, ids: Sequence[int]) -> Photos:
        names, labels = [listing.names[i] for i in ids], torch.tensor([listing.labels[i] for i in ids])
        return Files(self.location, names, labels, self.workers, upright=True)
