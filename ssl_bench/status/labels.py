"""A short label for each run of a table: the settings that distinguish it from the others."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from ssl_bench.config.identity import VOLATILE
from ssl_bench.status.entries import Entry
from ssl_bench.status.runs import SEED, Run, SharedConfig, varying, words

MAIN_GROUPS = ("dataset", "framework", "loss", "negatives", "temperature", "batch_size")  # groups that are named first

Name = tuple[bool, str]  # whether it is a key, not a group; and its name


def labels(entries: Sequence[Entry]) -> list[str]:
    """The label of each entry.

    A run is distinguished from the other runs of its parent directory. A run that a grid has still to make is
    described by the overrides that are not common to all such grids.
    """
    parents: dict[str, list[Run]] = {}
    given: dict[str, set[str]] = {}  # words of the commands of a parent directory
    for entry in entries:
        if entry.run:
            parents.setdefault(entry.run.parent, []).append(entry.run)
            given.setdefault(entry.run.parent, set()).update(words(entry.command or ""))
    by_path: dict[str, str] = {}
    for parent, runs in parents.items():
        requested = {word.partition("=")[0].lstrip("+") for word in given[parent] if "=" in word}
        described = _described([(run.config, run.seed) for run in runs], requested)
        by_path |= zip((run.path for run in runs), described, strict=True)
    runs_of_grids = [overrides for entry in entries if not entry.run and entry.grid for overrides in entry.grid.runs]
    common = set[str]().union(*runs_of_grids).intersection(*runs_of_grids)

    def by_overrides(overrides: list[str]) -> str:
        return " ".join([o for o in overrides if o not in common] or overrides)

    return [by_path[e.run.path] if e.run else by_overrides(e.overrides or []) for e in entries]


def _described(runs: Sequence[tuple[SharedConfig, str | None]], requested: Collection[str]) -> list[str]:
    """Describe each configuration, with its seed, by what distinguishes it: options of groups, then keys.

    A value that follows from another one, as the number of epochs from the dataset, is hidden unless it was
    ``requested``, or two configurations would have the same description without it.
    """
    distinct = {config.key: config for config, _ in runs}
    settings_of = varying(distinct.values())
    values = {key: _named(settings) for key, settings in zip(distinct, settings_of, strict=True)}
    names = {name for settings in values.values() for name in settings}
    shown, classes, count = set[Name](), [0] * len(runs), 1  # those of one class have the same description so far
    for name in sorted(names, key=lambda name: (name[1] not in requested, name[0], *_rank(name[1]))):
        if count == len(runs) and name[1] not in requested:
            break
        of_config = {key: settings.get(name) for key, settings in values.items()}
        own = [seed if (value := of_config[config.key]) == SEED else value for config, seed in runs]
        numbers: dict[Any, int] = {}
        finer = [numbers.setdefault(pair, len(numbers)) for pair in zip(classes, own, strict=True)]
        if len(numbers) > count or (name[1] in requested and len({*own}) > 1):
            shown.add(name)
            classes, count = finer, len(numbers)
    pieces = {key: _around_seed(settings, shown) for key, settings in values.items()}
    return [
        as_override(seed or "null").join(pieces[config.key]) or " ".join(_main_groups(config)) for config, seed in runs
    ]


def _around_seed(settings: Mapping[Name, str], shown: Collection[Name]) -> list[str]:
    """The shown settings as text, in pieces: the seed stands between them."""
    pieces = [""]
    for name, value in sorted(settings.items()):
        if name in shown:
            pieces[-1] += f"{' ' * (pieces != [''])}{name[1]}={'' if value == SEED else as_override(value)}"
            pieces += [""] * (value == SEED)
    return pieces


def _named(settings: Mapping[tuple[str, ...], str]) -> dict[Name, str]:
    """The options of groups and the keys that belong to a run's identity, by name."""
    named = {}
    for path, value in settings.items():
        if path[0] == "choices" and len(path) > 1:
            named[False, ".".join(path[1:])] = value
        elif path[0] not in VOLATILE and value != "{}":
            named[True, ".".join(path)] = value
    return named


def _main_groups(config: SharedConfig) -> Iterable[str]:
    choices = config.content.get("choices", {})
    return (str(choices[group]) for group in MAIN_GROUPS if group in choices)


def _rank(name: str) -> tuple[int, int, str]:
    """Order in which settings are tried: outer keys first, then the main groups."""
    group = name.partition(".")[0]
    return name.count("."), MAIN_GROUPS.index(group) if group in MAIN_GROUPS else len(MAIN_GROUPS), name


@cache
def as_override(value: str) -> str:
    """A value in JSON as an override writes it."""
    return str(json.loads(value)) if value.startswith('"') else value
