"""Names of splits and of classes, for folders, files of labels and datasets of Hugging Face alike."""

import re
from collections.abc import Collection, Iterable, Sequence

from ssl_bench.errors import ConfigError

TRAIN, TESTS = "train", ("test", "validation", "val")  # in any case; of several test splits the first one is used
LONGEST = 300  # characters of a name in a sentence: a class of a data set of Hugging Face is any text
# Names that are hardly those of classes if several of them are beside each other.
_LIKE_A_SPLIT = re.compile(
    r"(train(ing|val)?|trn|test(ing)?|tst|val(id(ation)?)?|eval(uation)?|dev|hold-?out|(un)?label?led)"
    r"[\W_]*(set|data|images|imgs|\d+|[a-z])?",
    re.IGNORECASE,
)


def find_splits(names: Collection[str], remedy: str = "") -> tuple[str, list[str]] | None:
    """The training split and all test splits, the best first; None if the names are not those of splits.

    Args:
        names: of folders beside each other, or of splits.
        remedy: ends the sentence that refuses names that look like other splits; "": they are not refused.

    Raises:
        ConfigError: several names look like splits, and they are not ``train`` with one of ``TESTS``.
    """
    trains = [name for name in names if name.lower() == TRAIN]
    tests = sorted((n for n in names if n.lower() in TESTS), key=lambda n: (TESTS.index(n.lower()), n))
    if len(trains) == 1 and tests:
        return trains[0], tests
    if remedy and len(alike := like_splits(names)) > 1:
        raise ConfigError(
            f"{few(alike)} look like splits, but they are not train with test, validation or val: {remedy}"
        )
    return None


def like_splits(names: Iterable[str]) -> list[str]:
    """The names that look like those of splits, sorted."""
    return sorted(filter(_LIKE_A_SPLIT.fullmatch, names))


def difference(of_train: Collection[str], of_test: Collection[str], train: str, test: str) -> str:
    """Say which classes only one of two splits has, with the code points of names that are not plain ASCII."""
    pairs = ((train, {*of_train} - {*of_test}), (test, {*of_test} - {*of_train}))
    plain = re.compile(r"[!-~]+( [!-~]+)*").fullmatch
    sides = [(name, [c if plain(c) else f"{c} ({c!a})" for c in sorted(only)]) for name, only in pairs if only]
    return ", and ".join(f"only {name} has {few(classes)}" for name, classes in sides)


def few(names: Sequence[str]) -> str:
    """Join the first three names, the first ``LONGEST`` characters of each, with the number of the others."""
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(name if len(name) <= LONGEST else f"{name[:LONGEST]}..." for name in names[:3]) + rest


def in_order(names: Iterable[str]) -> list[str]:
    """Sort names of classes: as numbers if all are whole numbers, else as text."""
    as_text = sorted(names)
    if not all(name.isascii() and name.isdigit() for name in as_text):
        return as_text
    digits = {name: name.lstrip("0") for name in as_text}
    return sorted(as_text, key=lambda name: (len(digits[name]), digits[name]))  # not int: it takes 4300 digits
