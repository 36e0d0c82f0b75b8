"""Grids by their folders ``.sweeps/<start>``, as ``grid.py`` writes them, and whether anybody is still at them."""

import os
import shlex
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.launch import claim
from ssl_bench.status.follow import Cache

RECENT = 600.0  # seconds; a grid whose process cannot be seen is at work if something was noted that recently
SETTLED = 10.0  # seconds; a folder that changed longer ago has another time when it changes again
OVER = ("done", "done before", "failed")


class Grid:
    """A grid: what it is made of, and what was noted of each cell.

    Args:
        path: of ``grid.json``.

    Raises:
        TypeError, KeyError, ValueError: it is no grid's.

    Attributes:
        cells: the overrides of each.
        commands: what carries out each alone.
        records: by cell, what was last noted of it and when, in seconds of the epoch.
        at_work: whether it will come to the cells that are left.
    """

    def __init__(self, path: Path) -> None:
        data: Any = files.read_json(path)
        self.folder = path.parent
        self.host, self.pid, self.started = str(data["host"]), int(data["pid"]), float(data["started"])
        self.cells = [[str(override) for override in cell] for cell in data["cells"]]
        program, command, *given = shlex.split(data["command"])
        flags = [g for g in given if g.startswith("-") or not ("=" in g or g.startswith("~"))]
        launch = [program, command, *(flag for flag in flags if flag not in ("-m", "--multirun"))]
        self.commands = [shlex.join([*launch, *cell]) for cell in self.cells]
        self.records: dict[int, tuple[dict[str, Any], float]] = {}
        self.at_work = False
        self._read, self._settled = Cache(files.read_json), 0

    def look(self, now: float) -> None:
        """Reads the records that have changed, at ``now`` seconds of the epoch."""
        folder = self.folder / "cells"
        try:
            changed = folder.stat().st_mtime_ns
            if changed == self._settled:  # each record comes by renaming, which changes the folder
                return
            numbers = [int(name[:-5]) for name in os.listdir(folder) if name.endswith(".json") and name[:-5].isdigit()]
        except OSError:
            return
        found = {number: self._read(folder / f"{number}.json") for number in numbers}
        self.records = {number: (record, when) for number, (record, when) in found.items() if isinstance(record, dict)}
        self._settled = changed if now - changed / 1e9 > SETTLED else 0

    def state(self, cell: int) -> str:
        """What was last noted of a cell; "" if it was never started."""
        return str(self.records[cell][0].get("state")) if cell in self.records else ""

    @property
    def slurm(self) -> bool:
        """Whether its cells are jobs of their own, which do not need it any more."""
        return (self.folder / "slurm").is_dir()

    def home(self, cell: int, runs: Iterable[Path]) -> Path | None:
        """The one of ``runs`` that was noted as a cell's, maybe relative to the folder that the grid was started in."""
        record = self.records[cell][0] if cell in self.records else {}
        parts, outputs = Path(str(record.get("folder") or "")).parts, self.folder.parent.parent
        places = (outputs.joinpath(*parts[-depth:]) for depth in range(2, len(parts) + 1))
        return next((place for place in places if place in runs), None)

    def will_go_on(self, busy: bool, now: float) -> bool:
        """Whether it will come to what is left. On this machine its process tells.

        If that is elsewhere, it will as long as a cell runs (``busy``) or something was noted recently; if Slurm has
        its cells, as long as one runs.
        """
        if all(self.state(n) in OVER for n in range(len(self.cells))):
            return False
        if self.host == socket.gethostname():
            return _lives(self.pid, self.started) or (busy and self.slurm)
        return busy or now - max([self.started, *(when for _, when in self.records.values())]) < RECENT


def read_grid(path: Path) -> Grid | None:
    """A grid, or None where there is none."""
    try:
        return Grid(path)
    except (TypeError, KeyError, ValueError, AttributeError):
        return None


def _lives(pid: int, at: float) -> bool:
    """Whether the process lives that had a number on this machine at a time, and not a later one with that number."""
    born = claim._born(pid)
    if not born:
        return born is None
    boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
    return int(boot.split()[1]) + int(born) / os.sysconf("SC_CLK_TCK") < at + 1
