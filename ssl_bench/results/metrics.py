"""The meaning of the numbers of runs: for printing and sorting, for the best run, for comparisons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ssl_bench.evaluate.metric import NUMBER, Metric
from ssl_bench.record import units
from ssl_bench.results.runs import RunFolder


def metric(name: str, run: RunFolder) -> Metric:
    """The unit of a number of a run, and what is better."""
    return units.metric(name, run.units, run.config.get("evaluate"))


def metric_of(name: str, runs: Iterable[RunFolder]) -> Metric:
    """The same of a number of some runs, as the first says that has it."""
    return next((metric(name, run) for run in runs if name in run.metrics or name in run.best), NUMBER)


def usual(runs: Iterable[RunFolder]) -> list[str]:
    """The main metrics of runs, the one that most runs have first."""
    return [name for name, _ in Counter(name for run in runs for name in run.best).most_common()]
