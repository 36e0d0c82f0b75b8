"""Evaluate the network every few epochs and after the training, and write ``results.json``. All ranks take part."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from ssl_bench import files
from ssl_bench.distributed import broadcast, rank
from ssl_bench.evaluate.artifacts import Artifact
from ssl_bench.evaluate.few_labels import FewLabels
from ssl_bench.evaluate.run import evaluator_warnings, run_evaluators
from ssl_bench.evaluate.target import Target
from ssl_bench.hardware import move
from ssl_bench.record import drawing, evaluations, runs
from ssl_bench.record.dashboard import Tracker
from ssl_bench.record.environment import environment, now, peak_memory
from ssl_bench.record.evaluations import Entry
from ssl_bench.seeding import rng_state, set_rng_state
from ssl_bench.training import build
from ssl_bench.training.optim import Schedule
from ssl_bench.training.precision import Precision
from ssl_bench.training.state import TrainingState
from ssl_bench.training.watch import warnings_of

log = logging.getLogger("ssl_bench")


class Evaluation:
    """The evaluations of one run."""

    def __init__(self, run: build.Run, state: TrainingState, schedule: Schedule, precision: Precision) -> None:
        self.config, self.run, self.state = run.config, run, state
        self.schedule, self.precision = schedule, precision
        self._state_files = set[Path]()  # of the long evaluations that this process has carried out

    def if_due(self, tracker: Tracker | None) -> bool:
        """Evaluate the network without baselines and write a row of metrics, if ``evaluate.every`` is due at this step.

        Returns:
            Whether the network was evaluated.
        """
        step, every = self.state.step, self.config["evaluate"]["every"] * self.schedule.steps_per_epoch
        if not every or step % every or step in (0, self.state.evaluated_step, self.schedule.last_step):
            return False
        evaluated, _ = self._evaluate([entry for entry in evaluations.asked(self.config) if not entry["network"]])
        if tracker is not None:
            metrics = {name: value for entry in evaluated for name, value in entry["metrics"].items()}
            tracker.row(step, {"epoch": self.schedule.epoch(step), **metrics, **_marks(evaluated)})
        self.state.evaluated_step = step
        return True

    def finish(
        self,
        folder: Path,
        recorded: Sequence[Entry],
        trained: Mapping[str, Any] | None,
        facts: Mapping[str, Any],
        tracker: Tracker | None,
    ) -> None:
        """Carry out the evaluations that are missing, and write ``results.json``.

        Args:
            folder: directory of the run.
            recorded: the evaluations that ``results.json`` has already.
            trained: content of ``results.json``, if an earlier process trained the run.
            facts: numbers of the training, as :func:`ssl_bench.training.engine.begin` returns them.
        """
        from ssl_bench.networks.weights import footnotes  # no step needs it

        evaluated, artifacts = self._evaluate(evaluations.missing(recorded, self.config), recorded, folder)
        if tracker is None:
            return
        entries = [*recorded, *(evaluations.write_hits(folder, entry) for entry in evaluated)]
        content = self._results(folder.name, entries, facts, trained or {})
        networks = {"": self.state.method.encoder}
        cells = list(build.cells(self.run, networks, self.state.device, self.precision))
        _write_labels(folder, (target for _, _, targets in cells for target in targets))
        of_labels = [s for _, evaluators, targets in cells for s in evaluator_warnings(evaluators, targets)]
        recorded_rows, warmup = runs.read_rows(tracker.path), self.run.recipe.warmup_epochs
        of_images = [f"{name}: {s}" if name else s for _, name, data in self.run.evaluated for s in data.warnings()]
        of_numbers = warnings_of(recorded_rows, content, warmup)
        content["warnings"] = [*footnotes(facts.get("init", "")), *of_images, *of_labels, *of_numbers]
        for sentence in content["warnings"]:
            log.warning("%s", sentence)
        pictures = write_artifacts(folder / "figures", artifacts)
        step = self.state.step
        marks = _marks(evaluations.after(entries, self.config["epochs"]))
        tracker.row(step, {"epoch": self.schedule.epoch(step), **content["metrics"], **marks}, pictures)
        files.write_json(folder / "results.json", content)
        for path in self._state_files:
            files.remove(path)
        tracker.finish(evaluations.shown(entries, self.config), 0)

    def _evaluate(
        self, wanted: Sequence[Entry], recorded: Sequence[Entry] = (), folder: Path | None = None
    ) -> tuple[list[Entry], dict[str, Artifact]]:
        """Carry out evaluations; return their entries with metrics, and the artifacts by name.

        The random state is restored.

        Args:
            wanted: entries without metrics.
            recorded: other entries of the run, from which the names of artifacts must differ.
            folder: directory of the run, in which long evaluations save their state; None: they save none.
        """
        random_state, evaluated, artifacts = rng_state(), list[Entry](), dict[str, Artifact]()
        initial = self.state.initial if any(entry["network"] == "_init" for entry in wanted) else None
        networks: dict[str, nn.Module | None] = {"": self.state.method.encoder}
        if initial is not None:
            networks["_init"] = move(initial, self.state.device)
        if "raw" in self.config["evaluate"]["baselines"]:
            networks["_raw"] = None
        for suffix, network in networks.items():
            entries = [entry for entry in wanted if entry["network"] == suffix]
            paths = self._baseline_paths(entries, network) if suffix else {}
            shared = _read_baselines(entries, paths) if suffix else []
            shared_ids = {entry["id"] for entry in shared}
            evaluated += shared
            remaining = [entry for entry in entries if entry["id"] not in shared_ids]
            for entry, drawn in self._run(remaining, network, folder):
                evaluated.append(entry)
                artifacts |= {evaluations.named(name, entry, [*recorded, *wanted]): a for name, a in drawn.items()}
                if suffix and rank() == 0 and not drawn:
                    numbers = {name: float(value) for name, value in entry["metrics"].items()}
                    files.make_folder(paths[entry["id"]].parent)
                    files.write_json(paths[entry["id"]], numbers)
        set_rng_state(random_state)
        return evaluated, artifacts

    def _baseline_paths(self, entries: Sequence[Entry], network: nn.Module | None) -> dict[str, Path]:
        """The files in which the runs of a results folder share the metrics of a baseline, by the id of the entry."""
        formats = f"{self.precision.name} {self.state.device.type}"
        weights = evaluations.digest(network) if entries and rank() == 0 else ""
        names = {entry["id"]: f"{entry['id']} {entry['images']}" for entry in entries}
        return {key: evaluations.baseline_file(self.config, name, weights, formats) for key, name in names.items()}

    def _run(
        self, entries: Sequence[Entry], network: nn.Module | None, folder: Path | None
    ) -> Iterator[tuple[Entry, dict[str, Artifact]]]:
        """Evaluate a network; yield each of its entries with metrics, and its artifacts by name."""
        if not entries:
            return
        networks = {entries[0]["network"]: network}
        for data, evaluators, targets in build.cells(self.run, networks, self.state.device, self.precision):
            for entry in entries:
                if (entry["settings"].get("on"), entry["settings"].get("labels", 1.0)) != data:
                    continue
                for infix, target in targets:
                    what = f"{self.state.step} {evaluations.mark(entry)} {infix}".replace("/", " ").split()
                    target.state_file = folder and folder / "checkpoints" / f"evaluation-{'-'.join(what)}.pt"
                    self._state_files |= {target.state_file} if target.state_file else set()
                metrics, artifacts = run_evaluators({entry["evaluator"]: evaluators[entry["evaluator"]]}, targets)
                yield evaluations.filled(entry, metrics), artifacts

    def _results(
        self, run_id: str, entries: Sequence[Entry], facts: Mapping[str, Any], trained: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Content of ``results.json`` with all evaluations of the run, ``entries``; ``trained``: its former content."""
        config = trained.get("config", self.config)
        metrics = evaluations.flat(entries, self.config["epochs"])
        declared = {name: evaluator.metrics for name, evaluator in build.evaluators(self.config).items()}
        return {
            "run_id": run_id,
            "name": config["name"],
            "config": config,
            "metrics": metrics,
            "units": trained.get("units", {}) | evaluations.recorded_units(declared, metrics),
            "evaluations": list(entries),
            "environment": trained["environment"] if "environment" in trained else self._environment(),
            "facts": facts,
            "seconds": trained.get("seconds", round(self.state.seconds(), 3)),
            **{key: names for key, names in trained.items() if key.partition("/")[0] == "classes"},
            **self._classes(),
        }

    def _environment(self) -> dict[str, Any]:
        starts, made = self.state.starts, environment(self.state.device)
        made |= peak_memory(self.state.device, self.state.peak) | {"git": starts[0]["git"]}
        made |= {"git_later": [start["git"] for start in starts[1:]]} if starts[1:] else {}
        made |= {"started": starts[0]["at"], "finished": now(), "precision": self.precision.name}
        return made | {"images": self.config["dataset"].get("content")}

    def _classes(self) -> dict[str, list[str]]:
        """Names of the classes, which metrics give by number: ``classes``, of another dataset ``classes/<name>``."""
        by_dataset = ((name, dataset.class_names()) for _, name, dataset in self.run.evaluated)
        return {"/".join(filter(None, ("classes", name))): names for name, names in by_dataset if names}


def write_artifacts(folder: Path, artifacts: Mapping[str, Artifact]) -> dict[str, Path]:
    """Write each artifact as ``<name>.json`` and draw it as ``<name>.png``; return the PNG files by name.

    Args:
        folder: created if there is something to write. A ``/`` in a name becomes ``-`` in the file name.

    A plot that cannot be drawn is a warning, since its data is there. A file that cannot be written is an OSError.
    """
    pictures: dict[str, Path] = {}
    for name, artifact in artifacts.items():
        path = folder / f"{name.replace('/', '-')}.png"
        files.make_folder(folder)
        files.write_json(path.with_suffix(".json"), {"kind": type(artifact).__name__.lower(), **asdict(artifact)})
        try:
            png = drawing.as_png(drawing.of_artifact(artifact, name))
        except Exception as error:  # a broken matplotlib raises many kinds of errors
            log.warning("%s was not drawn: %s", path, error)
            continue
        files.write_bytes(path, png)
        pictures[name] = path
    return pictures


def _marks(entries: Iterable[Entry]) -> dict[str, list[str]]:
    """The key ``evaluations`` of a row of metrics: marks of the evaluations that computed them, in order."""
    marks = list(dict.fromkeys(map(evaluations.mark, entries)))
    return {"evaluations": marks} if marks else {}


def _read_baselines(entries: Sequence[Entry], paths: Mapping[str, Path]) -> list[Entry]:
    """The entries whose metrics an earlier run has written, with these metrics (None on ranks other than 0)."""
    shared = list[Entry]()
    for entry in entries:
        metrics = files.read_json(paths[entry["id"]], dict[str, float], named=False) if rank() == 0 else None
        if broadcast(metrics is not None):  # rank 0 decides for all
            shared.append({**entry, "metrics": metrics})
    return shared


def _write_labels(folder: Path, targets: Iterable[tuple[str, Target]]) -> None:
    """Write, for each evaluation with few labels, the list of the labelled images, as ``evaluate.labels`` reads it."""
    for infix, target in targets:
        if isinstance(target, FewLabels):
            files.make_folder(folder / "labels")
            name = infix.strip("/").replace("/", "-")
            files.write_text(folder / "labels" / f"{name}.txt", "\n".join(target.names()) + "\n")
