"""The runs that grids were asked for, in ``<paths.outputs>/<name>/grid-<hash>.json``, with the hash of their run_ids.

So a run that never began is known. How a run ended stands in its own directory.
"""

import fnmatch
import hashlib
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypedDict

from ssl_bench import files
from ssl_bench.record import runs


class AskedRun(TypedDict):
    """``folder`` is the directory, from the results folder."""

    overrides: list[str]
    folder: str


class Grid(TypedDict):
    """Content of the file.

    Attributes:
        command: that started the grid.
        single: the command of a single run, without its overrides.
        started: in seconds of the epoch.
    """

    command: str
    single: str
    started: float
    runs: list[AskedRun]


class Asked(NamedTuple):
    """A run that a grid was asked for.

    Attributes:
        overrides: of the run.
        command: that trains only this run.
        grid: the command that started its grid.
        experiment: the name of the experiment that was asked for it.
        place: the last two names of its directory, which a copy of the results folder has, too.
    """

    overrides: list[str]
    command: str
    grid: str
    experiment: str
    place: str


FILES = "grid-*.json"
Wanted = tuple[Sequence[str], str]  # a run: its overrides, and its directory from the results folder


def write(experiment: Path, command: str, single: str, started: float, runs: Sequence[Wanted]) -> None:
    """Write the runs of an experiment to its folder; the arguments are those of :class:`Grid`."""
    experiment.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256("\n".join(sorted(os.path.basename(folder) for _, folder in runs)).encode()).hexdigest()[:12]
    content = Grid(
        command=command,
        single=single,
        started=started,
        runs=[{"overrides": [*overrides], "folder": folder} for overrides, folder in runs],
    )
    files.write_json(experiment / FILES.replace("*", name), content)


def read(outputs: Path) -> list[Asked]:
    """The runs of all grids below a results folder, those of the grid that began last at the end."""
    found = []
    for above, _, inside in runs.walk(outputs):
        experiment = Path(above).relative_to(outputs).as_posix()
        for name in sorted(fnmatch.filter(inside, FILES)) if experiment != "." else ():
            if content := files.read_json(Path(above, name), Grid, of_a_run=True):
                found.append((content["started"], [*_asked(content, experiment)]))
    return [one for _, of_grid in sorted(found, key=lambda pair: pair[0]) for one in of_grid]


def _asked(content: Grid, experiment: str) -> Iterator[Asked]:
    for run in content["runs"]:
        command = f"{content['single']} {shlex.join(run['overrides'])}"
        place = "/".join(Path(run["folder"]).parts[-2:])
        yield Asked(run["overrides"], command, content["command"], experiment, place)
