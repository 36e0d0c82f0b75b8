"""Fill tables with the results on disk: the paper's number, ours, and that of the project.

Ours is the mean and the sample standard deviation over the finished seeds. Only full-scale runs with exactly the
configuration of a cell count; runs of ``scale=reduced`` are kept apart. The project's numbers are those that are
committed with the package (:mod:`ssl_bench.papers.measurements`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ssl_bench.papers import measurements, reduced
from ssl_bench.papers.cell_runs import Results, value
from ssl_bench.papers.cells import Cell, CellMetric, Table
from ssl_bench.results.arrange import notes, spread
from ssl_bench.results.runs import RunFolder
from ssl_bench.results.statistics import mean

SOURCES = {  # of a paper's number, in words
    "code": "from a public repository, not from the text",
    "derived": "computed from numbers of the text",
    "recollection": "from memory, without a source",
}


@dataclass(frozen=True)
class Filled:
    """A cell with its measured values, accuracies in percent.

    Attributes:
        values: of the finished runs on disk.
        reduced: of its runs of ``scale=reduced``.
        recipe: in which settings those are not the paper's recipe; empty if in none or there are none.
        measured: of the runs that are committed with the package.
        lacking: the metric that the finished runs do not have, in words; empty if they have it or there are none.
        remarks: footnotes of the measured numbers by their names: what their mean mixes, and warnings of the runs.
        runs: those on disk, then the reduced ones.
    """

    cell: Cell
    values: list[float]
    reduced: list[float]
    recipe: str
    measured: list[float]
    lacking: str = ""
    remarks: Mapping[str, Sequence[str]] = field(default_factory=dict)
    runs: Sequence[RunFolder] = ()

    @property
    def mean(self) -> float | None:
        """Mean of the values; None if there are none."""
        return mean(self.values)

    @property
    def difference(self) -> float | None:
        """The mean less the paper's number; None if one is missing."""
        return None if self.mean is None or self.cell.paper is None else self.mean - self.cell.paper

    @property
    def texts(self) -> dict[str, str]:
        """The numbers that the cell has, by name, as text: measured ones as ``mean ± std (n)``."""
        digits = 2 if self.cell.share else 3
        texts = {"paper": self.cell.reported, "ours": spread(self.values, digits)}
        if self.difference is not None:
            texts["difference"] = f"{self.difference:+.{digits}f}"
        texts |= {"project": spread(self.measured, digits), "reduced": spread(self.reduced, digits)}
        return {name: text for name, text in texts.items() if text}

    @property
    def notes(self) -> list[str]:
        """Source of the paper's number unless it is the text, what is missing, and the cell's note."""
        source = SOURCES.get(self.cell.provenance, "")
        missing = self.cell.missing and f"needs {self.cell.missing}"
        return [note for note in (source, missing, self.lacking, self.cell.note) if note]


def fill(table: Table, cells: Sequence[Cell], results: Results) -> list[Filled]:
    """Fill each cell with the values of its runs."""
    of_cells = reduced.find(table, results)
    return [_fill(table, cell, results, *of_cells.get(cell, ([], ""))) for cell in cells]


def _fill(table: Table, cell: Cell, results: Results, reduced_runs: list[RunFolder], recipe: str) -> Filled:
    runs = results.of_cell(cell)
    values, reduced_values = _values(cell, runs), _values(cell, reduced_runs)
    lacks = runs and not values
    return Filled(
        cell=cell,
        values=values,
        reduced=reduced_values,
        recipe=recipe if reduced_values else "",
        measured=list(measurements.values(table, cell).values()),
        lacking=f"its runs have no {CellMetric.read(cell.metric).name}" if lacks else "",
        remarks={"ours": _remarks(cell, runs), "reduced": _remarks(cell, reduced_runs)},
        runs=[*runs, *reduced_runs],
    )


def _remarks(cell: Cell, runs: Sequence[RunFolder]) -> list[str]:
    return notes([run for run in runs if value(run, cell.metric) is not None])


def _values(cell: Cell, runs: Sequence[RunFolder]) -> list[float]:
    numbers = (value(run, cell.metric) for run in runs)
    return [number for number in numbers if number is not None]
