"""Weights & Biases: a view of a run's files. A failure here never stops or changes a run.

Its config has the names of the command line (``dashboard.py``), under which an agent of a W&B sweep adds its
parameters. The summary has the last values of the curves and the numbers as the table of runs names them; where several
evaluations made one, its plain name is that of the one that this command asks for. Name: ``WANDB_NAME``, else dataset,
framework, loss, batch size, number of negatives, temperature and seed. Group: ``WANDB_RUN_GROUP``, else the experiment,
else ``name``. Tags: ``tracking.tags`` and the scale, unless it is full. State: finished, failed, or preempting if a
signal stopped the run, which makes a sweep start it again.

W&B's step is the row's number in ``metrics.jsonl``. Every process that resumes a run first shows the rows that W&B
lacks: online those after the last one that the server has; offline all, in a directory of its own. So the newest
directory is enough, and ``scripts/sync_wandb.sh`` sends only that one: ``wandb sync`` would show rows twice.

Under an agent of a W&B sweep (``WANDB_SWEEP_ID``) the agent sets the run and project to write to, otherwise the run_id
does. A suggested run that has finished before is shown from its files (``show_agent`` in ``metrics.py``).
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ssl_bench import surroundings
from ssl_bench.errors import printable
from ssl_bench.record.dashboard import Dashboard, flat_config


class WandbRun(Dashboard):
    """One run in W&B, with the run_id as its identity, so that a resumed run continues there."""

    name = "W&B"

    def finish(self, summary: Mapping[str, Any], exit_code: int) -> None:
        """End the run also if this process had no row to show: an agent of a sweep waits for the result."""
        if summary or under_agent():
            self._attempt(lambda run: None)  # opens it
        super().finish(summary, exit_code)

    def show(self, client: Any, number: int, row: Mapping[str, Any], pictures: Mapping[str, Path]) -> None:
        import numpy as np
        import wandb

        def loggable(value: Any) -> Any:
            """Shares of equal bins from 0 to 1 as a W&B histogram, any other value as it is."""
            edges = np.linspace(0, 1, len(value) + 1) if isinstance(value, list) else None
            return value if edges is None else wandb.Histogram(np_histogram=(np.array(value), edges))

        values = {name: loggable(value) for name, value in row.items() if name != "evaluations"}
        images = {f"figures/{name}": wandb.Image(str(path)) for name, path in pictures.items()}
        client.log(values | images, step=number, commit=True)

    def end(self, client: Any, summary: Mapping[str, Any], exit_code: int) -> None:
        client.summary.update(dict(summary))
        if exit_code > 128:
            client.mark_preempting()
        client.finish(exit_code=exit_code)

    def open(self) -> Any:
        settings, folder = self.config["tracking"], self.folder.resolve()
        if not str(folder).isprintable():
            raise ValueError(f"it needs a folder whose name is UTF-8, not {printable(str(folder))}")
        surroundings.of_wandb(settings["mode"])
        import wandb

        place = {"project": settings["project"], "entity": settings["entity"], "id": self.run_id}
        run = wandb.init(
            **({} if under_agent() else place),
            mode=settings["mode"],
            dir=folder,  # W&B's own process may have another working directory
            name=os.environ.get("WANDB_NAME") or f"{_label(self.config, self.facts)}-{self.run_id}",
            group=os.environ.get("WANDB_RUN_GROUP") or group(self.config),
            job_type="train",
            tags=[*settings["tags"], *([] if self.config["scale"] == "full" else [self.config["scale"]])],
            config=flat_config(self.config, self.facts),
            resume="allow" if settings["mode"] == "online" else None,
            settings=wandb.Settings(console="off", init_timeout=30, x_disable_stats=False),
        )
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
        for number in range(run.starting_step, len(self.lines)):
            self.show(run, number, json.loads(self.lines[number]), {})
        return run


def group(config: Mapping[str, Any]) -> str:
    """The group of a run: its experiment, or else its name."""
    return str((config.get("choices") or {}).get("experiment", config["name"]))


def _label(config: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """The name of a run by the settings that vary most in grids, such as ``cifar10-simclr-dcl-b128-k254-t0.1-s0``."""
    flat = flat_config(config, facts)
    words = [str(flat[group]) for group in ("dataset", "framework", "loss") if flat.get(group)]
    numbers = {"b": "batch_size.size", "k": "negatives.k", "t": "temperature.tau", "s": "seed"}
    return "-".join([*words, *(f"{word}{flat[key]:g}" for word, key in numbers.items() if flat.get(key) is not None)])


def under_agent() -> bool:
    """Whether an agent of a W&B sweep started this process."""
    return "WANDB_SWEEP_ID" in os.environ
