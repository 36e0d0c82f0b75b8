"""Evaluate the network of a training on the way and at its end, and write ``results.json``. All ranks take part."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.distributed import broadcast, rank
from ssl_bench.evaluate.artifacts import Artifact
from ssl_bench.evaluate.run import doubts, run_evaluators
from ssl_bench.hardware import move
from ssl_bench.record import baselines, evaluations, hits, plots, units
from ssl_bench.record.environment import environment, now, peak_memory
from ssl_bench.record.evaluations import Entry
from ssl_bench.record.metrics import Row, Tracker
from ssl_bench.seeding import rng_state, set_rng_state
from ssl_bench.training.optim import Schedule
from ssl_bench.training.parts import Parts
from ssl_bench.training.precision import Precision
from ssl_bench.training.state import TrainingState
from ssl_bench.training.watch import warnings_of

log = logging.getLogger("ssl_bench")


class Evaluation:
    """The evaluations of one run.

    Args:
        parts, state, schedule, precision: of its training.
    """

    def __init__(self, parts: Parts, state: TrainingState, schedule: Schedule, precision: Precision) -> None:
        self.config, self.parts, self.state = parts.config, parts, state
        self.schedule, self.precision = schedule, precision

    def if_due(self, tracker: Tracker | None) -> bool:
        """Evaluate the network if ``evaluate.every`` asks for it at this step; return whether it did."""
        step, every = self.state.step, self.config["evaluate"]["every"] * self.schedule.steps_per_epoch
        if not every or step % every or step in (0, self.state.evaluated_step, self.schedule.last_step):
            return False
        self.on_the_way(tracker)
        return True

    def on_the_way(self, tracker: Tracker | None) -> None:
        """Evaluate the network, without baselines, and write a row."""
        step, trained = self.state.step, [e for e in evaluations.asked(self.config) if not e["network"]]
        found, _ = self._evaluate(trained)
        if tracker is not None:
            metrics = {name: value for entry in found for name, value in entry["metrics"].items()}
            tracker.row(step, {"epoch": self.schedule.epoch(step), **metrics})
        self.state.evaluated_step = step

    def finish(
        self,
        run_id: str,
        folder: Path,
        known: Sequence[Entry],
        trained: Mapping[str, Any] | None,
        facts: Mapping[str, Any],
        tracker: Tracker | None,
    ) -> None:
        """Evaluate what the run lacks, and write its results.

        Args:
            known: the entries that it has already.
            trained: its ``results.json``, if it was trained by an earlier process.
        """
        found, artifacts = self._evaluate(evaluations.missing(known, self.config), known)
        if tracker is None:
            return
        entries = [*known, *(hits.written(folder, entry) for entry in found)]
        content = self._results(run_id, entries, facts)
        if trained is not None:
            kept = [key for key in trained if key in ("environment", "seconds") or key.partition("/")[0] == "classes"]
            content = {**content, **{key: trained[key] for key in kept}, **self._classes()}
            content["config"] = {**trained["config"], "evaluate": self.config["evaluate"]}
            content["units"] = trained.get("units", {}) | content["units"]
        target = self.parts.targets({"": self.state.method.encoder}, self.state.device, self.precision)
        rows, warmup = files.read_json_lines(tracker.path, Row), self.parts.recipe.warmup_epochs
        content["warnings"] = doubts(self.parts.evaluators, target) + warnings_of(rows, content, warmup)
        for sentence in content["warnings"]:
            log.warning("%s", sentence)
        drawn = self.config.get("pictures", True)  # not where steps are only trained again
        pictures = plots.write_artifacts(folder / "figures", artifacts, tracker.path) if drawn else {}
        step = self.state.step
        tracker.row(step, {"epoch": self.schedule.epoch(step), **content["metrics"]}, pictures)
        files.write_json(folder / "results.json", content)
        tracker.finish(content["metrics"], 0)

    def _evaluate(
        self, wanted: Sequence[Entry], known: Sequence[Entry] = ()
    ) -> tuple[list[Entry], dict[str, Artifact]]:
        """Evaluate what the entries ask for; return them with their metrics, and the artifacts by name.

        Args:
            known: entries of the run that are there already, for the names of artifacts.

        A baseline is taken from where an earlier run of the same results folder has left it. The random state is
        restored.
        """
        kept, found, artifacts = rng_state(), list[Entry](), dict[str, Artifact]()
        initial = self.state.initial if any(entry["network"] == "_init" for entry in wanted) else None
        networks = self.parts.networks(
            self.state.method.encoder, None if initial is None else move(initial, self.state.device)
        )
        formats = f"{self.precision.name} {self.state.device.type}"
        for suffix, network in networks.items():
            asked = [entry for entry in wanted if entry["network"] == suffix]
            starts = {entry["evaluator"]: f"{entry['evaluator']}{suffix}/" for entry in asked}
            weights = baselines.digest(network) if asked and suffix and rank() == 0 else ""
            left = []
            for entry in asked:
                path = baselines.place(self.config, f"{entry['id']} {entry['images']}", weights, formats)
                shared = baselines.read(path, starts[entry["evaluator"]]) if suffix and rank() == 0 else None
                if broadcast(shared is not None):  # rank 0 decides for all
                    found.append({**entry, "metrics": shared})
                else:
                    left.append((entry, path))
            for where, targets in (
                self.parts.places({suffix: network}, self.state.device, self.precision) if left else ()
            ):
                here = [each for each in left if _place(each[0]) == where]
                evaluators = {entry["evaluator"]: self.parts.evaluators[entry["evaluator"]] for entry, _ in here}
                metrics, drawn = run_evaluators(evaluators, targets)
                for entry, path in here:
                    start = starts[entry["evaluator"]]
                    own = {name: artifact for name, artifact in drawn.items() if name.startswith(start)}
                    found.append(evaluations.filled(entry, metrics))
                    artifacts |= {evaluations.named(name, entry, [*known, *wanted]): each for name, each in own.items()}
                    if suffix and rank() == 0 and not own:
                        numbers = {name: float(value) for name, value in found[-1]["metrics"].items()}
                        baselines.write(path, start, numbers)
        set_rng_state(kept)
        return found, artifacts

    def _results(self, run_id: str, found: Sequence[Entry], facts: Mapping[str, Any]) -> dict[str, Any]:
        """Content of ``results.json`` with all evaluations of the run."""
        memory, starts = peak_memory(self.state.device), self.state.starts
        later = {"git_later": [each["git"] for each in starts[1:]]} if starts[1:] else {}
        metrics = evaluations.flat(found, self.config["epochs"])
        declared = {name: each.metrics for name, each in self.parts.evaluators.items()}
        return {
            "run_id": run_id,
            "name": self.config["name"],
            "config": self.config,
            "metrics": metrics,
            "units": units.written(declared, metrics),
            "evaluations": list(found),
            "environment": environment(self.state.device)
            | memory
            | {"git": starts[0]["git"], **later, "started": starts[0]["at"], "finished": now()}
            | {
                "precision": self.precision.name,
                "images": self.config["dataset"].get("content"),
            },
            "facts": facts,
            "seconds": round(self.state.seconds(), 3),
            **self._classes(),
        }

    def _classes(self) -> dict[str, list[str]]:
        """The names of the classes that metrics have by number: ``classes``, of another dataset ``classes/<name>``."""
        each = ((name, dataset.class_names()) for _, name, dataset in self.parts.evaluated)
        return {"/".join(filter(None, ("classes", name))): names for name, names in each if names}


def _place(entry: Entry) -> tuple[Any, Any]:
    """The dataset of ``evaluate.on`` and the labels of an entry."""
    return entry["settings"].get("on"), entry["settings"].get("labels", 1.0)
