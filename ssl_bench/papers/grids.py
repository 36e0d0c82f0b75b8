"""The papers' tables as experiments: grids with a name, such as ``ssl-bench train experiment=macl/table4``.

In a grid of Hydra every combination of the values is a run. A table whose runs are no such grid is divided into blocks
that are, one experiment each. A table of more than MOST_GRIDS blocks has no experiment: ``ssl-bench reproduce`` trains
it. ``commands/experiments.py`` shows the experiments to Hydra.
"""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ssl_bench.config.build import near
from ssl_bench.papers import tables
from ssl_bench.papers.cells import Cell, Table

MOST_GRIDS = 7
Settings = tuple[tuple[str, str], ...]  # the overrides of one run, as sorted pairs
Block = dict[str, list[str]]  # the values of each key; every combination of them is a run


def names(own: Path | None = None) -> list[str]:
    """Names of all experiments, such as ``dcl/fig3a``; ``own`` is a folder of further papers."""
    return [name for paper in tables.papers(own) for name in _of_paper(tables.load(paper, own))]


def content(name: str, own: Path | None = None) -> dict[str, Any] | None:
    """An experiment as Hydra's configuration; None if there is none of that name."""
    paper = name.partition("/")[0]
    return _of_paper(tables.load(paper, own)).get(name) if paper in tables.papers(own) else None


def no_experiment(name: str, own: Path | None = None) -> str:
    """Why there is no experiment of that name, and which to take."""
    every = names(own)
    if grids := [other for other in every if re.fullmatch(rf"{re.escape(name)}[a-z]?(_.*)?", other)]:
        return f"{name} is several grids: set it to one of {', '.join(grids)}; `ssl-bench reproduce {name}` trains all"
    if name in {table.name for table in tables.every(own)}:
        return f"{name} has no grid of its own: train it by `ssl-bench reproduce {name}`"
    of_paper = [other for other in every if other.startswith(f"{name.partition('/')[0]}/")]
    known = of_paper or [f"{paper}/<table>" for paper in tables.papers(own)]
    return f"there is no such option{near(name, of_paper or every)}; set experiment to one of {', '.join(known)}"


@cache
def _of_paper(paper: tuple[Table, ...]) -> dict[str, dict[str, Any]]:
    """The experiments of a paper's tables."""
    return {name: content for table in paper for name, content in of_table(table).items()}


def of_table(table: Table) -> dict[str, dict[str, Any]]:
    """The experiments that together have each run of a table once; none if there would be more than MOST_GRIDS."""
    if table.design:
        return {}  # points that are no grid
    by_seeds: dict[tuple[int, ...], list[Cell]] = {}
    for cell in table.cells:
        if cell.available:
            by_seeds.setdefault(cell.seeds, []).append(cell)
    found = [(block, seeds) for seeds, cells in by_seeds.items() for block in blocks(cells)]
    if len(found) > MOST_GRIDS:
        return {}
    stems = [table.stem] if len(found) == 1 else _stems(table.stem, [block for block, _ in found])
    full_names = [f"{table.paper}/{stem}" for stem in stems]
    return {name: _content(table, name, block, seeds) for name, (block, seeds) in zip(full_names, found, strict=True)}


def _content(table: Table, name: str, block: Block, seeds: Sequence[int]) -> dict[str, Any]:
    """The grid of a block, and the head of its ``--help``: source, expected numbers and number of runs."""
    cells = [cell for cell in table.cells if cell.available and cell.seeds == tuple(seeds) and _contains(block, cell)]
    params = {key: ",".join(values) for key, values in block.items() if key != "name"}
    params["seed"] = ",".join(map(str, seeds))
    lines = [f"{table.cite}, {table.stem}: {table.title}."]
    for row in dict.fromkeys(cell.label for cell in cells):
        numbers = [f"{c.column} {c.reported}" for c in cells if c.label == row and c.paper is not None]
        lines += [f"{row}: {', '.join(numbers)}"] if numbers else []
    if len(lines) == 1:
        lines.append("The paper's numbers are not known.")
    lines.append(f"{math.prod(map(len, block.values())) * len(seeds)} runs: ssl-bench train experiment={name}")
    head = "".join(f"{part}\n" for line in lines for part in textwrap.wrap(line, 118, subsequent_indent="  "))
    settings = {"mode": "MULTIRUN", "sweeper": {"params": params}, "help": {"header": head.replace("$", "")}}
    return {"name": table.paper, "hydra": settings}


def _contains(block: Block, cell: Cell) -> bool:
    """Whether the cell's run is in a block."""
    settings = cell.settings
    return settings.keys() == block.keys() and all(settings[key] in values for key, values in block.items())


def blocks(cells: Sequence[Cell]) -> list[Block]:
    """Blocks that together have each run of the cells once."""
    return _split(list(dict.fromkeys(tuple(sorted(cell.settings.items())) for cell in cells)))


def _split(runs: list[Settings]) -> list[Block]:
    """Split runs into few blocks: by the keys that they set, then recursively by the values of the best key."""
    by_keys: dict[tuple[str, ...], list[Settings]] = {}
    for settings in runs:
        by_keys.setdefault(tuple(key for key, _ in settings), []).append(settings)
    if len(by_keys) > 1:
        return [block for group in by_keys.values() for block in _split(group)]
    values: Block = {}
    for settings in runs:
        for key, value in settings:
            values.setdefault(key, [])
            if value not in values[key]:
                values[key].append(value)
    if math.prod(map(len, values.values())) == len(runs):
        return [values]
    candidates = []
    for key in (key for key, options in values.items() if len(options) > 1):
        groups: dict[str, list[Settings]] = {}
        for settings in runs:
            groups.setdefault(dict(settings)[key], []).append(settings)
        candidates.append(_joined([block for group in groups.values() for block in _split(group)], key))
    return min(candidates, key=len)


def _joined(parts: list[Block], key: str) -> list[Block]:
    """Join blocks that differ only in the values of one key."""
    joined: dict[tuple[tuple[str, tuple[str, ...]], ...], Block] = {}
    for block in parts:
        rest = tuple((k, tuple(v)) for k, v in block.items() if k != key)
        if rest in joined:
            joined[rest][key] += [value for value in block[key] if value not in joined[rest][key]]
        else:
            joined[rest] = {k: list(v) for k, v in block.items()}
    return list(joined.values())


def _stems(stem: str, found: Sequence[Block]) -> list[str]:
    """Name each block by its values of the fewest keys that distinguish every two blocks."""
    first = ("dataset", "framework", "loss", "negatives", "temperature")
    keys = sorted({key for block in found for key in block}, key=lambda key: (key not in first, "." in key, key))
    varying = [key for key in keys if not key.startswith(("optimizer", "evaluate"))]

    def distinct(a: Block, b: Block, chosen: Sequence[str]) -> bool:
        return any(set(a.get(key, ())).isdisjoint(b.get(key, ())) for key in chosen)

    for count in range(1, len(varying) + 1):
        for chosen in itertools.combinations(varying, count):
            if all(distinct(a, b, chosen) for a, b in itertools.combinations(found, 2)):
                stems = [
                    "_".join([stem, *(_word(key, block[key]) for key in chosen if key in block)]) for block in found
                ]
                if len(set(stems)) == len(stems) and max(map(len, stems)) < 64:
                    return stems
    return [f"{stem}_{i + 1}" for i in range(len(found))]


def _word(key: str, values: Sequence[str]) -> str:
    """Values as a part of a name; a number has its key before it."""
    prefix = key.rpartition(".")[2] if "." in key and values[0][:1].isdigit() else ""
    return prefix + "-".join("".join(c for c in value if c.isalnum() or c == "_") for value in values)
