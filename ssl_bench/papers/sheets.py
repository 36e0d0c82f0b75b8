"""Filled tables as sheets, which ``record/printing.py`` prints in every form.

A sheet has the rows and columns of the paper. A cell has up to four numbers there, a line each: the paper's, ours, the
difference and the project's. Numbers that no cell of a row has are left out. Notes of cells are numbered footnotes; a
note that a whole row has stands once, beside the name of the row.

CSV and JSON have a row for each cell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ssl_bench.papers import measurements, verdicts
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.cells import Table
from ssl_bench.papers.claims import PaperClaim
from ssl_bench.papers.fill import Filled
from ssl_bench.record.printing import Sheet, SheetEntry, plain
from ssl_bench.results.statistics import deviation, mean

NUMBERS = ("paper", "ours", "difference", "project")
Best = set[tuple[str, str, str]]  # names of a number, its row and its column


def sheet_of(table: Table, filled: Sequence[Filled], below: Sequence[str] = ()) -> Sheet:
    """A filled table in the shape that the paper prints, and with further paragraphs ``below`` its notes."""
    by_row: dict[str, dict[str, Filled]] = {}  # which need not have a cell in every column
    for filled_cell in filled:
        by_row.setdefault(filled_cell.cell.label, {})[filled_cell.cell.column] = filled_cell
    best, columns = _best(table, filled), list(dict.fromkeys(filled_cell.cell.column for filled_cell in filled))
    sheet = Sheet(["", "", *columns], left=2, title=f"{table.name}: {table.title}")
    sheet.below = [*filter(None, [table.note, measurements.errata(table), *below])]
    for label, cells in by_row.items():
        sheet.rows += _rows(sheet, label, columns, cells, best)
    numbers = [_record(filled_cell, best) for filled_cell in filled]
    sheet.records = [{"table": table.name, **record} for record in numbers]
    sheet.data = {"table": table.name, "title": table.title, "cite": table.cite, "cells": numbers, "below": sheet.below}
    return sheet


def _rows(
    sheet: Sheet, label: str, columns: Sequence[str], cells: Mapping[str, Filled], best: Best
) -> list[list[SheetEntry]]:
    """The lines of a row, one for each number that some of its cells have; their notes are added to the sheet."""
    common = [note for note in next(iter(cells.values())).notes if all(note in cell.notes for cell in cells.values())]
    texts = {column: cell.texts for column, cell in cells.items()}
    names = [name for name in NUMBERS if any(name in of_cell for of_cell in texts.values())] or ["ours"]
    rows = list[list[SheetEntry]]()
    for name in names:
        first = name == names[0]
        row = [SheetEntry(label, sheet.numbers(common)) if first else SheetEntry(), SheetEntry(name)]
        for column in columns:
            if (cell := cells.get(column)) is None:
                row.append(SheetEntry())
                continue
            text = texts[column].get(name, "")
            notes = [note for note in cell.notes if note not in common] if first else []
            notes += cell.remarks if name == "ours" else ()
            row.append(SheetEntry(text, sheet.numbers(notes), (name, label, column) in best))
        rows.append(row)
    return rows


def whole(table: Table, filled: Sequence[Filled], results: Results, call: str, changes: Sequence[str] = ()) -> Sheet:
    """The same with its source, what is empty, the settings that its cells were given, and the verdict of a claim."""
    empty = {one.cell.overrides for one in filled if one.cell.available and not one.values}
    todo = f"{len(empty)} configuration{'s' * (len(empty) != 1)} without a run"
    fill_by = f"To fill the empty cells, `ssl-bench reproduce {call}`: {todo}." if empty else ""
    of = verdicts.judge(table, results).lines() if isinstance(table, PaperClaim) else []
    given = f"Ours: with {' '.join(changes)} in place of the paper's settings." if changes else ""
    return sheet_of(table, filled, [f"Source: {table.cite}", given, fill_by, "\n".join(of)])


def _best(table: Table, filled: Sequence[Filled]) -> Best:
    """The best numbers of each row or column, as the table says.

    Only cells with the same metric and dataset are compared, and a single number is not the best of anything.
    """
    groups: dict[tuple[str, object], list[tuple[float, str, str]]] = {}
    for filled_cell in filled if table.best else ():
        cell = filled_cell.cell
        line = cell.label if table.best == "row" else (cell.column, cell.measure)
        group = line, cell.metric.partition("@")[0], cell.settings.get("dataset")
        numbers = {"paper": cell.paper, "ours": filled_cell.mean, "project": mean(filled_cell.measured)}
        for name, number in numbers.items():
            if number is not None and math.isfinite(number):
                groups.setdefault((name, group), []).append((number, cell.label, cell.column))
    best = Best()
    for (name, _), rivals in groups.items():
        if len(rivals) > 1:
            best |= {(name, row, column) for number, row, column in rivals if number == max(rivals)[0]}
    return best


def _record(filled: Filled, best: Best) -> dict[str, Any]:
    """A cell as plain data: numbers as papers print them (accuracies in percent), None for a missing number.

    ``mean``, ``std`` and ``n`` are ours; those of the project begin with its name.
    """
    cell = filled.cell
    record = {
        "row": cell.label,
        "column": cell.column,
        "metric": cell.metric,
        "paper": cell.paper,
        "mean": filled.mean,
        "std": deviation(filled.values),
        "n": len(filled.values),
        "note": "; ".join([*filled.notes, *filled.remarks]) or None,
        "project": mean(filled.measured),
        "project_std": deviation(filled.measured),
        "project_n": len(filled.measured),
        "difference": filled.difference,
        "best": ", ".join(name for name in NUMBERS if (name, cell.label, cell.column) in best) or None,
    }
    return {name: plain(value) for name, value in record.items()}
