"""Numbers that were measured with this package and are committed in ``measured/``, one JSON file for each table.

``scripts/commit_numbers.py`` writes these files.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from ssl_bench import files
from ssl_bench.papers.cells import Cell, Table
from ssl_bench.record.follow import find_mark


class CommittedNumber(TypedDict):
    """A committed number, an accuracy in percent; None: the run diverged."""

    row: str
    column: str
    metric: str
    value: float | None
    seed: int


class Counted(TypedDict):
    """How many of the seeds have each test image right, packed, of a row, a column and a metric."""

    of: list[str]
    seeds: list[int]
    right: str


class Measured(TypedDict, total=False):
    """Content of a table's file; ``errata`` say what is wrong with its numbers."""

    errata: str
    cells: list[CommittedNumber]
    images: list[Counted]


def path_of(table: Table) -> Path:
    """The file of a table, which need not exist."""
    return table.source.parent / "measured" / f"{table.name.replace('/', '_')}.json"


def read(table: Table) -> Mapping[str, Any]:
    """The content of a table's file; empty without one."""
    path = path_of(table)
    return _read(path, find_mark(str(path)))


@lru_cache(maxsize=256)
def _read(path: Path, mark: files.Mark | None) -> Mapping[str, Any]:
    """The content of a file, for which each of the thousand cells of a report asks; ``mark`` is that of the file."""
    content: dict[str, Any] = files.read_json(path, Measured) or {}
    return content


def errata(table: Table) -> str:
    """Say what is wrong with a table's committed numbers; empty if nothing is known."""
    text = read(table).get("errata", "")
    return f"Errata of the project's numbers: {text}" if text else ""


def values(table: Table, cell: Cell) -> dict[int, float]:
    """The committed numbers of a cell by seed, accuracies in percent; only those of the cell's seeds."""
    return {seed: float(value) for seed, value in _of(table, cell).items() if value is not None}


def right(table: Table, cell: Cell) -> np.ndarray | None:
    """Share of the cell's committed seeds that have each test image right [M]; None: it is not known."""
    wanted, seeds = [cell.label, cell.column, cell.metric], sorted(values(table, cell))
    for counted in read(table).get("images", []):
        if counted["of"] == wanted and counted["seeds"] == seeds:
            return _counts(counted) / len(seeds)
    return None


def packed(seeds: Sequence[int], right: np.ndarray) -> dict[str, Any]:
    """Shares of seeds [M] as :func:`right` reads them: how many have each image right, a byte for each."""
    return _packed(seeds, np.rint(right * len(seeds)).astype(np.uint8))


def summed(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The counts of both, which are of one cell and of different seeds."""
    return {"of": one["of"], **_packed([*one["seeds"], *other["seeds"]], _counts(one) + _counts(other))}


def _packed(seeds: Sequence[int], count: np.ndarray) -> dict[str, Any]:
    return {"seeds": sorted(seeds), "right": base64.b64encode(zlib.compress(count.tobytes(), 9)).decode()}


def _counts(images: Mapping[str, Any]) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(images["right"])), dtype=np.uint8)


def diverged(table: Table, cell: Cell) -> list[int]:
    """The cell's seeds whose committed run diverged, which has no number."""
    return [seed for seed, value in _of(table, cell).items() if value is None]


def _of(table: Table, cell: Cell) -> dict[int, float | None]:
    """The committed numbers of a cell by seed; None of a run that diverged."""
    wanted = cell.label, cell.column, cell.metric
    numbers = (n for n in read(table).get("cells", []) if (n["row"], n["column"], n["metric"]) == wanted)
    return {number["seed"]: number["value"] for number in numbers if number["seed"] in cell.seeds}
