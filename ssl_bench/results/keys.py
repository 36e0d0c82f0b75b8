"""The settings in which runs differ, and those that they share."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ssl_bench.results.labels import place, requested, varying
from ssl_bench.results.scan import Entry

FACTS = ("negatives_per_anchor", "steps", "lr", "parameters", "train_images")  # of results.json, that a plot may need

Value = str | float | bool | None


@dataclass(frozen=True)
class Keys:
    """Settings of runs by name: ``loss`` is the option of a group, ``temperature.tau`` a key.

    Attributes:
        names: of the settings that vary, the requested ones first.
        shown: those of the names that a table shows: the ones that the commands set, or else the options of groups.
        values: of each run, in the order of the names.
        common: the settings that all runs share.
    """

    names: list[str]
    shown: list[str]
    values: list[list[Value]]
    common: dict[str, Value]


def compare(entries: Sequence[Entry], facts: Sequence[Mapping[str, Any]]) -> Keys:
    """The settings of entries.

    Args:
        facts: of each entry, what ``results.json`` says about its run; empty for an unfinished one.
    """
    configs = {entry.run.shared.key: entry.run.shared for entry in entries if entry.run}
    differing = dict(zip(configs, map(_values, varying(configs.values())), strict=True))
    of_runs = [_settings(entry, differing) for entry in entries]
    for name in FACTS:
        if len({repr(known[name]) for known in facts if name in known}) > 1:  # unfinished runs have none
            for settings, known in zip(of_runs, facts, strict=True):
                if isinstance(known.get(name), int | float):
                    settings.setdefault(name, _value(json.dumps(known[name])))
    given = requested(entries)
    options = {name for config in configs.values() for name in config.groups}
    names = dict.fromkeys(name for settings in of_runs for name in settings)
    vary = [name for name in names if len({repr(settings.get(name)) for settings in of_runs}) > 1]
    vary.sort(key=lambda name: (name not in given, name not in options, name == "seed", name.count("."), place(name)))
    shown = [name for name in vary if name in given] or [name for name in vary if name in options or name == "seed"]
    whole = _values(next(iter(configs.values())).settings) if configs else {}
    first = of_runs[0] if of_runs else {}
    common = {name: value for name, value in (whole | first).items() if name not in vary}
    for entry, settings in zip(entries, of_runs, strict=True):  # what only a run that is still to be made sets
        known = {name: entry.run.setting(name) for name in vary if name not in settings} if entry.run else {}
        settings |= _values({name: text for name, text in known.items() if text is not None})
    return Keys(vary, shown, [[settings.get(name) for name in vary] for settings in of_runs], common)


def _settings(entry: Entry, differing: Mapping[str, Mapping[str, Value]]) -> dict[str, Value]:
    """The settings of an entry that are not common to all configurations; its overrides if it has no run yet."""
    if entry.run is None:
        pairs = (override.lstrip("+").partition("=") for override in entry.overrides or ())
        return {name: _value(text) for name, _, text in pairs}
    seed = {} if entry.run.seed is None else {"seed": entry.run.seed}
    return {**differing[entry.run.shared.key], **seed}


def _values(settings: Mapping[str, str]) -> dict[str, Value]:
    return {name: _value(text) for name, text in settings.items()}


def _value(text: str) -> Value:
    """The value in an override: a number (64 for ``b64``), a truth value, None, or else the text itself."""
    try:
        value = json.loads(text[1:] if re.fullmatch(r"b\d+", text) else text)
    except ValueError:
        return text
    plain = math.isfinite(value) if isinstance(value, float) else isinstance(value, int | None)
    return value if plain else text


def rows(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """A flat row for each entry, all with the same keys: the settings that vary, the seed, the metrics, the state.

    What an entry does not have is None.
    """
    settings = compare(entries, [])
    metrics = dict.fromkeys(name for entry in entries for name in entry.metrics)
    found = []
    for entry, values in zip(entries, settings.values, strict=True):
        run = entry.run
        row: dict[str, Any] = dict(zip(settings.names, values, strict=True))
        row.setdefault("seed", run.seed if run else None)
        row |= {name: entry.metrics.get(name) for name in metrics}
        row |= {"state": entry.state.value, "seconds": (run.seconds if run.done else run.trained) if run else None}
        found.append(row | {"path": str(run.folder) if run else None})
    return found
