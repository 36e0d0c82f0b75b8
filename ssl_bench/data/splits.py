"""Names of splits and of classes, for folders and for datasets of Hugging Face alike."""

import re
from collections.abc import Collection, Iterable, Sequence

from ssl_bench.errors import ConfigError

TRAIN = ("train", "training", "trn", "trainval")
# In order of preference: of several test splits, the one whose word comes first is used.
TESTS = ("test", "val", "valid", "validation", "testing", "tst", "eval", "evaluation", "dev", "development")
# Names of splits that are neither trained on nor tested on, and that are hardly names of classes.
OTHERS = ("holdout", "heldout", "labeled", "labelled", "unlabeled", "unlabelled", "extra", "query", "gallery")
LONGEST = 300  # characters of a name in a sentence: a class of a data set of Hugging Face is any text
_DATA = re.compile("(set|data|dataset|images?|imgs?|samples?|split|folder|dir)$")  # testset, trainimages
_NUMBERED = re.compile(r"(.*(?:fold|split|part|partition|subset|set|cv|batch|chunk|shard))(?:\d+|[a-z])")


def split_name(name: str) -> str:
    """The word of ``TRAIN`` or ``TESTS`` that a name is, without regard to case and punctuation; "" if it is none."""
    return word if (word := _letters(name)) in (*TRAIN, *TESTS) else ""


def find_splits(names: Collection[str], doubt: str) -> tuple[str, list[str]] | None:
    """The training split and all test splits, the best first; None if the names are no splits.

    Args:
        names: of folders beside each other, or of splits.
        doubt: the remedy in the error if names look like splits and it is not clear which is which; "": no error, they
            are then no splits.

    Raises:
        ConfigError: they look like splits, and it is not clear which is which.
    """
    trains = [name for name in names if split_name(name) in TRAIN]
    tests = sorted((n for n in names if split_name(n) in TESTS), key=lambda n: (TESTS.index(split_name(n)), n))
    if len(trains) == 1 and tests:
        return trains[0], tests
    exact = [name for name in names if _kind(name)[0] and not _kind(name)[1]]
    alike = exact if len(exact) > 1 else [n for n in names if _kind(n)[0]] if has_splits(names) else _numbered(names)
    if alike and doubt:
        unclear = few(sorted(alike))
        raise ConfigError(f"{unclear} look like splits, and it is not clear which one is to be trained on: {doubt}")
    return None


def has_splits(names: Collection[str]) -> bool:
    """Whether the names have, or seem to have, a training split and a test split among them.

    Those with trainImages and test_images do, those with train_station and art_gallery do not.
    """
    rests: dict[str, set[str]] = {"train": set(), "test": set()}
    kinds = [_kind(name) for name in names]
    for kind, rest in kinds:
        if kind:
            rests[kind].add(rest)
    one, other = rests.values()
    return bool(one and other and (one & other or "" in one | other or all(kind for kind, _ in kinds)))


def _letters(name: str) -> str:
    """The letters and digits of a name, in lower case."""
    return re.sub(r"[\W_]+", "", name.lower())


def _kind(name: str) -> tuple[str, str]:
    """Split a name into ``train``, ``test`` or "", by the word of a split that it contains, and its other words."""
    if _letters(name) in OTHERS:
        return "test", ""
    words = [_DATA.sub("", word.lower()) for word in re.findall("[A-Z]?[a-z]{2,}|[A-Z]{2,}(?![a-z])", name)]
    rest = " ".join(word for word in words if word and word not in (*TRAIN, *TESTS))
    kinds = [kind for kind, of_kind in (("train", TRAIN), ("test", TESTS)) if not set(of_kind).isdisjoint(words)]
    return (kinds[0] if kinds else ""), rest


def _numbered(names: Iterable[str]) -> list[str]:
    """The first names that differ in their number only, such as fold1 and fold2; empty without such."""
    groups: dict[str, list[str]] = {}
    for name in names:
        if match := _NUMBERED.fullmatch(_letters(name)):
            groups.setdefault(match[1], []).append(name)
    return next((group for group in groups.values() if len(group) > 1), [])


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
