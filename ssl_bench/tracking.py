"""The record of a run: ``metrics.jsonl`` always, Weights & Biases if asked.

The files are the record and W&B is a view of it: nothing that goes wrong there stops or changes a run.
"""

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ssl_bench import files

log = logging.getLogger(__name__)


class Tracker:
    """Rows of metrics, written by rank 0 only.

    Args:
        folder: the run's directory.
        config: its resolved configuration.
        run_id: its identity, also in W&B, so that a resumed run goes on in the same one.
        step: rows after this step are dropped: they were written between the checkpoint and the interruption.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any], run_id: str, step: int) -> None:
        self.folder, self.config, self.run_id = folder, config, run_id
        self.path = folder / "metrics.jsonl"
        if self.path.exists():
            rows = [line for line in self.path.read_text().splitlines() if _step(line) <= step]
            files.write_text(self.path, "".join(f"{row}\n" for row in rows))
        self._wandb: Any = None
        self._broken = config["tracking"]["mode"] == "off"

    def row(self, step: int, values: Mapping[str, Any], pictures: Mapping[str, Path] | None = None) -> None:
        """Appends one row and shows it in W&B, with PNG files by name as ``figures/<name>``."""
        row = {"step": step, **values}
        files.append(self.path, json.dumps(row) + "\n")
        self._view(lambda run: run.log(_shown(row) | _images(pictures or {})))

    def finish(self, summary: Mapping[str, Any], exit_code: int) -> None:
        """Ends the W&B run in its true state: 0 finished, anything else failed."""

        def end(run: Any) -> None:
            run.summary.update(dict(summary))
            run.finish(exit_code=exit_code)

        if self._wandb is not None or (summary and not self._broken):
            self._view(end)

    def _view(self, act: Callable[[Any], None]) -> None:
        if self._broken:
            return
        try:
            if self._wandb is None:
                self._wandb = self._open()
            act(self._wandb)
        except Exception as error:  # W&B failing never fails a run
            self._broken = True
            log.warning("W&B is given up for this run, %s has everything: %s", self.path, error)

    def _open(self) -> Any:
        # Imported and started with the first row: it must not delay the first step.
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb

        settings, choices = self.config["tracking"], self.config["choices"]
        run = wandb.init(
            project=settings["project"],
            entity=settings["entity"],
            mode=settings["mode"],
            dir=self.folder.resolve(),  # W&B's own process may be in another folder
            id=self.run_id,
            name="-".join(str(choices[g]) for g in ("dataset", "framework", "loss") if g in choices)
            + f"-{self.run_id}",
            group=choices.get("experiment", self.config["name"]),
            tags=[*settings["tags"]],
            config={k: v for k, v in self.config.items() if k != "paths"},
            resume="allow" if settings["mode"] == "online" else None,
            settings=wandb.Settings(console="off", init_timeout=30, x_disable_stats=False),
        )
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
        return run


def log_table(name: str, headings: Sequence[str], rows: Sequence[Sequence[str]], record: Mapping[str, Any]) -> None:
    """A paper's table as an artifact of its own W&B run: a table to look at and ``table.json`` to read.

    ``WANDB_MODE`` and ``WANDB_PROJECT`` say where it goes; without them it stays on disk, in the project ssl-bench.
    """
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    mode: Any = os.environ.get("WANDB_MODE", "offline")
    project, label = os.environ.get("WANDB_PROJECT", "ssl-bench"), name.replace("/", "-")
    with wandb.init(project=project, job_type="table", name=label, mode=mode) as run:
        artifact = wandb.Artifact(label, type="table", metadata={"table": name})
        shown = wandb.Table(columns=list(headings), data=[list(row) for row in rows])
        artifact.add(shown, "table")
        with artifact.new_file("table.json") as file:
            json.dump(record, file, indent=2)
        run.log_artifact(artifact)
        run.log({name: shown})


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """Lists, which are shares of equal steps from 0 to 1, as W&B's histograms."""
    if not any(isinstance(value, list) for value in row.values()):
        return dict(row)
    import numpy as np
    import wandb

    def shown(value: Any) -> Any:
        edges = np.linspace(0, 1, len(value) + 1) if isinstance(value, list) else None
        return value if edges is None else wandb.Histogram(np_histogram=(np.array(value), edges))

    return {name: shown(value) for name, value in row.items()}


def _images(pictures: Mapping[str, Path]) -> dict[str, Any]:
    if not pictures:
        return {}
    import wandb

    return {f"figures/{name}": wandb.Image(str(path)) for name, path in pictures.items()}


def _step(line: str) -> int:
    """The step of a row; a row cut short by a crash counts as after everything."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return 2**63
