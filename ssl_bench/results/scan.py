"""All runs and grids under a results folder, those of other machines too, from the files alone; the time left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import mean

from ssl_bench.errors import one_line
from ssl_bench.launch.outcome import State
from ssl_bench.record.cache import Cache
from ssl_bench.results.grids import GridFolder, find_grids
from ssl_bench.results.runs import RunFolder, Runs


class Status(StrEnum):
    """State of an entry.

    ``RUNNING``: the process that owns the run is alive, also if it evaluates a finished run again. ``DONE``: there are
    results, also if a later evaluation was killed; ``EVALUATED``: the same without a training. ``WAITING``: a grid at
    work has still to start the run. ``PARTIAL``: the run was begun and has no owner; ``ssl-bench train`` resumes it.
    """

    DONE = "done"
    EVALUATED = "evaluated"
    RUNNING = "running"
    WAITING = "waiting"
    PARTIAL = "partial"
    FAILED = "failed"


URGENT = (
    Status.RUNNING,
    Status.FAILED,
    Status.PARTIAL,
    Status.WAITING,
    Status.DONE,
    Status.EVALUATED,
)  # most urgent first


@dataclass(slots=True)
class Entry:
    """A run, or a run that a grid has still to make.

    Attributes:
        run: its directory, if there is one.
        grid: the grid that it belongs to, if there is one.
        index: of the run in the grid.
        left: seconds until a running one is done, if that is known.
        names: that grids give it which asked for it, also where it was trained before under another one.
    """

    run: RunFolder | None
    grid: GridFolder | None
    index: int
    state: Status
    left: float | None = None
    names: frozenset[str] = frozenset()

    @property
    def overrides(self) -> list[str] | None:
        """Its overrides in the grid."""
        return self.grid.runs[self.index] if self.grid else None

    @property
    def command(self) -> str | None:
        """The command that trains only this run; None if it was not recorded."""
        recorded = self.run.command if self.run else None
        return recorded or (self.grid.command_of(self.index) if self.grid else None)

    @property
    def doing(self) -> str:
        """``training`` or ``evaluating``; empty unless it is running."""
        if self.state is not Status.RUNNING or self.run is None:
            return ""
        return "evaluating" if self.run.share >= 1 else "training"

    @property
    def warnings(self) -> list[str]:
        """The sentences in which its run warns of its result."""
        return self.run.warnings if self.run else []

    @property
    def reason(self) -> str:
        """Why it failed, in one line."""
        if self.state is not Status.FAILED:
            return ""
        if self.run and self.run.failure is not None:
            return self.run.failure
        record = self.grid.records.get(self.index) if self.grid else None
        return one_line(record.outcome.reason) if record else ""


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
        runs = self._runs.find()
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


def _entries(runs: Sequence[RunFolder], grids: Sequence[GridFolder], now: float) -> list[Entry]:
    """Make one entry for each run, then one for each command of a grid that has no run and is waiting or failed.

    A run is that of a grid's record, which names its directory, or else of the same command. An entry belongs to the
    newest grid at work that has its run or command, else to the newest grid that has it.
    """
    by_name = {_name(run.path): run for run in runs}
    by_command = {run.command: run for run in runs if run.command}

    def find(grid: GridFolder, index: int) -> RunFolder | None:
        record = grid.records.get(index)
        recorded = by_name.get(_name(record.outcome.folder)) if record and record.outcome.folder else None
        return recorded or by_command.get(grid.command_of(index))

    for grid in grids:
        started = (find(grid, n) for n in grid.records if grid.state(n) is State.RUNNING)
        grid.at_work = grid.will_continue(any(run is not None and run.owner is not None for run in started), now)
    made: dict[str, tuple[RunFolder | None, GridFolder | None, int]] = {run.path: (run, None, -1) for run in runs}
    names: dict[str, set[str]] = {}
    for grid in sorted(grids, key=lambda grid: grid.at_work):
        for n in range(len(grid.runs)) if grid.at_work else sorted(grid.records):
            run = find(grid, n)
            key = run.path if run else grid.command_of(n)
            made[key] = run, grid, n
            names.setdefault(key, set()).update(word[5:] for word in grid.runs[n] if word.startswith("name="))
    entries = list[Entry]()
    for key, (run, its_grid, n) in made.items():
        state = _status(run, its_grid, n)
        if state is not None:
            entries.append(Entry(run, its_grid, n, state, None, frozenset(names.get(key, ()))))
    return entries


def _name(path: str) -> str:
    """The end of a run's path that also a results folder elsewhere has: its name and its run_id."""
    return "/".join(path.split("/")[-2:])


def _status(run: RunFolder | None, grid: GridFolder | None, index: int) -> Status | None:
    """State of an entry; None if it is not shown: there is no run, and it is neither waiting nor failed."""
    if run is not None and run.done and run.owner is None and not run.longer:
        return Status.EVALUATED if run.config.get("epochs") == 0 else Status.DONE
    record = grid.records.get(index) if grid else None
    recorded = record.outcome.state if record else None
    # Each start of a run writes config.yaml again, after the grid has recorded the start.
    begun = run is not None and run.began >= (record.when if record else 0.0)
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
    if not (running or waiting):
        return None
    counted = (entry.run for entry in entries if entry.state in (Status.DONE, Status.RUNNING) and entry.run)
    whole = [run.whole for run in counted if run.whole]
    usual = mean(whole) if whole else None
    for entry in running:
        run = entry.run
        assert run is not None and run.owner is not None
        if run.whole and run.trained and run.share < 1:
            silent = max(0.0, now - max(run.changed, run.owner.since))
            entry.left = max(0.0, run.whole - run.trained - silent)
        elif usual and not run.trained:
            entry.left = max(0.0, usual - max(0.0, now - run.owner.since))
    lefts = [entry.left for entry in running if entry.left is not None]
    if len(lefts) < len(running) or (waiting and usual is None):
        return None
    rest = sum((usual or 0.0) * (1 - share) for share in waiting)
    return max([*lefts, (sum(lefts) + rest) / max(1, len(running))])
