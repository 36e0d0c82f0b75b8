"""The numbers of a set of runs: each is a value with the evaluation that made it, and has a name in the set.

A metric that one evaluation made in all of the runs has its own name, ``knn/top1``. If several did, what they differ in
tells them apart, for all of them: ``knn[k=20]/top1`` and ``knn[k=1]/top1``. All commands read numbers in this way.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ssl_bench.config.build import near
from ssl_bench.errors import ConfigError, InvalidValue
from ssl_bench.evaluate.metric import NUMBER, Metric
from ssl_bench.record import evaluations, units
from ssl_bench.record.evaluations import Key
from ssl_bench.results.runs import RunFolder


class Numbers:
    """The numbers of some runs.

    Args:
        runs: the set in which a name means one thing.

    Attributes:
        names: of all numbers, in the order in which runs have them.
        metrics: of all numbers; a name has more in it where several evaluations have made one.
    """

    def __init__(self, runs: Iterable[RunFolder]) -> None:
        self._first: dict[Key, RunFolder] = {}  # a run that has the number
        made_by: dict[str, dict[str, Mapping[str, Any]]] = {}  # by metric
        for run in runs:
            for key, metrics in run.numbers.items():
                for metric in metrics:
                    if (metric, key) not in self._first:
                        self._first[metric, key] = run
                        made_by.setdefault(metric, {})[key] = run.evaluations[key]
        self._names = evaluations.names(made_by)
        self._keys = {name: key for key, name in self._names.items()}
        self.names, self.metrics = list(self._keys), set(made_by)
        self._main: dict[tuple[Any, ...], list[tuple[str, str, str]]] = {}  # by what runs have in common

    def of(self, run: RunFolder | None) -> dict[str, float]:
        """The numbers of a run by name; none of a run that is still to be made."""
        if run is None:
            return {}
        return {self._names[metric, key]: v for key, metrics in run.numbers.items() for metric, v in metrics.items()}

    def value(self, name: str, run: RunFolder) -> float | None:
        """One number of a run; None if it does not have it."""
        metric, key = self._keys[name]
        return run.numbers.get(key, {}).get(metric)

    def key(self, name: str) -> Key:
        """The metric of a name, and what made it."""
        return self._keys[name]

    def meaning(self, name: str) -> Metric:
        """The unit of a number, and what is better; of a curve too, whose name says what it means in any run."""
        metric, key = self._keys.get(name, (name, ""))
        run = self._first.get((metric, key)) or next(iter(self._first.values()), None)
        if run is None:
            return NUMBER
        evaluate = evaluations.node(run.evaluations[key]) if key else run.config.get("evaluate")
        return units.metric(metric, run.units, evaluate)

    def main(self, run: RunFolder | None) -> dict[str, float]:
        """The main numbers of a run, those that are finite."""
        if run is None:
            return {}
        pattern = (id(run.units), *((key, *metrics) for key, metrics in run.numbers.items()))
        if pattern not in self._main:
            self._main[pattern] = [
                (self._names[metric, key], metric, key)
                for key, metrics in run.numbers.items()
                for metric in units.main(metrics, run.units, evaluations.node(run.evaluations[key]))
            ]
        pairs = ((name, run.numbers[key][metric]) for name, metric, key in self._main[pattern])
        return {name: value for name, value in pairs if math.isfinite(value)}

    def usual(self, runs: Iterable[RunFolder | None]) -> list[str]:
        """The main numbers of runs, the one that most of them have first."""
        return [name for name, _ in Counter(name for run in runs for name in self.main(run)).most_common()]

    def choose(self, flag: str, wanted: str | None, runs: Sequence[RunFolder]) -> tuple[str, str]:
        """The name of the number that a command asks for, and a sentence if it had to be chosen among several.

        Args:
            wanted: its name; a metric that several evaluations made if only one of them is in all of the runs; None:
                the main number of most runs.

        Raises:
            InvalidValue: no run has it, or it may be several.
        """
        if wanted is None and (usual := self.usual(runs)):
            return usual[0], ""
        if wanted in self._keys:
            return wanted, ""
        several = [name for name, (metric, _) in self._keys.items() if metric == wanted]
        common = [name for name in several if all(self.value(name, run) is not None for run in runs)]
        if len(common) == 1:
            return common[0], f"{wanted} is {common[0]}, which all of these runs have."
        if several:
            raise InvalidValue(flag, wanted, f"one of {', '.join(several)}: several evaluations have made it")
        raise InvalidValue(
            flag, wanted or "", f"one of {', '.join(sorted(self.names))}{near(wanted or '', self.names)}"
        )


def single(runs: Iterable[RunFolder], name: str, numbers: Numbers) -> list[RunFolder]:
    """The runs that have a number, each training with its seed once, although it may stand in several folders.

    Raises:
        ConfigError: two folders have the same training and seed, and other numbers.
    """
    first: dict[tuple[Any, ...], RunFolder] = {}
    for run in runs:
        value = numbers.value(name, run)
        if value is None:
            continue
        training = run.training, *sorted(run.on_disk.items()), run.config.get("epochs")
        other = first.setdefault((*training, run.seed), run)
        before = numbers.value(name, other)
        if value != before and not (math.isnan(value) and before is not None and math.isnan(before)):
            raise ConfigError(
                f"{name} of one training and seed is {before:.6g} in {other.folder} and {value:.6g} in {run.folder}: "
                "leave one of the folders out"
            )
    return list(first.values())
