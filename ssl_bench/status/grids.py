"""Grids on disk, as ``launch/grid.py`` writes them, and whether a grid will start the runs that are left."""

import os
import shlex
import socket
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.launch import claim
from ssl_bench.launch.outcome import FINISHED, Outcome, State
from ssl_bench.status.follow import Cache

RECENT = 600.0  # seconds; a grid whose process cannot be seen is at work if its last record is younger
SETTLED = 10.0  # seconds; a folder that changed longer ago gets a different time when it changes again


class GridFolder:
    """A grid: its runs and the last recorded outcome of each.

    Args:
        path: of ``grid.json``.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: the file does not describe a grid.

    Attributes:
        runs: overrides of each run.
        commands: of each run, the command that trains only this run.
        records: by the run's index, its last recorded outcome and the time of the record in seconds of the epoch.
        at_work: whether the grid will start the runs that are left.
    """

    def __init__(self, path: Path) -> None:
        data: Any = files.read_json(path)
        self.folder = path.parent
        self.host, self.pid, self.started = str(data["host"]), int(data["pid"]), float(data["started"])
        self.runs = [[str(override) for override in run] for run in data["runs"]]
        program, command, *arguments = shlex.split(data["command"])
        flags = [a for a in arguments if a.startswith("-") or not ("=" in a or a.startswith("~"))]
        launch = [program, command, *(flag for flag in flags if flag not in ("-m", "--multirun"))]
        self.commands = [shlex.join([*launch, *run]) for run in self.runs]
        self.records: dict[int, tuple[Outcome, float]] = {}
        self.at_work = False
        self._read, self._settled = Cache(_read_outcome), 0

    def update(self, now: float) -> None:
        """Read the records that have changed; ``now`` is in seconds of the epoch."""
        folder = self.folder / "jobs"
        try:
            changed = folder.stat().st_mtime_ns
            if changed == self._settled:  # a record is written by renaming, which changes the folder
                return
            numbers = [
                int(name[:-5]) for name in os.listdir(folder) if name.endswith(".json") and name[:-5].isdecimal()
            ]
        except OSError:
            return
        records = {number: self._read(folder / f"{number}.json") for number in numbers}
        self.records = {n: (outcome, when) for n, (outcome, when) in records.items() if outcome and n < len(self.runs)}
        self._settled = changed if now - changed / 1e9 > SETTLED else 0

    def state(self, index: int) -> State | None:
        """Last recorded state of a run; None if the run was never started."""
        return self.records[index][0].state if index in self.records else None

    @property
    def slurm(self) -> bool:
        """Whether its runs are Slurm jobs, which do not need the process of the grid any more."""
        return (self.folder / "slurm").is_dir()

    def recorded_folder(self, index: int, folders: Collection[Path]) -> Path | None:
        """The one of ``folders`` that is recorded for a run; the record may be relative to where the grid started."""
        recorded = self.records[index][0].folder if index in self.records else None
        parts, outputs = Path(str(recorded or "")).parts, self.folder.parent.parent
        candidates = (outputs.joinpath(*parts[-depth:]) for depth in range(2, len(parts) + 1))
        return next((folder for folder in candidates if folder in folders), None)

    def will_continue(self, busy: bool, now: float) -> bool:
        """Whether the grid will start the runs that are left.

        A grid of this machine will if its process is alive or, under Slurm, if one of its runs is running (``busy``). A
        grid of another machine will if one of its runs is running or its last record is recent.
        """
        if all(self.state(index) in (*FINISHED, State.FAILED) for index in range(len(self.runs))):
            return False
        if self.host == socket.gethostname():
            return _alive(self.pid, self.started) or (busy and self.slurm)
        return busy or now - max([self.started, *(when for _, when in self.records.values())]) < RECENT


def read_grid(path: Path) -> GridFolder | None:
    """The grid of a ``grid.json``; None if the file does not describe one."""
    try:
        return GridFolder(path)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _read_outcome(path: Path) -> Outcome | None:
    return Outcome.read(files.read_json(path))


def _alive(pid: int, when: float) -> bool:
    """Whether the process that had the number ``pid`` on this machine at the time ``when`` is alive.

    A later process with the same number does not count.
    """
    born = claim.start_time(pid)
    if not born:
        return born is None
    boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    return int(boot.split()[1]) + int(born) / os.sysconf("SC_CLK_TCK") < when + 1
