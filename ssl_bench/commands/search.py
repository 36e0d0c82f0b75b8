"""Base class of the sweepers that search: values of a metric on the way, and the best setting at the end."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ssl_bench import files
from ssl_bench.commands.sweeper import GridSweeper, bounds
from ssl_bench.errors import InvalidValue, require
from ssl_bench.launch import grid
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.record import evaluations, results
from ssl_bench.record.metrics import Row

NEAR = 0.05  # share of an interval, at both ends, where a value counts as near the end


class SearchSweeper(GridSweeper):
    """Compares runs by a metric.

    Args:
        metric: of the trained network, such as knn_val/top1; the larger the better.
        epochs: rising, at which the runs are compared; the last one is the epochs of every run. None: at their end.
        keep: share in (0, 1) of the runs that go on.
        group_by: a key of the grid: the best are chosen among the runs with the same value; None: among all.
    """

    def __init__(
        self,
        metric: str,
        epochs: Sequence[int] | None,
        keep: float,
        group_by: str | None,
        params: Any,
        max_batch_size: Any,
    ) -> None:
        super().__init__(params, max_batch_size)
        self.metric, self.keep, self.group_by, self.epochs = metric, keep, group_by, epochs and list(epochs)

    def check_group(self) -> None:
        """Refuse a ``group_by`` that is no key with several values."""
        swept = [key for key, override in self.space.items() if override.is_sweep_override()]
        known = self.group_by is None or self.group_by in swept
        require(known, "hydra.sweeper.group_by", self.group_by, f"a key of the grid: {', '.join(swept)}")

    def check_run(self, config: Mapping[str, Any]) -> None:
        """Refuse a run of another length, or one that is not evaluated by the metric."""
        last, evaluator = (self.epochs or [config["epochs"]])[-1], self.metric.partition("/")[0]
        require(config["epochs"] == last, "hydra.sweeper.epochs", self.epochs, f"end with epochs={config['epochs']}")
        known = [name for name, node in config["evaluate"].items() if isinstance(node, Mapping)]
        remedy = f"a metric of {', '.join(known) or 'an evaluator'}, or evaluate to one that gives it"
        require(evaluator in known, "hydra.sweeper.metric", self.metric, remedy)

    def values_at(self, epoch: int | None, numbers: Iterable[int]) -> dict[int, float | None] | None:
        """Train runs to an epoch, or to their end; the metric of each there, None for one that failed or diverged.

        A run that has come to the epoch before is not started. None: a run was interrupted.
        """
        numbers = sorted(numbers)
        there = [n for n in numbers if epoch and n not in self.finished and self._metrics(n, epoch)]
        for number in there:
            self.note(number, Outcome(State.HALTED))
        if not self.train([n for n in numbers if n not in there], [f"halt_at={epoch}"] if epoch else []):
            return None
        return {number: self._value(number, epoch) for number in numbers}

    def note(self, number: int, outcome: Outcome) -> None:
        """Record the outcome of a run that this process has not started."""
        outcome = replace(outcome, folder=str(self.folders[number]))
        grid.record(self.grid, number, list(self.numbers)[number], outcome)

    def _value(self, number: int, epoch: int | None) -> float | None:
        """The metric of a run after an epoch or at its end; at its end too if it was finished before."""
        before = number in self.finished
        if not before and grid.outcome(self.grid, number).state is State.FAILED:
            return None
        metrics = (epoch and self._metrics(number, epoch)) or self._metrics(number, None)
        if metrics and self.metric not in metrics:
            raise InvalidValue("hydra.sweeper.metric", self.metric, f"one of {', '.join(metrics)}")
        value = metrics.get(self.metric, math.nan)
        return value if math.isfinite(value) else None

    def _metrics(self, number: int, epoch: int | None) -> dict[str, float]:
        """Read what the metric's evaluator has measured after an epoch, or at the run's end; empty if nothing."""
        folder, start = self.folders[number], f"{self.metric.partition('/')[0]}/"
        if epoch is None:
            found = results.read(folder)
            metrics = evaluations.of(evaluations.entries(found), self.configs[number]) if found else {}
        else:
            rows = files.read_json_lines(folder / "metrics.jsonl", Row)
            at = [row for row in rows if abs(row.get("epoch", 0.0) - epoch) < 1e-6]
            metrics = {name: value for row in at for name, value in row.items()}
        return {name: value for name, value in metrics.items() if name.startswith(start) and isinstance(value, float)}

    def groups(self, numbers: Iterable[int]) -> dict[str, list[int]]:
        """The runs by their override of ``group_by``; all under "" without it."""
        runs, groups = list(self.numbers), dict[str, list[int]]()
        for number in numbers:
            given = [override for override in runs[number] if override.startswith(f"{self.group_by}=")]
            groups.setdefault("".join(given), []).append(number)
        return groups

    def setting(self, number: int) -> list[str]:
        """The overrides of a run whose keys have several values, without that of ``group_by``."""
        swept = [key for key, override in self.space.items() if override.is_sweep_override() and key != self.group_by]
        return [override for override in list(self.numbers)[number] if override.partition("=")[0] in swept]

    def conclude(self) -> None:
        """Write ``best.json`` in the grid's folder, and what is printed at the end: the best run of each group."""
        best, lines = list[dict[str, Any]](), list[str]()
        for name, members in self.groups(range(len(self.numbers))).items():
            ended = {number: value for number in members if (value := self._value(number, None)) is not None}
            if not ended:
                continue
            number = max(ended, key=lambda number: ended[number])
            setting, folder = self.setting(number), self.folders[number]
            entry = {"group": name, "metric": self.metric, "value": ended[number], "overrides": setting}
            best.append({**entry, "folder": str(folder)})
            edges = [f"{edge}{f' ({name})' if name else ''}: extend it" for edge in map(self._edge, setting) if edge]
            lines += [f"{' '.join([name, *setting]).strip()}: {self.metric} {ended[number]:.4g}, {folder}", *edges]
        if not best:
            return
        files.write_json(self.grid / "best.json", best)
        if re.search(r"top\d", self.metric) and "val" not in self.metric:
            remedy = "choose by knn_val/top1 or linear/val_top1, and report this one of what was chosen"
            lines.append(f"{self.metric} is measured on test images: {remedy}")
        GridSweeper.closing = "\n".join(
            ["", f"the best by {self.metric}, of the runs that went on to the end:", *lines, ""]
        )

    def _edge(self, override: str) -> str:
        """That a value is the smallest or the largest of the grid, or near an end of its interval; empty otherwise."""
        key, _, text = override.partition("=")
        swept: Any = self.space[key]
        try:
            value = float(text)
            if interval := swept.is_interval_sweep():
                low, high, log = swept.value().start, swept.value().end, "log" in swept.value().tags
            else:
                numbers = bounds(swept)[1:] if swept.is_range_sweep() else map(float, swept.sweep_string_iterator())
                low, *_, high = sorted(numbers)
                log = False
        except ValueError:
            return ""
        if key == "seed" or low == high:
            return ""
        low, high, value = (math.log(each) if log else each for each in (low, high, value))
        place = (value - low) / (high - low)
        near = NEAR if interval else 0.0
        if near < place < 1 - near:
            return ""
        if interval:
            return f"{override} is near the {'lower' if place < 0.5 else 'upper'} end of its interval"
        return f"{override} is the {'smallest' if place < 0.5 else 'largest'} of the grid"
