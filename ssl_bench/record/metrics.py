"""``metrics.jsonl``: one JSON object a row, each with its ``step``, written by rank 0."""

import copy
import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.config.build import build
from ssl_bench.record import evaluations, results, rows
from ssl_bench.record.dashboard import Dashboard, say_failed
from ssl_bench.record.lease import Claim
from ssl_bench.record.tensorboard import TensorBoardRun
from ssl_bench.record.wandb import WandbRun, under_agent

DASHBOARDS: dict[str, type[Dashboard]] = {"offline": WandbRun, "online": WandbRun, "tensorboard": TensorBoardRun}


class Tracker:
    """Context manager that writes rows of metrics to ``metrics.jsonl`` and shows them as ``tracking`` says.

    The file is the record, a dashboard a view of it: a failure there never stops or changes a run.

    Args:
        folder: the run's directory.
        config: its resolved configuration.
        run_id: its identity.
        step: rows after this step are removed: they were written between the checkpoint and the interruption. None
            keeps all.
        facts: facts of the run, as in ``results.json``.
        evaluated_step: step of the last evaluation in the checkpoint; rows of later evaluations, which are repeated,
            are removed.
        claim: on the run: without a valid one no row is written to the file. None: no other process can have the run.

    Raises:
        OSError: the file cannot be read or written, or is not a regular file.
    """

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, Any],
        run_id: str,
        step: int | None,
        facts: Mapping[str, Any],
        evaluated_step: int = 0,
        claim: Claim | None = None,
    ) -> None:
        self.path, self.claim = folder / "metrics.jsonl", claim
        lines = list[str]()
        there = files.exists(self.path)
        for line in files.read_bytes(files.of_run(self.path), math.inf).splitlines() if there else ():
            row = rows.parse(line)  # None: a crash has cut it short
            if row is not None and (step is None or row["step"] <= (step if "loss" in row else evaluated_step)):
                lines.append(line.decode())
        if step is not None and there:
            files.write_text(self.path, "".join(f"{line}\n" for line in lines))
        self._dashboard = _dashboard(folder, config, run_id, facts, lines)

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.finish({}, getattr(error, "exit_code", 1))

    def row(self, step: int, values: Mapping[str, Any], pictures: Mapping[str, Path] | None = None) -> None:
        """Append one row. ``pictures`` are PNG files by name, which the file does not have."""
        row = {"step": step, **values}
        if self.claim is None or not self.claim.lost_to():
            files.append(self.path, json.dumps(row) + "\n")
        if self._dashboard is not None:
            self._dashboard.row(row, pictures or {})

    def finish(self, summary: Mapping[str, Any], exit_code: int) -> None:
        """Show how the run ended: 0 finished, 128 + n preempted by signal n, anything else failed."""
        if self._dashboard is not None:
            self._dashboard.finish(summary, exit_code)


def _dashboard(
    folder: Path, config: Mapping[str, Any], run_id: str, facts: Mapping[str, Any], lines: Sequence[str]
) -> Dashboard | None:
    node = config["tracking"]
    kind = partial(build, node, "tracking") if "_target_" in node else DASHBOARDS.get(node["mode"])
    if kind is None:  # "off"
        return None
    config, facts = copy.deepcopy((config, facts))  # the code of a user must not change those of the run
    try:
        return kind(folder=folder, config=config, run_id=run_id, facts=facts, lines=lines)
    except Exception as error:  # as in the dashboard itself
        say_failed(node["_target_"], error)
        return None


def show_agent(config: Mapping[str, Any], run_id: str, folder: Path) -> None:
    """Show a finished run to the agent of a W&B sweep that asked for it; do nothing where there is no agent."""
    content = results.read(folder) if under_agent() else None
    if content is not None:
        tracker = Tracker(folder, config, run_id, None, content.get("facts", {}))
        tracker.finish(evaluations.shown(content["evaluations"], config), 0)
