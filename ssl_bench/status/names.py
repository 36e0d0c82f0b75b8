"""What the cells of a table of runs are called: what sets each apart from the others."""

import json
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from ssl_bench.config.identity import VOLATILE
from ssl_bench.status.scan import Cell

TELLING = ("dataset", "framework", "loss", "negatives", "temperature", "batch_size")  # groups that say most of a run


def names(found: Sequence[Cell]) -> list[str]:
    """Each run by what sets it apart from the others of its folder, each other cell by overrides that not all have."""
    folders: dict[Path, list[Cell]] = {}
    named: dict[Path, str] = {}
    for cell in found:
        if cell.run:
            folders.setdefault(cell.run.folder.parent, []).append(cell)
    for some in folders.values():
        words = [word for cell in some for word in shlex.split(cell.command or "")[2:]]
        asked = {word.split("=")[0].lstrip("+") for word in words if "=" in word}
        runs = [cell.run for cell in some if cell.run]
        named |= zip((run.folder for run in runs), cells([run.config for run in runs], asked), strict=True)
    grids = [overrides for cell in found if not cell.run and cell.grid for overrides in cell.grid.cells]
    shared = set[str]().union(*grids).intersection(*grids)

    def by_overrides(overrides: list[str]) -> str:
        return " ".join([o for o in overrides if o not in shared] or overrides)

    return [named[cell.run.folder] if cell.run else by_overrides(cell.overrides or []) for cell in found]


def cells(configs: Sequence[dict[str, Any]], asked: Collection[str] = ()) -> list[str]:
    """Each configuration by what sets it apart from the others: the options of groups, then keys.

    Much follows from something else, as the number of epochs from the dataset: it is told only if it was ``asked`` for,
    or if two configurations would be called the same without it.
    """
    groups = [{str(k): _said(v) for k, v in config["choices"].items()} for config in configs]
    flat = [_flat({k: v for k, v in config.items() if k not in VOLATILE}) for config in configs]
    ways = [(key, groups) for key in _keys(groups)] + [(key, flat) for key in _keys(flat)]
    ways.sort(key=lambda way: (way[0] not in asked, way[1] is flat, *_telling(way[0])))
    told, classes = set(), [0] * len(configs)  # configurations of a class have the same name so far
    for key, nodes in ways:
        values = [node.get(key) for node in nodes]
        numbers: dict[Any, int] = {}
        finer = [numbers.setdefault(pair, len(numbers)) for pair in zip(classes, values, strict=True)]
        if max(finer, default=0) > max(classes, default=0) or (key in asked and len(set(values)) > 1):
            told.add((key, nodes is groups))
            classes = finer
    described = []
    for chosen, keys in zip(groups, flat, strict=True):
        parts = [f"{group}={chosen[group]}" for group in sorted(chosen) if (group, True) in told]
        parts += [f"{key}={keys[key]}" for key in sorted(keys) if (key, False) in told]
        described.append(" ".join(parts or [chosen[group] for group in TELLING if group in chosen]))
    return described


def _telling(key: str) -> tuple[int, int, str]:
    """What is told first."""
    group = key.partition(".")[0]
    return key.count("."), TELLING.index(group) if group in TELLING else len(TELLING), key


def _keys(nodes: Sequence[dict[str, str]]) -> set[str]:
    return {key for node in nodes for key in node}


def _flat(node: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in node.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": _said(value)}
    return flat


def _said(value: Any) -> str:
    """A value as an override has it."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)
