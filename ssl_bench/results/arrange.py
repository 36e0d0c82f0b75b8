"""Runs arranged by two settings: a table or a figure of any grid.

Only runs that differ in nothing but the seed have a mean. A setting that varies within a cell of the table splits it
into several tables; one that varies only from cell to cell is named below it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from ssl_bench.config.build import near
from ssl_bench.config.identity import is_hashed
from ssl_bench.errors import ConfigError, InvalidValue
from ssl_bench.evaluate.metric import Metric
from ssl_bench.record.printing import Sheet, SheetEntry
from ssl_bench.record.results import mixed
from ssl_bench.results import statistics
from ssl_bench.results.differing import Differing, Value, check_hashed, differing
from ssl_bench.results.numbers import Numbers, single
from ssl_bench.results.runs import RunFolder
from ssl_bench.results.scan import Entry

MOST_TABLES = 12  # tables that one command prints
LABELS = "labels"  # of the columns: the shares of the labels with which a network was evaluated, `evaluate.labels`


def notes(runs: Sequence[RunFolder]) -> list[str]:
    """Footnotes of a mean over runs: what it mixes, and what the runs warn of."""
    warnings = [f"seed {run.seed}: {sentence}" for run in runs for sentence in run.warnings]
    return [*filter(None, [mixed(run.conditions for run in runs)]), *warnings]


@dataclass(frozen=True)
class PivotCell:
    """The runs in a row and a column, which differ in their seeds only.

    Attributes:
        values: of the metric, a share in percent.
    """

    runs: list[RunFolder] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Pivot:
    """A table of runs.

    Attributes:
        names: the setting of the rows and that of the columns, or several with commas between; empty if there is none.
        of: the settings that distinguish it from the other tables.
        cells: by the values of both.
        below: sentences on what else varies and what is missing.
    """

    names: tuple[str, str]
    name: str
    metric: Metric
    of: dict[str, Value]
    cells: dict[tuple[Value, Value], PivotCell] = field(default_factory=dict)
    below: list[str] = field(default_factory=list)

    def axis(self, which: int) -> list[Value]:
        """The values of the rows (0) or columns (1), in order."""
        return in_order({key[which] for key in self.cells})

    @property
    def label(self) -> str:
        """The metric with its unit."""
        return f"{self.name} (%)" if self.metric.unit == "share" else self.name

    @property
    def title(self) -> str:
        """The metric, and what distinguishes the table."""
        return ", ".join([self.label, *(f"{name}={text_of_value(value)}" for name, value in self.of.items())])

    def sheet(self) -> Sheet:
        """The table as text: mean ± deviation (runs), the best mean of a column bold."""
        rows, columns = self.axis(0), self.axis(1)
        heads = [f"{self.names[1]}={text_of_value(value)}" if self.names[1] else self.label for value in columns]
        best, records = self._best(), list[dict[str, Any]]()
        high = "highest" if self.metric.sign > 0 else "lowest"
        bold = [f"Bold: the {high} mean of a column; `ssl-bench compare` says whether it is better."] * bool(best)
        sheet = Sheet([self.names[0], *heads], title=self.title, below=[*self.below, *bold])
        for row in rows:
            entries = [SheetEntry(text_of_value(row))]
            for column in columns:
                if (cell := self.cells.get((row, column))) is None:
                    entries.append(SheetEntry())
                    continue
                is_best, footnotes = (row, column) in best, notes(cell.runs)
                text = spread(cell.values, 2 if self.metric.unit == "share" else 3)
                entries.append(SheetEntry(text, sheet.numbers(footnotes), is_best))
                settings = _settings(self.names[0], row) | _settings(self.names[1], column)
                records.append(
                    {
                        **self.of,
                        **settings,
                        "metric": self.label,
                        "mean": fmean(cell.values),
                        "std": statistics.deviation(cell.values),
                        "n": len(cell.values),
                        "best": is_best,
                        "notes": "; ".join(footnotes),
                    }
                )
            sheet.rows.append(entries)
        data = {"title": self.title, "rows": records, "notes": sheet.notes, "below": sheet.below}
        return replace(sheet, records=records, data=data)

    def _best(self) -> set[tuple[Value, Value]]:
        """The cells with the best mean of their column; none of a column with one cell."""
        means = {key: self.metric.sign * fmean(cell.values) for key, cell in self.cells.items()}
        best = set[tuple[Value, Value]]()
        for column in self.axis(1) if self.metric.sign else ():
            of_column = {key: value for key, value in means.items() if key[1] == column}
            if len(of_column) > 1:
                best |= {key for key, value in of_column.items() if value == max(of_column.values())}
        return best


def arrange(
    entries: Sequence[Entry],
    rows: str | None,
    columns: str | None,
    name: str | None,
    flags: tuple[str, str] = ("--rows", "--columns"),
) -> list[Pivot]:
    """Tables of finished runs.

    Args:
        rows, columns: settings, such as ``loss``, or the end of one that varies, such as ``k``, or several of them with
            commas between; None: of the settings that the commands vary, the first and the second. Columns may be
            ``labels``.
        name: of the number; None: the main one of most runs.
        flags: what a refusal calls rows and columns.

    Raises:
        ConfigError: there is no such setting or metric, or too much else varies.
    """
    done = [entry for entry in entries if entry.run and entry.run.done]
    if not done:
        raise ConfigError("no run is finished: name others, or wait for these")
    varying, runs = differing(done), [entry.run for entry in done if entry.run]
    numbers = Numbers(runs)
    name, chosen = numbers.choose("--metric", name, runs)
    settings = [{**varying.common, **dict(zip(varying.names, values, strict=True))} for values in varying.values]
    columns = columns if columns == LABELS else _full_names(flags[1], columns, varying)
    axes = _axes(varying, _full_names(flags[0], rows, varying), columns)
    keys = [(_value(axes[0], of_run), _value(axes[1], of_run)) for of_run in settings]
    on_axes = [name for axis in axes for name in axis.split(",")]
    others = [n for n in varying.names if n not in (*on_axes, "seed") and is_hashed(n)]
    inside = [n for n in others if _varies(keys, [of_run.get(n) for of_run in settings])]
    inside = [n for n in inside if n in asked(varying)] or inside
    below = [chosen] * bool(chosen) + _between([n for n in others if n not in inside], on_axes)
    if missing := len(entries) - len(done):
        below.append(f"{missing} of {len(entries)} runs are not finished, and left out.")
    metric, tables = numbers.meaning(name), dict[str, Pivot]()
    counted = {id(run) for run in single(runs, name, numbers)}
    for run, key, of_run in zip(runs, keys, settings, strict=True):
        if id(run) not in counted:
            continue
        of = {n: of_run.get(n) for n in inside}
        values = {key: numbers.of(run)[name]}
        if columns == LABELS:
            values = {(key[0], share): value for share, value in _by_labels(numbers, run, name).items()}
        pivot = tables.setdefault(json.dumps(of), Pivot(axes, name, metric, of, {}, below))
        for place, value in values.items():
            cell = pivot.cells.setdefault(place, PivotCell())
            cell.runs.append(run)
            cell.values.append(metric.scale * value)
    _check(tables.values(), inside, others)
    return list(tables.values())


def of_all_labels(name: str) -> str:
    """The name of a number of a share of the labels without the share: ``knn/labels0.1/top1`` is ``knn/top1``."""
    return re.sub(r"/labels[0-9.e-]+(?=/)", "", name)


def _by_labels(numbers: Numbers, run: RunFolder, name: str) -> dict[Any, float]:
    """A number of a run by the share of the labels."""
    same = {other: value for other, value in numbers.of(run).items() if of_all_labels(other) == of_all_labels(name)}
    made_by = {other: run.evaluations[numbers.key(other)[1]] for other in same}
    return {made_by[other]["settings"].get("labels", 1.0): value for other, value in same.items()}


def asked(varying: Differing) -> list[str]:
    """The settings on which runs depend and which the commands vary, or all that vary, without the seed."""
    shown, names = ([n for n in part if n != "seed" and is_hashed(n)] for part in (varying.shown, varying.names))
    return shown or names


def dividing(varying: Differing, given: Collection[str]) -> list[str]:
    """The settings by which runs are divided so that those of one part differ in their seed only.

    They are those that the commands vary, and any other on which a result depends and which does not follow from them.

    Args:
        given: settings that the commands have set, which are kept even if they follow from others.
    """
    kept, rows = list[str](), varying.values
    others = [name for name in varying.names if name != "seed" and is_hashed(name)]
    for name in dict.fromkeys([*asked(varying), *others]):
        places, place = [varying.names.index(other) for other in kept], varying.names.index(name)
        parts = [tuple(row[other] for other in places) for row in rows]
        finer = {(part, row[place]) for part, row in zip(parts, rows, strict=True)}
        if (name in given and name in asked(varying)) or len(finer) > len(set(parts)):
            kept.append(name)
    return kept


def _axes(varying: Differing, row: str | None, column: str | None) -> tuple[str, str]:
    """The settings of the rows and of the columns, empty for none; the next ones that vary for None."""
    free = (name for name in asked(varying) if name not in f"{row},{column}".split(","))
    return (next(free, "") if row is None else row), (next(free, "") if column is None else column)


def _full_names(flag: str, wanted: str | None, varying: Differing) -> str | None:
    """The full names of settings with commas between; None of None."""
    names = [] if wanted is None else [_full_name(flag, name, varying) or "" for name in wanted.split(",")]
    return ",".join(names) if names else None


def _value(axis: str, of_run: Mapping[str, Value]) -> Any:
    """The value of a setting; of several a tuple."""
    values = tuple(of_run.get(name) for name in axis.split(","))
    return values if len(values) > 1 else values[0]


def _settings(axis: str, value: Any) -> dict[str, Value]:
    """The settings of an axis with their values; none if there is no such axis."""
    return dict(zip(axis.split(","), value if isinstance(value, tuple) else (value,), strict=True)) if axis else {}


def _full_name(flag: str, wanted: str | None, varying: Differing) -> str | None:
    """The full name of a setting; None of None.

    Raises:
        InvalidValue: there is no such setting, or results do not depend on it; the name of an experiment is allowed.
    """
    if wanted is None or wanted in varying.names or wanted in varying.common:
        if wanted and wanted != "name":
            check_hashed(flag, wanted)
        return wanted
    ends = [name for name in varying.names if name.endswith(f".{wanted}")]
    if len(ends) != 1:
        names = ", ".join(ends or varying.names) or "none varies"
        raise InvalidValue(flag, wanted, f"a setting of these runs, such as {names}{near(wanted, varying.names)}")
    return ends[0]


def _check(pivots: Collection[Pivot], inside: Sequence[str], others: Sequence[str]) -> None:
    """Refuse too many tables, and cells in which more than the seed varies.

    Args:
        inside: settings that vary within a cell; each of their values has a table.
        others: settings that vary beside the rows and columns.
    """
    if len(pivots) > MOST_TABLES:
        words, count = "=..., ".join(inside), f"{len(pivots)} tables, more than {MOST_TABLES}"
        raise ConfigError(f"{words}=... vary too and make {count}: set some of them")
    for cell in (cell for pivot in pivots for cell in pivot.cells.values()):
        if len({run.seed for run in cell.runs}) < len(cell.runs):
            raise ConfigError(f"two runs with one seed differ in {', '.join(others) or 'nothing'}: set some of these")


def _varies(keys: Sequence[Any], values: Sequence[Value]) -> bool:
    """Whether a setting has two values in one cell."""
    first: dict[Any, Value] = {}
    return any(first.setdefault(key, value) != value for key, value in zip(keys, values, strict=True))


def _between(names: Sequence[str], axes: Sequence[str]) -> list[str]:
    """A sentence on the settings that vary from cell to cell, without those of the groups of the axes."""
    groups = {axis.partition(".")[0] for axis in axes}
    names = [name for name in names if name.partition(".")[0] not in groups]
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return [f"Between the cells of this table also vary: {', '.join(names[:6])}{more}."] if names else []


def in_order(values: Collection[Value]) -> list[Value]:
    """Values in order: numbers, then texts."""

    def place(value: Any) -> tuple[Any, ...]:
        if isinstance(value, tuple):
            return tuple(map(place, value))
        return (0, value, "") if isinstance(value, int | float) else (1, 0, str(value))

    return sorted(values, key=place)


def text_of_value(value: Any) -> str:
    """A value as an override writes it, several with commas between; empty for None."""
    if isinstance(value, tuple):
        return ", ".join(map(text_of_value, value))
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def spread(values: Sequence[float], digits: int) -> str:
    """``mean ± std (n)``; empty without values. A mean that would be printed as 0.000 has significant digits."""
    if not values:
        return ""
    mean, std = fmean(values), statistics.deviation(values)
    form = f".{digits}f" if mean == 0 or float(f"{mean:.{digits}f}") else f".{digits}g"
    return f"{mean:{form}}" + ("" if std is None else f" ± {std:{form}}") + f" ({len(values)})"
