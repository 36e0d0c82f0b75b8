"""The user's own images, whose classes and splits follow from their names: a folder of them, or one of Hugging Face.

Classes and a test split are found by :mod:`ssl_bench.data.layout`; without a test split a share of the images is held
out.

What the images decide, such as the number of classes, is written into the configuration
(:func:`ssl_bench.config.from_disk.find_images`), with a hash that is part of the run's identity: of the images' names
and sizes and of the first and last 4 KiB of each. Neither times nor the path of the folder count, so a copy is the same
dataset.
"""

import hashlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

import torch

from ssl_bench.data.copies import Originals
from ssl_bench.data.dataset import Dataset
from ssl_bench.data.headers import check_depth, hash_of, look_at_all
from ssl_bench.data.heldout import held_out
from ssl_bench.data.layout import Listing
from ssl_bench.data.photos import Photos
from ssl_bench.data.splits import few
from ssl_bench.errors import ConfigError, printable, require

MOST_NEIGHBOURS = 200


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
    def stamp(self, listing: Listing) -> list[Any]:
        """Plain values that change whenever an image may have changed."""

    def same(self, listing: Listing) -> list[int]:
        """The first image of the listing that is the same file as each one, by a link."""
        return list(range(len(listing.names)))

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
        (train, test), broken, listing = self._splits, self._look["broken"], self._listing
        kind = f"{len(listing.classes)} classes ({few(listing.classes)})" if listing.classes else "no classes"
        held_out = f" ({listing.test_name})" if listing.test else f" (held out: dataset.test_share={self.test_share:g})"
        names = [f"{name} ({wrong})" for name, wrong in broken.items()]
        notes = [*listing.notes, *([f"{len(broken)} broken left out: {few(names)}"] if broken else [])]
        if self._copies_moved:
            notes.append(f"{len(self._look['copies'])} are copies of others and in the same split as those")
        notes += self.doubts()
        counts = f"{self.location}: {kind}, {len(train)} images to train on, {len(test)} to test{held_out}"
        return printable("; ".join([counts, *notes]))

    def class_names(self) -> list[str]:
        return self._listing.classes

    def originals(self, split: Literal["train", "test"]) -> Originals:
        listing = self._listing
        every = Originals(
            self._look["marks"],
            partial(hash_of, lambda i: self.open_image(listing, i)),
            lambda i: printable(listing.names[i]),
        )
        return every.chosen(self._splits[("train", "test").index(split)])

    def doubts(self) -> list[str]:
        """Say how many test images of a given split are copies of training images, if there are any."""
        (train, test), twins = self._splits, self._twins
        trained = {twins[i]: i for i in reversed(train)}
        copies = [i for i in test if twins[i] in trained]
        if not copies:
            return []
        names = self._listing.names
        pair = f"{names[copies[0]]} is {names[trained[twins[copies[0]]]]}"
        return [printable(f"{len(copies)} of {len(test)} test images are copies of training images ({pair})")]

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
            self._groups(listing),
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
        check_depth(look["brightest"], f"dataset.{self.key}={self.location}")
        return look

    @staticmethod
    def _groups(listing: Listing) -> list[str]:
        """The class and the split of each image, as far as there are any."""
        places = zip(listing.labels, listing.test or [False] * len(listing.labels), strict=True)
        parts = ([listing.test_name] * test + listing.classes[label : label + 1] for label, test in places)
        return ["/".join(words) or "the folder" for words in parts]

    @cached_property
    def _twins(self) -> list[int]:
        """The first image of the listing that is the same file as each one, or has the same bytes."""
        twins = self.same(self._listing)
        for i, first in self._look["copies"]:
            twins[i] = first
        return twins

    @property
    def _copies_moved(self) -> bool:
        """Whether the images that are held out are others than without regard to copies."""
        return self._listing.test is None and self._twins != self.same(self._listing)

    @cached_property
    def _identity(self) -> str:
        """The hash of the images. Sets with copies have another one since copies are not held out alone."""
        content: str = self._look["content"]
        return hashlib.sha256(f"{content} with copies".encode()).hexdigest()[:10] if self._copies_moved else content

    @cached_property
    def _splits(self) -> tuple[list[int], list[int]]:
        """The images to train and to test on, without broken ones."""
        listing, broken, twins = self._listing, self._look["broken"], self._twins
        if self.content not in (None, self._identity):
            raise ConfigError(
                f"dataset.{self.key}={self.location}: these are not the images of this run any more "
                f"({self._identity}, not {self.content}): set dataset.{self.key} to where they are"
            )
        kept = [i for i, name in enumerate(listing.names) if name not in broken]
        if lost := {*range(len(listing.classes))}.difference(listing.labels[i] for i in kept):
            names = few([listing.classes[label] for label in sorted(lost)])
            raise ConfigError(f"dataset.{self.key}={self.location}: all images of {names} are broken: replace them")
        if listing.test is not None:
            test = {i for i in kept if listing.test[i]}
        else:
            share, seed = self.test_share, self.split_seed
            test = held_out(kept, listing.names, listing.labels, twins, share, seed)
        train = [i for i in kept if i not in test]
        if not train or not test:
            raise ConfigError(f"{self.location} has {len(train)} images to train on and {len(test)} to test: add some")
        same = self.same(listing)
        first = {same[i]: i for i in reversed(train)}
        if both := [i for i in sorted(test) if same[i] in first]:
            pair = f"{listing.names[both[0]]} is {listing.names[first[same[both[0]]]]}"
            raise ConfigError(
                f"dataset.{self.key}={self.location}: {len(both)} of {len(test)} images to test are also trained on, "
                f"as links to the same files ({pair}): remove the links"
            )
        if {twins[i] for i in test} <= {twins[i] for i in train}:
            level = listing.names[min(test)].split("/").index(listing.test_name)
            other = listing.names[train[0]].split("/")[level]
            raise ConfigError(
                f"dataset.{self.key}={self.location}: all {len(test)} images of {listing.test_name} are copies of "
                f"images of {other}: put other images there, or remove {listing.test_name}: a part of the images is "
                "then held out"
            )
        return train, sorted(test)

    def check(self) -> int:
        return len(self._splits[0])

    def pretrain(self) -> Photos:
        return self.split("train")

    def split(self, name: str) -> Photos:
        ids = self._splits[("train", "test").index(name)]
        photos, twins = self.photos(self._listing, ids), torch.tensor([self._twins[i] for i in ids])
        photos.twins = twins if len(twins.unique()) < len(twins) else None
        return photos
