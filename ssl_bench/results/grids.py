"""Grids on disk, as ``launch/grid.py`` writes them, and whether a grid will start the runs that are left."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
from collections import Counter
from collections.abc import Sequence
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from ssl_bench import files
from ssl_bench.disk.liveness import alive
from ssl_bench.disk.patience import answer
from ssl_bench.launch import grid
from ssl_bench.launch.grid import Grid
from ssl_bench.launch.outcome import FINISHED, Job, Outcome, State
from ssl_bench.record.cache import Cache
from ssl_bench.record.follow import find_mark

RECENT = 600.0  # seconds; a grid whose process cannot be seen is at work if its last record is younger
ENDED = (*FINISHED, State.FAILED)


class Record(NamedTuple):
    """The recorded outcome of a run of a grid, and when it was recorded, in seconds of the epoch."""

    when: float
    outcome: Outcome


class GridFolder:
    """A grid: its runs and the last recorded outcome of each.

    Args:
        outputs: the results folder.
        path: of the grid's folder, relative to ``outputs``.
        content: of its file.
        cache: of the records.

    Attributes:
        command: the command that started it.
        started: in seconds of the epoch.
        runs: overrides of each run.
        records: by the run's index, its last recorded outcome.
        at_work: whether the grid will start the runs that are left.
        left: seconds until it is done, if that is known.
    """

    def __init__(self, outputs: Path, path: str, content: Grid, cache: Cache) -> None:
        self.folder, self.path, self.command = outputs / path, path, content["command"]
        self._single = content["single"]
        self.started, self.host = content["started"], content["host"]
        self._pid, self._born = content["pid"], content.get("born", "unknown")
        self.runs = content["runs"]
        before = {
            int(number): Record(self.started, Outcome(State.DONE_BEFORE, folder=folder))
            for number, folder in content["finished"].items()
        }
        records = before | self._recorded(cache)
        self.records = {number: record for number, record in records.items() if 0 <= number < len(self.runs)}
        self.at_work = False
        self.left: float | None = None

    def command_of(self, index: int) -> str:
        """The command that trains only this run."""
        return f"{self._single} {shlex.join(self.runs[index])}"

    @cached_property
    def common(self) -> frozenset[str]:
        """The overrides that all its runs have."""
        return frozenset(self.runs[0]).intersection(*self.runs) if self.runs else frozenset()

    def _recorded(self, cache: Cache) -> dict[int, Record]:
        """The records in the grid's folder."""
        records, jobs = dict[int, Record](), self.folder / "jobs"
        with contextlib.suppress(OSError):
            for name in answer(jobs, partial(os.listdir, jobs)):
                mark = find_mark(f"{jobs}/{name}") if name.endswith(".json") and name[:-5].isdecimal() else None
                if mark is None:
                    continue
                content = cache.get(f"{self.path}/jobs/{name}", str(mark), partial(files.read_json, jobs / name, Job))
                if outcome := Outcome.read(content):
                    records[int(name[:-5])] = Record(mark[3] / 1e9, outcome)
        return records

    def state(self, index: int) -> State | None:
        """Last recorded state of a run; None if the run was never started."""
        return self.records[index].outcome.state if index in self.records else None

    @property
    def slurm(self) -> bool:
        """Whether its runs are Slurm jobs, which do not need the process of the grid any more."""
        return (self.folder / "slurm").is_dir()

    def will_continue(self, busy: bool, now: float) -> bool:
        """Whether the grid will start the runs that are left.

        A grid of this machine will if its process is alive or, under Slurm, if one of its runs is running (``busy``). A
        grid of another machine will if one of its runs is running or its last record is recent.
        """
        states = [record.outcome.state for record in self.records.values()]
        if len(states) == len(self.runs) and all(state in ENDED for state in states):
            return False
        if self.host == socket.gethostname():
            return alive(self._pid, self._born) or (busy and self.slurm)
        return busy or now - max([self.started, *(record.when for record in self.records.values())]) < RECENT


def find_grids(outputs: Path, sweeps: Sequence[str], cache: Cache) -> list[GridFolder]:
    """The grids in these folders, sorted by start."""
    grids = []
    for folder in sweeps:
        with contextlib.suppress(OSError):
            starts = answer(outputs / folder, partial(os.listdir, outputs / folder))
            for path in (f"{folder}/{start}" for start in starts):
                if content := grid.read(outputs / path):
                    grids.append(GridFolder(outputs, path, content, cache))
    return sorted(grids, key=lambda one: one.started)


def axes(grid: GridFolder) -> list[str]:
    """How many values each setting of a grid has, if they are several: ``loss x3``."""
    keys = Counter(o.partition("=")[0].lstrip("+") for o in dict.fromkeys(chain.from_iterable(grid.runs)))
    return [f"{key} x{count}" for key, count in keys.items() if count > 1]
