"""Classes, splits and copies of the user's own images: one rule for folders, files of labels and data sets of Hugging
Face.

Copies are images with the same bytes. Of each image a mark is computed from a small part of its bytes; images are read
as a whole only if they have equal marks, so that 60,000 images take less than a second.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ssl_bench.errors import ConfigError

Row = tuple[str, int | str | None, str]  # name, label and split of an image; None: it has no label
TRAIN, TESTS = "train", ("test", "validation", "val")  # in any case; of several test splits the first one is used
MARKED = 32  # numbers in the middle of an image of an array, which are its mark
# Names of splits: several folders with such names are hardly classes.
_LIKE_A_SPLIT = re.compile(
    r"(train(ing|val)?|trn|test(ing)?|tst|val(id(ation)?)?|eval(uation)?|dev|hold-?out|(un)?label?led)"
    r"[\W_]*(set|data|images|imgs|\d+|[a-z])?",
    re.IGNORECASE,
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
        groups: of each image; if the test split is drawn, all images of a group are in it, or none.
        stated: the splits and groups that a file of labels states, as text, which the identity of the data includes.
    """

    names: list[str]
    labels: list[int]
    test: list[bool] | None
    classes: list[str]
    notes: list[str]
    test_name: str
    groups: Sequence[str] | None = None
    stated: str = ""


def arrange(rows: Sequence[Row], train: str, tests: Sequence[str], notes: Sequence[str] = ()) -> Listing:
    """Number the classes of the training split, and choose the test split.

    A test split without labels, as in a competition, is not used where the training split has labels.

    Args:
        rows: of each image.
        train: name of the training split.
        tests: names of the test splits, the best first.
        notes: of the listing.

    Raises:
        ConfigError: some images to train on have a label and others none, or a class is only in the test split.
    """
    counts: dict[str, Counter[int | str | None]] = {}  # of each label, by split
    for _, label, split in rows:
        counts.setdefault(split, Counter())[label] += 1
    trained = counts.get(train, Counter())
    if not trained:
        raise ConfigError(f"{train} has no images")
    if 0 < trained[None] < trained.total():
        raise ConfigError(f"{trained[None]} of {trained.total()} images of {train} have no label")
    usable = [name for name in tests if name in counts and (None in counts[name]) == (None in trained)]
    test = next((name for name in usable if counts[name].keys() <= trained.keys()), next(iter(usable), None))
    if test is not None and not counts[test].keys() <= trained.keys():
        differ = difference(map(str, trained), map(str, counts[test]), train or "train", test)
        raise ConfigError(f"both splits must have the same classes, but {differ}")
    values = sorted(value for value in trained if value is not None)  # type: ignore[type-var]
    classes = in_order(values) if values and isinstance(values[0], str) else values  # type: ignore[arg-type]
    number: dict[int | str | None, int] = {value: i for i, value in enumerate(classes)} | {None: -1}
    used = [row for row in rows if row[2] in (train, test)]
    unused = {name: count.total() for name, count in counts.items() if name not in (train, test)}
    return Listing(
        [name for name, _, _ in used],
        [number[label] for _, label, _ in used],
        None if test is None else [split == test for *_, split in used],
        [str(value) for value in classes],
        [*notes, *(f"not used: {count} in {name or 'the folder itself'}" for name, count in unused.items())],
        test or "",
    )


def find_splits(names: Collection[str], remedy: str = "") -> tuple[str, list[str]] | None:
    """The name of the training split and those of all test splits, the best first; None if no names are of splits.

    Args:
        names: of folders beside each other, or of splits.
        remedy: end of the sentence that refuses names that look like other splits; "": such names are not refused.

    Raises:
        ConfigError: several names look like splits, and they are not ``train`` with one of ``TESTS``.
    """
    trains = [name for name in names if name.lower() == TRAIN]
    tests = sorted((n for n in names if n.lower() in TESTS), key=lambda n: (TESTS.index(n.lower()), n))
    if len(trains) == 1 and tests:
        return trains[0], tests
    if remedy:
        refuse_like_splits(names, remedy)
    return None


def refuse_like_splits(names: Iterable[str], remedy: str) -> None:
    """Raise ConfigError if several names look like those of splits."""
    if len(alike := sorted({name for name in names if _LIKE_A_SPLIT.fullmatch(name.rpartition("/")[2])})) > 1:
        wrong = f"{few(alike)} look like splits, but they are not train with test, validation or val"
        raise ConfigError(f"{wrong}: {remedy}")


def difference(of_train: Iterable[str], of_test: Iterable[str], train: str, test: str) -> str:
    """The classes that only one of two splits has, in words, with escapes beside names that are not plain ASCII."""
    one, other, plain = {*of_train}, {*of_test}, re.compile(r"[!-~]+( [!-~]+)*").fullmatch
    sides = [
        (name, [c if plain(c) else f"{c} ({c!a})" for c in sorted(only)])
        for name, only in ((train, one - other), (test, other - one))
    ]
    return ", and ".join(f"only {name} has {few(classes)}" for name, classes in sides if classes)


def few(names: Sequence[str]) -> str:
    """The first three names, at most 300 characters of each, and how many more there are."""
    return ", ".join(name[:300] for name in names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def in_order(names: Iterable[str]) -> list[str]:
    """Sort names of classes: by value if all are whole numbers, else as text."""
    as_text = sorted(names)
    if not all(name.isascii() and name.isdigit() for name in as_text):
        return as_text
    return sorted(as_text, key=lambda name: (len(name.lstrip("0")), name.lstrip("0")))  # not int: it takes 4300 digits


def connected(*keys: Sequence[Hashable]) -> list[int]:
    """The first image of the component of each image, where images with an equal key in any list are connected."""
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
    """Draw test images: a share of the images of each class, at least one image of a class with several.

    Images that must be in one split, such as copies and the images of a group, are a unit. Only whole units are drawn.

    Args:
        ids: the images to draw from.
        names, labels: of all images.
        units: for each image the first image of its unit.
        share: between 0 and 1.
        seed: the order in which images are drawn is that of the hashes of seed and name.
    """

    def random_key(i: int) -> str:
        return hashlib.sha256(f"{seed}/{names[units[i]]}".encode(errors="surrogateescape")).hexdigest()

    drawn, members = set[int](), dict[int, list[int]]()
    for i in ids:
        members.setdefault(labels[i], []).append(i)
    for of_class in members.values():
        count = max(round(share * len(of_class)), int(len(of_class) > 1))
        order = [units[i] for i in sorted(of_class, key=random_key)]
        chosen, others = {*order[:count]}, {*order[count:]}
        drawn |= chosen - others if others <= chosen else chosen  # some of a class stay to train on
    return {i for i in ids if units[i] in drawn}


def twins(marks: Sequence[Hashable], digest: Callable[[int], Hashable]) -> list[int]:
    """For each image, the first image with the same bytes.

    Args:
        marks: of each image. Copies have equal marks, and other images may have; None: the image cannot be read.
        digest: computes the hash of all bytes of an image.
    """
    count, first = Counter(marks), dict[Hashable, int]()
    return [i if mark is None or count[mark] == 1 else first.setdefault(digest(i), i) for i, mark in enumerate(marks)]


def twins_of_rows(*parts: np.ndarray) -> list[int]:
    """:func:`twins` of the images of arrays [n, ...], whose numbers go on from one array to the next."""
    rows = [row for part in parts for row in part.reshape(len(part), -1)]
    marks = [row[len(row) // 2 :][:MARKED].tobytes() for row in rows]
    return twins(marks, lambda i: hashlib.sha256(rows[i].data).digest())
