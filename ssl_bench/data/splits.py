"""Names of splits and of classes, for folders and for datasets of Hugging Face alike."""

import re
from collections.abc import Collection, Iterable, Sequence

from ssl_bench.errors import ConfigError

TRAIN = ("train", "training", "trn", "trainval")
# Of several test splits, the first that fits counts.
TESTS = ("test", "val", "valid", "validation", "testing", "tst", "eval", "evaluation", "dev", "development")
# Words that are not used as a split, but that hardly are the name of a class beside one.
OTHERS = ("holdout", "heldout", "labeled", "labelled", "unlabeled", "unlabelled", "extra", "query", "gallery")
_DATA = re.compile("(set|data|dataset|images?|imgs?|samples?|split|folder|dir)$")  # testset, trainimages
_NUMBERED = re.compile(r"(.*(?:fold|split|part|partition|subset|set|cv|batch|chunk|shard))(?:\d+|[a-z])")


def split_name(name: str) -> str:
    """The word of ``TRAIN`` or ``TESTS`` that a name is, in any case and with any signs; "" if it is none."""
    return word if (word := _letters(name)) in (*TRAIN, *TESTS) else ""


def find_splits(names: Collection[str], doubt: str) -> tuple[str, list[str]] | None:
    """The training split and all test splits, the best first; None if the names are no splits.

    Args:
        names: of folders beside each other, or of splits.
        doubt: what to do with names that look like splits, if it is not clear which is which; "": they are none then.

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
    """Whether a training split and another split are among the names, or two names that look so.

    trainImages and test_images do, train_station and art_gallery do not.
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
    """Whether a name has the word of a split in it, ``train``, ``test`` or neither, and its other words."""
    if _letters(name) in OTHERS:
        return "test", ""
    words = [_DATA.sub("", word.lower()) for word in re.findall("[A-Z]?[a-z]{2,}|[A-Z]{2,}(?![a-z])", name)]
    rest = " ".join(word for word in words if word and word not in (*TRAIN, *TESTS))
    kinds = [kind for kind, known in (("train", TRAIN), ("test", TESTS)) if not set(known).isdisjoint(words)]
    return (kinds[0] if kinds else ""), rest


def _numbered(names: Iterable[str]) -> list[str]:
    """Those of the names that are the parts of one thing, such as fold1 and fold2."""
    found: dict[str, list[str]] = {}
    for name in names:
        if match := _NUMBERED.fullmatch(_letters(name)):
            found.setdefault(match[1], []).append(name)
    return next((each for each in found.values() if len(each) > 1), [])


def few(names: Sequence[str]) -> str:
    """Join the first three names, with the number of the others."""
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest


def in_order(names: Iterable[str]) -> list[str]:
    """Sort names of classes: as numbers if all are whole numbers, else as text."""
    known = sorted(names)
    return sorted(known, key=int) if all(name.isascii() and name.isdigit() for name in known) else known
