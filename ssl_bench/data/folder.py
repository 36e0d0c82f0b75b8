"""Photos in folders: ``dataset=imagenet`` and its kin, as ImageNet is commonly unpacked, and ``dataset=folder``, images
of the user's own, with classes and splits in the names of folders or in a file of labels.

If the user's own images have no test split, a share of them is held out. Settings that follow from the images, such as
the number of classes, are written into the configuration (:func:`ssl_bench.config.from_disk.find_images`), with a hash
that is part of the run's identity: of the names and sizes of the images and of the first and last 4 KiB of each. The
hash does not depend on times or on the path of the folder, so a copy is the same dataset.
"""

import hashlib
import io
import itertools
import json
import os
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar, Literal, NamedTuple, TypedDict

import torch
from msgspec import Meta

from ssl_bench.data import splits
from ssl_bench.data.dataset import MissingData, PhotoDataset, cached, counts_of
from ssl_bench.data.photos import EMPTY, FORMATS, LARGEST, Packed, Photos, Scanned, endings, scan_image, sha256
from ssl_bench.data.splits import TRAIN, Listing, Row, arrange, few, find_splits
from ssl_bench.errors import ConfigError, InvalidValue, printable, reason, require
from ssl_bench.files import Mark, mark, open_regular, read_bytes, say_once
from ssl_bench.hardware import available_cores

JUNK = {"__macosx", "@eadir", "#recycle", "$recycle.bin", "system volume information", "lost+found", "__pycache__"}
JUNK |= {"thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r"}
LAYOUT = "ImageNet is ILSVRC2012_img_train.tar, unpacked as train/<class>/, and ILSVRC2012_img_val.tar, as val/<class>/"
Path_ = tuple[str, ...]  # of a file or folder, in parts
SPLITS = ("train", "test")
MANY = 2000  # images that take more than a second or so to scan
DEEP = (
    "; more than 8 bits: dataset=arrays takes uint16 and floats: images = numpy.stack([cv2.resize(cv2.imread(path, "
    "-1), (64, 64)) for path in paths]); numpy.save('FOLDER/train_images.npy', images)"
)
LABEL_FILES = ("metadata.csv", "labels.csv")
SAY_COLUMN = "write train, and test, validation or val, into its column split"
SAY_SPLITS = "set dataset.train and dataset.test to folders in it, or dataset.classes to folders, or to none"


def is_visible(name: str) -> bool:
    """Whether a file or folder is used: it is neither hidden nor one that operating systems create, as Thumbs.db."""
    return not name.startswith(".") and name.lower() not in JUNK


def is_image(name: str) -> bool:
    """Whether a file has the ending of an image."""
    return name.lower().endswith(endings())


def images_in(folder: Path) -> list[Path]:
    """The images directly in a folder, sorted."""
    return _images_in(folder.absolute(), mark(folder.stat()))


def classes_in(folder: Path) -> set[str]:
    """The names of those folders in a folder that have images."""
    return {each.name for each in folder.iterdir() if is_visible(each.name) and each.is_dir() and images_in(each)}


@lru_cache(2**15)  # a run needs it more than once, and listing ImageNet takes seconds
def _images_in(folder: Path, changed: Mark) -> list[Path]:
    return [folder / name for name in sorted(os.listdir(folder)) if is_visible(name) and is_image(name)]


@dataclass(kw_only=True, eq=False)
class FolderDataset(PhotoDataset):
    """Photos in ``<root>/<folder>/{train,val}/<class>/*.JPEG``.

    Args:
        folder: name of the folder under ``root``.
        train, test: names of its subfolders for pre-training and for evaluation.
        classes: file that lists the classes to keep, one per line: a file of this package, or an absolute path. None
            keeps all.
        packed: read the packed files of ``ssl-bench prepare``, with photos shrunk to a short side of at most ``resize``
            and encoded again.
    """

    folder: str
    train: str = "train"
    test: str = "val"
    classes: str | None = None
    packed: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.location, self.split_folders = self.root / self.folder, {"train": self.train, "test": self.test}
        self.class_file = Path(__file__).parent / self.classes if self.classes else None
        self._key, self._opened = f"dataset.folder={self.folder}", dict[str, Photos]()

    def files(self) -> list[Path]:
        """The packed files, or the photos of all classes in their order."""
        if self.packed:
            paths = [self.packed_path(name) for name in self.split_folders]
            return [path.with_name(path.name + end) for path in paths for end in (".jpegs", ".npz")]
        folders, classes = self.split_folders.values(), self.class_folders()
        return [path for split in folders for name in classes for path in images_in(self.location / split / name)]

    def check(self) -> int:
        self.split("test")
        return len(self.split("train"))

    def split(self, name: str) -> Photos:
        if name not in self._opened:
            self.check_content()
            self._opened[name] = self._open_packed(name) if self.packed else self.source(name)
        return self._opened[name]

    def _open_packed(self, name: str) -> Packed:
        packed = Packed(self.packed_path(name), self.workers)
        count, remedy = int(packed.labels.max()) + 1, f"the number of classes in {packed.path}"
        require(count == self.num_classes, "dataset.num_classes", self.num_classes, f"{count}, {remedy}")
        return packed

    def source(self, name: str, folder: Path | None = None) -> Photos:
        """Open the unpacked photos of a split in ``folder``, by default in the folder of this dataset.

        They are ordered by class and then by name, as in torchvision's ImageFolder.
        """
        classes, folder = self.class_folders(folder), (folder or self.location) / self.split_folders[name]
        pairs = [(label, path) for label, each in enumerate(classes) for path in images_in(folder / each)]
        labels, names = torch.tensor([label for label, _ in pairs]), [f"{p.parent.name}/{p.name}" for _, p in pairs]
        return Photos(labels, names, lambda each: open_regular(folder / each, LARGEST), self.workers, folder=folder)

    def packed_path(self, name: str) -> Path:
        """Path of the packed files of a split, without their endings."""
        classes = self.class_file.stem if self.class_file else "all"
        return self.location / "packed" / f"{classes}_{self.resize}" / self.split_folders[name]

    def class_names(self) -> list[str]:
        return [] if self.packed else self.class_folders()

    def class_folders(self, folder: Path | None = None) -> list[str]:
        """List the classes of both splits, sorted.

        Raises:
            MissingData: a split is missing.
            ConfigError: a class is missing, a split is empty, the splits have different classes, or their number is
                not ``num_classes``.
        """
        paths = [(folder or self.location) / name for name in self.split_folders.values()]
        try:
            listed = read_bytes(self.class_file).decode("utf-8-sig").split() if self.class_file else []
        except (OSError, UnicodeError) as error:
            remedy = f"a text file in UTF-8 with one class per line: {reason(error)}"
            raise InvalidValue("dataset.classes", str(self.class_file), remedy) from error
        for path in paths:
            if not path.is_dir():
                remedy = "set SSL_BENCH_DATA or paths.data to where it is, or dataset.train, dataset.test"
                raise MissingData(f"{self._key}: {path} is missing; {LAYOUT}; {remedy}")
        of_train, where = {*listed} or classes_in(paths[0]), self.class_file or paths[0]
        for path in paths:
            present = classes_in(path) & of_train if listed else classes_in(path)
            if present != of_train:
                differ = splits.difference(of_train, present, str(where), str(path))
                raise ConfigError(f"{self._key}: {path} must have images of the classes of {where}: {differ}")
        remedy = f"{len(of_train)}, the number of classes in {where}, or dataset.folder to another folder"
        require(len(of_train) == self.num_classes, "dataset.num_classes", self.num_classes, remedy)
        return sorted(of_train)


# ---- Images of the user's own


class Scan(TypedDict):
    """Facts about all images.

    Attributes:
        content: hash of ten digits, of the names, labels, sizes and checksums of the images that are not broken.
        broken: what is wrong with each broken image, by its name.
        pages: how many images have several pages or frames.
        twins: for each image, the first image with the same bytes.
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
        split_seed: of that draw, which depends on the names of the images: adding an image moves no other one.
        skip_broken: broken images are left out if their share is at most this; otherwise they are refused.
        hashes: hash all bytes of each image for the identity of the data, instead of its first and last 4 KiB.
        resize: as of :class:`PhotoDataset`; None: 8 / 7 of ``size``, as 256 is of 224.
        content: hash of the images; None: it is not checked.
        num_classes: None: as many as the data has.
    """

    key: ClassVar[str]  # the argument that is the path of the data
    has_files: ClassVar[bool]  # whether each image is a file below that path

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
        """A mark of each file by its name, which is another one once the file is written again; None: unreadable."""

    def settings_of_images(self) -> dict[str, Any]:
        classes = len(self._listing.classes)
        require(self.given_classes in (None, classes), "dataset.num_classes", self.given_classes, f"{classes} or null")
        labels = [self._listing.labels[i] for i in self._splits[0]]
        return {self.key: str(self.location), "content": self._identity} | counts_of(labels, classes)

    def summary(self) -> str:
        """The classes and splits in a sentence."""
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
        return printable("; ".join([*notes, *self.warnings()]))

    def class_names(self) -> list[str]:
        return self._listing.classes

    def _hash(self, i: int) -> str:
        """The hash of all bytes of an image."""
        with self.open_image(self._listing.names[i]) as file:
            return sha256(file)

    def warnings(self) -> list[str]:
        """Sentences about test images that are copies of training images, and about copies in different classes."""
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
            raise self._refusal(f"its images cannot be listed ({reason(error)})") from error

    @cached_property
    def _scan(self) -> Scan:
        """The result of :meth:`_scan_all`, from the cache folder if paths, sizes and times of the files are as before,
        so that a grid scans once.

        Raises:
            ConfigError: the share of broken images is larger than ``skip_broken``.
        """
        listing, marks = self._listing, self.stamp()
        key = [str(self.location), self.hashes, listing.names, listing.labels, marks]
        scan = cached(key, self._scan_all, Scan, max((mark[3] for mark in marks.values() if mark), default=0))
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
            "twins": splits.twins(marks, self._hash),
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
        """The images with the same bytes as an earlier image."""
        return [i for i, first in enumerate(self._scan["twins"]) if first != i]

    @cached_property
    def _units(self) -> list[int]:
        """For each image, the first image of its unit: of its copies and its group, which are in one split."""
        twins, groups = self._scan["twins"], self._listing.groups
        return splits.connected(twins, groups) if groups else twins

    @cached_property
    def _identity(self) -> str:
        """The hash of the images; another one if copies are held out together, since earlier versions divided them."""
        copies = " with copies" if self._listing.test is None and self._copies else ""
        more, content = copies + self._listing.stated, self._scan["content"]
        return hashlib.sha256(f"{content}{more}".encode(errors="surrogateescape")).hexdigest()[:10] if more else content

    @cached_property
    def _splits(self) -> tuple[list[int], list[int]]:
        """The images to train on and those to test on, without broken ones."""
        listing, broken, twins = self._listing, self._scan["broken"], self._scan["twins"]
        if self.content not in (None, self._identity):
            changed = f"the images have changed since this run began (hash {self._identity}, not {self.content})"
            raise self._refusal(f"{changed}: set dataset.{self.key} to a folder with the unchanged images")
        whole, units = [i for i, name in enumerate(listing.names) if name not in broken], self._units
        if listing.test is None:
            test = splits.held_out(whole, listing.names, listing.labels, units, self.test_share, self.split_seed)
        else:
            test = {i for i in whole if listing.test[i]}
        train = [i for i in whole if i not in test]
        if lost := {*range(len(listing.classes))}.difference(listing.labels[i] for i in train):
            names = few([listing.classes[label] for label in sorted(lost)])
            why = "they are broken, or in a group that is held out"
            raise self._refusal(f"no image of {names} is left to train on: {why}")
        if not train or not test:
            raise self._refusal(f"{len(train)} images to train on and {len(test)} to test: add some")
        if {twins[i] for i in test} <= {twins[i] for i in train}:
            which = f"all {len(test)} images of {listing.test_name} are copies of images to train on"
            raise self._refusal(f"{which}: replace them, or remove this split: a part of the images is then held out")
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


class Tree(NamedTuple):
    """The content of a folder, by paths relative to it.

    Attributes:
        images: for each path of an image, what changes when the file is written again; None: it cannot be opened.
        folders: all folders.
        others: number of files of each other ending, the most first: ``12 .heic, 3 .txt left out``, or "".
    """

    images: dict[str, Mark | None]
    folders: list[str]
    others: str


def walk(root: Path) -> Tree:
    """Find all images below a folder, in the order of their names, also behind links, except to folders above them.

    Raises:
        OSError: a folder cannot be read.
    """
    images, folders, others, home = dict[str, Mark | None](), list[str](), Counter[str](), os.path.realpath(root)
    above = {str(root): {home}}  # the real paths of a folder and of those that it is in

    def is_below(folder: str, name: str) -> bool:
        path, real = f"{folder}/{name}", os.path.realpath(f"{folder}/{name}")
        above[path] = above[folder] | {real}
        return real not in above[folder] and not home.startswith(f"{real.rstrip('/')}/")

    def fail(error: OSError) -> None:
        raise error

    for folder, inside, names in os.walk(root, onerror=fail, followlinks=True):
        below = f"{os.path.relpath(folder, root)}/".removeprefix("./")
        inside[:] = [name for name in sorted(filter(is_visible, inside)) if is_below(folder, name)]
        folders += [below + name for name in inside]
        for name in sorted(filter(is_visible, names)):
            if not is_image(name):
                others[Path(name).suffix.lower() or "without an ending"] += below + name not in LABEL_FILES
                continue
            try:
                images[below + name] = mark(os.stat(f"{folder}/{name}"))
            except OSError:
                images[below + name] = None
    text = ", ".join(f"{count} {name}" for name, count in (+others).most_common())
    return Tree(dict(sorted(images.items())), folders, text and f"{text} left out")


def find_layout(
    names: Sequence[str], tree: Tree, classes: str, train: str | None, test: str | None
) -> tuple[list[Row], str, list[str]]:
    """Find classes and splits in the paths of images, of which there is at least one.

    Splits are ``train`` with ``test``, ``validation`` or ``val``, with or without classes in them, or what the
    arguments say; else the first folders beside each other are classes. A folder alone in its folder is passed over.

    Args:
        names: paths of the images.
        tree: the folder that has them.
        classes: ``auto``, ``folders`` or ``none``.
        train, test: folders of the splits, "." for the whole; None: folders with the names of splits.

    Returns:
        Name, class or None, and split of each image; the training split; and the test splits.

    Raises:
        ConfigError: the folders look like other splits, or a class has no image.
        InvalidValue: there are no classes, and ``classes`` is ``folders``, or no image in ``train`` or ``test``.
    """
    paths, given = [tuple(name.split("/")) for name in names], train or test
    top = () if given else paths[0][: _depth(paths, 0)]
    pair = None if given else find_splits({path[len(top)] for path in paths if len(path) > len(top) + 1})
    first, tests = Path(train or ".").parts, [Path(test).parts] if test else []
    if pair:
        first, tests = (*top, pair[0]), [(*top, name) for name in pair[1]]
    elif classes == "auto" and not given:
        for _, beside in itertools.groupby(sorted(tree.folders, key=os.path.dirname), os.path.dirname):
            splits.refuse_like_splits(beside, SAY_SPLITS)

    split_of = [next((s for s in (*tests, first) if path[: len(s)] == s), path[len(top) : -1][:1]) for path in paths]
    for key, split, value in (("train", first, train or "."), *(("test", split, test) for split in tests)):
        require(split in split_of, f"dataset.{key}", value, "a folder below dataset.root that has images")
    of_train = [path for path, split in zip(paths, split_of, strict=True) if split == first]
    base = of_train[0][len(first) : _depth(of_train, len(first))]  # folders between a split and its classes
    inside = [path[len(first) + len(base) : -1] for path in of_train]
    has = all(inside) and len({path[0] for path in inside}) > 1
    remedy = "auto or none: it takes two folders or more, and no image beside them"
    require(has or classes != "folders", "dataset.classes", classes, remedy)
    has = has and classes != "none"
    bases, full = {(*split, *base) for split in (first, *tests)}, {p[:level] for p in paths for level in range(len(p))}
    empty = [folder for folder in tree.folders if (p := tuple(folder.split("/")))[:-1] in bases and p not in full]
    if has and empty:
        remedy = "add some, remove the folder, or begin its name with a dot if it is no class"
        wrong = f"no image that can be read, unlike other classes ({tree.others or 'no file'})"
        raise ConfigError(f"{few(sorted(empty))}: {wrong}: {remedy}")
    rows: list[Row] = [
        (name, (path[len(split) + len(base) : -1] or (None,))[0] if has else None, "/".join(split))
        for name, path, split in zip(names, paths, split_of, strict=True)
    ]
    return rows, "/".join(first), ["/".join(split) for split in tests]


def _depth(paths: Sequence[Path_], at: int) -> int:
    """The first depth, from ``at`` on, at which there are several folders or an image."""
    while all(len(path) > at + 1 and path[at] == paths[0][at] for path in paths):
        at += 1
    return at


@dataclass(kw_only=True, eq=False)
class OwnFolder(OwnImages):
    """All images below a folder, also in folders inside folders. Hidden files and folders are left out.

    If there is a file ``metadata.csv`` or ``labels.csv`` in the folder, only the images in its column ``file_name`` are
    used. Its columns ``label``, ``split`` and ``group``, which are optional, replace what folders say.

    Args:
        root: the folder.
        classes: ``folders``: the class of an image is the highest folder, below ``root`` or below a split, that it is
            in; a folder that is alone in its folder does not count. ``none``: there are no classes. ``auto``:
            ``folders`` if there are two or more of them, and no image beside them.
        train, test: folders of the splits below ``root``; None: those of :func:`find_layout`.
        group: what the images of one patient, slide or video have in common: a column of the file, or a pattern (a
            regular expression) of the name. If the test split is drawn, all images of a group are in it, or none. None:
            the column ``group``, if there is one.
    """

    key, has_files = "root", True

    root: str | None  # type: ignore[assignment]
    classes: Literal["auto", "folders", "none"] = "auto"
    train: str | None = None
    test: str | None = None
    group: str | None = None

    @cached_property
    def _tree(self) -> Tree:
        return walk(self.location)

    def listing(self) -> Listing:
        tree, table = self._tree, self._table()
        names = [name for name in tree.images if table is None or name in table.index]
        if not names:
            raise ConfigError(f"there is no image in it ({', '.join(FORMATS)}); {tree.others or 'nor another file'}")
        notes, given = [tree.others] * bool(tree.others), {} if table is None else table.loc[names].to_dict("list")
        if unused := len(tree.images) - len(names):
            notes.append(f"not used: {unused} that the file of labels lacks")
        train, test = (".", None) if "split" in given else (self.train, self.test)
        rows, first, tests = find_layout(names, tree, "none" if "label" in given else self.classes, train, test)
        labels, parts = given.get("label", ()), given.get("split") or [split for *_, split in rows]
        rows = [*zip(names, labels if len({*labels}) > 1 else [label for _, label, _ in rows], parts, strict=True)]
        if "split" in given:
            first, tests = find_splits({*parts}) or (TRAIN, [])
            if wrong := {*parts} - {first, *tests}:
                raise ConfigError(f"the file of labels has the split {few(sorted(wrong))}: {SAY_COLUMN}")
        listing = arrange(rows, first, tests, notes)
        remedy = "a folder with classes of dataset.train"
        require(test is None or listing.test is not None, "dataset.test", test, remedy)
        stated = json.dumps(listing.test or [False] * len(listing.names)) if "split" in given else ""
        if (column := self.group or "group") in given:
            groups_of = dict(zip(names, given[column], strict=True))
            groups = [group if isinstance(group := groups_of[name], str) else f"\0{name}" for name in listing.names]
            return replace(listing, groups=groups, stated=stated + json.dumps(groups))
        return replace(listing, groups=self.group and self._groups_of(listing.names), stated=stated)

    def _table(self) -> Any:
        """The file of labels as a DataFrame, indexed by the names of the images, without empty columns; or None."""
        present = [name for name in LABEL_FILES if (self.location / name).is_file()]
        if len(present) > 1:
            raise ConfigError(f"it has {present[0]} and {present[1]}: remove one")
        if not present:
            return None
        import pandas as pd  # takes a third of a second

        try:
            content = io.BytesIO(read_bytes(self.location / present[0]))
            table = pd.read_csv(content, dtype=str, keep_default_na=False, na_values=[""]).dropna(axis=1, how="all")
            table = table.set_index("file_name")
        except (OSError, ValueError, KeyError) as error:
            wrong = "it has no column file_name" if isinstance(error, KeyError) else reason(error)
            remedy = "write the columns file_name, label, split and group, or begin its name with a dot"
            raise ConfigError(f"{present[0]}: {wrong}: {remedy}") from error
        needed = [name for name in ("label", "split") if name in table]
        wrong = table.index.duplicated() | ~table.index.isin([*self._tree.images]) | table[needed].isna().any(axis=1)
        if wrong.any():
            which = f"{wrong.sum()} images are not in the folder, are listed twice, or have no label or split"
            raise ConfigError(f"{present[0]}: {which}: {few([*map(str, table.index[wrong.to_numpy()])])}")
        return table

    def _groups_of(self, names: Sequence[str]) -> list[str]:
        """The group of each image: the part of its name that the pattern of ``dataset.group`` matches."""
        try:
            matches = [re.search(str(self.group), name) for name in names]
        except re.error as error:
            remedy = f"a column of a file of labels, or a pattern: {error}"
            raise InvalidValue("dataset.group", self.group, remedy) from error
        without = [name for name, match in zip(names, matches, strict=True) if match is None]
        remedy = f"a column of a file of labels, or a pattern that every name has: {few(without)} do not"
        require(not without, "dataset.group", self.group, remedy)
        return ["\0".join(map(str, match.groups())) or match[0] for match in matches if match]

    def open_image(self, name: str) -> BinaryIO:
        return open_regular(self.location / name, LARGEST)

    def stamp(self) -> dict[str, Mark | None]:
        return self._tree.images
