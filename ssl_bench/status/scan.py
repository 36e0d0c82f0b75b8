"""All runs and grids under a results folder, those of other machines too, from the files alone; the time left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import mean

from ssl_bench.launch.outcome import State
from ssl_bench.status.cache import Cache
from ssl_bench.status.grids import GridFolder, find_grids
from ssl_bench.status.runs import Run, Runs, one_line


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
        """As of its run."""
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


class Scan:
    """The runs and grids under ``outputs``; the first update reads all files, each later one those that changed."""

    def __init__(self, outputs: Path) -> None:
        self.outputs, self._cache = outputs, Cache(outputs)
        self._runs = Runs(outputs, self._cache)

    def refusals(self) -> list[str]:
        """A sentence on what this user may not read of the results folder, if there is any."""
        paths = self._runs.unreadable
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        return [f"{paths[0]}{more}: Permission denied; runs in there are missing or incomplete"] if paths else []

    def update(self, now: float) -> tuple[list[Entry], float | None]:
        """Return all entries and the seconds until all are done: None if they are not known or nothing is running.

        Args:
            now: in seconds of the epoch.
        """
        runs = {run.path: run for run in self._runs.find() if run.began is not None}
        grids = find_grids(self.outputs, self._runs.sweeps, self._cache)
        self._cache.save()
        entries = _entries(runs, grids, now)
        groups: dict[object, list[Entry]] = {}
        for entry in entries:
            groups.setdefault(entry.grid or entry.run, []).append(entry)
        left = {group: _estimate(members, now) for group, members in groups.items()}
        for grid in grids:
            grid.left = left.get(grid)
        return entries, max((seconds for seconds in left.values() if seconds is not None), default=None)


def _entries(runs: Mapping[str, Run], grids: Sequence[GridFolder], now: float) -> list[Entry]:
    """Make one entry for each run, then one for each command of a grid that has no run and is waiting or failed.

    An entry belongs to the newest grid at work that has its run or command, else to the newest grid that has it. If a
    grid has no record of a run, the run's directory is that of an earlier one with the same command.
    """
    recorded: dict[GridFolder, dict[int, Run]] = {}
    for grid in grids:
        found = ((n, grid.recorded_run(n, runs)) for n in grid.records)
        recorded[grid] = {n: run for n, run in found if run is not None}
        busy = any(run.owner is not None and grid.state(n) is State.RUNNING for n, run in recorded[grid].items())
        grid.at_work = grid.will_continue(busy, now)
    by_command: dict[str, Run] | None = None  # made if it is needed
    made: dict[str, tuple[GridFolder, int]] = {}  # by path of the run
    not_made: dict[str, tuple[GridFolder, int]] = {}  # by command
    for grid in sorted(grids, key=lambda grid: grid.at_work):
        of_grid = recorded[grid]
        for n in range(len(grid.runs)) if grid.at_work else sorted(grid.records):
            run = of_grid.get(n)
            if run is None:
                by_command = _by_command(runs, recorded) if by_command is None else by_command
                run = by_command.get(grid.commands[n])
            if run is not None:
                made[run.path] = grid, n
            else:
                not_made.pop(grid.commands[n], None)
                not_made[grid.commands[n]] = grid, n
    entries = []
    for path, run in runs.items():
        its_grid, n = made.get(path, (None, -1))
        entries.append(Entry(run, its_grid, n, _status(run, its_grid, n) or Status.PARTIAL))
    others = ((grid, n, _status(None, grid, n)) for grid, n in not_made.values())
    return entries + [Entry(None, grid, n, state) for grid, n, state in others if state is not None]


def _by_command(runs: Mapping[str, Run], recorded: Mapping[GridFolder, Mapping[int, Run]]) -> dict[str, Run]:
    """The run of each command; what a grid recorded comes before a run's own record."""
    found = {run.command: run for run in runs.values() if run.command}
    for grid, of_grid in recorded.items():
        found |= {grid.commands[n]: run for n, run in sorted(of_grid.items())}
    return found


def _status(run: Run | None, grid: GridFolder | None, index: int) -> Status | None:
    """State of an entry; None if it is not shown: there is no run, and it is neither waiting nor failed."""
    if run is not None and run.done:
        return Status.DONE
    record = grid.records.get(index) if grid else None
    recorded = record.outcome.state if record else None
    # Each start of a run writes config.yaml again, after the grid has recorded the start.
    begun = run is not None and (run.began or 0.0) >= (record.when if record else 0.0)
    to_start = recorded in (None, State.HELD) or (recorded is State.RUNNING and not begun)
    if run is not None and run.owner is not None:
        return Status.RUNNING
    if grid is not None and grid.at_work and (to_start or (recorded is State.INTERRUPTED and grid.slurm)):
        return Status.WAITING
    if (run is not None and run.failure is not None) or (recorded is State.FAILED and not begun):
        return Status.FAILED
    return Status.PARTIAL if run is not None else None


def _estimate(entries: Sequence[Entry], now: float) -> float | None:
    """Set ``left`` of the running entries of one grid; return the seconds until the grid is done, if they are known.

    The rest of a run takes as long as what is done of it, so that a whole run takes T = seconds / share done. W is the
    mean T of the finished and the running ones. R are the seconds left of each running entry.

        left of a running entry = T - seconds - time since its last row, or W - time since its start
        left of the grid = max(longest of R, (sum of R + sum of W (1 - share done) of the waiting ones) / |R|)
    """
    running = [entry for entry in entries if entry.state is Status.RUNNING]
    waiting = [entry.run.share if entry.run else 0.0 for entry in entries if entry.state is Status.WAITING]
    counted = (entry.run for entry in entries if entry.state in (Status.DONE, Status.RUNNING) and entry.run)
    whole = [run.whole for run in counted if run.whole] if running or waiting else []
    usual = mean(whole) if whole else None
    for entry in running:
        run = entry.run
        assert run is not None and run.owner is not None
        if run.whole and run.metrics.seconds and run.share < 1:
            silent = max(0.0, now - max(run.metrics.changed, run.owner.since))
            entry.left = max(0.0, run.whole - run.metrics.seconds - silent)
        elif usual and not run.metrics.seconds:
            entry.left = max(0.0, usual - max(0.0, now - run.owner.since))
    known = [entry.left for entry in running if entry.left is not None]
    if not (running or waiting) or len(known) < len(running) or (waiting and usual is None):
        return None
    rest = sum((usual or 0.0) * (1 - share) for share in waiting)
    return max([*known, (sum(known) + rest) / max(1, len(running))])
