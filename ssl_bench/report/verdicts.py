"""The answers about an experiment: what matters, and a comparison by each setting, as ``compare`` has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ssl_bench.errors import ConfigError, printable
from ssl_bench.record.printing import Sheet
from ssl_bench.record.runs import Key
from ssl_bench.results import table as runs_table
from ssl_bench.results.comparison import compare
from ssl_bench.results.matters import what_matters

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_METRICS = 6  # that are compared: those that most runs have


def of(table: DataFrame, names: Mapping[Key, str]) -> dict[str, dict[str, Any]]:
    """For each metric of an experiment ``left_out``, ``matters`` and ``verdicts``, with the texts of their tables.

    Args:
        names: of the numbers among all runs of the report. Among those of the experiment a number may have a shorter
            name, since fewer evaluations are to be distinguished.
    """
    compared_metrics, settings = runs_table.usual(table)[:MOST_METRICS], runs_table.varying(table)
    answers: dict[str, dict[str, Any]] = {"left_out": {}, "matters": {}, "verdicts": {}}
    for key, name in runs_table.name_numbers(table["run"]).items():
        if name not in compared_metrics or names[key] in answers["left_out"]:
            continue
        answers["left_out"][names[key]] = [*map(printable, "\n".join(runs_table.left_out(table, name)).splitlines())]
        answers["matters"][names[key]] = _matters(table, name)
        answers["verdicts"][names[key]] = [sheet for by in settings if (sheet := _sheet(table, by, name))]
    return answers


def _matters(table: DataFrame, metric: str) -> dict[str, Any]:
    """The settings that matter, with the texts of their table; of runs that cannot be compared the title says why."""
    try:
        matters = what_matters(table, metric)
    except ConfigError as error:  # nothing varies, or settings vary together
        return {"settings": [], **_texts(Sheet([], title=str(error)))}
    return matters.data | _texts(matters.sheet())


def _sheet(table: DataFrame, by: str, metric: str) -> dict[str, Any] | None:
    """A comparison with the texts of its table; None if there is nothing to compare."""
    try:
        compared = compare(table, by, metric=metric)
    except ConfigError:  # these runs have one value of it, or none has the metric
        return None
    return compared.record() | {"by": by} | _texts(compared.sheet()) if compared.rows else None


def _texts(sheet: Sheet) -> dict[str, Any]:
    """The texts of a sheet: ``title``, ``columns``, ``rows``, ``notes``, and the lines ``below`` it."""
    marks = {number: f" [{number}]" for number in range(1, len(sheet.notes) + 1)}
    rows = [[printable(entry.text) + "".join(marks[n] for n in entry.notes) for entry in row] for row in sheet.rows]
    below = [printable(line) for part in (*sheet.below, *sheet.commands) for line in part.splitlines()]
    words = {"columns": sheet.columns, "rows": rows, "notes": sheet.notes, "below": below}
    return words | {"title": printable(sheet.title)}
