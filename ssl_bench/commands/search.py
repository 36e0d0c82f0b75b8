"""Parts that all searches use: values of a metric on the way, groups, and the best setting at the end."""

import math
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ssl_bench import files
from ssl_bench.config.values import bounds
from ssl_bench.errors import InvalidValue, require
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.launch.plan import Ends, Plan, Strategy
from ssl_bench.launch.run import Run
from ssl_bench.record import evaluations, results, rows

NEAR = 0.05  # share of an interval, at both ends, where a value counts as near the end


def every(plan: Plan) -> Strategy:
    """Train every run of a grid."""
    runs = plan.every()
    left = [run for run in runs if not run.done]
    plan.ended, plan.total = len(runs) - len(left), len(runs)
    yield left


class Search:
    """Compares runs by a metric.

    Args:
        plan: the runs, with the settings ``hydra.sweeper`` of a search.
    """

    def __init__(self, plan: Plan) -> None:
        settings = plan.asked.sweeper
        self.plan, self.metric, self.keep = plan, settings["metric"], settings["keep"]
        self.epochs, self.group_by = settings["epochs"], settings["group_by"]
        self.ends = dict[int, Outcome]()
        swept = plan.asked.swept
        in_grid = self.group_by is None or self.group_by in swept
        require(in_grid, "hydra.sweeper.group_by", self.group_by, f"a key of the grid: {', '.join(swept)}")

    def check(self, config: Mapping[str, Any]) -> None:
        """Refuse a run of another length, or one that is not evaluated by the metric."""
        last, evaluator = (self.epochs or [config["epochs"]])[-1], self.metric.partition("/")[0]
        require(config["epochs"] == last, "hydra.sweeper.epochs", self.epochs, f"end with epochs={config['epochs']}")
        evaluators = [name for name, node in config["evaluate"].items() if isinstance(node, Mapping)]
        remedy = f"a metric of {', '.join(evaluators) or 'an evaluator'}, or evaluate to one that gives it"
        require(evaluator in evaluators, "hydra.sweeper.metric", self.metric, remedy)

    def values_at(
        self, epoch: int | None, runs: Iterable[Run]
    ) -> Generator[Sequence[Run], Ends, dict[int, float | None]]:
        """Train runs to an epoch, or to their end; the metric of each there, None for one that failed or diverged.

        A run that has come to the epoch before is not started.
        """
        runs = sorted(runs, key=lambda run: run.number)
        there = [run for run in runs if epoch and not run.done and self._metrics(run, epoch)]
        for run in there:
            self.note(run, Outcome(State.HALTED))
        if todo := [run for run in runs if run not in there and not run.done]:
            if epoch or self.epochs:
                self.plan.ended, self.plan.total = len(runs) - len(todo), len(runs)
            self.ends |= yield [run.until(epoch) if epoch else run for run in todo]
        return {run.number: self._value(run, epoch) for run in runs}

    def note(self, run: Run, outcome: Outcome) -> None:
        """Record the outcome of a run that this process has not started."""
        self.ends[run.number] = replace(outcome, folder=str(run.folder))
        run.record(self.ends[run.number])

    def _value(self, run: Run, epoch: int | None) -> float | None:
        """The metric of a run after an epoch or at its end; at its end too if it was finished before."""
        if run.number in self.ends and self.ends[run.number].state is State.FAILED:
            return None
        metrics = (epoch and self._metrics(run, epoch)) or self._metrics(run, None)
        if metrics and self.metric not in metrics:
            raise InvalidValue("hydra.sweeper.metric", self.metric, f"one of {', '.join(metrics)}")
        value = metrics.get(self.metric, math.nan)
        return value if math.isfinite(value) else None

    def _metrics(self, run: Run, epoch: int | None) -> dict[str, float]:
        """Read what the metric's evaluator has measured after an epoch, or at the run's end; empty if nothing."""
        start = f"{self.metric.partition('/')[0]}/"
        if epoch is None:
            content = results.read(run.folder)
            metrics = evaluations.of(evaluations.entries(content), run.config) if content else {}
        else:
            recorded = rows.read(run.folder / "metrics.jsonl", run.config)
            at = [row for row in recorded if abs(row.get("epoch", 0.0) - epoch) < 1e-6]
            metrics = {name: value for row in at for name, value in row.items()}
        return {name: value for name, value in metrics.items() if name.startswith(start) and isinstance(value, float)}

    def groups(self, runs: Iterable[Run]) -> dict[str, list[Run]]:
        """The runs by their override of ``group_by``; all under "" without it."""
        groups = dict[str, list[Run]]()
        for run in runs:
            given = [override for override in run.overrides if override.startswith(f"{self.group_by}=")]
            groups.setdefault("".join(given), []).append(run)
        return groups

    def setting(self, run: Run) -> list[str]:
        """The overrides of a run whose keys have several values, without that of ``group_by``."""
        keys = {*self.plan.asked.swept} - {self.group_by}
        return [override for override in run.overrides if override.partition("=")[0] in keys]

    def conclude(self) -> None:
        """Write ``best.json`` in the grid's folder, and what is printed at the end: the best run of each group."""
        best, lines = list[dict[str, Any]](), list[str]()
        for name, members in self.groups(self.plan.runs.values()).items():
            ended = {run: value for run in members if (value := self._value(run, None)) is not None}
            if not ended:
                continue
            run = max(ended, key=lambda run: ended[run])
            setting = self.setting(run)
            entry = {"group": name, "metric": self.metric, "value": ended[run], "overrides": setting}
            best.append({**entry, "folder": str(run.folder)})
            edges = [f"{edge}{f' ({name})' if name else ''}: extend it" for edge in map(self._edge, setting) if edge]
            lines += [f"{' '.join([name, *setting]).strip()}: {self.metric} {ended[run]:.4g}, {run.folder}", *edges]
        if not best or self.plan.folder is None:
            return
        files.write_json(self.plan.folder / "best.json", best)
        if re.search(r"top\d", self.metric) and "val" not in self.metric:
            remedy = "choose by knn_val/top1 or linear/val_top1, and report this one of what was chosen"
            lines.append(f"{self.metric} is measured on test images: {remedy}")
        title = f"the best by {self.metric}, of the runs that went on to the end:"
        self.plan.closing = "\n".join(["", title, *lines, ""])

    def _edge(self, override: str) -> str:
        """That a value is the smallest or the largest of the grid, or near an end of its interval; empty otherwise."""
        key, _, text = override.partition("=")
        swept: Any = self.plan.asked.space[key]
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
        low, high, value = (math.log(number) if log else number for number in (low, high, value))
        place = (value - low) / (high - low)
        near = NEAR if interval else 0.0
        if near < place < 1 - near:
            return ""
        if interval:
            return f"{override} is near the {'lower' if place < 0.5 else 'upper'} end of its interval"
        return f"{override} is the {'smallest' if place < 0.5 else 'largest'} of the grid"
