"""Find every run and grid under a results folder, those of other machines too, from the files alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ssl_bench.launch.outcome import State
from ssl_bench.status.entries import Entry, Status, estimate
from ssl_bench.status.grids import GridFolder, Grids
from ssl_bench.status.runs import Run, Runs


class Scan:
    """The runs and grids under ``outputs``; the first update reads all files, each later one those that changed."""

    def __init__(self, outputs: Path) -> None:
        self.outputs = outputs
        self._runs, self._grids = Runs(outputs), Grids(outputs)

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
        grids = self._grids.find(self._runs.sweeps)
        entries = _entries(runs, grids, now)
        active = {entry.group for entry in entries if entry.state in (Status.RUNNING, Status.WAITING)}
        groups: dict[object, list[Entry]] = {group: [] for group in active}
        for entry in entries if active else ():
            if entry.group in active:
                groups[entry.group].append(entry)
        left = {group: estimate(members, now) for group, members in groups.items()}
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
