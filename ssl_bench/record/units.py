"""The metrics of a run's numbers: ``units`` of ``results.json``, {evaluator: {name: {"unit", "better", "of"}}}."""

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from ssl_bench.evaluate.metric import ACCURACIES, NUMBER, Declared, Metric, declared


def written(evaluators: Mapping[str, Declared], names: Iterable[str]) -> dict[str, dict[str, dict[str, str]]]:
    """The units of some metrics, to be recorded.

    Args:
        evaluators: what each declares, by name.
        names: of the metrics that there are.
    """
    there = {evaluator_of(name) for name in names}
    return {name: {p: vars(m) for p, m in of.items()} for name, of in evaluators.items() if name in there}


def metric(name: str, units: Any) -> Metric:
    """The unit of a number of a run, and whether high or low is better; ``NUMBER`` if nobody says it.

    Args:
        units: of ``results.json``; empty or None: it has none, and what is named like an accuracy is one.
    """
    recorded, end = (units or {}).get(evaluator_of(name), {}), name.rpartition("/")[2]
    of = next((of for pattern, of in recorded.items() if fnmatchcase(end, pattern)), None)
    return Metric(of["unit"], of["better"], of["of"]) if of else declared(ACCURACIES, name) or NUMBER


@cache
def evaluator_of(name: str) -> str:
    """The evaluator of a metric: ``knn`` of ``knn_init/top1`` and ``knn[k=5]/top1``."""
    return re.sub(r"(_init|_raw)?(\[.*\])?(_init|_raw)?/.*", "", name, flags=re.DOTALL)


@cache
def baseline(name: str) -> bool:
    """Whether a metric is that of a network at initialisation or of raw pixels."""
    return re.sub(r"\[.*\]", "", name).partition("/")[0].endswith(("_init", "_raw"))


def main(names: Iterable[str], units: Any) -> list[str]:
    """The main metrics of a run: of each evaluator and probe the first that says what is better."""
    by_probe: dict[str, str] = {}
    for name in names:
        if not baseline(name) and metric(name, units).sign:
            start, _, end = name.rpartition("/")
            by_probe[start] = name if end == "top1" else by_probe.get(start, name)
    return list(by_probe.values())
