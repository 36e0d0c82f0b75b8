"""Runs arranged by two settings: a table or a figure of any runs.

A cell has runs of one recipe, which differ in the seed only. A setting that varies within a cell of the table, whatever
made it vary, splits it into several tables. What varies within a column is named below, and so are missing runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ssl_bench.errors import ConfigError
from ssl_bench.evaluate.metric import Metric
from ssl_bench.record.printing import Sheet, SheetEntry
from ssl_bench.results import statistics
from ssl_bench.results import table as runs_table
from ssl_bench.results.table import in_order, text_of, varying

if TYPE_CHECKING:
    from pandas import DataFrame

    from ssl_bench.record.runs import Run

MOST_TABLES = 12  # that one command prints
LABELS = "labels"  # of the columns: the shares of the labels with which a network was evaluated, `evaluate.labels`


@dataclass(frozen=True)
class Cell:
    """The runs in a row and a column, and their values: a share in percent."""

    runs: list[Run] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Pivot:
    """A table of means.

    Attributes:
        names: the setting of the rows and that of the columns; empty if there is none.
        name, metric: of the number.
        of: the settings that distinguish it from the other tables.
        cells: by the values of both.
        below: sentences on what else varies and what is missing.
    """

    names: tuple[str, str]
    name: str
    metric: Metric
    of: Mapping[str, Any]
    cells: dict[tuple[Any, Any], Cell] = field(default_factory=dict)
    below: list[str] = field(default_factory=list)

    def axis(self, which: int) -> list[Any]:
        """The values of the rows (0) or columns (1), in order."""
        return in_order([key[which] for key in self.cells])

    @property
    def label(self) -> str:
        """The metric with its unit."""
        return runs_table.label(self.name, self.metric)

    @property
    def title(self) -> str:
        """The metric, and what distinguishes the table."""
        return ", ".join([self.label, *(f"{name}={text_of(value)}" for name, value in self.of.items())])

    def sheet(self) -> Sheet:
        """The table as text: mean ± deviation (runs), the best mean of a column bold."""
        rows, columns = self.axis(0), self.axis(1)
        heads = [f"{self.names[1]}={text_of(value)}" if self.names[1] else self.label for value in columns]
        best, records = self._best(), list[dict[str, Any]]()
        high = "highest" if self.metric.sign > 0 else "lowest"
        bold = [f"Bold: the {high} mean of a column; `ssl-bench compare` says whether it is better."] * bool(best)
        sheet = Sheet([self.names[0], *heads], title=self.title, below=[*self.below, *bold], records=records)
        for row in rows:
            entries = [SheetEntry(text_of(row))]
            for column in columns:
                if (cell := self.cells.get((row, column))) is None:
                    entries.append(SheetEntry())
                    continue
                is_best, footnotes = (row, column) in best, runs_table.notes(cell.runs)
                text = spread(cell.values, 2 if self.metric.unit == "share" else 3)
                entries.append(SheetEntry(text, sheet.numbers(footnotes), is_best))
                of_cell = {"metric": self.label, "mean": fmean(cell.values), "std": statistics.deviation(cell.values)}
                of_cell |= {"n": len(cell.values), "best": is_best, "notes": "; ".join(footnotes)}
                settings = {name: value for name, value in zip(self.names, (row, column), strict=True) if name}
                records.append({**self.of, **settings, **of_cell})
            sheet.rows.append(entries)
        return sheet

    def _best(self) -> set[tuple[Any, Any]]:
        """The cells with the best mean of their column; none of a column with one cell."""
        means = {key: self.metric.sign * fmean(cell.values) for key, cell in self.cells.items()}
        best = set[tuple[Any, Any]]()
        for column in self.axis(1) if self.metric.sign else ():
            of_column = {key: mean for key, mean in means.items() if key[1] == column and isfinite(mean)}
            if len(of_column) > 1:
                best |= {key for key, mean in of_column.items() if mean == max(of_column.values())}
        return best


def pivot(
    table: DataFrame,
    rows: str | None,
    columns: str | None,
    metric: str | None,
    flags: tuple[str, str] = ("--rows", "--columns"),
) -> list[Pivot]:
    """Tables of means over seeds.

    Args:
        table: runs; those that are not finished, or whose number is not finite, are counted below.
        rows, columns: settings, such as ``loss``, or the end of one that varies, such as ``k``; None: of the settings
            that the commands vary, the first and the second. Columns may be ``labels``.
        metric: the name of a number; None: the main one of most runs.
        flags: what a refusal calls rows and columns.

    Raises:
        ConfigError: there is no such setting or metric, no number is finite, too much else varies, or two folders have
            other numbers of one training.
    """
    given = _full_name(flags[0], rows, table), columns if columns == LABELS else _full_name(flags[1], columns, table)
    measured = runs_table.Measured(table, metric, ["experiment"] * ("experiment" in given))
    done, name, scale = measured.runs, measured.name, measured.metric.scale
    axes = _axes(done, *given)
    keys = list(zip(_values(done, axes[0]), _values(done, axes[1]), strict=True))
    inside = varying(done, keys)
    pivots, places = dict[str, Pivot](), dict[str, list[Any]]()
    for place, run, key in zip(done.index, done["run"], keys, strict=True):
        of = {setting: done.at[place, setting] for setting in inside}
        part = repr(of)
        places.setdefault(part, []).append(place)
        cells = pivots.setdefault(part, Pivot(axes, name, measured.metric, of)).cells
        values = _by_labels(run, name, measured.names) if columns == LABELS else {key[1]: done.at[place, name]}
        for column, value in ((column, value) for column, value in values.items() if isfinite(value)):
            cell = cells.setdefault((key[0], column), Cell())
            cell.runs.append(run)
            cell.values.append(scale * value)
    if len(pivots) > MOST_TABLES:
        words, count = "=..., ".join(inside), f"{len(pivots)} tables, more than {MOST_TABLES}"
        raise ConfigError(f"{words}=... vary too and make {count}: set some of them")
    for part, one in pivots.items():
        for runs in (cell.runs for cell in one.cells.values()):
            for run in runs[1:]:
                runs_table.refuse_two_recipes(runs[0], run)
        one.below.extend([*measured.below, *_between(done.loc[places[part]], axes)])
    return list(pivots.values())


def _axes(table: DataFrame, row: str | None, column: str | None) -> tuple[str, str]:
    """The settings of the rows and of the columns, empty for none; those that the commands vary in place of None."""
    names, asked = varying(table), set[str]().union(*(run.requested for run in table["run"]))
    names = [name for name in names if name in asked] or names
    free = (name for name in names if name not in (row, column))
    return (next(free, "") if row is None else row), (next(free, "") if column is None else column)


def _full_name(flag: str, wanted: str | None, table: DataFrame) -> str | None:
    """The full name of a setting, or of the experiment, or of the seed; None of None."""
    own = {"": "", "seed": "seed", "experiment": "experiment", "name": "experiment", None: None}
    return own[wanted] if wanted in own else runs_table.setting(table, flag, str(wanted))


def _values(table: DataFrame, axis: str) -> list[Any]:
    """The value of a setting in each row; None without a setting."""
    return list(table[axis]) if axis in table else [None] * len(table)


def _by_labels(run: Run, name: str, names: Mapping[Any, str]) -> dict[Any, float]:
    """A number of a run by the share of the labels."""
    shares = {(entry["id"], entry.get("images")): entry["settings"].get("labels", 1.0) for entry in run.evaluations}
    same = {key: value for key, value in run.numbers.items() if _of_labels(names[key]) == _of_labels(name)}
    return {shares[key[1:]]: value for key, value in same.items()}


def _of_labels(name: str) -> str:
    """The name of a number of a share of the labels without the share: ``knn/labels0.1/top1`` is ``knn/top1``."""
    return re.sub(r"/labels[0-9.e-]+(?=/)", "", name)


def _between(table: DataFrame, axes: Sequence[str]) -> list[str]:
    """A sentence on the settings that vary within a column of a table, beside the rows' with the keys below them."""
    of_rows = [name for name in table if f"{name}.".startswith(f"{axes[0]}.")]
    names = varying(table.drop(columns=of_rows), _values(table, axes[1]))
    return [f"Between the cells of a column also vary: {', '.join(names)}."] if names else []


def spread(values: Sequence[float], digits: int) -> str:
    """``mean ± std (n)``; empty without values. A mean that would be printed as 0.000 has significant digits."""
    if not values:
        return ""
    mean, std = fmean(values), statistics.deviation(values)
    form = f".{digits}f" if mean == 0 or float(f"{mean:.{digits}f}") else f".{digits}g"
    return f"{mean:{form}}" + ("" if std is None else f" ± {std:{form}}") + f" ({len(values)})"
