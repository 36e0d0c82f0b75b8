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
from ssl_bench.record.printing import Sheet, SheetEntry
from ssl_bench.results import statistics
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
        cells: by the values of both, of each run its number; a share is in percent.
        below: sentences on what else varies and what is missing.
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
        """The metric, and what distinguishes the table."""
        return ", ".join([self.measured.label, *(f"{name}={text_of(value)}" for name, value in self.of.items())])

    def sheet(self) -> Sheet:
        """The table as text: mean ± deviation (runs), the best mean of a column bold."""
        rows, columns, (row_name, column_name) = self.axis(0), self.axis(1), self.names
        heads = [f"{column_name}={text_of(value)}" if column_name else self.measured.label for value in columns]
        means, metric = {key: fmean(cell.values()) for key, cell in self.cells.items()}, self.measured.metric
        signed = {c: [metric.sign * mean for key, mean in means.items() if key[1] == c] for c in columns}
        top = {column: max(of) for column, of in signed.items() if metric.sign and len(of) > 1}
        high, records = "highest" if metric.sign > 0 else "lowest", list[dict[str, Any]]()
        bold = [f"Bold: the {high} mean of a column; `ssl-bench compare` says whether it is better."] * bool(top)
        sheet = Sheet([row_name, *heads], title=self.title, below=[*self.below, *bold], records=records)
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
    """The settings of the rows and of the columns, empty for none; those that the commands vary in place of None."""
    names, asked = varying(table), set[str]().union(*(run.requested for run in table["run"]))
    names = [name for name in names if name in asked] or names
    free = (name for name in names if name not in (row, column))
    return (next(free, "") if row is None else row), (next(free, "") if column is None else column)


def _full_name(flag: str, wanted: str | None, table: DataFrame) -> str | None:
    """The full name of a setting, or of the experiment, or of the seed; None of None."""
    own = {"": "", "seed": "seed", "experiment": "experiment", "name": "experiment", None: None}
    return own[wanted] if wanted in own else runs_table.setting(table, flag, str(wanted))


def _by_labels(run: Run, name: str, names: Mapping[Any, str]) -> dict[Any, float]:
    """A number of a run by the share of the labels: ``knn/labels0.1/top1`` and ``knn/top1`` are one number."""
    shares = {(entry["id"], entry.get("images")): entry["settings"].get("labels", 1.0) for entry in run.evaluations}
    plain = {key: re.sub(OF_LABELS, "", names[key]) for key in run.numbers}
    return {shares[key[1:]]: value for key, value in run.numbers.items() if plain[key] == re.sub(OF_LABELS, "", name)}


def _between(table: DataFrame, axes: Sequence[str]) -> list[str]:
    """A sentence on the settings that vary within a column of a table, beside the rows' with the keys below them."""
    of_rows = [name for name in table if f"{name}.".startswith(f"{axes[0]}.")]
    names = varying(table.drop(columns=of_rows), list(table[axes[1]]) if axes[1] in table else ())
    return [f"Between the cells of a column also vary: {', '.join(names)}."] if names else []


def spread(values: Sequence[float], digits: int) -> str:
    """``mean ± std (n)``; empty without values. A mean that would be printed as 0.000 has significant digits."""
    if not values:
        return ""
    mean, std = fmean(values), statistics.deviation(values)
    form = f".{digits}f" if mean == 0 or float(f"{mean:.{digits}f}") else f".{digits}g"
    return f"{mean:{form}}" + ("" if std is None else f" ± {std:{form}}") + f" ({len(values)})"
