"""The user's own encoded images: a folder of them, or a dataset of Hugging Face.

Without a test split a share of the images is held out. What the images decide, such as the number of classes, is
written into the configuration (:func:`ssl_bench.config.from_disk.find_images`), with a hash that is part of the run's
identity: of the images' names and sizes and of the first and last 4 KiB of each. Neither times nor the path of the
folder count, so a copy is the same dataset.
"""

import hashlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar, TypedDict

import torch
from msgspec import Meta

from ssl_bench.data.dataset import PhotoDataset, counts_of, remembered
from ssl_bench.data.photos import EMPTY, Photos, Scanned, scan_image, sha256
from ssl_bench.data.splits import Listing, connected, few, held_out, twins
from ssl_bench.errors import ConfigError, InvalidValue, printable, reason, require
from ssl_bench.files import Mark, say_once
from ssl_bench.hardware import available_cores

SPLITS = ("train", "test")
MANY = 2000  # images that take more than a second or so to scan
DEEP = (
    "; more than 8 bits: dataset=arrays takes uint16 and floats: images = numpy.stack([cv2.resize(cv2.imread(path, "
    "-1), (64, 64)) for path in paths]); numpy.save('FOLDER/train_images.npy', images)"
)


class Scan(TypedDict):
    """Facts about all images.

    Attributes:
        content: a hash of ten digits of the names, labels, sizes and checksums of the images that are not broken.
        broken: what is wrong with the others, by name.
        pages: how many images have several.
        twins: for each image the first one with the same bytes.
        opened: whether all files could be opened.
    """

    content: str
    broken: dict[str, str]
    pages: int
    twins: list[int]
    opened: bool


@dataclass(kw_only=True, eq=False)
class OwnImages(PhotoDataset):
    """Base class of datasets whose classes and splits follow from the data.

    Args:
        test_share: share of the images of each class that is held out for the tests if there is no test split.
        split_seed: draws them by their names, so that a new image moves no other one to another split.
        skip_broken: largest share of broken images that are left out; more are refused.
        hashes: hash all bytes of each image for the identity of the data, instead of its first and last 4 KiB.
        resize: as of :class:`PhotoDataset`; None: 8 / 7 of ``size``, as 256 is of 224.
        content: hash of the images; None: it is not checked.
        num_classes: None: as many as the data has.
    """

    key: ClassVar[str]  # the argument that says where the data is
    has_files: ClassVar[bool]  # whether each image is a file below it

    test_share: Annotated[float, Meta(gt=0, lt=1)] = 0.1
    split_seed: int = 0
    skip_broken: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    resize: int | None = None  # type: ignore[assignment]
    num_classes: int | None = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        given = getattr(self, self.key)
        require(bool(given), self.key, given, "the folder of your images")
        self.location, self._key = Path(given).absolute(), f"dataset.{self.key}={given}"
        self.given_classes, self.num_classes = self.num_classes, self.num_classes or 0
        self.resize = self.resize or round(self.size * 8 / 7)
        super().__post_init__()

    @abstractmethod
    def listing(self) -> Listing:
        """List all images. Raises ConfigError if there are none."""

    @abstractmethod
    def open_image(self, name: str) -> BinaryIO:
        """Open an image of the listing. Raises OSError if it cannot be read."""

    @abstractmethod
    def stamp(self) -> Mapping[str, Mark | None]:
        """The marks of all files, by their names; None: it cannot be opened."""

    def settings_of_images(self) -> dict[str, Any]:
        classes = len(self._listing.classes)
        require(self.given_classes in (None, classes), "dataset.num_classes", self.given_classes, f"{classes} or null")
        labels = [self._listing.labels[i] for i in self._splits[0]]
        return {self.key: str(self.location), "content": self._identity} | counts_of(labels, classes)

    def summary(self) -> str:
        """Describe the classes and splits in a sentence."""
        (train, test), listing, scan, drawn = self._splits, self._listing, self._scan, self._listing.test is None
        kind = f"{len(listing.classes)} classes ({few(listing.classes)})" if listing.classes else "no classes"
        tested = f"held out: dataset.test_share={self.test_share:g}" if drawn else listing.test_name
        counts = [
            (len(scan["broken"]), f"broken left out: {_reasons(scan['broken'])}"),
            (scan["pages"], "files have several pages or frames: the first is used"),
            (drawn * len(self._copies), "are copies of others and in the same split as those"),
            (drawn * len({*(listing.groups or ())}), "groups, each in one split"),
        ]
        notes = [f"{self.location}: {kind}, {len(train)} images to train on, {len(test)} to test ({tested})"]
        notes += [*listing.notes, *(f"{count} {text}" for count, text in counts if count)]
        return printable("; ".join([*notes, *self.doubts()]))

    def class_names(self) -> list[str]:
        return self._listing.classes

    def _hash(self, i: int) -> str:
        """The hash of all bytes of an image; a text of its own if it cannot be read any more."""
        try:
            with self.open_image(self._listing.names[i]) as file:
                return sha256(file)
        except OSError:
            return f"{i} cannot be read"

    def doubts(self) -> list[str]:
        """Count copies of training images in a given test split, and copies in another class."""
        (train, test), twins, listing, sentences = self._splits, self._scan["twins"], self._listing, list[str]()
        trained = {twins[i]: i for i in reversed(train)}
        if copies := [i for i in test if twins[i] in trained]:
            pair = f"{listing.names[copies[0]]} is {listing.names[trained[twins[copies[0]]]]}"
            sentences.append(f"{len(copies)} of {len(test)} test images are copies of training images ({pair})")
        if other := [i for i in self._copies if listing.labels[i] != listing.labels[twins[i]]]:
            of_image = Counter((twins[i], listing.labels[i]) for i in test)
            right = sum({twin: count for (twin, _), count in reversed(of_image.most_common())}.values())
            bound = f": no method can have more than {right / len(test):.1%} of the test images right"
            pair = f"{listing.names[other[0]]} is {listing.names[twins[other[0]]]}"
            which = f"images are copies of images of another class ({pair})"
            sentences.append(f"{len(other)} {which}{bound * (right < len(test))}")
        return [*map(printable, sentences)]

    @cached_property
    def _listing(self) -> Listing:
        remedy = "a folder: there is none of that name"
        require(self.location.is_dir(), f"dataset.{self.key}", str(self.location), remedy)
        try:
            return self.listing()
        except InvalidValue:
            raise
        except (ConfigError, OSError) as error:
            raise self._refusal(str(error)) from error
        except Exception as error:  # Hugging Face's package and pyarrow raise many kinds of errors
            raise self._refusal(f"no images can be listed there ({reason(error)})") from error

    @cached_property
    def _scan(self) -> Scan:
        """The result of :meth:`_scan_all`, kept in the cache folder by the names, sizes, places and times of the files,
        so that a grid scans once; too many broken images are refused.
        """
        listing, marks = self._listing, self.stamp()
        key = [str(self.location), self.hashes, listing.names, listing.labels, marks]
        scan = remembered(key, self._scan_all, Scan, max((mark[3] for mark in marks.values() if mark), default=0))
        broken, count = scan["broken"], len(listing.names)
        if len(broken) > self.skip_broken * count:
            share = max(0.001, -(-1000 * len(broken) // count) / 1000)
            remedy = f", or set dataset.skip_broken to {share:g} to leave them out" if share < 1 else ""
            remedy += DEEP if any("8 bits" in wrong for wrong in broken.values()) else ""
            wrong = f"{len(broken)} of {count} images in {self.location} are broken, {_reasons(broken)}"
            raise ConfigError(f"dataset.skip_broken={self.skip_broken:g}: {wrong}: replace or remove them{remedy}")
        return scan

    def _scan_all(self) -> Scan:
        """Scan every image, in threads."""
        names, content = self._listing.names, hashlib.sha256()
        if len(names) >= MANY:
            say_once(f"{self.location}: {len(names)} images are scanned")
        with ThreadPoolExecutor(4 * available_cores()) as pool:  # more than cores: a network disk answers slowly
            scanned = list(pool.map(self._scan_one, names))
        for name, label, image in zip(names, self._listing.labels, scanned, strict=True):
            if not image.wrong:
                text = f"{name}\0{label}\0{image.size}\0{image.checksum}\n"
                content.update(text.encode(errors="surrogateescape"))
        marks = [None if image.wrong else f"{image.size} {image.ends}" for image in scanned]
        return {
            "content": content.hexdigest()[:10],
            "broken": {name: image.wrong for name, image in zip(names, scanned, strict=True) if image.wrong},
            "pages": sum(image.pages for image in scanned),
            "twins": twins(marks, self._hash),
            "opened": all(image.size or image.wrong == EMPTY for image in scanned),
        }

    def _scan_one(self, name: str) -> Scanned:
        try:
            with self.open_image(name) as file:
                return scan_image(file, self.hashes)
        except OSError as error:
            return Scanned(wrong=error.strerror or str(error))

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
            changed = f"these are not the images of this run any more ({self._identity}, not {self.content})"
            raise self._refusal(f"{changed}: set dataset.{self.key} to where they are")
        left = [i for i, name in enumerate(listing.names) if name not in broken]
        if listing.test is None:
            test = held_out(left, listing.names, listing.labels, self._units, self.test_share, self.split_seed)
        else:
            test = {i for i in left if listing.test[i]}
        train = [i for i in left if i not in test]
        if lost := {*range(len(listing.classes))}.difference(listing.labels[i] for i in train):
            names = few([listing.classes[label] for label in sorted(lost)])
            why = "they are broken, or in a group that is held out"
            raise self._refusal(f"no image of {names} is left to train on: {why}")
        if not train or not test:
            raise self._refusal(f"{len(train)} images to train on and {len(test)} to test: add some")
        if {twins[i] for i in test} <= {twins[i] for i in train}:
            which = f"all {len(test)} images of {listing.test_name} are copies of images to train on"
            raise self._refusal(f"{which}: put others there, or remove it: a part of the images is then held out")
        return train, sorted(test)

    def _refusal(self, wrong: str) -> ConfigError:
        return ConfigError(f"{self._key}: {wrong}")

    def check(self) -> int:
        return len(self._splits[0])

    def split(self, name: str) -> Photos:
        ids = self._splits[SPLITS.index(name)]
        labels, units = (torch.tensor([each[i] for i in ids]) for each in (self._listing.labels, self._units))
        names, folder = [self._listing.names[i] for i in ids], self.location if self.has_files else None
        photos = Photos(labels, names, self.open_image, self.workers, upright=True, folder=folder)
        photos.twins = units if len(units.unique()) < len(units) else None
        return photos


def _reasons(broken: Mapping[str, str]) -> str:
    return few([f"{name} ({wrong})" for name, wrong in broken.items()])
