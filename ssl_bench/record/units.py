"""The metrics of a run's numbers: ``units`` of ``results.json``, {evaluator: {name: {"unit", "better", "of"}}}.

A run that has no results yet has those that the classes of its evaluators declare.
"""

import importlib
import re
from collections.abc import Iterable, Mapping
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


def metric(name: str, units: Any, evaluate: Any) -> Metric:
    """The unit of a number of a run, and whether high or low is better; ``NUMBER`` if nobody says it.

    Args:
        units: of ``results.json``, empty or None if it has none.
        evaluate: the node of the run's configuration.
    """
    evaluator = evaluator_of(name)
    recorded, node = (units or {}).get(evaluator), (evaluate or {}).get(evaluator)
    known = (
        ACCURACIES if recorded is None else {p: Metric(u["unit"], u["better"], u["of"]) for p, u in recorded.items()}
    )
    target = node.get("_target_") if isinstance(node, Mapping) else None
    return declared(known, name) or declared(_of_class(target), name) or NUMBER


def evaluator_of(name: str) -> str:
    """The evaluator of a metric: ``knn`` of ``knn_init/top1`` and ``knn[k=5]/top1``."""
    return re.sub(r"(_init|_raw)?(\[.*\])?(_init|_raw)?/.*", "", name, flags=re.DOTALL)


def baseline(name: str) -> bool:
    """Whether a metric is that of a network at initialisation or of raw pixels."""
    return re.sub(r"\[.*\]", "", name).partition("/")[0].endswith(("_init", "_raw"))


def main(names: Iterable[str], units: Any, evaluate: Any) -> list[str]:
    """The main metrics of a run: of each evaluator and probe the first that says what is better."""
    by_probe: dict[str, str] = {}
    for name in names:
        if not baseline(name) and metric(name, units, evaluate).sign:
            start, _, end = name.rpartition("/")
            by_probe[start] = name if end == "top1" else by_probe.get(start, name)
    return list(by_probe.values())


@cache
def _of_class(target: Any) -> Declared:
    """The metrics that an evaluator of this package declares; none of another's, whose code only a training may run."""
    module, _, name = str(target).rpartition(".")
    if not module.startswith("ssl_bench.evaluate."):
        return {}
    try:
        return getattr(getattr(importlib.import_module(module), name), "metrics", {})
    except (ImportError, AttributeError):  # of another version
        return {}
