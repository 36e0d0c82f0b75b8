"""An entry of the table: a run, or a run that a grid has still to make; its state and the time left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import mean
from typing import Any

from ssl_bench.status.grids import GridFolder
from ssl_bench.status.runs import Run, one_line


class Status(StrEnum):
    """State of an entry.

    ``RUNNING``: the process that owns the run is alive. ``WAITING``: a grid at work has still to start the run.
    ``PARTIAL``: the run was begun and has no owner; ``ssl-bench train`` resumes it.
    """

    DONE = "done"
    RUNNING = "running"
    WAITING = "waiting"
    PARTIAL = "partial"
    FAILED = "failed"


URGENT = (Status.RUNNING, Status.FAILED, Status.PARTIAL, Status.WAITING, Status.DONE)  # most urgent first


@dataclass(slots=True)
class Entry:
    """A run, or a run that a grid has still to make.

    Attributes:
        run: its directory, if there is one.
        grid: the grid that it belongs to, if there is one.
        index: of the run in the grid.
        left: seconds until a running one is done, if that is known.
    """

    run: Run | None
    grid: GridFolder | None
    index: int
    state: Status
    left: float | None = None

    @property
    def group(self) -> Any:
        """Its grid; a single run is a group of its own."""
        return self.grid or self.run

    @property
    def overrides(self) -> list[str] | None:
        """Its overrides in the grid."""
        return self.grid.runs[self.index] if self.grid else None

    @property
    def command(self) -> str | None:
        """The command that trains only this run; None if it was not recorded."""
        recorded = self.run.command if self.run else None
        return recorded or (self.grid.commands[self.index] if self.grid else None)

    @property
    def best(self) -> dict[str, float]:
        """A finished run's accuracies, or all its metrics if it trained no network; else the best so far."""
        return self.run.best if self.run else {}

    @property
    def reason(self) -> str:
        """Why it failed, in one line."""
        if self.state is not Status.FAILED:
            return ""
        if self.run and self.run.failure is not None:
            return self.run.failure
        return (
            one_line(self.grid.records[self.index].outcome.reason)
            if self.grid and self.index in self.grid.records
            else ""
        )


def estimate(entries: Sequence[Entry], now: float) -> float | None:
    """Set ``left`` of the running entries of one grid; return the seconds until the grid is done, if they are known.

    The training of a run takes T = epochs / rate. The rate is taken over its last rows, evaluations included. The final
    evaluation takes E, the mean time of the finished runs after their last row. W is the mean over what finished runs
    took and what running ones will take, T + E. R are the seconds left of each running entry.

        left of a running entry = T (1 - share done) + E - time since its last row, or W - time since its start
        left of the grid = max(longest of R, (sum of R + sum of W (1 - share done) of the waiting ones) / |R|)
    """
    done = [entry.run for entry in entries if entry.state is Status.DONE and entry.run]
    running = [entry for entry in entries if entry.state is Status.RUNNING]
    waiting = [entry.run.share if entry.run else 0.0 for entry in entries if entry.state is Status.WAITING]
    after = [max(0.0, run.seconds - run.metrics.seconds) for run in done if run.seconds and run.metrics.seconds]
    evaluation = mean(after) if after else 0.0
    whole = [run.seconds for run in done if run.seconds]
    whole += [e.run.training_seconds + evaluation for e in running if e.run and e.run.training_seconds is not None]
    usual = mean(whole) if whole else None
    for entry in running:
        run = entry.run
        assert run is not None and run.owner is not None
        if run.training_seconds is not None:
            left = run.training_seconds * (1 - run.share) + evaluation
            entry.left = max(0.0, left - max(0.0, now - max(run.metrics.changed, run.owner.since))) if left else None
        elif usual is not None:
            entry.left = max(0.0, usual - max(0.0, now - run.owner.since))
    known = [entry.left for entry in running if entry.left is not None]
    if not (running or waiting) or len(known) < len(running) or (waiting and usual is None):
        return None
    rest = sum(usual * (1 - share) for share in waiting) if usual is not None else 0.0
    return max([*known, (sum(known) + rest) / max(1, len(running))])
