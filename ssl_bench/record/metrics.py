"""``metrics.jsonl``: one JSON object a row, each with its ``step``, written by rank 0."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.record.wandb import WandbRun, under_agent


class Tracker:
    """Context manager that writes rows of metrics to ``metrics.jsonl`` and, if it is not switched off, to W&B.

    The file is the record, W&B a view of it: a failure of W&B never stops or changes a run.

    Args:
        folder: the run's directory.
        config: its resolved configuration.
        run_id: its identity, also in W&B.
        step: rows after this step are removed: they were written between the checkpoint and the interruption. None
            keeps all.
        facts: facts of the run for W&B's config, as in ``results.json``.
    """

    def __init__(
        self, folder: Path, config: Mapping[str, Any], run_id: str, step: int | None, facts: Mapping[str, Any]
    ) -> None:
        self.path = folder / "metrics.jsonl"
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        if step is not None and lines:
            lines = [line for line in lines if _step(line) <= step]
            files.write_text(self.path, "".join(f"{line}\n" for line in lines))
        self._wandb = WandbRun(folder, config, run_id, facts, lines)

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.finish({}, getattr(error, "exit_code", 1))

    def row(self, step: int, values: Mapping[str, Any], pictures: Mapping[str, Path] | None = None) -> None:
        """Append one row. ``pictures`` are PNG files by name, for W&B only."""
        row = {"step": step, **values}
        files.append(self.path, json.dumps(row) + "\n")
        self._wandb.row(row, pictures or {})

    def finish(self, summary: Mapping[str, Any], exit_code: int) -> None:
        """End the W&B run: 0 finished, 128 + n preempted by signal n, anything else failed."""
        self._wandb.finish(summary, exit_code)


def show_agent(config: Mapping[str, Any], run_id: str, folder: Path) -> None:
    """Show a finished run to the agent of a W&B sweep that asked for it; do nothing where there is no agent."""
    if under_agent():
        results = files.read_json(folder / "results.json")
        Tracker(folder, config, run_id, None, results["facts"]).finish(results["metrics"], 0)


def _step(line: str) -> int:
    """Step of a row; a row that was cut short by a crash counts as later than all others."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return 2**63
