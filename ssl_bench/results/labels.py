"""A short label for each run of a table: the settings that distinguish it from the others."""

from collections.abc import Collection, Sequence
from typing import Any

from ssl_bench.config.identity import VOLATILE
from ssl_bench.results.runs import Run, SharedConfig
from ssl_bench.results.scan import Entry

MAIN_GROUPS = ("loss", "negatives", "temperature", "batch_size", "framework", "dataset")  # groups that are named first

SIZE = "batch_size.size"  # which batch_size names, too


def labels(entries: Sequence[Entry]) -> list[str]:
    """The label of each entry.

    A run is distinguished from the other runs of its parent directory. A run that a grid has still to make is
    described by the overrides that are not common to all such grids.
    """
    parents: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.run:
            parents.setdefault(entry.run.parent, []).append(entry)
    by_path: dict[str, str] = {}
    for members in parents.values():
        runs = [entry.run for entry in members if entry.run]
        by_path |= zip((run.path for run in runs), _described(runs, requested(members)), strict=True)
    to_make = [overrides for entry in entries if not entry.run and entry.grid for overrides in entry.grid.runs]
    common = frozenset(to_make[0]).intersection(*to_make) if to_make else frozenset()
    return [by_path[e.run.path] if e.run else own_overrides(e.overrides or [], common) for e in entries]


def own_overrides(overrides: Sequence[str], common: Collection[str]) -> str:
    """The overrides that are not common to all runs, those of the main groups first; all if there is none."""
    own = [override for override in overrides if override not in common] or overrides
    return " ".join(sorted(own, key=lambda override: place(override.partition("=")[0].lstrip("+"))))


def requested(entries: Sequence[Entry]) -> set[str]:
    """The keys that the commands of entries set, ``batch_size`` for its size."""
    words = {word for entry in entries for word in (entry.command or "").replace("'", "").split()}
    return {word.partition("=")[0].lstrip("+").replace(SIZE, "batch_size") for word in words if "=" in word}


def varying(configs: Collection[SharedConfig]) -> list[dict[str, str]]:
    """The settings of each configuration that are not common to all."""
    every = [config.settings.items() for config in configs]
    common = set[Any]().union(*every[:1]).intersection(*every)
    return [{name: value for name, value in one if (name, value) not in common} for one in every]


def _described(runs: Sequence[Run], given: Collection[str]) -> list[str]:
    """Describe each run by what distinguishes it: options of groups, then keys.

    A value that follows from another one, as the number of epochs from the dataset, is hidden unless a command has
    ``given`` it, or two runs would have the same description without it.
    """
    configs = {run.shared.key: run.shared for run in runs}
    settings = dict(zip(configs, varying(configs.values()), strict=True))
    groups = {group for config in configs.values() for group in config.groups}
    named = {name for of_config in settings.values() for name in of_config} - {SIZE} | {"seed"}
    names = [name for name in named if name in groups or name.partition(".")[0] not in VOLATILE]
    names.sort(key=lambda name: (name not in given, name not in groups, name.count("."), place(name), name))
    shown, classes, count = list[str](), [0] * len(runs), 1  # those of one class have the same description so far
    for name in names:
        if count == len(runs) and name not in given:
            break
        own = [run.setting(name) if name == "seed" else settings[run.shared.key].get(name) for run in runs]
        numbers: dict[Any, int] = {}
        finer = [numbers.setdefault(pair, len(numbers)) for pair in zip(classes, own, strict=True)]
        if len(numbers) > count or (name in given and len({*own}) > 1):
            shown.append(name)
            classes, count = finer, len(numbers)
    shown.sort(key=lambda name: (name not in groups, place(name), name))

    def describe(run: Run) -> str:
        values = ((name, run.setting(name)) for name in shown)
        words = [f"{name}={value}" for name, value in values if value is not None]
        options = run.shared.groups
        main = ((group, run.shared.settings[group]) for group in MAIN_GROUPS if group in options)
        return " ".join(words or (value if options[group] == value else f"{group}={value}" for group, value in main))

    return [describe(run) for run in runs]


def place(name: str) -> int:
    """Place of a setting's group among the main groups."""
    group = name.partition(".")[0]
    return [*MAIN_GROUPS, group].index(group)
