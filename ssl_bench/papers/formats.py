"""Fill tables with the results on disk, and format them: the paper's number, ours, and their difference.

Ours is the mean and the sample standard deviation over the finished seeds. Only full-scale runs with exactly the
configuration of a cell count; runs of ``scale=reduced`` have a column of their own.
"""

from __future__ import annotations

import csv
import io
import json
import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ssl_bench.papers.cells import Cell, Table, is_accuracy
from ssl_bench.papers.runs import Results, value
from ssl_bench.status.index import Finished

HEADINGS = ("row", "column", "paper", "ours", "difference", "reduced", "note")


@dataclass(frozen=True)
class Filled:
    """A cell with its measured values. ``reduced`` describes the values of runs of reduced scale."""

    cell: Cell
    values: list[float]
    reduced: str

    @property
    def mean(self) -> float | None:
        """Mean of the values; None if there are none."""
        return sum(self.values) / len(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """Sample standard deviation; None for fewer than two values."""
        if self.mean is None or len(self.values) < 2:
            return None
        return math.sqrt(sum((v - self.mean) ** 2 for v in self.values) / (len(self.values) - 1))

    @property
    def note(self) -> str:
        """Source of the paper's number unless it is the text, what the cell needs, and the cell's note."""
        source = self.cell.provenance if self.cell.paper is not None and self.cell.provenance != "text" else ""
        return "; ".join(filter(None, [source, self.cell.missing and f"needs {self.cell.missing}", self.cell.note]))

    def row(self) -> tuple[str, ...]:
        """The entries of a printed row, by HEADINGS."""
        paper, digits = self.cell.paper, _digits(self.cell.metric)
        difference = "" if self.mean is None or paper is None else f"{self.mean - paper:+.{digits}f}"
        return (
            self.cell.label,
            self.cell.column,
            self.cell.reported,
            _spread(self.mean, self.std, len(self.values), digits),
            difference,
            self.reduced,
            self.note,
        )


def fill(table: Table, cells: Sequence[Cell], results: Results) -> list[Filled]:
    """Fill each cell with the values of its runs."""
    return [Filled(cell, _values(cell, results.of_cell(cell)), _reduced(table, cell, results)) for cell in cells]


def _values(cell: Cell, own_runs: Sequence[Finished]) -> list[float]:
    numbers = (value(run, cell.metric) for run in own_runs)
    return [number for number in numbers if number is not None]


def _reduced(table: Table, cell: Cell, results: Results) -> str:
    """Mean, deviation and length of a cell's runs of reduced scale; empty if there are none."""
    shortened = results.reduced(table, cell)
    values = _values(cell, shortened)
    if not values:
        return ""
    filled = Filled(cell, values, "")
    return f"{_spread(filled.mean, filled.std, len(values), _digits(cell.metric))}, {_length(shortened[0])}"


def commands(filled: Sequence[Filled]) -> list[str]:
    """The commands that fill the empty cells, each once."""
    lines: dict[str, None] = {}
    for each in filled:
        cell = each.cell
        if cell.available and not each.values:
            seeds = ",".join(map(str, cell.seeds))
            lines[shlex.join(["ssl-bench", cell.command, "-m", *cell.overrides, f"seed={seeds}"])] = None
    return list(lines)


def formatted(form: str, filled: Sequence[tuple[Table, Sequence[Filled]]]) -> str:
    """Tables as text in a format of FORMATS. Several tables as JSON are one list."""
    if form == "json" and len(filled) > 1:
        return json.dumps([record(table, cells) for table, cells in filled], indent=2) + "\n"
    return "\n".join(FORMATS[form](table, cells) for table, cells in filled)


def record(table: Table, filled: Sequence[Filled]) -> dict[str, Any]:
    """A table as plain data: numbers as papers print them (accuracies in percent), None for a missing number."""
    cells = [
        {
            "row": each.cell.label,
            "column": each.cell.column,
            "metric": each.cell.metric,
            "paper": each.cell.paper,
            "mean": each.mean,
            "std": each.std,
            "n": len(each.values),
            "note": each.note or None,
        }
        for each in filled
    ]
    return {"table": table.name, "cells": cells}


def _rich(table: Table, filled: Sequence[Filled]) -> str:
    from rich.console import Console
    from rich.table import Table as Columns
    from rich.text import Text

    rows, headings = _printed(filled)
    title = Text(f"{table.name}: {table.title}")
    columns = Columns(*headings, box=None, pad_edge=False, title=title, title_justify="left")
    for row in rows:
        columns.add_row(*(Text(entry) for entry in row))
    file = io.StringIO()
    console = Console(file=file, highlight=False, soft_wrap=False, width=Console().width)
    console.print(columns)
    return file.getvalue() + _below(table, filled, "")


def _md(table: Table, filled: Sequence[Filled]) -> str:
    rows, headings = _printed(filled)
    lines = [headings, ["---"] * len(headings), *([entry.replace("|", "\\|") for entry in row] for row in rows)]
    head = f"### {table.name}: {table.title}\n\n{table.cite}\n\n"
    return head + "".join(f"| {' | '.join(line)} |\n" for line in lines) + _below(table, filled, "    ")


def _tex(table: Table, filled: Sequence[Filled]) -> str:
    rows, headings = _printed(filled)

    def line(entries: Sequence[str]) -> str:
        escaped = [entry.translate({ord(c): f"\\{c}" for c in "&%_#$"}).replace("±", "$\\pm$") for entry in entries]
        return " & ".join(escaped) + " \\\\\n"

    body = "".join(line(row) for row in rows)
    columns = "ll" + "r" * (len(headings) - 3) + "l" if "note" in headings else "ll" + "r" * (len(headings) - 2)
    return (
        f"% {table.name}: {table.cite}\n\\begin{{tabular}}{{{columns}}}\n\\hline\n{line(headings)}\\hline\n{body}"
        "\\hline\n\\end{tabular}\n"
    )


def _csv(table: Table, filled: Sequence[Filled]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["table", "row", "column", "metric", "paper", "mean", "std", "n", "reduced", "note"])
    for each in filled:
        cell = each.cell
        numbers = [cell.paper, each.mean, each.std, len(each.values)]
        writer.writerow([table.name, cell.label, cell.column, cell.metric, *numbers, each.reduced, each.note])
    return file.getvalue()


def _json(table: Table, filled: Sequence[Filled]) -> str:
    return json.dumps(record(table, filled), indent=2) + "\n"


Format = Callable[[Table, Sequence[Filled]], str]
FORMATS: dict[str, Format] = {"rich": _rich, "md": _md, "tex": _tex, "csv": _csv, "json": _json}


def _printed(filled: Sequence[Filled]) -> tuple[list[list[str]], list[str]]:
    """Rows and headings, without the columns ``reduced`` and ``note`` if they are empty."""
    rows = [each.row() for each in filled]
    kept = [i for i, name in enumerate(HEADINGS) if name not in ("reduced", "note") or any(row[i] for row in rows)]
    return [[row[i] for i in kept] for row in rows], [HEADINGS[i] for i in kept]


def _below(table: Table, filled: Sequence[Filled], indent: str) -> str:
    """The table's note, and the commands that fill its empty cells."""
    todo = commands(filled)
    note = f"\n{table.note}\n" if table.note else ""
    if not todo:
        return note
    lines = "".join(f"{indent}{command}\n" for command in todo)
    return f"{note}\nTo fill the empty cells, `ssl-bench reproduce {table.name}`, or one by one:\n\n{lines}"


def _spread(mean: float | None, std: float | None, count: int, digits: int) -> str:
    """``mean ± std (n)``; empty without a mean. A number that would be printed as 0.000 has significant digits."""
    if mean is None:
        return ""
    form = f".{digits}f" if mean == 0 or float(f"{mean:.{digits}f}") else f".{digits}g"
    return f"{mean:{form}}" + ("" if std is None else f" ± {std:{form}}") + f" ({count})"


def _digits(metric: str) -> int:
    """Digits after the decimal point with which a metric is printed."""
    return 2 if is_accuracy(metric) else 3


def _length(run: Finished) -> str:
    """How long a run was trained, in words."""
    epochs, steps = run.config.get("epochs"), run.config.get("max_steps")
    return f"{epochs} epochs" if steps is None else f"{steps} steps"
