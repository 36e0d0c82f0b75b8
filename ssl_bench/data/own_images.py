"""The user's own encoded images: a folder of them, or a dataset of Hugging Face.

Without a test split a share of the images is held out. What the images decide, such as the number of classes, is
written into the configuration (:func:`ssl_bench.config.from_disk.find_images`), with a hash that is part of the run's
identity: of the images' names and sizes and of the first and last 4 KiB of each. Neither times nor the path of the
folder count, so a copy is the same dataset.
"""

import hashlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

import torch

from ssl_bench.data.copies import Originals
from ssl_bench.data.dataset import Dataset
from ssl_bench.data.photos import Photos
from ssl_bench.data.scan import Scan, hash_of, scan_images
from ssl_bench.data.splits import few
from ssl_bench.errors import ConfigError, printable, require
from ssl_bench.files import Mark

MOST_NEIGHBOURS = 200
DEEP = (
    "more than 8 bits: dataset=arrays takes uint16 and floats: images = numpy.stack([cv2.resize(cv2.imread(path, -1), "
    "(64, 64)) for path in paths]); numpy.save('FOLDER/train_images.npy', images)"
)


@dataclass(frozen=True)
class Listing:
    """The images of a dataset that are used, in a fixed order, with their classes and splits.

    Attributes:
        names: of each image, without the path of the dataset.
        labels: of each image, -1 without classes.
        test: whether each image is of the test split; None if the dataset has none.
        classes: name of each class.
        notes: sentences for the user, such as those about images that are not used.
        test_name: of the test split.
        groups: of each image, whose groups stay on one side of a split that is drawn.
        stated: what splits and groups depend on beside the names of the images and the configuration.
    """

    names: list[str]
    labels: list[int]
    test: list[bool] | None
    classes: list[str]
    notes: list[str]
    test_name: str
    groups: Sequence[str] | None = None
    stated: str = ""


def counts_of(labels: Sequence[int], classes: int) -> dict[str, Any]:
    """The arguments of a dataset that follow from the labels of its training images and the number of its classes."""
    count, of_class = len(labels), Counter(labels)
    return {
        "num_classes": classes,
        "train_images": count,
        "least_labels": min(map(of_class.__getitem__, range(classes)), default=None),
        "knn_k": max(1, min(MOST_NEIGHBOURS, count // 50)),
    }


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
    def stamp(self, listing: Listing) -> Mapping[str, Mark | None]:
        """The marks of all files, by their names; None: it cannot be opened."""

    @abstractmethod
    def photos(self, listing: Listing, ids: Sequence[int]) -> Photos:
        """The images ``ids`` of the listing as a split."""

    def settings_of_images(self) -> dict[str, Any]:
        """Read from the images what the configuration takes from them: arguments of the constructor, with values.

        Raises:
            ConfigError: there are no images, or too many broken ones.
        """
        classes = len(self._listing.classes)
        require(self.given_classes in (None, classes), "dataset.num_classes", self.given_classes, f"{classes} or null")
        labels = [self._listing.labels[i] for i in self._splits[0]]
        return {self.key: str(self.location), "content": self._identity} | counts_of(labels, classes)

    def summary(self) -> str:
        """Describe the classes and splits in a sentence."""
        (train, test), broken, listing = self._splits, self._scan["broken"], self._listing
        kind = f"{len(listing.classes)} classes ({few(listing.classes)})" if listing.classes else "no classes"
        held_out = f" ({listing.test_name})" if listing.test else f" (held out: dataset.test_share={self.test_share:g})"
        notes = [f"{self.location}: {kind}, {len(train)} images to train on, {len(test)} to test{held_out}"]
        notes += listing.notes
        if broken:
            notes.append(f"{len(broken)} broken left out: {_reasons(broken)}")
        if pages := self._scan["pages"]:
            notes.append(f"{pages} files have several pages or frames: the first is used")
        if listing.test is None and self._copies:
            notes.append(f"{len(self._copies)} are copies of others and in the same split as those")
        if listing.test is None and listing.groups:
            notes.append(f"{len({*listing.groups})} groups, each in one split")
        return printable("; ".join([*notes, *self.doubts()]))

    def class_names(self) -> list[str]:
        return self._listing.classes

    def originals(self, split: Literal["train", "test"]) -> Originals:
        open_image = partial(self.open_image, self._listing)
        name = self._listing.names.__getitem__
        every = Originals(self._scan["marks"], partial(hash_of, open_image), lambda i: printable(name(i)))
        return every.chosen(self._splits[("train", "test").index(split)])

    def doubts(self) -> list[str]:
        """Count copies of training images in a given test split, groups in both, and copies in another class."""
        (train, test), twins, listing = self._splits, self._scan["twins"], self._listing
        trained, sentences = {twins[i]: i for i in reversed(train)}, list[str]()
        if copies := [i for i in test if twins[i] in trained]:
            pair = f"{listing.names[copies[0]]} is {listing.names[trained[twins[copies[0]]]]}"
            sentences.append(f"{len(copies)} of {len(test)} test images are copies of training images ({pair})")
        if listing.groups and (both := {listing.groups[i] for i in train} & {listing.groups[i] for i in test}):
            sentences.append(f"{len(both)} groups are in both splits ({few(sorted(both))})")
        if other := [i for i in self._copies if listing.labels[i] != listing.labels[twins[i]]]:
            of_image = Counter((twins[i], listing.labels[i]) for i in test)
            right = sum(
                {twin: count for (twin, _), count in sorted(of_image.items(), key=lambda item: item[1])}.values()
            )
            bound = f": no method can have more than {right / len(test):.1%} of the test images right"
            first = f"{listing.names[other[0]]} is {listing.names[twins[other[0]]]}"
            sentences.append(
                f"{len(other)} images are copies of images of another class ({first}){bound * (right < len(test))}"
            )
        return [printable(sentence) for sentence in sentences]

    @cached_property
    def _listing(self) -> Listing:
        return self.listing()

    @cached_property
    def _scan(self) -> Scan:
        """Scan all images; too many broken ones, and those of more than 8 bits, are refused."""
        listing, place = self._listing, str(self.location)
        open_image, written = partial(self.open_image, listing), self.stamp(listing)
        scan = scan_images(listing.names, listing.labels, open_image, self.hashes, place, written)
        broken, count = scan["broken"], len(listing.names)
        if len(broken) > self.skip_broken * count:
            share = max(0.001, -(-1000 * len(broken) // count) / 1000)
            remedy = f", or set dataset.skip_broken to {share:g} to leave them out" if share < 1 else ""
            raise ConfigError(
                f"dataset.skip_broken={self.skip_broken:g}: {len(broken)} of {count} images in {self.location} are "
                f"broken, {_reasons(broken)}: replace or remove them{remedy}"
            )
        if deep := scan["deep"]:
            raise self._refusal(f"{len(deep)} of {count} images ({few(deep)}) have {DEEP}")
        return scan

    @cached_property
    def _copies(self) -> list[int]:
        """The images that have the same bytes as an earlier one."""
        return [i for i, first in enumerate(self._scan["twins"]) if first != i]

    @cached_property
    def _units(self) -> list[int]:
        """The first one of the images that each image is in one split with: copies, and images of one group."""
        twins, groups = self._scan["twins"], self._listing.groups
        return connected(twins, groups) if groups else twins

    @cached_property
    def _identity(self) -> str:
        """The hash of the images. Sets with copies have another one since copies are not held out alone."""
        copies = " with copies" if self._listing.test is None and self._copies else ""
        more, content = copies + self._listing.stated, self._scan["content"]
        return hashlib.sha256(f"{content}{more}".encode(errors="surrogateescape")).hexdigest()[:10] if more else content

    @cached_property
    def _splits(self) -> tuple[list[int], list[int]]:
        """The images to train and to test on, without broken ones."""
        listing, broken, twins = self._listing, self._scan["broken"], self._scan["twins"]
        if self.content not in (None, self._identity):
            raise self._refusal(
                f"these are not the images of this run any more ({self._identity}, not {self.content}): set "
                f"dataset.{self.key} to where they are"
            )
        kept = [i for i, name in enumerate(listing.names) if name not in broken]
        if listing.test is not None:
            test = {i for i in kept if listing.test[i]}
        else:
            test = held_out(kept, listing.names, listing.labels, self._units, self.test_share, self.split_seed)
        train = [i for i in kept if i not in test]
        if lost := {*range(len(listing.classes))}.difference(listing.labels[i] for i in train):
            names = few([listing.classes[label] for label in sorted(lost)])
            raise self._refusal(
                f"no image of {names} is left to train on: they are broken, or in a group that is held out"
            )
        if not train or not test:
            raise self._refusal(f"{len(train)} images to train on and {len(test)} to test: add some")
        if {twins[i] for i in test} <= {twins[i] for i in train}:
            raise self._refusal(
                f"all {len(test)} images of {listing.test_name} are copies of images to train on: put other images "
                f"there, or remove {listing.test_name}: a part of the images is then held out"
            )
        return train, sorted(test)

    def _refusal(self, wrong: str) -> ConfigError:
        return ConfigError(f"dataset.{self.key}={getattr(self, self.key)}: {wrong}")

    def check(self) -> int:
        return len(self._splits[0])

    def pretrain(self) -> Photos:
        return self.split("train")

    def split(self, name: str) -> Photos:
        ids = self._splits[("train", "test").index(name)]
        photos, units = self.photos(self._listing, ids), torch.tensor([self._units[i] for i in ids])
        photos.twins = units if len(units.unique()) < len(units) else None
        return photos


def _reasons(broken: Mapping[str, str]) -> str:
    return few([f"{name} ({wrong})" for name, wrong in broken.items()])


def connected(*keys: Sequence[Hashable]) -> list[int]:
    """The first image that each image is connected with, by an equal key in one of several lists, also in steps."""
    first, before = list(range(len(keys[0]))), list[int]()
    while first != before:
        before = first
        for of_image in keys:
            lowest = dict[Hashable, int]()
            for i, key in enumerate(of_image):
                lowest[key] = min(first[i], lowest.get(key, i))
            first = [lowest[key] for key in of_image]
    return first


def held_out(
    ids: Sequence[int], names: Sequence[str], labels: Sequence[int], units: Sequence[int], share: float, seed: int
) -> set[int]:
    """Draw a share of the images of each class, at least one image of a class with several, by their names.

    All images of a unit are on one side, so that no copy of a test image, and nothing of its group, is trained on.

    Args:
        ids: the images to draw from.
        names, labels: of all images.
        units: the first image of the unit of each one.
        share: between 0 and 1.
        seed: with the names it orders the images.
    """

    def random_key(i: int) -> str:
        return hashlib.sha256(f"{seed}/{names[units[i]]}".encode(errors="surrogateescape")).hexdigest()

    drawn, members = set[int](), dict[int, list[int]]()
    for i in ids:
        members.setdefault(labels[i], []).append(i)
    for of_class in members.values():
        count = max(round(share * len(of_class)), int(len(of_class) > 1))
        order = [units[i] for i in sorted(of_class, key=random_key)]
        chosen, left = {*order[:count]}, {*order[count:]}
        drawn |= chosen - left if left <= chosen else chosen  # some of a class stay to train on
    return {i for i in ids if units[i] in drawn}
