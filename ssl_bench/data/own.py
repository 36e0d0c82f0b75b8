"""``dataset=folder``: every image below a folder, with classes and splits in the names of folders or in a file."""

import io
import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Literal

import pandas as pd
import torch

from ssl_bench.data.folder import Files, ending, is_image, is_visible, text_of_counts
from ssl_bench.data.own_images import Listing, OwnImages
from ssl_bench.data.photos import FORMATS, LARGEST, Photos
from ssl_bench.data.splits import TESTS, TRAIN, difference, few, find_splits, in_order, like_splits
from ssl_bench.errors import ConfigError, InvalidValue, require
from ssl_bench.files import Mark, mark, open_regular, read_bytes

LABEL_FILES = ("metadata.csv", "labels.csv")
SAY_SPLITS = (
    "set dataset.train and dataset.test to folders below dataset.root, or dataset.classes to folders if they are "
    "classes, or else to none"
)
SPLITS = "write train, and test, validation or val, into its column split"
Parts = tuple[str, ...]  # of a path below the folder: names of folders, then possibly that of a file


@dataclass
class Tree:
    """Files below a folder, by paths relative to it.

    Attributes:
        images: status of each image, by its path; None: it cannot be opened, as a link to nothing.
        others: the number of other files in each folder, by their ending.
        loops: links to a folder above them, which are not followed.
    """

    images: dict[str, os.stat_result | None] = field(default_factory=dict)
    others: dict[str, Counter[str]] = field(default_factory=dict)
    loops: list[str] = field(default_factory=list)

    def others_below(self, folder: str = "") -> str:
        """The other files in a folder and below it, counted in words."""
        counts = (c for path, c in self.others.items() if not folder or f"{path}/".startswith(f"{folder}/"))
        return text_of_counts(sum(counts, Counter[str]()))


def walk(root: Path) -> Tree:
    """Find all images below a folder, in the order of their names, also behind links.

    Raises:
        OSError: a folder cannot be read.
    """

    def fail(error: OSError) -> None:
        raise error

    tree = Tree()
    for folder, folders, names in os.walk(root, followlinks=True, onerror=fail):
        below = Path(folder).relative_to(root)
        links = [name for name in filter(is_visible, folders) if os.path.islink(f"{folder}/{name}")]
        above = [Path(os.path.realpath(root / each)) for each in (below, *below.parents)] if links else []
        loops = {name for name in links if any(p.is_relative_to(os.path.realpath(f"{folder}/{name}")) for p in above)}
        tree.loops += [str(below / name) for name in sorted(loops)]
        folders[:] = sorted(name for name in folders if is_visible(name) and name not in loops)
        others = tree.others["" if folder == str(root) else str(below)] = Counter()
        for name in sorted(filter(is_visible, names)):
            if below == Path() and name in LABEL_FILES:
                continue
            if not is_image(name):
                others[ending(name)] += 1
                continue
            try:
                tree.images[str(below / name)] = os.stat(f"{folder}/{name}")
            except OSError:
                tree.images[str(below / name)] = None
    tree.images = dict(sorted(tree.images.items()))
    return tree


def find_layout(tree: Tree, classes: str, train: str | None = None, test: str | None = None) -> Listing:
    """Find classes and splits in the paths of the images, of which there is at least one.

    Splits are ``train`` with ``test``, ``validation`` or ``val``, with or without classes in them, or what the
    arguments say; else the first folders beside each other are classes. A folder alone in its folder is passed over.

    Args:
        classes: ``auto``, ``folders`` or ``none``.
        train, test: folders of the splits, "." for the whole; None: they are found.

    Raises:
        ConfigError: the folders look like other splits, or a split or a class has no image.
        InvalidValue: there are no classes, and ``classes`` is ``folders``, or no image in ``train`` or ``test``.
    """
    paths = [tuple(name.split("/")) for name in tree.images]
    full = {path[:level] for path in paths for level in range(len(path))}
    inside = dict[Parts, list[str]]()
    for folder in sorted(tuple(name.split("/")) for name in tree.others if name):
        inside.setdefault(folder[:-1], []).append(folder[-1])
    given, top = train or test, () if train or test else paths[0][: _depth(paths, 0)]
    found = None if given else find_splits([name for name in inside.get(top, []) if (*top, name) in full])
    for folder, beside in inside.items() if classes == "auto" and not given else ():
        if len(alike := like_splits(beside)) > 1 and not (folder == top and found):
            raise ConfigError(f"{few(['/'.join((*folder, name)) for name in alike])} look like splits: {SAY_SPLITS}")
    first, tests = Path(train or ".").parts, [Path(test).parts] if test else []
    if found:
        first, tests = (*top, found[0]), [(*top, name) for name in found[1]]
    members = {split: [path for path in paths if path[: len(split)] == split] for split in tests}
    tested = {path for of_split in members.values() for path in of_split}
    members[first] = [path for path in paths if path[: len(first)] == first and path not in tested]
    for key, split, value in (("train", first, train or "."), ("test", tests[0] if tests else first, test)):
        require(bool(members[split]), f"dataset.{key}", value, "a folder below dataset.root that has images")
    base = {split: of_split[0][: _depth(of_split, len(split))] for split, of_split in members.items()}
    names = {split: _classes(of_split, len(base[split]), classes) for split, of_split in members.items()}
    # A test folder without the classes of the training split, as in a competition, is not used.
    of_test = next((split for split in tests if names[split] == names[first]), None)
    if tests and of_test is None:
        differ = difference(names[first], names[tests[0]], "/".join(first) or "train", "/".join(tests[0]))
        remedy = "rename the folders of one, or set dataset.classes to none"
        raise ConfigError(f"both splits must have the same classes, but {differ}: {remedy}")
    used = {path: split for split in (first, of_test) if split is not None for path in members[split]}
    for folder in ((*base[split], name) for split in {*used.values()} for name in inside.get(base[split], [])):
        if names[first] and folder not in full:
            name, remedy = "/".join(folder), "add some, remove it, or begin its name with a dot if it is no class"
            holds = tree.others_below(name) or "no file"
            raise ConfigError(
                f"{name} has no image that can be read ({holds}), as the classes beside it have: {remedy}"
            )
    unused = Counter(path[len(top)] if len(path) > len(top) + 1 else "" for path in paths if path not in used)
    notes = [f"not used: {count} in {name}" if name else f"not used: {count} beside" for name, count in unused.items()]
    if classes == "auto" and not names[first] and len(beside := inside.get(base[first], [])) > 1:
        notes.append(f"the folders {few(beside)} are no classes, since images lie beside them")
    label = {name: i for i, name in enumerate(names[first])}
    ordered = [path for path in paths if path in used]
    return Listing(
        ["/".join(path) for path in ordered],
        [label[path[len(base[used[path]])]] if label else -1 for path in ordered],
        [used[path] == of_test for path in ordered] if of_test is not None else None,
        names[first],
        notes,
        "/".join(of_test or ())[len("/".join((*top, ""))) if found else 0 :],
    )


def _depth(paths: Sequence[Parts], at: int) -> int:
    """The first depth, from ``at`` on, at which there are several folders or an image."""
    while all(len(path) > at + 1 and path[at] == paths[0][at] for path in paths):
        at += 1
    return at


def _classes(paths: Sequence[Parts], at: int, wanted: str) -> list[str]:
    """The names of the classes: of the folders at the depth ``at``, if there are several and no image beside them."""
    names = in_order({path[at] for path in paths if len(path) > at + 1})
    beside = any(len(path) == at + 1 for path in paths)
    if wanted == "folders" and (beside or len(names) < 2):
        remedy = "auto or none: it takes two folders or more, and no image beside them"
        raise InvalidValue("dataset.classes", wanted, remedy)
    return names if wanted != "none" and len(names) > 1 and not beside else []


def _with_table(listing: Listing, table: pd.DataFrame) -> Listing:
    """The images of a file of labels, with its labels and splits.

    Raises:
        ConfigError: its splits are others, or a class is only in the test split.
    """
    test = listing.test or [False] * len(listing.names)
    rows = [row for row in zip(listing.names, listing.labels, test, strict=True) if row[0] in table.index]
    left, notes, test_name = len(listing.names) - len(rows), list(listing.notes), listing.test_name
    notes += [f"not used: {left} that the file of labels lacks"] if left else []
    if "split" in table:
        split = {name: str(table.at[name, "split"]) for name, _, _ in rows}
        counts = Counter(split.values())
        found = find_splits(counts.keys()) or (TRAIN, [""])
        used = found[0], found[1][0]
        if found[0] not in counts or any(name.lower() not in (TRAIN, *TESTS) for name in counts):
            raise ConfigError(f"the splits of the file of labels are {few(sorted(counts))}: {SPLITS}")
        notes += [f"not used: {count} of {name}" for name, count in counts.items() if name not in used]
        rows = [(name, label, split[name] == used[1]) for name, label, _ in rows if split[name] in used]
        test_name = used[1]
    names, labels, test = [name for name, _, _ in rows], [label for _, label, _ in rows], [test for *_, test in rows]
    classes = listing.classes
    if "label" in table:
        values = [str(table.at[name, "label"]) for name in names]
        of_train = {value for value, tested in zip(values, test, strict=True) if not tested}
        if {*values} - of_train:
            differ = difference(of_train, {*values}, TRAIN, test_name)
            raise ConfigError(f"both splits must have the same classes, but {differ}")
        classes = in_order(of_train) if len(of_train) > 1 else []
        label_of = {name: i for i, name in enumerate(classes)}
        labels = [label_of.get(value, -1) for value in values]
    stated = json.dumps(test) if "split" in table else ""
    return Listing(names, labels, test if test_name else None, classes, notes, test_name, None, stated)


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

    key = "root"

    def __init__(
        self,
        root: str | None,
        classes: Literal["auto", "folders", "none"] = "auto",
        train: str | None = None,
        test: str | None = None,
        group: str | None = None,
        **common: Any,
    ) -> None:
        require(bool(root), "root", root, "the folder of your images")
        super().__init__(root=str(root), **common)
        self.classes, self.train, self.test, self.group = classes, train, test, group

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
            raise self._refusal(f"{error.filename}: {error.strerror}") from error
        except RecursionError as error:  # of os.walk before Python 3.12
            raise self._refusal("its folders are nested too deeply: move some up") from error

    def listing(self) -> Listing:
        others = self._tree.others_below()
        if not self._tree.images:
            has = f": it has {others}" if others else ""
            raise self._refusal(f"there is no image in it ({', '.join(FORMATS)}){has}")
        table = self._table()
        columns = () if table is None else tuple(table.columns)
        train, test = (".", None) if "split" in columns else (self.train, self.test)
        try:
            listing = find_layout(self._tree, "none" if "label" in columns else self.classes, train, test)
            listing = listing if table is None else _with_table(listing, table)
        except InvalidValue:
            raise
        except ConfigError as error:
            raise self._refusal(str(error)) from error
        loops = self._tree.loops
        notes = [*listing.notes, *([f"{others} left out"] if others else [])]
        notes += [f"{len(loops)} links to a folder above them left out: {few(sorted(loops))}"] if loops else []
        return self._with_groups(replace(listing, notes=notes), table)

    def _table(self) -> pd.DataFrame | None:
        """The file of labels by the names of the images, without empty columns; None without one."""
        present = [name for name in LABEL_FILES if (self.location / name).is_file()]
        if len(present) > 1:
            raise self._refusal(f"it has {present[0]} and {present[1]}: remove one")
        if not present:
            return None
        try:
            content = io.BytesIO(read_bytes(self.location / present[0]))
            table = pd.read_csv(content, dtype=str, keep_default_na=False, na_values=[""]).dropna(axis=1, how="all")
            table = table.set_index("file_name")
        except (OSError, ValueError, KeyError) as error:
            wrong = "it has no column file_name" if isinstance(error, KeyError) else str(error).partition("\n")[0]
            remedy = "write the columns file_name, label, split and group, or begin its name with a dot"
            raise self._refusal(f"{present[0]}: {wrong}: {remedy}") from error
        for wrong, names in (
            ("more than one row", table.index[table.index.duplicated()]),
            ("no image of that name", table.index[~table.index.isin([*self._tree.images])]),
            *((f"no {name}", table.index[table[name].isna()]) for name in ("label", "split") if name in table),
        ):
            if len(names):
                raise self._refusal(f"{present[0]}: {len(names)} images have {wrong}: {few([*map(str, names)])}")
        return table

    def _with_groups(self, listing: Listing, table: pd.DataFrame | None) -> Listing:
        column = self.group or "group"
        if table is not None and column in table:
            values = {name: table.at[name, column] for name in listing.names}
            groups = [value if isinstance(value, str) else f"\0{name}" for name, value in values.items()]
            return replace(listing, groups=groups, stated=listing.stated + json.dumps(groups))
        if self.group is None:
            return listing
        try:
            matches = [re.search(self.group, name) for name in listing.names]
        except re.error as error:
            remedy = f"a column of a file of labels, or a pattern: {error}"
            raise InvalidValue("dataset.group", self.group, remedy) from error
        without = [name for name, match in zip(listing.names, matches, strict=True) if match is None]
        remedy = f"a column of a file of labels, or a pattern that every name has: {few(without)} do not"
        require(not without, "dataset.group", self.group, remedy)
        groups = ["\0".join(map(str, match.groups())) or match[0] for match in matches if match]
        return replace(listing, groups=groups)

    def open_image(self, listing: Listing, i: int) -> BinaryIO:
        return open_regular(self.location / listing.names[i], LARGEST)

    def stamp(self, listing: Listing) -> dict[str, Mark | None]:
        return {name: status and mark(status) for name, status in self._tree.images.items()}

    def photos(self, listing: Listing, ids: Sequence[int]) -> Photos:
        names, labels = [listing.names[i] for i in ids], torch.tensor([listing.labels[i] for i in ids])
        return Files(self.location, names, labels, self.workers, upright=True)
