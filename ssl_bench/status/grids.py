"""Grids on disk, as ``launch/grid.py`` writes them, and whether a grid will start the runs that are left."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ssl_bench import files
from ssl_bench.launch import claim
from ssl_bench.launch.outcome import FINISHED, Outcome, State
from ssl_bench.status.cache import load, save
from ssl_bench.status.follow import Mark, find_mark

RECENT = 600.0  # seconds; a grid whose process cannot be seen is at work if its last record is younger
ENDED = (*FINISHED, State.FAILED)

Run = TypeVar("Run")


class Record(NamedTuple):
    """The recorded outcome of a run of a grid; ``mark`` is that of the file."""

    mark: Mark
    outcome: Outcome

    @property
    def when(self) -> float:
        """Time of the record, in seconds of the epoch."""
        return self.mark[0] / 1e9


class GridFolder:
    """A grid: its runs and the last recorded outcome of each.

    Args:
        outputs: the results folder.
        path: of the grid's folder, relative to ``outputs``.
        content: of ``grid.json``.

    Raises:
        AttributeError, KeyError, OverflowError, TypeError, ValueError: the content does not describe a grid.

    Attributes:
        runs: overrides of each run.
        records: by the run's index, its last recorded outcome.
        at_work: whether the grid will start the runs that are left.
        left: seconds until it is done, if that is known.
    """

    def __init__(self, outputs: str, path: str, content: Any) -> None:
        self._outputs, self.path, self.content = outputs, path, content
        self.host, self.pid, self.started = str(content["host"]), int(content["pid"]), float(content["started"])
        if not (0 < self.pid <= claim.LAST_PID and 0 <= self.started <= claim.LAST_SECOND):
            raise ValueError(f"a process {self.pid} started at {self.started}")
        self.runs = [[str(override) for override in run] for run in content["runs"]]
        self._before = self._of_this_grid(
            {
                int(number): Record((round(self.started * 1e9), 0, 0), Outcome(State.DONE_BEFORE, folder=str(folder)))
                for number, folder in (content.get("finished") or {}).items()
            }
        )
        self.records = dict(self._before)
        self._start = path.rpartition(".sweeps/")[0]  # of the paths of its runs
        self.at_work = False
        self.left: float | None = None
        self._cache = self.folder / ".records.jsonl"
        self._unsaved = 0
        for line in load(self._cache):
            with contextlib.suppress(TypeError, ValueError):
                index, mark, content = line
                if outcome := Outcome.read(content):
                    self.records[index] = Record(tuple(mark), outcome)

    @property
    def folder(self) -> Path:
        """Folder of the grid."""
        return Path(self._outputs, self.path)

    @cached_property
    def commands(self) -> list[str]:
        """Of each run, the command that trains only this run."""
        start = _start(self.content["command"])
        return [" ".join([start, *map(_quoted, run)]) for run in self.runs]

    @cached_property
    def common(self) -> frozenset[str]:
        """The overrides that all its runs have."""
        return frozenset(self.runs[0]).intersection(*self.runs) if self.runs else frozenset()

    def update(self) -> None:
        """Read the records that have changed."""
        folder = f"{self._outputs}/{self.path}/jobs"
        try:
            names = os.listdir(folder)
        except OSError:
            return
        found: dict[int, Record] = {}
        for index in (int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdecimal()):
            path = f"{folder}/{index}.json"
            mark, record = find_mark(path), self.records.get(index)
            if mark and (record is None or record.mark != mark):
                outcome = Outcome.read(files.read_json(Path(path)))
                record = Record(mark, outcome) if outcome else None
                self._unsaved += 1
            if mark and record:
                found[index] = record
        lines = ([index, record.mark, record.outcome.record()] for index, record in found.items())
        if save(self._cache, lines, self._unsaved, len(found)):
            self._unsaved = 0
        self.records = self._before | self._of_this_grid(found)

    def _of_this_grid(self, records: Mapping[int, Record]) -> dict[int, Record]:
        return {n: record for n, record in records.items() if 0 <= n < len(self.runs)}

    def state(self, index: int) -> State | None:
        """Last recorded state of a run; None if the run was never started."""
        return self.records[index].outcome.state if index in self.records else None

    @property
    def slurm(self) -> bool:
        """Whether its runs are Slurm jobs, which do not need the process of the grid any more."""
        return (self.folder / "slurm").is_dir()

    def recorded_run(self, index: int, runs: Mapping[str, Run]) -> Run | None:
        """The one of ``runs``, by path, that is recorded for a run.

        The recorded path may be absolute, or relative to where the grid started: its end counts.
        """
        recorded = self.records[index].outcome.folder if index in self.records else None
        parts = str(recorded or "").split("/")
        near = runs.get(self._start + "/".join(parts[-2:]))  # it is nearly always this one
        if near is not None and len(parts) > 1:
            return near
        parts = [part for part in parts if part not in ("", ".")]
        ends = ("/".join(parts[-depth:]) for depth in range(2, len(parts) + 1))
        return next((runs[self._start + end] for end in ends if self._start + end in runs), None)

    def will_continue(self, busy: bool, now: float) -> bool:
        """Whether the grid will start the runs that are left.

        A grid of this machine will if its process is alive or, under Slurm, if one of its runs is running (``busy``). A
        grid of another machine will if one of its runs is running or its last record is recent.
        """
        if len(self.records) == len(self.runs) and all(one.outcome.state in ENDED for one in self.records.values()):
            return False
        if self.host == socket.gethostname():
            return _alive(self.pid, self.started) or (busy and self.slurm)
        return busy or now - max([self.started, *(record.when for record in self.records.values())]) < RECENT


class Grids:
    """Finds the grids; a ``grid.json`` or a record that has not changed since the last time is not read again."""

    def __init__(self, outputs: Path) -> None:
        self._outputs = str(outputs)
        self._grids: dict[str, tuple[Mark | None, GridFolder | None]] = {}  # with the mark of grid.json

    def find(self, sweeps: Sequence[str]) -> list[GridFolder]:
        """The grids in these folders, sorted by start."""
        found = dict[str, tuple[Mark | None, GridFolder | None]]()
        for folder in sweeps:
            with contextlib.suppress(OSError):
                for path in (f"{folder}/{start}" for start in os.listdir(f"{self._outputs}/{folder}")):
                    mark, known = find_mark(f"{self._outputs}/{path}/grid.json"), self._grids.get(path)
                    same = known is not None and known[0] == mark
                    found[path] = known if known and same else (mark, read_grid(self._outputs, path))
        self._grids = found
        grids = [grid for _, grid in found.values() if grid is not None]
        for grid in grids:
            grid.update()
        return sorted(grids, key=lambda grid: grid.started)


def read_grid(outputs: str, path: str) -> GridFolder | None:
    """The grid in the folder ``path`` under ``outputs``; None if its ``grid.json`` does not describe one."""
    content: Any = files.read_json(Path(outputs, path, "grid.json"))
    try:
        if not isinstance(content["command"], str):  # shlex would read the standard input
            return None
        _start(content["command"])
        return GridFolder(outputs, path, content)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        return None


def _start(command: str) -> str:
    """A grid's command without its overrides and the flag of a grid."""
    program, name, *arguments = shlex.split(command)
    flags = [a for a in arguments if a.startswith("-") or not ("=" in a or a.startswith("~"))]
    return shlex.join([program, name, *(flag for flag in flags if flag not in ("-m", "--multirun"))])


@cache
def _quoted(word: str) -> str:
    return shlex.quote(word)


def _alive(pid: int, when: float) -> bool:
    """Whether the process that had the number ``pid`` on this machine at the time ``when`` is alive.

    A later process with the same number does not count.
    """
    born = claim.start_time(pid)
    if not born:
        return born is None
    boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    return int(boot.split()[1]) + int(born) / os.sysconf("SC_CLK_TCK") < when + 1
