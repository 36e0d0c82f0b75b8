"""The words that select runs, the same on every command, and the order of runs: ``--sort KEY``.

A word is a condition or a name. Conditions must all hold: ``loss=dcl,eqco`` (one of these), ``loss!=dcl``,
``negatives.k>4``, and likewise ``<``, ``<=`` and ``>=``. A name is that of an experiment, the run_id of a run or its
beginning, or a folder; each name adds its runs. The key of a condition is ``state``, ``label``, ``epoch``, ``speed``, a
metric such as ``knn/top1``, a group such as ``loss`` or a key of the configuration such as ``optimizer.lr``.
"""

import math
import operator
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ssl_bench import files
from ssl_bench.config.build import near
from ssl_bench.errors import ConfigError
from ssl_bench.results.differing import labels
from ssl_bench.results.numbers import Numbers
from ssl_bench.results.scan import URGENT, Entry, Scan, Status

NAMES = ("name", "folder")  # which are words, and no keys of conditions
FIELDS = ("state", "folder", "label", "epoch", "speed", "seed")
ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
CONDITION = re.compile(r"((?:[^\[\]=<>!]|\[[^\]]*\])+)(!=|<=|>=|=|<|>)(.*)", re.DOTALL)  # a key may be knn[k=20]/top1
SHORTEST = 4  # characters of the beginning of a run_id

Labelled = tuple[Entry, str]


class Condition(NamedTuple):
    """A condition on runs, such as ``negatives.k>4``."""

    key: str
    sign: str
    value: str

    @classmethod
    def read(cls, word: str) -> "Condition | None":
        """The condition that a word is; None of a name, and of a path of a folder: ``outputs/lr=0.1``, ``./lr=0.1``."""
        parts = None if "/" in word and os.path.isdir(word) else CONDITION.fullmatch(word)
        return cls(*parts.groups()) if parts else None

    def holds(self, value: str | float | None, scale: float) -> bool:
        """Whether the value of a run fits; with ``!=``, whether it does not.

        Args:
            scale: 100 of shares, which may also be given in percent.
        """
        plain = None if value is None else _plain(value)
        wanted = {_plain(text) for text in (self.value, *self.value.split(","))}  # a list is one value
        options = {one / scale if isinstance(one, float) and one > 1 else one for one in wanted}
        if self.sign in ORDERS:
            (bound,) = options
            return isinstance(plain, float) and bool(ORDERS[self.sign](plain, bound))
        return (plain in options) == (self.sign == "=")


def select(shown: Sequence[Labelled], where: Sequence[str], sort: str | None) -> list[Labelled]:
    """Filter and sort entries with their labels.

    Args:
        shown: all of them.
        where: conditions, which must all hold.
        sort: a key; ``-KEY`` reverses the order. States are sorted by urgency, numbers come before text, and what has
            no value comes last. The best value of a metric comes first, the highest if it does not say what is better.

    Raises:
        ConfigError: a word is no condition, no entry has a key, or its values have no order.
    """
    kept, every, conditions = list(shown), Numbers(entry.run for entry, _ in shown if entry.run), list[Condition]()
    for word in where:
        condition = Condition.read(word)
        if condition is None:
            raise ConfigError(f"{word}: set it to KEY=VALUE, such as loss=dcl or state=failed")
        if condition.key in NAMES:
            raise ConfigError(f"{word}: experiments, runs and folders are named by a word alone: {condition.value}")
        number = _plain(condition.value)
        if condition.sign in ORDERS and (isinstance(number, str) or math.isnan(number)):
            raise ConfigError(f"{word}: set it to a number, such as {condition.key}{condition.sign}4")
        conditions.append(condition)
    for condition in sorted(conditions, key=lambda one: one.key in every.metrics):
        name, numbers = _resolved("", condition.key, shown, kept, every)
        scale = numbers.meaning(name).scale if name in numbers.names else 1.0
        kept = [pair for pair in kept if condition.holds(_value(pair, name, numbers), scale)]
    if not sort:
        return kept
    key, numbers = _resolved("--sort", sort.removeprefix("-"), shown, kept, every)
    metric = key in numbers.names
    low = metric and numbers.meaning(key).sign < 0
    ordered = [pair for pair in kept if _value(pair, key, numbers) is not None]
    ordered.sort(key=lambda pair: _order(pair, key, numbers), reverse=sort.startswith("-") != (metric and not low))
    return ordered + [pair for pair in kept if _value(pair, key, numbers) is None]


def _value(pair: Labelled, key: str, numbers: Numbers) -> str | float | None:
    """The value of a key, as an override writes it; None if the entry has none."""
    entry, label = pair
    run = entry.run
    if run is not None and key in numbers.names:
        return numbers.value(key, run)
    values: dict[str, Any] = {"state": entry.state.value, "label": label, "folder": run and run.path}
    values |= {"epoch": run and run.epoch, "speed": run and run.speed}
    if run is None:
        values |= dict(o.lstrip("+").split("=", 1) for o in entry.overrides or () if "=" in o)
    elif key not in values and (setting := run.setting(key)) is not None:
        return setting
    value: str | float | None = values.get(key)
    return value


def located(words: Sequence[str], given: Path | None = None) -> tuple[Path, list[str]]:
    """The results folder, and the words that select in it, their folders as paths in it.

    Args:
        given: ``paths.outputs``; None: the results folder of the word that is a folder elsewhere, or the usual one.

    Raises:
        ConfigError: there is no such folder, or words are folders of two results folders.
    """
    outputs, words = given or files.usual_outputs(), list(words)
    if (outputs.parent / ".sweeps").is_dir() and not (outputs / ".sweeps").is_dir() and outputs.name:
        outputs, words = outputs.parent, [outputs.name, *words]  # the folder of an experiment
    names = [word for word in words if Condition.read(word) is None]
    elsewhere = {word: Path(word) for word in names if _below(word, outputs) is None and Path(word).is_dir()}
    roots = list(dict.fromkeys(map(_root, elsewhere.values())))
    others = roots[1:] + [outputs] * (given is not None or len(elsewhere) < len(names))
    if roots and others:
        raise ConfigError(f"{roots[0]} and {others[0]} are two results folders: name one")
    outputs = roots[0] if roots else outputs
    if not outputs.is_dir():
        what = f"{' '.join(names)}: " if names else ""
        raise ConfigError(f"{what}there is no folder {outputs}: set paths.outputs to the folder of the results")
    below = {word: _below(word, outputs) for word in names}
    placed = (word if (at := below.get(word)) is None else str(outputs / at) for word in words)
    return outputs, [word for word in placed if word != str(outputs)]


def _below(word: str, outputs: Path) -> str | None:
    """The path below a results folder that a word means, ``.`` for the folder itself; None if it means none."""
    if (outputs / word).is_dir() and not Path(word).is_absolute():
        return word.strip("/")
    place, whole = Path(word).resolve(), outputs.resolve()
    return place.relative_to(whole).as_posix() if Path(word).is_dir() and place.is_relative_to(whole) else None


def _root(folder: Path) -> Path:
    """The results folder of a folder: the next one above it that commands have used as one, or else itself."""
    if (folder / "results.json").exists() or (folder / "config.yaml").exists():
        folder = folder.absolute().parent.parent  # of a run
    marks = (place for place in (folder, *folder.absolute().parents[:2]) if (place / ".sweeps").is_dir())
    return next(marks, folder)


def chosen(words: Sequence[str], given: Path | None = None) -> tuple[list[Entry], Path]:
    """The entries that words select, in the order of ``ssl-bench status``, and their results folder.

    Args:
        given: the results folder of ``paths.outputs``.

    Raises:
        ConfigError: there is no such folder, a name selects nothing, or no entry has a key.
    """
    outputs, words = located(words, given)
    return [entry for entry, _ in selected(Scan(outputs), outputs, words)[0]], outputs


def selected(
    scan: Scan, outputs: Path, words: Sequence[str], sort: str | None = None
) -> tuple[list[Labelled], float | None]:
    """The entries of a results folder that words select, with their labels, and the seconds left of those that run."""
    entries, left = scan.update(time.time())
    return pick(entries, outputs, words, sort), left


def pick(entries: Sequence[Entry], outputs: Path, words: Sequence[str], sort: str | None = None) -> list[Labelled]:
    """Those of the entries of a results folder that words select, with their labels."""
    conditions = [word for word in words if Condition.read(word)]
    kept = {id(entry) for entry in of_names(entries, [word for word in words if word not in conditions], outputs)}
    labelled = zip(entries, labels(entries), strict=True)
    return select([pair for pair in labelled if id(pair[0]) in kept], conditions, sort)


def of_names(entries: Sequence[Entry], names: Sequence[str], outputs: Path) -> list[Entry]:
    """The entries of all experiments, runs and folders that are named; all entries if none is.

    Raises:
        ConfigError: a name has no entries, or several runs begin with it.
    """
    kept = dict[int, Entry]()
    for word in names:
        name = word.removeprefix(f"{outputs}/").strip("/")
        of_name = [e for e in entries if name in e.names or (e.run and e.run.is_named(name))]
        if not of_name and len(name) >= SHORTEST:
            of_name = [e for e in entries if e.run and e.run.folder.name.startswith(name)]
            several = sorted({e.run.folder.name for e in of_name if e.run})
            if len(several) > 1:
                raise ConfigError(f"{word}: the run_ids of {len(several)} runs begin so: {', '.join(several[:4])}")
        if not of_name:
            existing = {name for e in entries for name in (*e.names, *([e.run.name] if e.run else []))}
            raise ConfigError(f"{word}: no run below {outputs} has this name or folder{near(word, sorted(existing))}")
        kept |= {id(entry): entry for entry in of_name}
    return list(kept.values()) if names else list(entries)


def runs_where(outputs: Path, where: Sequence[str]) -> list[Entry]:
    """The entries of a results folder for which all conditions hold, in the order of ``ssl-bench status``.

    Raises:
        ConfigError: there is no such folder, or no entry has a key.
    """
    return chosen(where, outputs)[0]


def ended(entries: Sequence[Entry]) -> list[Entry]:
    """The entries that have results and are not at work."""
    return [entry for entry in entries if entry.state in (Status.DONE, Status.EVALUATED)]


def _resolved(
    flag: str, key: str, shown: Sequence[Labelled], kept: Sequence[Labelled], every: Numbers
) -> tuple[str, Numbers]:
    """The name of a key, and the numbers among which it is one; a metric has a name among the entries that are kept.

    Raises:
        ConfigError: no entry that is shown has the key, or it may mean several numbers of those that are kept.
    """
    if key in every.metrics:
        runs = [entry.run for entry, _ in kept if entry.run]
        numbers = Numbers(runs)
        if key in numbers.metrics:
            return numbers.choose(flag or "the metric", key, runs)[0], numbers
    if not shown or key in (*FIELDS, *every.metrics) or any(_value(pair, key, every) is not None for pair in shown):
        return key, every
    configs = {entry.run.shared.key: entry.run.shared for entry, _ in shown if entry.run}
    keys = [*FIELDS, *every.names]
    keys += [name for config in configs.values() for name in config.settings]
    raise ConfigError(
        f"{flag} {key}".strip() + f": no run has this key{near(key, dict.fromkeys(keys))}; set it to a field, a "
        "metric, a group or a key"
    )


def _plain(value: str | float) -> str | float:
    """A number, of b64 64, or text without the blanks and quotes in which a list may be written in several ways."""
    try:
        return float(value.removeprefix("b") if isinstance(value, str) else value)
    except ValueError:
        return re.sub(r"[\s'\"]", "", str(value))


def _order(pair: Labelled, key: str, numbers: Numbers) -> tuple[int, float, str]:
    value = _value(pair, key, numbers)
    if key == "state":
        return 0, URGENT.index(pair[0].state), ""
    plain = _plain(value or 0.0)
    return (1, 0.0, str(value)) if isinstance(plain, str) else (0, plain, "")
