"""A short label for each run of a table: the settings that distinguish it from the others."""

import json
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from ssl_bench.config.identity import VOLATILE
from ssl_bench.status.entries import Entry, RunFolder

MAIN_GROUPS = ("dataset", "framework", "loss", "negatives", "temperature", "batch_size")  # groups that are named first


def labels(entries: Sequence[Entry]) -> list[str]:
    """The label of each entry.

    A run is distinguished from the other runs of its parent directory. A run that a grid has still to make is
    described by the overrides that are not common to all such grids.
    """
    folders: dict[Path, list[RunFolder]] = {}
    requested: dict[Path, set[str]] = {}  # keys that the commands of a parent directory set
    for entry in entries:
        if entry.run:
            parent = entry.run.folder.parent
            folders.setdefault(parent, []).append(entry.run)
            words = shlex.split(entry.command or "")[2:]
            requested.setdefault(parent, set()).update(w.split("=")[0].lstrip("+") for w in words if "=" in w)
    by_folder: dict[Path, str] = {}
    for parent, runs in folders.items():
        differing = differences([run.config for run in runs], requested[parent])
        by_folder |= zip((run.folder for run in runs), differing, strict=True)
    runs_of_grids = [overrides for entry in entries if not entry.run and entry.grid for overrides in entry.grid.runs]
    common = set[str]().union(*runs_of_grids).intersection(*runs_of_grids)

    def by_overrides(overrides: list[str]) -> str:
        return " ".join([o for o in overrides if o not in common] or overrides)

    return [by_folder[e.run.folder] if e.run else by_overrides(e.overrides or []) for e in entries]


def differences(configs: Sequence[dict[str, Any]], requested: Collection[str] = ()) -> list[str]:
    """Describe each configuration by what distinguishes it from the others: options of groups, then keys.

    A value that follows from another one, as the number of epochs from the dataset, is hidden unless it was
    ``requested``, or two configurations would have the same description without it.
    """
    groups = [{str(k): _as_override(v) for k, v in config["choices"].items()} for config in configs]
    keys = [_flat({k: v for k, v in config.items() if k not in VOLATILE}) for config in configs]
    settings = [(name, nodes) for nodes in (groups, keys) for name in {name for node in nodes for name in node}]
    settings.sort(key=lambda setting: (setting[0] not in requested, setting[1] is keys, *_rank(setting[0])))
    shown, classes = set(), [0] * len(configs)  # configurations of one class have the same description so far
    for name, nodes in settings:
        values = [node.get(name) for node in nodes]
        numbers: dict[Any, int] = {}
        finer = [numbers.setdefault(pair, len(numbers)) for pair in zip(classes, values, strict=True)]
        if max(finer, default=0) > max(classes, default=0) or (name in requested and len(set(values)) > 1):
            shown.add((name, nodes is groups))
            classes = finer
    descriptions = []
    for chosen, values_of in zip(groups, keys, strict=True):
        parts = [f"{group}={chosen[group]}" for group in sorted(chosen) if (group, True) in shown]
        parts += [f"{key}={values_of[key]}" for key in sorted(values_of) if (key, False) in shown]
        descriptions.append(" ".join(parts or [chosen[group] for group in MAIN_GROUPS if group in chosen]))
    return descriptions


def _rank(name: str) -> tuple[int, int, str]:
    """Order in which settings are tried: outer keys first, then the main groups."""
    group = name.partition(".")[0]
    return name.count("."), MAIN_GROUPS.index(group) if group in MAIN_GROUPS else len(MAIN_GROUPS), name


def _flat(node: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in node.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": _as_override(value)}
    return flat


def _as_override(value: Any) -> str:
    """A value as an override writes it."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)
