"""Fill tables with the results on disk: the paper's number, ours, and that of the project.

Ours is the mean and the sample standard deviation over the finished seeds. Only runs with exactly the configuration of
a cell count. The project's numbers are those that are committed with the package
(:mod:`ssl_bench.papers.measurements`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ssl_bench.config.compositions import Progress
from ssl_bench.papers import measurements
from ssl_bench.papers.cell_runs import Results, value
from ssl_bench.papers.cells import Cell, CellMetric, Table
from ssl_bench.papers.selection import Selection
from ssl_bench.results.pivot import spread
from ssl_bench.results.statistics import mean
from ssl_bench.results.table import notes

SOURCES = {  # of a paper's number, in words
    "code": "from a public repository, not from the text",
    "derived": "computed from numbers of the text",
    "recollection": "from memory, without a source",
}


@dataclass(frozen=True)
class Filled:
    """A cell with its measured values, accuracies in percent.

    Attributes:
        values: the numbers of the finished runs on disk.
        measured: the numbers that are committed with the package.
        lacking: says which metric the finished runs do not have; empty if they have it, or if there are no runs.
        remarks: footnotes of our number: what its mean mixes, and warnings of the runs.
    """

    cell: Cell
    values: list[float]
    measured: list[float]
    lacking: str = ""
    remarks: Sequence[str] = ()

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
        difference = "" if self.difference is None else f"{self.difference:+.{digits}f}"
        texts = {"paper": self.cell.reported, "ours": spread(self.values, digits), "difference": difference}
        texts["project"] = spread(self.measured, digits)
        return {name: text for name, text in texts.items() if text}

    @property
    def notes(self) -> list[str]:
        """Source of the paper's number unless it is the text, what is missing, and the cell's note."""
        source = SOURCES.get(self.cell.provenance, "")
        return [note for note in (source, self.cell.needs, self.lacking, self.cell.note) if note]


def fill(table: Table, cells: Sequence[Cell], results: Results) -> list[Filled]:
    """Fill each cell with the values of its runs."""
    filled = list[Filled]()
    for cell in cells:
        runs = results.of_cell(cell)
        numbers = [(run, number) for run in runs if (number := value(run, cell.metric)) is not None]
        lacking = f"its runs have no {CellMetric.read(cell.metric).name}" if runs and not numbers else ""
        measured, remarks = [*measurements.values(table, cell).values()], notes([run for run, _ in numbers])
        filled.append(Filled(cell, [number for _, number in numbers], measured, lacking, remarks))
    return filled


def fill_tables(selection: Selection, progress: Progress) -> tuple[Results, list[tuple[Table, list[Filled]]]]:
    """The results for the selected tables, and each table with its filled cells.

    Raises:
        ConfigError: there is no such table, row or column, or a setting does not fit.
    """
    selected = [(table, selection.cells(table)) for table in selection.tables()]
    results = selection.results([cell for _, cells in selected for cell in cells], progress)
    return results, [(table, fill(table, cells, results)) for table, cells in selected]
