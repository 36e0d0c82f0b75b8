"""Runs arranged by two settings: a table or a figure of any runs.

A cell has runs of one recipe, which differ in the seed only. A setting that would vary within a cell splits the table
into several tables. Settings that vary within a column are named below the table, and so are runs that are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from ssl_bench.errors import ConfigError, require
from ssl_bench.record.drawing import Line, Panel, figure_of, heat_map, of_seeds, plot, through_means
from ssl_bench.record.printing import Sheet, SheetEntry
from ssl_bench.results import curves, statistics
from ssl_bench.results import table as runs_table
from ssl_bench.results.table import Measured, in_order, text_of, varying

if TYPE_CHECKING:
    from pandas import DataFrame

    from ssl_bench.record.runs import Run

Name = str | None
MOST_TABLES = 12  # that one command prints
OF_LABELS = r"/labels[0-9.e-]+(?=/)"
LABELS = "labels"  # of the columns: the shares of the labels with which a network was evaluated, `evaluate.labels`


@dataclass(frozen=True)
class Pivot:
    """A table of means.

    Attributes:
        names: the setting of the rows and that of the columns; empty if there is none.
        measured: the number.
        of: the settings that distinguish it from the other tables.
        cells: the number of each run, a share in percent, by the values of row and column.
        below: sentences on other settings that vary and on runs that are left out.
    """

    names: tuple[str, str]
    measured: Measured
    of: Mapping[str, Any]
    cells: dict[tuple[Any, Any], dict[Run, float]] = field(default_factory=dict)
    below: list[str] = field(default_factory=list)

    def axis(self, which: int) -> list[Any]:
        """The values of the rows (0) or columns (1), in order."""
        return in_order([key[which] for key in self.cells])

    @property
    def title(self) -> str:
        """The metric, and the settings that distinguish the table."""
        return ", ".join([self.measured.label, *(f"{name}={text_of(value)}" for name, value in self.of.items())])

    def sheet(self) -> Sheet:
        """The table as text: mean ± deviation (runs), the best mean of a column bold."""
        rows, columns, (row_name, column_name) = self.axis(0), self.axis(1), self.names
        heads = [f"{column_name}={text_of(value)}" if column_name else self.measured.label for value in columns]
        means, metric = {key: fmean(cell.values()) for key, cell in self.cells.items()}, self.measured.metric
        signed = {c: [metric.sign * mean for key, mean in means.items() if key[1] == c] for c in columns}
        top = {column: max(of) for column, of in signed.items() if metric.sign and len(of) > 1}
        high, records = "highest" if metric.sign > 0 else "lowest", list[dict[str, Any]]()
        sheet = Sheet([row_name, *heads], title=self.title, below=[*self.below], records=records)
        sheet.bold = f"Bold: the {high} mean of a column." * bool(top)
        sheet.commands = ["`ssl-bench compare` says whether the best is better by more than chance."] * bool(top)
        for row in rows:
            sheet.rows.append([SheetEntry(text_of(row)), *[SheetEntry()] * len(columns)])
            for place, column in enumerate(columns, 1):
                if (cell := self.cells.get((row, column))) is None:
                    continue
                values, mean, footnotes = [*cell.values()], means[row, column], runs_table.notes([*cell])
                text = spread(values, 2 if metric.unit == "share" else 3)
                best = metric.sign * mean == top.get(column)
                sheet.rows[-1][place] = SheetEntry(text, sheet.numbers(footnotes), best)
                of_cell = {
                    "metric": self.measured.label,
                    "mean": mean,
                    "std": statistics.deviation(values),
                    "n": len(values),
                }
                of_cell |= {"best": best, "notes": "; ".join(footnotes)}
                settings = {name: of for name, of in ((row_name, row), (column_name, column)) if name}
                records.append({**self.of, **settings, **of_cell})
        return sheet


def pivot(
    table: DataFrame, rows: Name, columns: Name, metric: Name, flags: tuple[str, str] = ("--rows", "--columns")
) -> list[Pivot]:
    """Tables of means over seeds.

    Args:
        table: runs; unfinished runs and runs whose number is not finite are counted below the tables.
        rows, columns: settings, such as ``loss``, or the end of a setting that varies, such as ``k``; None: the first
            and the second setting that the commands vary. Columns may be ``labels``.
        metric: the name of a number; None: the main number of most runs.
        flags: the names of rows and columns in a refusal.

    Raises:
        ConfigError: there is no such setting or metric, no number is finite, too many other settings vary, or two
            folders have the same training and seed, and different numbers.
    """
    given = _full_name(flags[0], rows, table), columns if columns == LABELS else _full_name(flags[1], columns, table)
    measured = Measured(table, metric, ["experiment"] * ("experiment" in given))
    done, name, axes = measured.runs, measured.name, _axes(measured.runs, *given)
    keys = list(zip(*(done[axis] if axis in done else [None] * len(done) for axis in axes), strict=True))
    inside = varying(done, keys)
    pivots, places = dict[str, Pivot](), dict[str, list[Any]]()
    for place, run, key in zip(done.index, done["run"], keys, strict=True):
        of = {setting: done.at[place, setting] for setting in inside}
        places.setdefault(repr(of), []).append(place)
        cells = pivots.setdefault(repr(of), Pivot(axes, measured, of)).cells
        values = _by_labels(run, name, measured.names) if columns == LABELS else {key[1]: done.at[place, name]}
        for column, value in values.items():
            if isfinite(value):
                cell = cells.setdefault((key[0], column), {})
                runs_table.refuse_two_recipes(next(iter(cell), run), run)
                cell[run] = measured.metric.scale * value
    if len(pivots) > MOST_TABLES:
        words, count = "=..., ".join(inside), f"{len(pivots)} tables, more than {MOST_TABLES}"
        raise ConfigError(f"{words}=... vary too and make {count}: set some of them")
    for part, one in pivots.items():
        one.below.extend([*measured.below, *_between(done.loc[places[part]], axes)])
    return list(pivots.values())


def _axes(table: DataFrame, row: str | None, column: str | None) -> tuple[str, str]:
    """The settings of the rows and of the columns, empty for none; None stands for a setting that the commands vary."""
    names, requested = varying(table), set[str]().union(*(run.requested for run in table["run"]))
    names = [name for name in names if name in requested] or names
    free = (name for name in names if name not in (row, column))
    return (next(free, "") if row is None else row), (next(free, "") if column is None else column)


def _full_name(flag: str, wanted: str | None, table: DataFrame) -> str | None:
    """The full name of a setting, of the experiment or of the seed; None for None."""
    columns = {"": "", "seed": "seed", "experiment": "experiment", "name": "experiment", None: None}
    return columns[wanted] if wanted in columns else runs_table.setting(table, flag, str(wanted))


def _by_labels(run: Run, name: str, names: Mapping[Any, str]) -> dict[Any, float]:
    """A number of a run by the share of the labels: ``knn/labels0.1/top1`` and ``knn/top1`` are one number."""
    shares = {(entry["id"], entry.get("images")): entry["settings"].get("labels", 1.0) for entry in run.evaluations}
    plain = {key: re.sub(OF_LABELS, "", names[key]) for key in run.numbers}
    return {shares[key[1:]]: value for key, value in run.numbers.items() if plain[key] == re.sub(OF_LABELS, "", name)}


def _between(table: DataFrame, axes: Sequence[str]) -> list[str]:
    """A sentence on the settings that vary within a column of a table, without that of the rows and its keys."""
    of_rows = [name for name in table if f"{name}.".startswith(f"{axes[0]}.")]
    names = varying(table.drop(columns=of_rows), list(table[axes[1]]) if axes[1] in table else ())
    return [f"Between the cells of a column also vary: {', '.join(names)}."] if names else []


def draw(table: DataFrame, x: str | None, lines: str | None, y: str | None, metric: str | None) -> Any:
    """The figure of a table of runs: lines, a heat map if ``y`` is given, or curves with ``epoch`` for x."""
    require(not (lines and y), "--y", y, "null for a plot, or leave out --lines for a heat map")
    require(x != "epoch" or not (lines or y), "--x", x, "a setting, or leave out --lines and --y")
    if x == "epoch":
        return curves.figure(*curves.curves(table, metric))
    return figure(pivot(table, y or lines, x, metric, ("--y" if y else "--lines", "--x")), bool(y))


def figure(pivots: Sequence[Pivot], heat: bool) -> Any:
    """Draw a panel for each table: its columns lie on the x axis, its rows are lines, or the y axis of a heat map.

    Lines have the mean of each cell, its runs as small points, and as error bars the standard deviation over seeds,
    which is pooled over the cells of a line. A cell of a heat map has its mean and number of runs. All panels have one
    range of the y axis, and all heat maps one scale of colours.
    """
    means = [fmean(cell.values()) for pivot in pivots for cell in pivot.cells.values()]
    panels = [_heat(pivot, (min(means), max(means))) if heat else _lines(pivot) for pivot in pivots]
    return figure_of(panels, (5.2, 4.3), below=(line for one in pivots for line in one.below), sharey=not heat)


def _lines(pivot: Pivot) -> Panel:
    (rows, columns), name = (pivot.axis(0), pivot.axis(1)), pivot.names[0]
    numeric = all(isinstance(value, int | float) for value in columns)
    x: dict[Any, Any] = {value: value if numeric else n for n, value in enumerate(columns)}
    lines = list[Line]()
    for i, row in enumerate(rows):
        cells = {x[column]: [*cell.values()] for column in columns if (cell := pivot.cells.get((row, column)))}
        style, shift = {"label": f"{name}={text_of(row)}" if name else None}, 4 * (i - (len(rows) - 1) / 2)
        lines.append(through_means(i, [*cells], [*cells.values()], style, shift=shift))
    axes = {"xticks": [*x.values()], "xticklabels": [*map(text_of, columns)], "xlabel": pivot.names[1]}
    doubling = numeric and 0 < 4 * min(columns) <= max(columns)
    axes |= {"title": pivot.title, "ylabel": of_seeds(pivot.measured.label, [*map(len, pivot.cells.values())])}
    return partial(plot, lines=lines, axes=axes, doubling=doubling, legend={} if name else None)


def _heat(pivot: Pivot, ends: Sequence[float]) -> Panel:
    rows, columns = pivot.axis(0), pivot.axis(1)
    form = ".1f" if pivot.measured.metric.unit == "share" else ".3g"
    means, texts = np.full((len(rows), len(columns)), np.nan), dict[Any, str]()
    for (row, column), cell in pivot.cells.items():
        place, mean = (rows.index(row), columns.index(column)), fmean(cell.values())
        means[place], texts[place] = mean, f"{mean:{form}}\n({len(cell)})"
    axes: dict[str, Any] = {"xticks": range(len(columns)), "xticklabels": [*map(text_of, columns)]}
    axes |= {"yticks": range(len(rows)), "yticklabels": [*map(text_of, rows)], "title": pivot.title}
    axes |= dict(zip(("ylabel", "xlabel"), pivot.names, strict=True))
    label = f"{pivot.measured.label}, mean (runs)"
    return partial(heat_map, values=means, texts=texts, ends=ends, label=label, axes=axes)


def spread(values: Sequence[float], digits: int) -> str:
    """``mean ± std (n)``; empty without values. A mean that would be printed as 0.000 has significant digits."""
    if not values:
        return ""
    mean, std = fmean(values), statistics.deviation(values)
    form = f".{digits}f" if mean == 0 or float(f"{mean:.{digits}f}") else f".{digits}g"
    return f"{mean:{form}}" + ("" if std is None else f" ± {std:{form}}") + f" ({len(values)})"
