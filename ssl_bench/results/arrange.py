"""Runs arranged by two settings: a table or a figure of any grid.

Only runs that differ in nothing but the seed have a mean. A setting that varies within a place of the table splits it
into several tables; one that varies only from place to place is named below it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from ssl_bench.config.build import near
from ssl_bench.config.identity import NOT_IN_RUN_ID
from ssl_bench.errors import ConfigError, InvalidValue
from ssl_bench.evaluate.metric import Metric
from ssl_bench.record.printing import Sheet, SheetEntry
from ssl_bench.record.results import mixed
from ssl_bench.results import metrics, statistics
from ssl_bench.results.differing import Value, differing
from ssl_bench.results.runs import RunFolder
from ssl_bench.results.scan import Entry

MOST_TABLES = 12  # tables that one command prints


def notes(runs: Sequence[RunFolder]) -> list[str]:
    """Footnotes of a mean over runs: what it mixes, and what the runs warn of."""
    warned = [f"seed {run.seed}: {sentence}" for run in runs for sentence in run.warnings]
    return [*filter(None, [mixed(run.environment for run in runs)]), *warned]


@dataclass(frozen=True)
class Place:
    """The runs in a row and a column, which differ in their seeds only.

    Attributes:
        values: of the metric, a share in percent.
    """

    runs: list[RunFolder]
    values: list[float]


@dataclass(frozen=True)
class Pivot:
    """A table of runs.

    Attributes:
        names: the setting of the rows and that of the columns; a name is empty if there is none.
        of: the settings that distinguish it from the other tables.
        places: by the values of both.
        told: sentences on what else varies and what is missing.
    """

    names: tuple[str, str]
    name: str
    metric: Metric
    of: dict[str, Value]
    places: dict[tuple[Value, Value], Place] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

    def axis(self, which: int) -> list[Value]:
        """The values of the rows (0) or columns (1), in order."""
        values = {key[which] for key in self.places}
        return sorted(
            values, key=lambda v: (not isinstance(v, int | float), v if isinstance(v, int | float) else 0, str(v))
        )

    @property
    def label(self) -> str:
        """The metric with its unit."""
        return f"{self.name} (%)" if self.metric.unit == "share" else self.name

    @property
    def title(self) -> str:
        """The metric, and what distinguishes the table."""
        return ", ".join([self.label, *(f"{name}={text_of_value(value)}" for name, value in self.of.items())])

    def sheet(self) -> Sheet:
        """The table as text: mean ± deviation (runs), the best of a column bold."""
        row, column = self.names
        columns, rows = self.axis(1), self.axis(0)
        heads = [f"{column}={text_of_value(value)}" if column else self.label for value in columns]
        sheet = Sheet([row, *heads], title=self.title, below=list(self.told))
        means = {key: self.metric.sign * fmean(place.values) for key, place in self.places.items()}
        records = []
        for r in rows:
            entries = [SheetEntry(text_of_value(r))]
            for c in columns:
                if (place := self.places.get((r, c))) is None:
                    entries.append(SheetEntry())
                    continue
                rivals = [means[key] for key in means if key[1] == c]
                best = self.metric.sign != 0 and len(rivals) > 1 and means[r, c] == max(rivals)
                told = notes(place.runs)
                text = spread(place.values, 2 if self.metric.unit == "share" else 3)
                entries.append(SheetEntry(text, sheet.numbers(told), best))
                known = self.of | {name: value for name, value in zip(self.names, (r, c), strict=True) if name}
                numbers = {
                    "mean": fmean(place.values),
                    "std": statistics.deviation(place.values),
                    "n": len(place.values),
                }
                records.append(known | {"metric": self.label} | numbers | {"best": best, "notes": "; ".join(told)})
            sheet.rows.append(entries)
        data = {"title": self.title, "rows": records, "notes": sheet.notes, "below": sheet.below}
        return replace(sheet, records=records, data=data)


def arrange(entries: Sequence[Entry], rows: str | None, columns: str | None, name: str | None) -> list[Pivot]:
    """Tables of finished runs.

    Args:
        rows, columns: settings, such as ``loss``, or the end of one that varies, such as ``k``; None: of the settings
            that the commands vary, the first and the second.
        name: of the metric; None: the one that most runs have.

    Raises:
        ConfigError: there is no such setting or metric, or too much else varies.
    """
    done = [entry for entry in entries if entry.run and entry.run.done]
    if not done:
        raise ConfigError("no run is finished: name others, such as name=grid, or wait for these")
    found = differing(done)
    asked = [each for each in found.shown if each != "seed"] or [each for each in found.names if each != "seed"]
    taken = [_named(flag, each, found.names, found.common) for flag, each in (("--rows", rows), ("--columns", columns))]
    free = [each for each in asked if each not in taken]
    names = [each if each is not None else (free.pop(0) if free else "") for each in taken]
    runs = [entry.run for entry in done if entry.run]
    name = name or next(iter(metrics.usual(runs)), None)
    if name is None or not any(name in run.metrics for run in runs):
        known = sorted({each for run in runs for each in run.metrics})
        raise InvalidValue("--metric", name or "", f"one of {', '.join(known)}{near(name or '', known)}")
    settings = [{**found.common, **dict(zip(found.names, values, strict=True))} for values in found.values]
    keys = [tuple(each.get(n) if n else None for n in names) for each in settings]
    others = [n for n in found.names if n not in (*names, "seed") and n.partition(".")[0] not in NOT_IN_RUN_ID]
    inside = [n for n in others if _varies(keys, [each.get(n) for each in settings])]
    inside = [n for n in inside if n in asked] or inside
    told = _told(
        [n for n in others if n not in inside and n.partition(".")[0] not in {m.partition(".")[0] for m in names}]
    )
    missing = len(entries) - len(done)
    told += [f"{missing} of {len(entries)} runs are not finished, and left out."] * bool(missing)
    metric, tables = metrics.metric_of(name, runs), dict[str, Pivot]()
    for run, key, each in zip(runs, keys, settings, strict=True):
        if name not in run.metrics:
            continue
        of = {n: each.get(n) for n in inside}
        pivot = tables.setdefault(json.dumps(of), Pivot((names[0], names[1]), name, metric, of, {}, told))
        place = pivot.places.setdefault((key[0], key[1]), Place([], []))
        place.runs.append(run)
        place.values.append(metric.scale * run.metrics[name])
    if len(tables) > MOST_TABLES:
        words, count = "=..., ".join(inside), f"{len(tables)} tables, more than {MOST_TABLES}"
        raise ConfigError(f"{words}=... vary too and make {count}: set some of them")
    for pivot in tables.values():
        for place in pivot.places.values():
            if len({run.seed for run in place.runs}) < len(place.runs):
                raise ConfigError(
                    f"two runs with one seed differ in {', '.join(others) or 'nothing'}: set some of these"
                )
    return list(tables.values())


def _named(flag: str, wanted: str | None, varying: Sequence[str], common: dict[str, Value]) -> str | None:
    """The full name of a setting; None of None."""
    if wanted is None or wanted in varying or wanted in common:
        return wanted
    ends = [name for name in varying if name.endswith(f".{wanted}")]
    if len(ends) != 1:
        known = ", ".join(ends or varying) or "none varies"
        raise InvalidValue(flag, wanted, f"a setting of these runs, such as {known}{near(wanted, varying)}")
    return ends[0]


def _varies(keys: Sequence[Any], values: Sequence[Value]) -> bool:
    """Whether a setting has two values in one place."""
    first: dict[Any, Value] = {}
    return any(first.setdefault(key, value) != value for key, value in zip(keys, values, strict=True))


def _told(names: Sequence[str]) -> list[str]:
    """A sentence on the settings that vary from place to place."""
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return [f"Between the places of this table also vary: {', '.join(names[:6])}{more}."] if names else []


def text_of_value(value: Value) -> str:
    """A value as an override writes it; empty for None."""
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def spread(values: Sequence[float], digits: int) -> str:
    """``mean ± std (n)``; empty without values. A mean that would be printed as 0.000 has significant digits."""
    if not values:
        return ""
    mean, std = fmean(values), statistics.deviation(values)
    form = f".{digits}f" if mean == 0 or float(f"{mean:.{digits}f}") else f".{digits}g"
    return f"{mean:{form}}" + ("" if std is None else f" ± {std:{form}}") + f" ({len(values)})"
