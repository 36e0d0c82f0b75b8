"""Numbers that were measured with this package and are committed in ``measured/``, one JSON file for each table.

Its ``cells`` are numbers, accuracies in percent, each with ``row``, ``column``, ``metric``, ``seed`` and ``value``;
``errata`` say what is wrong with them.

``scripts/commit_numbers.py`` writes these files.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.papers.cells import Cell, Table


def path_of(table: Table) -> Path:
    """The file of a table, which need not exist."""
    return table.source.parent / "measured" / f"{table.name.replace('/', '_')}.json"


def read(table: Table) -> Mapping[str, Any]:
    """The content of a table's file; empty without one."""
    return content(path_of(table))


@lru_cache(maxsize=256)  # each of the thousand cells of a report asks for it
def content(path: Path) -> Mapping[str, Any]:
    """The content of a file; empty without one. Who writes the file clears the cache."""
    return files.read_json(path, dict) or {}


def errata(table: Table) -> str:
    """Say what is wrong with a table's committed numbers; empty if nothing is known."""
    return f"Errata of the project's numbers: {text}" if (text := read(table).get("errata")) else ""


def values(table: Table, cell: Cell) -> dict[int, float]:
    """The committed numbers of a cell by seed, accuracies in percent; only those of the cell's seeds."""
    wanted = cell.label, cell.column, cell.metric
    numbers = (n for n in read(table).get("cells", []) if (n["row"], n["column"], n["metric"]) == wanted)
    return {number["seed"]: float(number["value"]) for number in numbers if number["seed"] in cell.seeds}
