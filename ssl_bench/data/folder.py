"""Photos in folders: ``dataset=imagenet`` and its kin, as ImageNet is commonly unpacked, and ``dataset=folder``, images
of the user's own, with classes and splits in the names of folders or in a file of labels.
"""

import io
import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import torch

from ssl_bench.data.dataset import MissingData, PhotoDataset
from ssl_bench.data.own import OwnImages
from ssl_bench.data.photos import FORMATS, LARGEST, Packed, Photos, endings
from ssl_bench.data.splits import TRAIN, Listing, Row, arrange, difference, few, find_splits, refuse_like_splits
from ssl_bench.errors import ConfigError, InvalidValue, reason, require
from ssl_bench.files import Mark, mark, open_regular, read_bytes

JUNK = {"__macosx", "@eadir", "#recycle", "$recycle.bin", "system volume information", "lost+found", "__pycache__"}
JUNK |= {"thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r"}
LAYOUT = "ImageNet is ILSVRC2012_img_train.tar, unpacked as train/<class>/, and ILSVRC2012_img_val.tar, as val/<class>/"
Path_ = tuple[str, ...]  # of a file or folder, in parts
LABEL_FILES = ("metadata.csv", "labels.csv")
SAY_COLUMN = "write train, and test, validation or val, into its column split"
SAY_SPLITS = "set dataset.train and dataset.test to folders in it, or dataset.classes to folders, or to none"


def is_visible(name: str) -> bool:
    """Whether a file or folder is used: it is not hidden, and no operating system has put it there by itself."""
    return not name.startswith(".") and name.lower() not in JUNK


def is_image(name: str) -> bool:
    """Whether a visible file is taken for an image, by its ending."""
    return name.lower().endswith(endings())


def images_in(folder: Path) -> list[Path]:
    """The images directly in a folder, sorted."""
    return _images_in(folder.absolute(), mark(folder.stat()))


def classes_in(folder: Path) -> set[str]:
    """The names of the folders in a folder that have images."""
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
        classes, splits = self.class_folders(), self.split_folders.values()
        return [path for split in splits for name in classes for path in images_in(self.location / split / name)]

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
                differ = difference(of_train, present, str(where), str(path))
                raise ConfigError(f"{self._key}: {path} must have images of the classes of {where}: {differ}")
        remedy = f"{len(of_train)}, the number of classes in {where}, or dataset.folder to another folder"
        require(len(of_train) == self.num_classes, "dataset.num_classes", self.num_classes, remedy)
        return sorted(of_train)


# ---- Images of the user's own


class Tree(NamedTuple):
    """The content of a folder, by paths relative to it.

    Attributes:
        images: mark of each image, by its path; None: it cannot be opened, as a link to nothing.
        folders: all folders.
        others: a sentence about other files, by their ending, the most first: ``12 .heic, 3 .txt left out``, or "".
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
        train, test: folders of the splits, "." for the whole; None: they are found.

    Returns:
        Name, class or None, and split of each image; the training split; and the test splits.

    Raises:
        ConfigError: the folders look like other splits, or a class has no image.
        InvalidValue: there are no classes, and ``classes`` is ``folders``, or no image in ``train`` or ``test``.
    """
    paths, given = [tuple(name.split("/")) for name in names], train or test
    top = () if given else paths[0][: _depth(paths, 0)]
    found = None if given else find_splits({path[len(top)] for path in paths if len(path) > len(top) + 1})
    first, tests = Path(train or ".").parts, [Path(test).parts] if test else []
    if found:
        first, tests = (*top, found[0]), [(*top, name) for name in found[1]]
    elif classes == "auto" and not given:
        for _, beside in itertools.groupby(sorted(tree.folders, key=os.path.dirname), os.path.dirname):
            refuse_like_splits(beside, SAY_SPLITS)

    splits = [next((s for s in (*tests, first) if path[: len(s)] == s), path[len(top) : -1][:1]) for path in paths]
    for key, split, value in (("train", first, train or "."), *(("test", split, test) for split in tests)):
        require(split in splits, f"dataset.{key}", value, "a folder below dataset.root that has images")
    of_train = [path for path, split in zip(paths, splits, strict=True) if split == first]
    base = of_train[0][len(first) : _depth(of_train, len(first))]  # folders between a split and its classes
    inside = [path[len(first) + len(base) : -1] for path in of_train]
    has = all(inside) and len({path[0] for path in inside}) > 1
    remedy = "auto or none: it takes two folders or more, and no image beside them"
    require(has or classes != "folders", "dataset.classes", classes, remedy)
    has = has and classes != "none"
    bases, full = {(*split, *base) for split in (first, *tests)}, {p[:level] for p in paths for level in range(len(p))}
    empty = [folder for folder in tree.folders if (p := tuple(folder.split("/")))[:-1] in bases and p not in full]
    if has and empty:
        remedy = "add some, remove it, or begin its name with a dot if it is no class"
        wrong = f"no image that can be read ({tree.others}), as the other classes have"
        raise ConfigError(f"{few(sorted(empty))}: {wrong}: {remedy}")
    rows: list[Row] = [
        (name, (path[len(split) + len(base) : -1] or (None,))[0] if has else None, "/".join(split))
        for name, path, split in zip(names, paths, splits, strict=True)
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

    A file ``metadata.csv`` or ``labels.csv`` in the folder has the columns ``file_name``, and if it likes ``label``,
    ``split`` and ``group``; its images are used, and its columns count in place of folders.

    Args:
        root: the folder.
        classes: ``folders``: an image's class is the highest folder, below ``root`` or below a split, that it is in,
            not counting folders that stand alone; ``none``: there are none; ``auto``: ``folders`` if there are two or
            more of them, and no image beside them.
        train, test: folders of the splits below ``root``; None: those of :func:`find_layout`.
        group: what the images of one patient, slide or video share, which stay on one side of a split that is drawn: a
            column of the file, or a pattern (a regular expression) of the name; None: the column ``group``, if any.
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
        labels, splits = given.get("label", ()), given.get("split") or [split for *_, split in rows]
        rows = [*zip(names, labels if len({*labels}) > 1 else [label for _, label, _ in rows], splits, strict=True)]
        if "split" in given:
            first, tests = find_splits({*splits}) or (TRAIN, [])
            if wrong := {*splits} - {first, *tests}:
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
        """The file of labels, a DataFrame by the names of the images, without empty columns; None without one."""
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
            which = f"{wrong.sum()} images are not there, stand twice, or have no label or split"
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
