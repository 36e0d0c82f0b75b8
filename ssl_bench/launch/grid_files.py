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


class Grid(TypedDict):
    """Content of the file.

    Attributes:
        command: that started the grid.
        single: the command of a single run, without its overrides.
        started: in seconds of the epoch.
        runs: the overrides of each, and its directory from the results folder.
    """

    command: str
    single: str
    started: float
    runs: list[tuple[list[str], str]]


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


def write(grid: Grid, experiments: Sequence[Path]) -> None:
    """Write a grid into the folders of the experiments that its runs belong to, which are given for each run.

    Raises:
        ConfigError: one cannot be written.
    """
    for experiment in dict.fromkeys(experiments):
        its = [run for run, of in zip(grid["runs"], experiments, strict=True) if of == experiment]
        names = "\n".join(sorted(os.path.basename(folder) for _, folder in its))
        path = experiment / FILES.replace("*", hashlib.sha256(names.encode()).hexdigest()[:12])
        with files.writing():
            files.make_folder(experiment)
            files.write_json(path, grid | {"runs": its})


def read(outputs: Path) -> list[Asked]:
    """The runs of all grids below a results folder, those of the grid that began last at the end."""
    paths = [Path(above, name) for above, _, inside in runs.walk(outputs) for name in fnmatch.filter(inside, FILES)]
    grids = [(path.parent, grid) for path in paths if (grid := files.read_json(path, Grid, of_a_run=True))]
    found = list[Asked]()
    for folder, grid in sorted(grids, key=lambda pair: pair[1]["started"]):
        for overrides, its in grid["runs"]:
            command = f"{grid['single']} {shlex.join(overrides)}"
            place, experiment = "/".join(Path(its).parts[-2:]), folder.relative_to(outputs).as_posix()
            found.append(Asked(overrides, command, grid["command"], experiment, place))
    return found
