"""Grids on disk, as ``launch/grid.py`` writes them, and whether a grid will start the runs that are left."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ssl_bench import files
from ssl_bench.launch import lock
from ssl_bench.launch.outcome import FINISHED, Outcome, State
from ssl_bench.status.cache import Cache
from ssl_bench.status.follow import find_mark

RECENT = 600.0  # seconds; a grid whose process cannot be seen is at work if its last record is younger
ENDED = (*FINISHED, State.FAILED)

Run = TypeVar("Run")


class Record(NamedTuple):
    """The recorded outcome of a run of a grid, and when it was recorded, in seconds of the epoch."""

    when: float
    outcome: Outcome


class GridFolder:
    """A grid: its runs and the last recorded outcome of each.

    Args:
        outputs: the results folder.
        path: of the grid's folder, relative to ``outputs``.
        content: of ``grid.json``.
        cache: of the records.

    Raises:
        AttributeError, KeyError, OverflowError, TypeError, ValueError: the content does not describe a grid.

    Attributes:
        runs: overrides of each run.
        records: by the run's index, its last recorded outcome.
        at_work: whether the grid will start the runs that are left.
        left: seconds until it is done, if that is known.
    """

    def __init__(self, outputs: str, path: str, content: Any, cache: Cache) -> None:
        self._outputs, self.path, self.content, self._command = outputs, path, content, _start(content["command"])
        self.host, self.pid, self.started = str(content["host"]), int(content["pid"]), float(content["started"])
        if not (0 < self.pid < 2**31 and 0 <= self.started < 2**35):
            raise ValueError(f"a process {self.pid} started at {self.started}")
        self.runs = [[str(override) for override in run] for run in content["runs"]]
        before = {
            int(number): Record(self.started, Outcome(State.DONE_BEFORE, folder=str(folder)))
            for number, folder in (content.get("finished") or {}).items()
        }
        records = before | self._recorded(cache)
        self.records = {number: record for number, record in records.items() if 0 <= number < len(self.runs)}
        self._start = path.rpartition(".sweeps/")[0]  # of the paths of its runs
        self.at_work = False
        self.left: float | None = None

    @property
    def folder(self) -> Path:
        """Folder of the grid."""
        return Path(self._outputs, self.path)

    @cached_property
    def commands(self) -> list[str]:
        """Of each run, the command that trains only this run."""
        return [" ".join([self._command, *map(_quoted, run)]) for run in self.runs]

    @cached_property
    def common(self) -> frozenset[str]:
        """The overrides that all its runs have."""
        return frozenset(self.runs[0]).intersection(*self.runs) if self.runs else frozenset()

    def _recorded(self, cache: Cache) -> dict[int, Record]:
        """The records in the grid's folder."""
        found, folder = dict[int, Record](), f"{self.path}/jobs"
        with contextlib.suppress(OSError):
            for name in os.listdir(f"{self._outputs}/{folder}"):
                path = f"{self._outputs}/{folder}/{name}"
                mark = find_mark(path) if name.endswith(".json") and name[:-5].isdecimal() else None
                if mark is None:
                    continue
                read: Callable[[], Any] = partial(files.read_json, path)
                if outcome := Outcome.read(cache.get(f"{folder}/{name}", str(mark), read)):
                    found[int(name[:-5])] = Record(mark[0] / 1e9, outcome)
        return found

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
        parts = [part for part in (recorded or "").split("/") if part not in ("", ".")]
        ends = (self._start + "/".join(parts[-depth:]) for depth in range(2, len(parts) + 1))
        return next((runs[end] for end in ends if end in runs), None)

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


def find_grids(outputs: Path, sweeps: Sequence[str], cache: Cache) -> list[GridFolder]:
    """The grids in these folders, sorted by start; a ``grid.json`` that does not describe one is left out."""
    grids = []
    for folder in sweeps:
        with contextlib.suppress(OSError):
            for path in (f"{folder}/{start}" for start in os.listdir(outputs / folder)):
                content: Any = files.read_json(outputs / path / "grid.json")
                with contextlib.suppress(AttributeError, KeyError, OverflowError, TypeError, ValueError):
                    if isinstance(content["command"], str):
                        grids.append(GridFolder(str(outputs), path, content, cache))
    return sorted(grids, key=lambda grid: grid.started)


def _start(command: str) -> str:
    """A grid's command without its overrides and the flag of a grid."""
    program, name, *arguments = shlex.split(command)
    flags = [a for a in arguments if a.startswith("-") or not ("=" in a or a.startswith("~"))]
    return shlex.join([program, name, *(flag for flag in flags if flag not in ("-m", "--multirun"))])


@lru_cache(None)
def _quoted(word: str) -> str:
    return shlex.quote(word)


def _alive(pid: int, when: float) -> bool:
    """Whether the process that had the number ``pid`` on this machine at the time ``when`` is alive.

    A later process with the same number does not count.
    """
    born = lock.start_time(pid)
    if not born:
        return born is None
    boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    return int(boot.split()[1]) + int(born) / os.sysconf("SC_CLK_TCK") < when + 1
