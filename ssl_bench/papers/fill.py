"""Fill tables with the results on disk: the paper's number, ours, and that of the project.

Ours is the mean and the sample standard deviation over the finished seeds. Only full-scale runs with exactly the
configuration of a cell count; runs of ``scale=reduced`` are kept apart. The project's numbers are those that are
committed with the package (:mod:`ssl_bench.papers.measurements`).
"""

from __future__ import annotations

import difflib
import math
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ssl_bench.papers import measurements
from ssl_bench.papers.cells import Cell, Metric, Table, is_accuracy
from ssl_bench.papers.runs import Results, value
from ssl_bench.status.runs import Run

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
        shortened: of its runs of reduced scale.
        length: how long those were trained, in words; empty if there are none.
        measured: of the runs that are committed with the package.
        lacking: the metric that the finished runs do not have, in words; empty if they have it or there are none.
    """

    cell: Cell
    values: list[float]
    shortened: list[float]
    length: str
    measured: list[float]
    lacking: str = ""

    @property
    def mean(self) -> float | None:
        """Mean of the values; None if there are none."""
        return mean(self.values)

    @property
    def ours(self) -> str:
        """``mean ± std (n)`` of the values."""
        return self._spread(self.values)

    @property
    def project(self) -> str:
        """``mean ± std (n)`` of the measured values."""
        return self._spread(self.measured)

    @property
    def shorter(self) -> str:
        """``mean ± std (n)`` of the runs of reduced scale."""
        return self._spread(self.shortened)

    @property
    def reduced(self) -> str:
        """``mean ± std (n), length`` of the runs of reduced scale; empty if there are none."""
        return f"{self.shorter}, {self.length}" if self.shortened else ""

    @property
    def difference(self) -> str:
        """Our mean minus the paper's number, with its sign."""
        if self.mean is None or self.cell.paper is None:
            return ""
        return f"{self.mean - self.cell.paper:+.{_digits(self.cell.metric)}f}"

    @property
    def notes(self) -> list[str]:
        """Source of the paper's number unless it is the text, what the cell or its runs lack, and the cell's note."""
        return self._notes(SOURCES.get(self._source, self._source))

    @property
    def note(self) -> str:
        """The notes in a line, with the source in a word."""
        return "; ".join(self._notes(self._source))

    @property
    def _source(self) -> str:
        known = self.cell.paper is not None and self.cell.provenance != "text"
        return self.cell.provenance if known else ""

    def _notes(self, source: str) -> list[str]:
        missing = self.cell.missing and f"needs {self.cell.missing}"
        return [each for each in (source, missing, self.lacking, self.cell.note) if each]

    def _spread(self, values: Sequence[float]) -> str:
        return spread(mean(values), deviation(values), len(values), _digits(self.cell.metric))


def fill(table: Table, cells: Sequence[Cell], results: Results) -> list[Filled]:
    """Fill each cell with the values of its runs."""
    return [_fill(table, cell, results) for cell in cells]


def _fill(table: Table, cell: Cell, results: Results) -> Filled:
    own_runs = results.of_cell(cell)
    shortened = results.reduced(table, cell)
    return Filled(
        cell=cell,
        values=(values := _values(cell, own_runs)),
        shortened=(found := _values(cell, shortened)),
        length=_length(shortened[0]) if found else "",
        measured=list(measurements.values(table, cell).values()),
        lacking="" if values or not own_runs else _lacking(cell, own_runs[0]),
    )


def _lacking(cell: Cell, run: Run) -> str:
    name = Metric.read(cell.metric).name
    near = difflib.get_close_matches(name, [each for each in run.metrics if each != name], 3, 0.5)
    return f"its runs have no {name}" + (f", but {', '.join(near)}" if near else "")


def _values(cell: Cell, own_runs: Sequence[Run]) -> list[float]:
    numbers = (value(run, cell.metric) for run in own_runs)
    return [number for number in numbers if number is not None]


def commands(filled: Sequence[Filled]) -> list[str]:
    """The commands that fill the empty cells, each once."""
    lines: dict[str, None] = {}
    for each in filled:
        cell = each.cell
        if cell.available and not each.values:
            seeds = ",".join(map(str, cell.seeds))
            lines[shlex.join(["ssl-bench", cell.command, "-m", *cell.overrides, f"seed={seeds}"])] = None
    return list(lines)


def record(table: Table, filled: Sequence[Filled]) -> dict[str, Any]:
    """A table as plain data: numbers as papers print them (accuracies in percent), None for a missing number."""
    cells = [
        {
            "row": each.cell.label,
            "column": each.cell.column,
            "metric": each.cell.metric,
            "paper": each.cell.paper,
            "mean": each.mean,
            "std": deviation(each.values),
            "n": len(each.values),
            "note": each.note or None,
        }
        for each in filled
    ]
    return {"table": table.name, "cells": cells}


def spread(mean: float | None, std: float | None, count: int, digits: int) -> str:
    """``mean ± std (n)``; empty without a mean. A number that would be printed as 0.000 has significant digits."""
    if mean is None:
        return ""
    form = f".{digits}f" if mean == 0 or float(f"{mean:.{digits}f}") else f".{digits}g"
    return f"{mean:{form}}" + ("" if std is None else f" ± {std:{form}}") + f" ({count})"


def mean(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return statistics.fmean(values) if values else None


def deviation(values: Sequence[float]) -> float | None:
    """Sample standard deviation; None for fewer than two values."""
    if len(values) < 2:
        return None
    centre = statistics.fmean(values)
    return math.sqrt(sum((value - centre) ** 2 for value in values) / (len(values) - 1))


def _digits(metric: str) -> int:
    """Digits after the decimal point with which a metric is printed."""
    return 2 if is_accuracy(metric) else 3


def _length(run: Run) -> str:
    """How long a run was trained, in words."""
    epochs, steps = run.config.get("epochs"), run.config.get("max_steps")
    return f"{epochs} epochs" if steps is None else f"{steps} steps"
