"""What matters among an experiment's runs, and comparisons by each setting that varies, as ``compare`` says it."""

from collections.abc import Iterable, Sequence
from typing import Any

from ssl_bench.errors import ConfigError, printable
from ssl_bench.results.comparison import compare
from ssl_bench.results.matters import what_matters
from ssl_bench.results.numbers import Numbers
from ssl_bench.results.runs import RunFolder
from ssl_bench.results.scan import Entry

MOST_METRICS = 6  # metrics that have comparisons, those that most runs have first


def of_runs(runs: Sequence[RunFolder], settings: Iterable[str], numbers: Numbers) -> dict[str, list[dict[str, Any]]]:
    """The comparisons by metric, with the texts of a table, for each setting that has several values."""
    done, by_all = [run for run in runs if run.done], list(settings)
    metrics = numbers.usual(done)[:MOST_METRICS]
    by_metric = {metric: [_sheet(done, by, metric, numbers) for by in by_all] for metric in metrics}
    return {metric: [sheet for sheet in sheets if sheet] for metric, sheets in by_metric.items()}


def matters(entries: Sequence[Entry], numbers: Numbers) -> dict[str, dict[str, Any]]:
    """What matters, by metric, with the texts of its table; nothing for runs whose shares cannot be told apart."""
    metrics = numbers.usual(entry.run for entry in entries if entry.run and entry.run.done)[:MOST_METRICS]
    by_metric = dict[str, dict[str, Any]]()
    for metric in metrics:
        try:
            told = what_matters(entries, metric, numbers)
        except ConfigError:  # nothing varies, or settings vary together
            continue
        sheet = told.sheet()
        rows = [[printable(entry.text) for entry in row] for row in sheet.rows]
        below = [printable(line) for part in sheet.below if part != told.sentence for line in part.splitlines()]
        words = {"columns": sheet.columns, "rows": rows, "below": below, "unit": told.label}
        by_metric[metric] = told.record() | words | {"sentence": printable(told.sentence)}
    return by_metric


def _sheet(runs: Sequence[RunFolder], by: str, metric: str, numbers: Numbers) -> dict[str, Any] | None:
    """A comparison with the texts of its table; None if there is nothing to compare."""
    try:
        compared = compare(runs, by, metric=metric, numbers=numbers)
    except ConfigError:  # these runs have one value of it, or none has the metric
        return None
    sheet = compared.sheet()
    marks = {number: f" [{number}]" for number in range(1, len(sheet.notes) + 1)}
    rows = [[printable(entry.text) + "".join(marks[n] for n in entry.notes) for entry in row] for row in sheet.rows]
    place = sheet.columns.index("verdict")  # second: on a phone the first columns are seen
    columns, *rows = ([row[0], row[place], *row[1:place], *row[place + 1 :]] for row in [[*sheet.columns], *rows])
    words = {"by": by, "title": sheet.title, "columns": columns, "rows": rows, "notes": sheet.notes}
    return compared.record() | words | {"below": [printable(line) for line in sheet.below]} if rows else None
