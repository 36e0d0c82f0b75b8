"""Which runs ``ssl-bench status`` shows, and in which order: ``--where KEY=VALUE`` and ``--sort KEY``.

A key is ``state``, ``folder``, ``label``, ``epoch``, ``speed``, a metric such as ``knn/top1``, a group such as ``loss``
or a key of the configuration such as ``optimizer.lr``.
"""

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ssl_bench.config.build import near
from ssl_bench.errors import ConfigError
from ssl_bench.results.differing import labels
from ssl_bench.results.numbers import Numbers
from ssl_bench.results.runs import RunFolder
from ssl_bench.results.scan import URGENT, Entry, Scan

ENDED = "state=done,evaluated"  # the condition of runs that have results and are not at work
FIELDS = ("state", "folder", "label", "epoch", "speed", "seed")

Labelled = tuple[Entry, str]


def select(shown: Sequence[Labelled], where: Sequence[str], sort: str | None) -> list[Labelled]:
    """Filter and sort entries with their labels.

    Args:
        shown: all of them.
        where: conditions ``KEY=VALUE``, which must all hold. A value may be several, separated by commas: any of them.
        sort: a key; ``-KEY`` reverses the order. States are sorted by urgency, numbers come before text, and what has
            no value comes last. The best value of a metric comes first, the highest if it does not say what is better.

    Raises:
        ConfigError: a condition without ``=``, or no entry has a key.
    """
    numbers = Numbers(entry.run for entry, _ in shown if entry.run)
    kept, key = list(shown), (sort or "").removeprefix("-")
    for condition in where:
        name, equals, wanted = condition.partition("=")
        if not equals:
            raise ConfigError(f"--where {condition}: set it to KEY=VALUE, such as loss=dcl or state=failed")
        name = _resolved("--where", name, shown, numbers)
        options = {_plain(text) for text in (wanted, *wanted.split(","))}  # a list is one value
        kept = [pair for pair in kept if options & {_plain(value) for value in _values(pair, name, numbers)}]
    if not sort:
        return kept
    key = _resolved("--sort", key, shown, numbers)
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


def _values(pair: Labelled, key: str, numbers: Numbers) -> list[str | float]:
    """The value of a key; a run has also the names that grids give it which asked for it."""
    value = _value(pair, key, numbers)
    return [*([] if value is None else [value]), *(pair[0].names if key == "name" else ())]


def scanned(outputs: Path, where: Sequence[str]) -> tuple[Scan, list[str]]:
    """The scan of a results folder with the conditions on its entries.

    The folder of one name, ``outputs/<name>``, stands for all runs that its grids asked for.

    Raises:
        ConfigError: there is no such folder.
    """
    if not outputs.is_dir():
        raise ConfigError(f"there is no folder {outputs}: name the folder that paths.outputs was set to")
    if (outputs.parent / ".sweeps").is_dir() and not (outputs / ".sweeps").is_dir() and outputs.name:
        return Scan(outputs.parent), [f"name={outputs.name}", *where]
    return Scan(outputs), list(where)


def runs_where(outputs: Path, where: Sequence[str]) -> list[Entry]:
    """The entries of a results folder for which all conditions hold, in the order of ``ssl-bench status``.

    Raises:
        ConfigError: there is no such folder, or no entry has a key.
    """
    scan, conditions = scanned(outputs, where)
    entries, _ = scan.update(time.time())
    return [entry for entry, _ in select(list(zip(entries, labels(entries), strict=True)), conditions, None)]


def of_experiments(entries: Sequence[Entry], words: Sequence[str], outputs: Path) -> list[Entry]:
    """The entries of all experiments that are named, each by its name or its folder; all entries if none is.

    Raises:
        ConfigError: an experiment has no entries.
    """
    kept = list[Entry]() if words else list(entries)
    for word in words:
        name = word.removeprefix(f"{outputs}/").strip("/")
        of_word = [e for e in entries if name in e.names or (e.run and (e.run.name == name or e.run.is_below(name)))]
        if not of_word:
            known = {name for e in entries for name in (*e.names, *([e.run.name] if e.run else []))}
            raise ConfigError(f"{word}: no run below {outputs} has this name or folder{near(word, sorted(known))}")
        kept += [entry for entry in of_word if entry not in kept]
    return kept


def finished_where(outputs: Path, where: Sequence[str]) -> list[RunFolder]:
    """The finished runs of a results folder for which all conditions hold."""
    return [entry.run for entry in runs_where(outputs, where) if entry.run and entry.run.done]


def _resolved(flag: str, key: str, shown: Sequence[Labelled], numbers: Numbers) -> str:
    """The key; of a metric that several evaluations have made, the name of that which all runs have.

    Raises:
        ConfigError: no entry has the key, or it may mean several numbers.
    """
    if not shown or key in FIELDS or any(_values(pair, key, numbers) for pair in shown):
        return key
    if key in numbers.metrics:
        return numbers.choose(flag, key, [entry.run for entry, _ in shown if entry.run])[0]
    configs = {entry.run.shared.key: entry.run.shared for entry, _ in shown if entry.run}
    keys = [*FIELDS, *numbers.names]
    keys += [name for config in configs.values() for name in config.settings]
    raise ConfigError(
        f"{flag} {key}: no run has this key{near(key, dict.fromkeys(keys))}; set it to a field, a metric, a group or "
        "a key"
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
