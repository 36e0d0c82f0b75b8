"""Parts that all searches use: what settings have after an epoch, and the best setting at the end."""

import math
import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from ssl_bench import files
from ssl_bench.config.build import find_target
from ssl_bench.config.identity import evaluators
from ssl_bench.config.values import bounds
from ssl_bench.errors import InvalidValue, require
from ssl_bench.evaluate.metric import ACCURACIES, NUMBER, Declared, declared
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.launch.plan import Ends, Plan, Strategy
from ssl_bench.launch.run import Run
from ssl_bench.record import evaluations, results, rows
from ssl_bench.results.conclusion import of_one_seed

ROUNDING = 1e-6  # of the epochs in metrics.jsonl
NEAR = 0.05  # share of an interval, at both ends, where a value counts as near the end


def every(plan: Plan) -> Strategy:
    """Train every run of a grid."""
    runs = plan.every()
    left = [run for run in runs if not run.done]
    plan.ended, plan.total = len(runs) - len(left), len(runs)
    yield left


@dataclass(frozen=True)
class Standing:
    """A setting after an epoch, or at its end.

    Attributes:
        runs: that differ in their seeds only.
        values: of the metric, of those that have one.
        failed: those that failed or diverged.
    """

    runs: Sequence[Run]
    values: Sequence[float]
    failed: Sequence[Run]

    @property
    def mean(self) -> float | None:
        """Over all seeds; None if one of them has no value."""
        return fmean(self.values) if len(self.values) == len(self.runs) else None

    @property
    def text(self) -> str:
        """The mean, and over how many seeds it is one."""
        several = f", mean of {len(self.runs)} seeds" if len(self.runs) > 1 else ""
        return f"{self.mean:.4g}{several}"


class Search:
    """Compares settings by the mean of a metric over their seeds: by the values of one epoch, of equal evaluations.

    Args:
        plan: the runs, with the settings ``hydra.sweeper`` of a search.

    Attributes:
        sign: 1 if a higher metric is better, -1 if a lower one is; known after :meth:`check`.
    """

    def __init__(self, plan: Plan) -> None:
        settings = plan.asked.sweeper
        self.plan, self.metric, self.keep = plan, settings["metric"], settings["keep"]
        self.epochs, self.group_by, self.sign = settings["epochs"], settings["group_by"], 0
        self.evaluator = self.metric.partition("/")[0]
        self.ends = dict[int, Outcome]()
        swept = plan.asked.swept
        in_grid = self.group_by is None or self.group_by in swept
        require(in_grid, "hydra.sweeper.group_by", self.group_by, f"a key of the grid: {', '.join(swept)}")

    def check(self, config: Mapping[str, Any]) -> None:
        """Refuse a run of another length, and a metric that no evaluator of a run gives or that ranks nothing."""
        last, nodes = (self.epochs or [config["epochs"]])[-1], evaluators(config["evaluate"])
        require(config["epochs"] == last, "hydra.sweeper.epochs", self.epochs, f"end with epochs={config['epochs']}")
        remedy = f"a metric of {', '.join(nodes) or 'an evaluator'}, or evaluate to one that gives it"
        require(self.evaluator in nodes, "hydra.sweeper.metric", self.metric, remedy)
        key = f"evaluate.{self.evaluator}"
        metrics: Declared = getattr(find_target(nodes[self.evaluator], key), "metrics", ACCURACIES)
        ranking = [name for name, metric in metrics.items() if metric.sign]
        remedy = f"a number of {self.evaluator} that says whether high or low is better: {', '.join(ranking) or 'none'}"
        self.sign = (declared(metrics, self.metric) or NUMBER).sign
        require(self.sign != 0, "hydra.sweeper.metric", self.metric, remedy)

    def train(self, runs: Iterable[Run], epoch: int | None) -> Generator[Sequence[Run], Ends, None]:
        """Train runs to an epoch, or to their end (None).

        A run that has come to the epoch is not started, nor one that has gone on from there.
        """
        runs = sorted({*runs}, key=lambda run: run.number)
        left = [run for run in runs if not (run.done or (run.number in self.ends and self.ends[run.number].finished))]
        there = [run for run in left if self._is_there(run, epoch)]
        for run in there:
            self.note(run, Outcome(State.HALTED))
        if todo := [run for run in left if run not in there]:
            if epoch or self.epochs:
                self.plan.ended, self.plan.total = len(runs) - len(todo), len(runs)
            self.ends |= yield [run.until(epoch) if epoch else run for run in todo]
        for run in todo if epoch else ():
            if self.ends[run.number].gone_on:
                self.note(run, Outcome(State.HALTED))

    def _is_there(self, run: Run, epoch: int | None) -> bool:
        """Whether nothing is to be trained of a run that is not done: it has its value, or can have none any more."""
        gone_on, measured = self._gone_on(run, epoch), bool(self._metrics(run, epoch))
        return (gone_on or measured) if epoch else (gone_on and measured)

    def note(self, run: Run, outcome: Outcome) -> None:
        """Record the outcome of a run that this process has not started."""
        self.ends[run.number] = replace(outcome, folder=str(run.folder))
        run.record(self.ends[run.number])

    def standing(self, runs: Sequence[Run], epoch: int | None) -> Standing:
        """The values of a setting's runs after an epoch, or at their end (None), and which of them have failed."""
        values, failed = list[float](), list[Run]()
        for run in runs:
            metrics = self._metrics(run, epoch)
            if metrics and self.metric not in metrics:
                raise InvalidValue("hydra.sweeper.metric", self.metric, f"one of {', '.join(metrics)}")
            if self.failed(run) or not math.isfinite(metrics.get(self.metric, 0.0)):
                failed.append(run)
            elif metrics:
                values.append(metrics[self.metric])
        return Standing(runs, values, failed)

    def failed(self, run: Run) -> bool:
        """Whether a run has failed in this process."""
        return run.number in self.ends and self.ends[run.number].state is State.FAILED

    def _metrics(self, run: Run, epoch: int | None) -> dict[str, float]:
        """The numbers of the metric's evaluator, with the settings of this search, after an epoch; empty without any.

        It stands in the results of a run that has ended there, or in a row of one that went on.
        """
        config = run.config | {"epochs": epoch or run.config["epochs"]}
        asked = [entry for entry in evaluations.asked(config) if entry["evaluator"] == self.evaluator]
        content, wanted = results.read(run.folder), {evaluations.mark(e) for e in asked if not e["network"]}
        metrics = evaluations.of(content["evaluations"], config) if content else {}
        if not any(name.startswith(f"{self.evaluator}/") for name in metrics):
            there = [row for row in self._rows(run) if abs(row.get("epoch", 0.0) - config["epochs"]) < ROUNDING]
            there = [row for row in there if wanted <= {*row.get("evaluations", ())}]
            metrics = {name: value for row in there for name, value in row.items() if isinstance(value, float)}
        return {name: value for name, value in metrics.items() if name.startswith(f"{self.evaluator}/")}

    def _gone_on(self, run: Run, epoch: int | None) -> bool:
        """Whether a run was trained for longer."""
        last = epoch or run.config["epochs"]
        return any(row.get("epoch", 0.0) > last + ROUNDING for row in self._rows(run))

    def _rows(self, run: Run) -> list[Any]:
        return rows.read(run.folder / "metrics.jsonl")

    def settings(self, runs: Iterable[Run]) -> dict[str, list[list[Run]]]:
        """The runs of each setting by the override of ``group_by``, "" without it: they differ in their seeds only."""
        groups = dict[str, dict[tuple[str, ...], list[Run]]]()
        for run in runs:
            given = [override for override in run.overrides if override.startswith(f"{self.group_by}=")]
            setting = tuple(override for override in run.overrides if not override.startswith("seed="))
            groups.setdefault("".join(given), {}).setdefault(setting, []).append(run)
        return {name: [*members.values()] for name, members in groups.items()}

    def setting(self, run: Run) -> list[str]:
        """The overrides of a run whose keys have several values, without its seed and that of ``group_by``."""
        keys = {*self.plan.asked.swept} - {self.group_by, "seed"}
        return [override for override in run.overrides if override.partition("=")[0] in keys]

    def words(self, standing: Standing) -> str:
        """The name of a setting in sentences: its overrides whose keys have several values."""
        keys = {*self.plan.asked.swept} - {"seed"}
        return " ".join(o for o in standing.runs[0].overrides if o.partition("=")[0] in keys)

    def left_out(self, standing: Standing) -> str:
        """Say that a setting has no mean though some of its seeds have a value, and why; empty if that is not so."""
        if not standing.failed or len(standing.failed) == len(standing.runs):
            return ""
        failed = f"{len(standing.failed)} of its {len(standing.runs)} seeds failed or diverged"
        return f"{self.words(standing)} is left out: {failed}"

    def conclude(self) -> None:
        """Write ``best.json`` in the grid's folder, and what is printed at the end: the best setting of each group."""
        best, lines, groups = list[dict[str, Any]](), list[str](), self.settings(self.plan.runs.values())
        for name, members in groups.items():
            standings = [self.standing(runs, None) for runs in members]
            ended = {place: s.mean for place, s in enumerate(standings) if s.mean is not None}
            lines += filter(None, map(self.left_out, standings))
            if not ended:
                continue
            standing = standings[max(ended, key=lambda place: self.sign * ended[place])]
            setting, folders = self.setting(standing.runs[0]), [str(run.folder) for run in standing.runs]
            entry = {"group": name, "metric": self.metric, "value": standing.mean, "n": len(folders)}
            best.append({**entry, "overrides": setting, "folders": folders})
            edges = [f"{edge}{f' ({name})' if name else ''}: extend it" for edge in map(self._edge, setting) if edge]
            place = f", {folders[0]}" if len(folders) == 1 else ""
            lines += [f"{' '.join([name, *setting]).strip()}: {self.metric} {standing.text}{place}", *edges]
        if not best or self.plan.folder is None:
            return
        files.write_json(self.plan.folder / "best.json", best)
        if re.search(r"top\d", self.metric) and "val" not in self.metric:
            remedy = "choose by knn_val/top1 or linear/val_top1, and report this one of what was chosen"
            lines.append(f"{self.metric} is measured on test images: {remedy}")
        most = max(len(members) for members in groups.values())
        if most > 1 and any(entry["n"] == 1 for entry in best):
            there = [run.folder for run in self.plan.runs.values() if run.folder.exists()]
            lines.append(of_one_seed(most, there, self.metric))
        title = f"the best by {self.metric}, of the settings that went on to the end:"
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
        if low == high:
            return ""
        low, high, value = (math.log(number) if log else number for number in (low, high, value))
        place = (value - low) / (high - low)
        near = NEAR if interval else 0.0
        if near < place < 1 - near:
            return ""
        if interval:
            return f"{override} is near the {'lower' if place < 0.5 else 'upper'} end of its interval"
        return f"{override} is the {'smallest' if place < 0.5 else 'largest'} of the grid"
