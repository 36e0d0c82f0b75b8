"""Filled tables as sheets, which ``record/printing.py`` prints in every form.

A sheet has the rows and columns of the paper. A cell has up to five numbers there, a line each: the paper's, ours, the
difference, the project's, and ours of ``scale=reduced``. Numbers that no cell of a row has are left out. Notes of cells
are numbered footnotes; a note that a whole row has stands once, beside the name of the row.

CSV and JSON have a row for each cell, and CSV one for each fit of a design.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ssl_bench.papers import comparison, design, measurements, verdicts
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.cells import Table
from ssl_bench.papers.claims import PaperClaim
from ssl_bench.papers.fill import Filled
from ssl_bench.record.printing import Sheet, SheetEntry, plain
from ssl_bench.results.statistics import deviation, mean

NUMBERS = ("paper", "ours", *design.LINES, "project", "reduced")
Best = set[tuple[str, str, str]]  # names of a number, its row and its column


def sheet_of(table: Table, filled: Sequence[Filled], below: Sequence[str] = ()) -> Sheet:
    """A filled table in the shape that the paper prints, and with further paragraphs ``below`` its notes."""
    shown = design.printed(table, filled) if table.design else filled
    by_row: dict[str, dict[str, Filled]] = {}  # which need not have a cell in every column
    for each in shown:
        by_row.setdefault(each.cell.label, {})[each.cell.column] = each
    best, columns = _best(table, shown), list(dict.fromkeys(each.cell.column for each in shown))
    sheet = Sheet(["", "", *columns], left=2, title=f"{table.name}: {table.title}")
    sheet.below = [*filter(None, [table.note, measurements.errata(table), *below])]
    for label, cells in by_row.items():
        common = [note for note in next(iter(cells.values())).notes if all(note in c.notes for c in cells.values())]
        texts = {column: each.texts for column, each in cells.items()}
        names = [name for name in NUMBERS if any(name in each for each in texts.values())] or ["ours"]
        for name in names:
            first = name == names[0]
            row = [SheetEntry(label, sheet.numbers(common)) if first else SheetEntry(), SheetEntry(name)]
            for column in columns:
                if (cell := cells.get(column)) is None:
                    row.append(SheetEntry())
                    continue
                text = texts[column].get(name, "")
                notes = [note for note in cell.notes if note not in common] if first else []
                notes += [cell.recipe] if text and name == "reduced" and cell.recipe else []
                notes += cell.remarks.get(name, ())
                row.append(SheetEntry(text, sheet.numbers(notes), (name, label, column) in best))
            sheet.rows.append(row)
    numbers = [_record(each, best) for each in filled]
    fits = [
        {"row": each.cell.row, "column": each.cell.column} | {f"fit: {name}": text for name, text in each.texts.items()}
        for each in shown
        if isinstance(each, design.Printed)
    ]
    sheet.records = [{"table": table.name, **each} for each in (*numbers, *fits)]
    sheet.data = {"table": table.name, "title": table.title, "cite": table.cite, "cells": numbers, "below": sheet.below}
    sheet.data |= design.record(table, filled) if table.design else {}
    return sheet


def whole(table: Table, filled: Sequence[Filled], results: Results, call: str) -> Sheet:
    """The same with its source, what is empty, and its verdicts: of a claim, or of comparisons with a reference.

    Args:
        call: the table in the words of a command.
    """
    empty = {(each.cell.command, *each.cell.overrides) for each in filled if each.cell.available and not each.values}
    todo = f"{len(empty)} configuration{'s' * (len(empty) != 1)} without a run"
    fill_by = f"To fill the empty cells, `ssl-bench reproduce {call}`: {todo}." if empty else ""
    of = verdicts.judge(table, results).lines() if isinstance(table, PaperClaim) else comparison.lines(table, results)
    return sheet_of(table, filled, [f"Source: {table.cite}", fill_by, "\n".join(of)])


def _best(table: Table, filled: Sequence[Filled]) -> Best:
    """The best numbers of each row or column, as the table says.

    Only cells with the same metric and dataset are compared, and a single number is not the best of anything.
    """
    groups: dict[tuple[str, object], list[tuple[float, str, str]]] = {}
    for each in filled if table.best else ():
        cell = each.cell
        place = cell.label if table.best == "row" else (cell.column, cell.measure)
        group = place, cell.metric.partition("@")[0], cell.settings.get("dataset")
        for name, number in (("paper", cell.paper), ("ours", each.mean), ("project", mean(each.measured))):
            if number is not None and math.isfinite(number):
                groups.setdefault((name, group), []).append((number, cell.label, cell.column))
    best = Best()
    for (name, _), numbers in groups.items():
        if len(numbers) > 1:
            best |= {(name, row, column) for number, row, column in numbers if number == max(numbers)[0]}
    return best


def _record(each: Filled, best: Best) -> dict[str, Any]:
    """A cell as plain data: numbers as papers print them (accuracies in percent), None for a missing number.

    ``mean``, ``std`` and ``n`` are ours; those of the project and of reduced runs begin with their names.
    """
    cell, notes = each.cell, {name: each.remarks.get(name, ()) for name in ("ours", "reduced")}
    found = {"row": cell.label, "column": cell.column, "metric": cell.metric, "paper": cell.paper}
    found |= {"mean": each.mean, "std": deviation(each.values), "n": len(each.values)}
    found |= {"note": "; ".join([*each.notes, *notes["ours"]]) or None}
    for name, values in (("project", each.measured), ("reduced", each.reduced)):
        found |= {name: mean(values), f"{name}_std": deviation(values), f"{name}_n": len(values)}
    found |= {"reduced_note": "; ".join(filter(None, [each.recipe, *notes["reduced"]])) or None}
    of_best = [name for name in NUMBERS if (name, cell.label, cell.column) in best]
    found |= {"difference": each.difference, "best": ", ".join(of_best) or None}
    return {name: plain(value) for name, value in found.items()}
