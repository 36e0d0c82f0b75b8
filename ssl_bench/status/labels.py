"""A short label for each run of a table: the settings that distinguish it from the others."""

import json
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

from ssl_bench.config.identity import VOLATILE
from ssl_bench.status.runs import Run, SharedConfig, varying
from ssl_bench.status.scan import Entry

MAIN_GROUPS = ("dataset", "framework", "loss", "negatives", "temperature", "batch_size")  # groups that are named first


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
            given.setdefault(entry.run.parent, set()).update((entry.command or "").replace("'", "").split())
    by_path: dict[str, str] = {}
    for parent, runs in parents.items():
        requested = {word.partition("=")[0].lstrip("+") for word in given[parent] if "=" in word}
        by_path |= zip((run.path for run in runs), described(runs, requested), strict=True)
    to_make = [overrides for entry in entries if not entry.run and entry.grid for overrides in entry.grid.runs]
    common = frozenset(to_make[0]).intersection(*to_make) if to_make else frozenset()
    return [by_path[e.run.path] if e.run else own_overrides(e.overrides or [], common) for e in entries]


def own_overrides(overrides: Sequence[str], common: Collection[str]) -> str:
    """The overrides that are not common to all runs; all if there is none."""
    return " ".join([override for override in overrides if override not in common] or overrides)


def described(runs: Sequence[Run], requested: Collection[str]) -> list[str]:
    """Describe each run by what distinguishes it: options of groups, then keys.

    A value that follows from another one, as the number of epochs from the dataset, is hidden unless it was
    ``requested``, or two runs would have the same description without it.
    """
    configs = {run.config.key: run.config for run in runs}
    settings = dict(zip(configs, varying(configs.values()), strict=True))
    groups = {group for config in configs.values() for group in config.groups}
    named = {name for of_config in settings.values() for name in of_config} | {"seed"}
    names = [name for name in named if name in groups or name.partition(".")[0] not in VOLATILE]
    names.sort(key=lambda name: (name not in requested, name not in groups, *_rank(name)))
    shown, classes, count = list[str](), [0] * len(runs), 1  # those of one class have the same description so far
    for name in names:
        if count == len(runs) and name not in requested:
            break
        own = [run.seed if name == "seed" else settings[run.config.key].get(name) for run in runs]
        numbers: dict[Any, int] = {}
        finer = [numbers.setdefault(pair, len(numbers)) for pair in zip(classes, own, strict=True)]
        if len(numbers) > count or (name in requested and len({*own}) > 1):
            shown.append(name)
            classes, count = finer, len(numbers)
    shown.sort(key=lambda name: (name not in groups, name))

    def describe(run: Run) -> str:
        values = ((name, run.setting(name)) for name in shown)
        return " ".join(f"{name}={as_override(value)}" for name, value in values if value is not None)

    return [describe(run) or _main_groups(run.config) for run in runs]


def _main_groups(config: SharedConfig) -> str:
    return " ".join(as_override(config.settings[group]) for group in MAIN_GROUPS if group in config.groups)


def _rank(name: str) -> tuple[int, int, str]:
    """Order in which settings are tried: outer keys first, then the main groups."""
    group = name.partition(".")[0]
    return name.count("."), MAIN_GROUPS.index(group) if group in MAIN_GROUPS else len(MAIN_GROUPS), name


@cache
def as_override(value: str) -> str:
    """A value in JSON as an override writes it."""
    return str(json.loads(value)) if value.startswith('"') else value
