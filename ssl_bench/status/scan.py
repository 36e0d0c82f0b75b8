"""Find every run and grid under a results folder, those of other machines too, from the files alone."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from ssl_bench import files
from ssl_bench.launch import claim
from ssl_bench.launch.claim import Owner
from ssl_bench.launch.outcome import State
from ssl_bench.status.entries import Entry, RunFolder, Status, estimate
from ssl_bench.status.follow import Cache
from ssl_bench.status.grids import GridFolder, read_grid


class Scan:
    """The runs and grids under ``outputs``; the first update reads all files, each later one those that changed."""

    def __init__(self, outputs: Path) -> None:
        self.outputs = outputs
        self._config, self._grid = Cache(_read_config), Cache(read_grid)
        self._json, self._command = Cache(files.read_json), Cache(_read_command)
        self._runs: dict[Path, RunFolder] = {}
        self._finished: dict[Path, int] = {}  # finished runs, and the times of change of their directories

    def update(self, now: float) -> tuple[list[Entry], float | None]:
        """Return all entries and the seconds until all are done: None if they are not known or nothing is running.

        Args:
            now: in seconds of the epoch.
        """
        runs, grids = self._find(now)
        entries = _entries(runs, grids, now)
        groups: dict[int, list[Entry]] = {}  # the entries of a grid, or a single run
        for entry in entries:
            groups.setdefault(id(entry.grid or entry), []).append(entry)
        left = [estimate(group, now) for group in groups.values()]
        return entries, max((seconds for seconds in left if seconds is not None), default=None)

    def _find(self, now: float) -> tuple[dict[Path, RunFolder], list[GridFolder]]:
        """The runs, sorted by parent directory, then by start; and the grids, sorted by start."""
        runs, grids, folders = dict[Path, RunFolder](), list[GridFolder](), [self.outputs]
        while folders:
            folder = folders.pop()
            run = self._run(folder)
            if run is not None:
                runs[folder] = run
                continue
            try:
                inside = [e.name for e in os.scandir(folder) if e.is_dir(follow_symlinks=False)]
                starts = os.listdir(folder / ".sweeps") if ".sweeps" in inside else []
            except OSError:
                continue
            folders += [folder / name for name in inside if not name.startswith(".") and name != "wandb"]
            for start in starts:
                grid = self._grid(folder / ".sweeps" / start / "grid.json")[0]
                if grid is not None:
                    grid.update(now)
                    grids.append(grid)
        by_start = sorted(runs, key=lambda folder: (folder.parent, runs[folder].began))
        return {folder: runs[folder] for folder in by_start}, sorted(grids, key=lambda grid: grid.started)

    def _run(self, folder: Path) -> RunFolder | None:
        """The run in ``folder`` with the present content of its files; None if there is no run."""
        try:
            changed = folder.stat().st_mtime_ns
        except OSError:
            return None
        if self._finished.get(folder) == changed:  # results.json is replaced by renaming, which changes the folder
            return self._runs[folder]
        config, began = self._config(folder / "config.yaml")
        if config is None:
            return None
        run = self._runs.get(folder)
        if run is None or run.config is not config:
            run = self._runs[folder] = RunFolder(folder, config)
        run.began, run.command = began, self._command(folder / "command.txt")[0]
        run.results, run.failure = (
            value if isinstance(value, dict) else None
            for value in (self._json(folder / name)[0] for name in ("results.json", "failed.json"))
        )
        run.metrics.update()
        run.owner = _owner(folder) if run.results is None else None
        self._finished.pop(folder, None)
        if run.results is not None:
            self._finished[folder] = changed
        return run


def _entries(runs: dict[Path, RunFolder], grids: Sequence[GridFolder], now: float) -> list[Entry]:
    """Make one entry for each run, then one for each command of a grid that has no run and is waiting or failed.

    An entry belongs to the newest grid at work that has its run or command, else to the newest grid that has it. If a
    grid has no record of a run, the run's directory is that of an earlier one with the same command.
    """
    recorded = {(id(grid), n): grid.recorded_folder(n, runs) for grid in grids for n in grid.records}
    by_command = {run.command: folder for folder, run in runs.items() if run.command}
    for grid in grids:
        folders = {command: recorded.get((id(grid), n)) for n, command in enumerate(grid.commands)}
        by_command |= {command: folder for command, folder in folders.items() if folder is not None}

    def busy(grid: GridFolder, n: int) -> bool:
        folder = recorded[id(grid), n]
        return folder is not None and runs[folder].owner is not None and grid.state(n) is State.RUNNING

    for grid in grids:
        grid.at_work = grid.will_continue(any(busy(grid, n) for n in grid.records), now)
    made: dict[Path, tuple[GridFolder | None, int]] = dict.fromkeys(runs, (None, -1))
    not_made: dict[str, tuple[GridFolder, int]] = {}  # by command
    for grid in sorted(grids, key=lambda grid: grid.at_work):
        for n in range(len(grid.runs)) if grid.at_work else sorted(grid.records):
            folder = recorded.get((id(grid), n)) or by_command.get(grid.commands[n])
            if folder is not None:
                made[folder] = grid, n
            else:
                not_made.pop(grid.commands[n], None)
                not_made[grid.commands[n]] = grid, n
    places: list[tuple[RunFolder | None, GridFolder | None, int]] = [(runs[folder], *made[folder]) for folder in made]
    places += [(None, *place) for place in not_made.values()]
    return [Entry(*place, state) for place in places if (state := _status(*place)) is not None]


def _status(run: RunFolder | None, grid: GridFolder | None, index: int) -> Status | None:
    """State of an entry; None if it is not shown: there is no run, and it is neither waiting nor failed."""
    outcome, recorded_at = grid.records.get(index, (None, 0.0)) if grid else (None, 0.0)
    recorded = outcome.state if outcome else None
    # Each start of a run writes config.yaml again, after the grid has recorded the start.
    begun = run is not None and run.began >= recorded_at
    to_start = recorded in (None, State.HELD) or (recorded is State.RUNNING and not begun)
    if run is not None and run.results is not None:
        return Status.DONE
    if run is not None and run.owner is not None:
        return Status.RUNNING
    if grid is not None and grid.at_work and (to_start or (recorded is State.INTERRUPTED and grid.slurm)):
        return Status.WAITING
    if (run is not None and run.failure is not None) or (recorded is State.FAILED and not begun):
        return Status.FAILED
    return Status.PARTIAL if run is not None else None


def _owner(folder: Path) -> Owner | None:
    try:
        return claim.owner(folder)
    except (TypeError, ValueError):  # a claim of another version
        return None


def _read_config(path: Path) -> dict[str, Any] | None:
    """A run's configuration; None for any other YAML."""
    try:
        config = yaml.load(path.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # the former is in C
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return config if isinstance(config, dict) and isinstance(config.get("choices"), dict) else None


def _read_command(path: Path) -> str | None:
    try:
        return shlex.join(shlex.split(path.read_text())) or None
    except (OSError, ValueError):
        return None
