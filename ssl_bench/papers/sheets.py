"""Filled tables as sheets, which ``record/printing.py`` prints in every form, and as figures.

A sheet has the rows and columns of the paper. A cell has up to four numbers there, a line each: the paper's, ours, the
difference and the project's. Numbers that no cell of a row has are left out. Notes of cells are numbered footnotes; a
note that a whole row has stands once, beside the name of the row.

CSV and JSON have a row for each cell. In a figure each row is a curve, and each column a value on the x axis.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any

from ssl_bench.config.compositions import Progress
from ssl_bench.errors import ConfigError
from ssl_bench.papers import measurements, tables, verdicts
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.cells import Table
from ssl_bench.papers.claims import ERROR, PaperClaim, half_width
from ssl_bench.papers.fill import Filled, fill_tables
from ssl_bench.papers.selection import Selection
from ssl_bench.record.drawing import DASHES, Line, Panel, figure_of, plot, through_means
from ssl_bench.record.printing import Sheet, SheetEntry, plain
from ssl_bench.results.statistics import deviation, mean

NUMBERS = ("paper", "ours", "difference", "project")
THEORY = {"color": "#555555", "linewidth": 2.5, "alpha": 0.7, "zorder": 1, "marker": "", "linestyle": "-"}
Best = set[tuple[str, str, str]]  # names of a number, its row and its column


def whole(table: Table, filled: Sequence[Filled], results: Results, call: str, changes: Sequence[str] = ()) -> Sheet:
    """A filled table in the shape that the paper prints.

    Below it stand its notes and source, the verdict of a claim, and the command that fills what is empty.

    Args:
        call: the table as an argument of ``ssl-bench reproduce``.
        changes: settings that replace those of the paper in all cells.
    """
    by_row: dict[str, dict[str, Filled]] = {}  # which need not have a cell in every column
    for filled_cell in filled:
        by_row.setdefault(filled_cell.cell.label, {})[filled_cell.cell.column] = filled_cell
    best, columns = _best(table, filled), list(dict.fromkeys(filled_cell.cell.column for filled_cell in filled))
    sheet = Sheet(["", "", *columns], left=2, title=f"{table.name}: {table.title}")
    of = verdicts.judge(table, results).lines() if isinstance(table, PaperClaim) else []
    given = f"Ours: with {' '.join(changes)} in place of the paper's settings." if changes else ""
    below = [table.note, measurements.errata(table), f"Source: {table.cite}", given, "\n".join(of)]
    sheet.below = [*filter(None, below)]
    if empty := {one.cell.overrides for one in filled if one.cell.available and not one.values}:
        todo = f"{len(empty)} configuration{'s' * (len(empty) != 1)} without a run"
        sheet.commands = [f"To fill the empty cells, `ssl-bench reproduce {call}`: {todo}."]
    for label, cells in by_row.items():
        sheet.rows += _rows(sheet, label, columns, cells, best)
    numbers = [_record(filled_cell, best) for filled_cell in filled]
    sheet.records = [{"table": table.name, **record} for record in numbers]
    sheet.data = {"table": table.name, "title": table.title, "cite": table.cite, "cells": numbers}
    sheet.data["below"] = [*sheet.below, *sheet.commands]
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


def printed(selection: Selection, progress: Progress = lambda requests, count: requests) -> list[Sheet]:
    """The selected tables, filled with the results on the disk, as :func:`whole` prints them."""
    results, filled = fill_tables(selection, progress)
    return [whole(table, cells, results, selection.call(table), selection.changes) for table, cells in filled]


def drawn(selection: Selection, progress: Progress = lambda requests, count: requests) -> Any:
    """The selected tables, filled with the results on the disk, as :func:`figure` draws them.

    Raises:
        ConfigError: as :func:`ssl_bench.papers.fill.fill_tables`, or a table is no figure.
    """
    for table in (table for table in selection.tables() if not table.x):
        figures = [selection.call(other) for other in tables.read(table.source)[0] if other.x]
        others = f", or name one of {', '.join(figures)}" if figures else ""
        raise ConfigError(f"{table.name} is no figure: set its key x to a mapping with label{others}")
    results, filled = fill_tables(selection, progress)
    return figure(filled, results)


def figure(filled: Sequence[tuple[Table, Sequence[Filled]]], results: Results) -> Any:
    """Draw tables side by side: hollow markers and dashes for the paper, filled ones with error bars for measurements.

    A cell without own runs has the number that is committed with the package, which the legend calls "project". A claim
    has the interval of its seeds for an error bar, theory as a line, and a panel for each measure that varies over its
    cells, if any does. Panels of one quantity have one range.
    """
    panels, names = list[Panel](), [0]  # in the legends of tables
    for table, of_table in filled:
        head, parts = f"{table.name}\n{textwrap.fill(table.title, 60)}", [of_table]
        if isinstance(table, PaperClaim):
            head = f"{table.name}: {verdicts.judge(table, results).words}\n{textwrap.fill(table.says, 60)}"
            measures = dict.fromkeys(one.cell.measure for one in of_table)
            every: list[Sequence[Filled]] = [[one for one in of_table if one.cell.measure == m] for m in measures]
            parts = [of for of in every if len({(one.cell.metric, one.cell.overrides) for one in of}) > 1] or every
        else:
            names.append(len({one.cell.label for one in of_table}))
        for cells in parts:
            single = isinstance(table, PaperClaim) and len({one.cell.column for one in cells}) == 1
            panels.append((_beside if single else _curves)(table, cells, head))
    return figure_of(panels, (5.2, max(4.3, 3 + 0.2 * max(names))))


def _curves(table: Table, filled: Sequence[Filled], head: str) -> Panel:
    """A line for each row: the paper's numbers, and those of the runs, or else the committed ones."""
    claim = table if isinstance(table, PaperClaim) else None
    looks = {  # a row that measures what a formula says is drawn as a line, too
        curve: {**THEORY, "label": f"theory: {curve}", "linestyle": DASHES[i % len(DASHES)]}
        for i, curve in enumerate(claim.theory if claim else ())
    }
    order = {column: float(i) for i, column in enumerate(table.columns())}  # of a table, which has no x axis
    x = {one.cell.column: order[one.cell.column] if one.cell.x is None else one.cell.x for one in filled}
    lines = list[Line]()
    for i, label in enumerate(dict.fromkeys(one.cell.label for one in filled)):
        row = [one for one in filled if one.cell.label == label]
        name = row[0].cell.row if claim else label  # the axis has the measure of a claim
        paper = {x[one.cell.column]: one.cell.paper for one in row if one.cell.paper is not None}
        ours = {x[one.cell.column]: one.values for one in row if one.values}
        measured = ours or {x[one.cell.column]: one.measured for one in row if one.measured}
        values = [*measured.values()]
        if paper:
            dashed = {"label": f"{name} (paper)", "linestyle": "--", "mfc": "white"}
            lines.append(Line(i, [*paper], [*paper.values()], dashed))
        look = {"label": name + " (project)" * (not ours and not claim), "linestyle": "-"}
        if measured and not claim:
            lines.append(through_means(i, [*measured], values, look))
        elif measured:
            error = None if label in looks else [half_width(of) for of in values]  # the intervals that decide
            means, samples = [*map(fmean, values)], values if error else ()
            lines.append(Line(i, [*measured], means, looks.get(label, look), error, values=samples))
        elif not paper:
            lines.append(Line(i, [], [], {"label": f"{name} (no numbers yet)", "linestyle": "none"}))
    for curve, numbers in claim.theory.items() if claim else ():
        if numbers:
            given = [number for column, number in zip(table.columns(), numbers, strict=True) if column in x]
            lines.append(Line(0, [*x.values()], given, looks[curve]))
    measures = {one.cell.measure for one in filled}
    metrics = {f"{one.cell.metric} (%)" if one.cell.share else one.cell.metric for one in filled}
    y = measures.pop() if claim and measures != {""} else table.y or ", ".join(sorted(metrics))
    axes = {"xticks": [*x.values()], "xticklabels": [*x], "xlabel": table.x or "column of the table"}
    axes |= {"title": head, "ylabel": y}
    runs = max((len(one.values or one.measured) for one in filled), default=0)
    bar = f"and {1 - 2 * ERROR:.0%} interval" if claim else "± pooled deviation"
    short = all(len(line.style["label"]) < 28 for line in lines)
    # Below the axis and its label it hides nothing.
    title = f"mean {bar} of {runs} seeds" if runs > 1 else None
    legend = {"title": title, "ncols": 1 + short, "loc": "upper center", "bbox_to_anchor": (0.5, -0.14)}
    return partial(plot, lines=lines, axes=axes, doubling=table.doubling, legend=legend)


def _beside(table: Table, filled: Sequence[Filled], head: str) -> Panel:
    """A claim with one column: its rows beside each other, and a thin line for each seed."""
    numbers = [one.values or one.measured for one in filled]
    lines = [Line(0, range(len(of)), of, {**THEORY, "linewidth": 0.8}) for of in zip(*numbers, strict=False)]
    dot = {"marker": "o", "capsize": 5}
    lines += [Line(i, [i], [fmean(of)], dot, [half_width(of)]) for i, of in enumerate(numbers) if of]
    x = f"{table.x}: {filled[0].cell.column}\nmean and {1 - 2 * ERROR:.0%} interval; a thin line for each seed"
    axes: dict[str, Any] = {"xlim": (-0.5, len(filled) - 0.5), "xlabel": x, "ylabel": table.y, "title": head}
    axes |= {"xticks": range(len(filled)), "xticklabels": [textwrap.fill(one.cell.label, 12) for one in filled]}
    return partial(plot, lines=lines, axes=axes)
