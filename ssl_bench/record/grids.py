"""The runs that grids were asked for, in ``<paths.outputs>/<name>/grid-<hash>.json``, with the hash of their run_ids.

So a run that never began is known. How a run ended stands in its own directory.
"""

import fnmatch
import hashlib
import os
import shlex
from collections.abc import Sequence
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


def write(experiment: Path, command: str, single: str, started: float, asked: Sequence[AskedRun]) -> None:
    """Write the runs of an experiment to its folder; the arguments are those of :class:`Grid`."""
    experiment.mkdir(parents=True, exist_ok=True)
    names = sorted(os.path.basename(run["folder"]) for run in asked)
    path = experiment / FILES.replace("*", hashlib.sha256("\n".join(names).encode()).hexdigest()[:12])
    files.write_json(path, Grid(command=command, single=single, started=started, runs=[*asked]))


def read(outputs: Path) -> list[Asked]:
    """The runs of all grids below a results folder, those of the grid that began last at the end."""
    found = list[tuple[Grid, str]]()
    for above, _, inside in runs.walk(outputs):
        experiment = Path(above).relative_to(outputs).as_posix()
        for name in sorted(fnmatch.filter(inside, FILES)) if experiment != "." else ():
            if content := files.read_json(Path(above, name), Grid, of_a_run=True):
                found.append((content, experiment))
    return [
        Asked(
            run["overrides"],
            f"{grid['single']} {shlex.join(run['overrides'])}",
            grid["command"],
            experiment,
            "/".join(Path(run["folder"]).parts[-2:]),
        )
        for grid, experiment in sorted(found, key=lambda pair: pair[0]["started"])
        for run in grid["runs"]
    ]
