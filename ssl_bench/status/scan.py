"""What the files under a results folder say of every run and grid, also of those on other machines.

A cell is a run, or what a grid has still to make one of. Its states: done, running (its owner lives), waiting (a grid
at work has still to come to it), partial (begun, and nobody is at it: ``ssl-bench train`` goes on), failed.
"""

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from ssl_bench import files
from ssl_bench.launch import claim
from ssl_bench.launch.claim import Owner
from ssl_bench.status.follow import Cache, Journal, accuracies, number
from ssl_bench.status.grids import Grid, read_grid


class Run:
    """A run directory."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.folder, self.config, self.began = folder, config, 0.0
        self.journal = Journal(folder / "metrics.jsonl", _at(config.get("evaluate"), "every") or 0.0)
        self.results: dict[str, Any] | None = None
        self.failure: dict[str, Any] | None = None
        self.command: str | None = None
        self.owner: Owner | None = None

    @property
    def end(self) -> float | None:
        """The epoch at which it ends. With ``max_steps`` that is known after the first row."""
        epochs, steps = _at(self.config, "epochs"), _at(self.config, "max_steps")
        if epochs is None or steps is None:
            return epochs
        step, epoch = self.journal.step, self.journal.epoch
        return min(epochs, steps * epoch / step) if step and epoch else None

    @property
    def share(self) -> float:
        """What is done of its training, from 0 to 1."""
        return min(1.0, (self.journal.epoch or 0.0) / self.end) if self.end else 0.0

    @property
    def seconds(self) -> float | None:
        """What all of it took, once it is done."""
        return _at(self.results, "seconds")

    @property
    def training(self) -> float | None:
        """Seconds that its training takes at its present rate."""
        rate = self.journal.rate(_at(self.config.get("batch_size"), "size"))
        return self.end / rate if rate and self.end else None


@dataclass
class Cell:
    """A run with the newest grid that it belongs to, if there is one, or a cell of a grid that has no run."""

    run: Run | None
    grid: Grid | None = None
    index: int = -1
    state: str = ""
    left: float | None = None  # seconds, of a running one

    @property
    def overrides(self) -> list[str] | None:
        return self.grid.cells[self.index] if self.grid else None

    @property
    def command(self) -> str | None:
        """What carries it out alone; None if nobody kept that."""
        own = self.run.command if self.run else None
        return own or (self.grid.commands[self.index] if self.grid else None)

    @property
    def best(self) -> dict[str, float]:
        """A finished run's accuracies or, of what has none, all its metrics; else the best on the way."""
        if self.run is None or self.run.results is None:
            return self.run.journal.best if self.run else {}
        metrics = self.run.results.get("metrics")
        if "evaluate" in self.run.config or not isinstance(metrics, dict):
            return accuracies(metrics)
        return {name: value for name in metrics if (value := _at(metrics, name)) is not None}

    @property
    def reason(self) -> str:
        """Why it failed, in one line."""
        told = (self.run.failure if self.run else None) or self._noted[0]
        return " ".join(str(told.get("reason") or "").split()) if self.state == "failed" else ""

    @property
    def _noted(self) -> tuple[dict[str, Any], float]:
        """The grid's record, and when it was written."""
        return self.grid.records.get(self.index, ({}, 0.0)) if self.grid else ({}, 0.0)

    def settle(self) -> None:
        """Finds its state; it stays "" where there is nothing to show: no run, and no grid that will make one."""
        noted, when = self.grid.state(self.index) if self.grid else "none", self._noted[1]
        # A run's config.yaml is written again, after the grid's note, each time that somebody begins with it.
        begun = self.run is not None and self.run.began >= when
        coming = noted in ("", "held") or (noted == "running" and not begun)
        queued = noted == "interrupted" and self.grid is not None and self.grid.slurm
        if self.run is not None and self.run.results is not None:
            self.state = "done"
        elif self.run is not None and self.run.owner is not None:
            self.state = "running"
        elif self.grid is not None and self.grid.at_work and (coming or queued):
            self.state = "waiting"
        elif (self.run is not None and self.run.failure is not None) or (noted == "failed" and not begun):
            self.state = "failed"
        elif self.run is not None:
            self.state = "partial"


class Survey:
    """Everything under ``outputs``, to be looked at any number of times."""

    def __init__(self, outputs: Path) -> None:
        self.outputs = outputs
        self._config, self._grid = Cache(_read_config), Cache(read_grid)
        self._json, self._command = Cache(files.read_json), Cache(_read_command)
        self._runs: dict[Path, Run] = {}
        self._done: dict[Path, int] = {}  # finished runs, and the time of their directories

    def look(self, now: float) -> tuple[list[Cell], float | None]:
        """All cells, and the seconds until the last of them is done: None if nothing is at work or that is not known.

        Args:
            now: in seconds of the epoch.
        """
        runs, grids = self._find(now)
        cells = _assign(runs, grids, now)
        for cell in cells:
            cell.settle()
        cells = [cell for cell in cells if cell.state]
        families: dict[Any, list[Cell]] = {}  # a grid, or a run by itself
        for cell in cells:
            families.setdefault(id(cell.grid or cell), []).append(cell)
        left = [estimate(family, now) for family in families.values()]
        return cells, max((seconds for seconds in left if seconds is not None), default=None)

    def _find(self, now: float) -> tuple[dict[Path, Run], list[Grid]]:
        """The runs, by directory and then in the order of their start, and the grids in that of theirs."""
        runs, grids, todo = dict[Path, Run](), list[Grid](), [self.outputs]
        while todo:
            folder = todo.pop()
            run = self._run(folder)
            if run is not None:
                runs[folder] = run
                continue
            try:
                inside = [e.name for e in os.scandir(folder) if e.is_dir(follow_symlinks=False)]
                sweeps = os.listdir(folder / ".sweeps") if ".sweeps" in inside else []
            except OSError:
                continue
            todo += [folder / name for name in inside if not name.startswith(".") and name != "wandb"]
            for name in sweeps:
                grid = self._grid(folder / ".sweeps" / name / "grid.json")[0]
                if grid is not None:
                    grid.look(now)
                    grids.append(grid)
        by_start = sorted(runs, key=lambda folder: (folder.parent, runs[folder].began))
        return {folder: runs[folder] for folder in by_start}, sorted(grids, key=lambda grid: grid.started)

    def _run(self, folder: Path) -> Run | None:
        try:
            changed = folder.stat().st_mtime_ns
        except OSError:
            return None
        if self._done.get(folder) == changed:  # one look is enough: results.json comes and goes by renaming
            return self._runs[folder]
        config, began = self._config(folder / "config.yaml")
        if config is None:
            return None
        run = self._runs.get(folder)
        if run is None or run.config is not config:
            run = self._runs[folder] = Run(folder, config)
        run.began, run.command = began, self._command(folder / "command.txt")[0]
        run.results, run.failure = (
            value if isinstance(value, dict) else None
            for value in (self._json(folder / name)[0] for name in ("results.json", "failed.json"))
        )
        run.journal.look()
        run.owner = _owner(folder) if run.results is None else None
        self._done.pop(folder, None)
        if run.results is not None:
            self._done[folder] = changed
        return run


def _assign(runs: dict[Path, Run], grids: list[Grid], now: float) -> list[Cell]:
    """Every run once, then the cells of grids that have none, each with one grid that it is a cell of.

    That is the newest at work, if there is one, else the newest. A cell that its grid has not come to is known by its
    command, where an earlier grid or a run by itself had the same.
    """
    noted = {(id(grid), n): grid.home(n, runs) for grid in grids for n in grid.records}
    known = {run.command: folder for folder, run in runs.items() if run.command}
    for grid in grids:
        here = {command: noted.get((id(grid), n)) for n, command in enumerate(grid.commands)}
        known |= {command: folder for command, folder in here.items() if folder is not None}

    def home(grid: Grid, n: int) -> Path | None:
        return noted.get((id(grid), n)) or known.get(grid.commands[n])

    def busy(grid: Grid, n: int) -> bool:
        folder = noted.get((id(grid), n))
        return folder is not None and runs[folder].owner is not None and grid.state(n) == "running"

    for grid in grids:
        grid.at_work = grid.will_go_on(any(busy(grid, n) for n in grid.records), now)
    cells, homeless = {folder: Cell(run) for folder, run in runs.items()}, dict[str, Cell]()
    for grid in sorted(grids, key=lambda grid: grid.at_work):
        for n in range(len(grid.cells)) if grid.at_work else sorted(grid.records.keys() & {*range(len(grid.cells))}):
            folder = home(grid, n)
            if folder is not None:
                cells[folder] = Cell(runs[folder], grid, n)
            else:
                homeless.pop(grid.commands[n], None)
                homeless[grid.commands[n]] = Cell(None, grid, n)
    return [*cells.values(), *homeless.values()]


def estimate(family: list[Cell], now: float) -> float | None:
    """Sets ``left`` of the running cells of one grid, and gives the seconds until all of it is done.

    The training of a cell takes T = epochs / rate, the rate being that of its last rows, evaluations included. Judging
    it afterwards takes J, the mean of what finished cells took after their last row. With W the mean of what finished
    cells took and running ones will take, T + J, and with R the running ones

        left of a running cell = T (1 - share done) + J - time since its last row, or W - time since its start
        left of the grid = max(longest of R, (sum of R + sum of W (1 - share done) of the waiting ones) / |R|)
    """
    done = [cell.run for cell in family if cell.state == "done" and cell.run]
    running = [cell for cell in family if cell.state == "running"]
    waiting = [cell.run.share if cell.run else 0.0 for cell in family if cell.state == "waiting"]
    after = [max(0.0, run.seconds - run.journal.seconds) for run in done if run.seconds and run.journal.seconds]
    judging = mean(after) if after else 0.0
    whole = [run.seconds for run in done if run.seconds]
    whole += [c.run.training + judging for c in running if c.run and c.run.training is not None]
    usual = mean(whole) if whole else None
    for run, cell in ((cell.run, cell) for cell in running):
        assert run is not None and run.owner is not None
        if run.training is not None:
            ahead = run.training * (1 - run.share) + judging
            cell.left = max(0.0, ahead - max(0.0, now - max(run.journal.changed, run.owner.since))) if ahead else None
        elif usual is not None:
            cell.left = max(0.0, usual - max(0.0, now - run.owner.since))
    known = [cell.left for cell in running if cell.left is not None]
    if not (running or waiting) or len(known) < len(running) or (waiting and usual is None):
        return None
    rest = sum(usual * (1 - share) for share in waiting) if usual is not None else 0.0
    return max([*known, (sum(known) + rest) / max(1, len(running))])


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


def _at(node: Any, key: str) -> float | None:
    return number(node.get(key)) if isinstance(node, dict) else None
