"""``ssl-bench table dcl/table1``: what a paper reports beside what was measured here, from the runs on disk.

A cell has the mean and the sample standard deviation over the seeds that are there. Only full-scale runs of exactly the
cell's configuration count; runs of ``scale=reduced`` have a column of their own.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ssl_bench.config.build import one_of
from ssl_bench.errors import ConfigError
from ssl_bench.papers import runs
from ssl_bench.papers.plan import Asked
from ssl_bench.papers.tables import Cell, Table, percent

USAGE = """usage: ssl-bench table TABLE [row=PATTERN] [col=PATTERN] [paths.outputs=FOLDER]
                       [--format rich|md|tex|csv|json] [--all] [--wandb]

  TABLE      such as dcl/table1; a paper with --all is all of its tables
  --wandb    also keep the table as an artifact of Weights & Biases
"""
HEADINGS = ("row", "column", "paper", "ours", "difference", "reduced", "note")


@dataclass(frozen=True)
class Filled:
    """A cell and what was measured for it. ``reduced`` says what runs of reduced scale gave."""

    cell: Cell
    values: list[float]
    reduced: str

    @property
    def mean(self) -> float | None:
        return sum(self.values) / len(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """The sample standard deviation; none of one value."""
        if self.mean is None or len(self.values) < 2:
            return None
        return math.sqrt(sum((v - self.mean) ** 2 for v in self.values) / (len(self.values) - 1))

    @property
    def note(self) -> str:
        """The cell's note, where its number comes from if not from the text, and what it would need."""
        source = self.cell.provenance if self.cell.paper is not None and self.cell.provenance != "text" else ""
        return "; ".join(filter(None, [source, self.cell.missing and f"needs {self.cell.missing}", self.cell.note]))

    def row(self) -> tuple[str, ...]:
        """What a reader sees, by HEADINGS."""
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


def fill(table: Table, cells: Sequence[Cell], finished: Sequence[runs.Run]) -> list[Filled]:
    """Each cell with the values of its runs."""
    filled = []
    for cell in cells:
        values = [run.value(cell.metric) for run in runs.of_cell(cell, finished)]
        smaller = runs.reduced(table, cell, finished)
        found = [v for v in (run.value(cell.metric) for run in smaller) if v is not None]
        said = ""
        if found:
            few = Filled(cell, found, "")
            said = f"{_spread(few.mean, few.std, len(found), _digits(cell.metric))}, {_setting(smaller[0])}"
        filled.append(Filled(cell, [v for v in values if v is not None], said))
    return filled


def commands(filled: Sequence[Filled]) -> list[str]:
    """What fills the cells that are empty, each command once."""
    said: dict[str, None] = {}
    for each in filled:
        cell = each.cell
        if cell.runs and not each.values:
            seeds = ",".join(map(str, cell.seeds))
            said[shlex.join(["ssl-bench", cell.command, "-m", *cell.overrides, f"seed={seeds}"])] = None
    return list(said)


def main(arguments: Sequence[str]) -> int:
    """Prints tables; 0, or 2 for wrong arguments."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if arguments else 2
    try:
        arguments, form = option(arguments, "--format", "rich")
        one_of("--format", form, tuple(FORMATS))
        asked = Asked.read(arguments, ("--all", "--wandb"))
        chosen = [(table, asked.cells(table)) for table in asked.tables()]
    except ConfigError as error:
        print(f"ssl-bench: {error}", file=sys.stderr)
        return 2
    finished = runs.finished(asked.outputs())
    found = [(table, fill(table, cells, finished)) for table, cells in chosen]
    if form == "json" and len(found) > 1:
        text = json.dumps([record(table, filled) for table, filled in found], indent=2) + "\n"
    else:
        text = "\n".join(FORMATS[form](table, filled) for table, filled in found)
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:  # whoever read what is printed has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if "--wandb" in asked.flags:
        from ssl_bench.record.wandb import log_table

        for table, filled in found:
            log_table(table.name, HEADINGS, [each.row() for each in filled], record(table, filled))
    return 0


def record(table: Table, filled: Sequence[Filled]) -> dict[str, Any]:
    """A table for programs: numbers as papers print them (accuracies per cent), null where there is none."""
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
    from rich.table import Table as Grid
    from rich.text import Text

    shown, headings = _shown(filled)
    grid = Grid(*headings, box=None, pad_edge=False, title=f"{table.name}: {table.title}", title_justify="left")
    for row in shown:
        grid.add_row(*(Text(entry) for entry in row))
    file = io.StringIO()
    console = Console(file=file, highlight=False, soft_wrap=False, width=Console().width)
    console.print(grid)
    return file.getvalue() + _below(table, filled, "")


def _md(table: Table, filled: Sequence[Filled]) -> str:
    shown, headings = _shown(filled)
    lines = [headings, ["---"] * len(headings), *([entry.replace("|", "\\|") for entry in row] for row in shown)]
    head = f"### {table.name}: {table.title}\n\n{table.cite}\n\n"
    return head + "".join(f"| {' | '.join(line)} |\n" for line in lines) + _below(table, filled, "    ")


def _tex(table: Table, filled: Sequence[Filled]) -> str:
    shown, headings = _shown(filled)

    def line(entries: Sequence[str]) -> str:
        escaped = [entry.translate({ord(c): f"\\{c}" for c in "&%_#$"}).replace("±", "$\\pm$") for entry in entries]
        return " & ".join(escaped) + " \\\\\n"

    body = "".join(line(row) for row in shown)
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


Form = Callable[[Table, Sequence[Filled]], str]
FORMATS: dict[str, Form] = {"rich": _rich, "md": _md, "tex": _tex, "csv": _csv, "json": _json}


def _shown(filled: Sequence[Filled]) -> tuple[list[list[str]], list[str]]:
    """Rows and headings, without the columns that are empty for good reason."""
    rows = [each.row() for each in filled]
    kept = [i for i, name in enumerate(HEADINGS) if name not in ("reduced", "note") or any(row[i] for row in rows)]
    return [[row[i] for i in kept] for row in rows], [HEADINGS[i] for i in kept]


def _below(table: Table, filled: Sequence[Filled], indent: str) -> str:
    """The table's note, and how to fill what is empty."""
    todo = commands(filled)
    note = f"\n{table.note}\n" if table.note else ""
    if not todo:
        return note
    lines = "".join(f"{indent}{command}\n" for command in todo)
    return f"{note}\nTo fill the empty cells, `ssl-bench reproduce {table.name}`, or one by one:\n\n{lines}"


def option(arguments: Sequence[str], flag: str, default: str) -> tuple[list[str], str]:
    """The arguments without ``flag VALUE`` or ``flag=VALUE``, and the value."""
    rest, value = [], default
    iterator = iter(arguments)
    for argument in iterator:
        if argument == flag:
            value = next(iterator, "")
        elif argument.startswith(f"{flag}="):
            value = argument.split("=", 1)[1]
        else:
            rest.append(argument)
    return rest, value


def _spread(mean: float | None, std: float | None, count: int, digits: int) -> str:
    if mean is None:
        return ""
    return f"{mean:.{digits}f}" + ("" if std is None else f" ± {std:.{digits}f}") + f" ({count})"


def _digits(metric: str) -> int:
    return 2 if percent(metric) else 3


def _setting(run: runs.Run) -> str:
    epochs, steps = run.config["epochs"], run.config.get("max_steps")
    return f"{epochs} epochs" if steps is None else f"{steps} steps"
