"""The papers' tables as experiments: grids with a name, such as ``ssl-bench train experiment=macl/table4``.

In a grid of Hydra every combination of the values is a run. A table whose runs are no such grid has no experiment:
``ssl-bench reproduce`` trains it. ``commands/experiments.py`` shows the experiments to Hydra.
"""

from __future__ import annotations

import math
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

from ssl_bench.config.build import near
from ssl_bench.papers import tables
from ssl_bench.papers.cells import Table


def names(own: Path | None = None) -> list[str]:
    """Names of all experiments, such as ``dcl/fig3a``; ``own`` is a folder of further papers."""
    return [table.name for table in tables.every(own) if of_table(table)]


def content(name: str, own: Path | None = None) -> dict[str, Any] | None:
    """An experiment as Hydra's configuration; None if there is none of that name."""
    paper = name.partition("/")[0]
    found = tables.load(paper, own) if paper in tables.papers(own) else ()
    return next((of_table(table) for table in found if table.name == name), None)


def no_experiment(name: str, own: Path | None = None) -> str:
    """Why there is no experiment of that name, and which to take."""
    every, known = [table.name for table in tables.every(own)], names(own)
    if name in every:
        return f"{name} is no grid of its own: train it by `ssl-bench reproduce {name}`"
    known = [other for other in known if other.startswith(f"{name.partition('/')[0]}/")] or known
    return f"there is no such option{near(name, every)}; set experiment to one of {', '.join(known)}"


@cache
def of_table(table: Table) -> dict[str, Any] | None:
    """The grid of a table, and the head of its ``--help``: source, expected numbers and number of runs."""
    cells = [cell for cell in table.cells if cell.available and cell.command == "train"]
    runs = {frozenset(cell.settings.items()) for cell in cells}
    params = {key: list(dict.fromkeys(c.settings.get(key) for c in cells)) for cell in cells for key in cell.settings}
    combinations = math.prod(map(len, params.values()))
    if not cells or len(runs) < combinations or any(None in values for values in params.values()):
        return None
    if len({cell.seeds for cell in cells}) > 1 or table.design:
        return None
    lines = [f"{table.cite}, {table.stem}: {table.title}."]
    for row in dict.fromkeys(cell.label for cell in cells):
        numbers = [f"{c.column} {c.reported}" for c in cells if c.label == row and c.paper is not None]
        lines += [f"{row}: {', '.join(numbers)}"] if numbers else []
    if len(lines) == 1:
        lines.append("The paper's numbers are not known.")
    lines.append(f"{combinations * len(cells[0].seeds)} runs: ssl-bench train experiment={table.name}")
    head = "".join(f"{part}\n" for line in lines for part in textwrap.wrap(line, 118, subsequent_indent="  "))
    grid = {key: ",".join(map(str, values)) for key, values in params.items() if key != "name"}
    grid["seed"] = ",".join(map(str, cells[0].seeds))
    settings = {"mode": "MULTIRUN", "sweeper": {"params": grid}, "help": {"header": head.replace("$", "")}}
    return {"name": table.paper, "hydra": settings}
