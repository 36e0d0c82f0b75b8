"""``ssl-bench reproduce dcl/table1``: train what a table still needs, one call of ``ssl-bench train`` per cell.

``ssl-bench reproduce dcl/table1 row='CIFAR-10*' col=256 seed=0,1 devices=8 --dry-run``. Whatever else is given goes to
every cell; where it changes what is computed, the runs are recorded with ``scale=reduced`` and fill no cell.
``scale=smoke`` tries every cell with two steps on generated images. With ``hydra/launcher=local`` or ``slurm`` cells
are carried out at once, each by its own command.
"""

from __future__ import annotations

import contextlib
import fcntl
import fnmatch
import importlib
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ssl_bench.config.build import near
from ssl_bench.config.identity import VOLATILE, run_id
from ssl_bench.errors import ConfigError
from ssl_bench.launch import slots as places
from ssl_bench.papers import cost, runs, smoke, tables
from ssl_bench.papers.tables import Cell, Table

USAGE = """usage: ssl-bench reproduce TABLE [row=PATTERN] [col=PATTERN] [seed=0,1] [key=value ...] [--dry-run]
       ssl-bench reproduce PAPER --all

  TABLE         such as dcl/table1; a paper alone lists its tables, with --all it means all of them
  scale=smoke   two steps of every cell on generated images
  --dry-run     print the commands and train nothing
"""
SUBMITTED = 32  # commands that wait for jobs of Slurm, each a process of its own
PLACE = {"row", "col", "column", "seed", "scale"}  # arguments that are not passed on as they are


@dataclass(frozen=True)
class Asked:
    """The arguments of ``reproduce``, ``table`` and ``figure``, which read them alike."""

    names: list[str]
    flags: set[str]
    places: dict[str, str]
    overrides: list[str]

    @classmethod
    def read(cls, arguments: Sequence[str], flags: Sequence[str]) -> Asked:
        """Raises ConfigError for a flag that is not known."""
        asked = cls([], set(), {}, [])
        for argument in arguments:
            key, equals, value = argument.partition("=")
            if argument.startswith("--"):
                if argument not in flags:
                    raise ConfigError(
                        f"there is no {argument}{near(argument, flags)}: set it to one of {', '.join(flags)}"
                    )
                asked.flags.add(argument)
            elif not equals:
                asked.names.append(argument)
            elif key in PLACE:
                asked.places["col" if key == "column" else key] = value
            else:
                asked.overrides.append(argument)
        return asked

    def tables(self) -> list[Table]:
        """What is named; all of a paper, or all papers, with ``--all``.

        Raises:
            ConfigError: no such table, or none named.
        """
        if not self.names and "--all" in self.flags:
            return tables.every()
        if not self.names:
            raise ConfigError(f"name a table: {', '.join(table.name for table in tables.every())}")
        found = [table for name in self.names for table in tables.find(name)]
        whole = [name for name in self.names if "/" not in name]
        if whole and "--all" not in self.flags:
            raise ConfigError(f"{whole[0]} has {', '.join(t.name for t in found)}: name one, or add --all")
        return found

    def cells(self, table: Table) -> list[Cell]:
        """The cells of the rows and columns that are asked for; raises ConfigError where no name fits."""
        cells = list(table.cells)
        for key, names in (("row", table.rows()), ("col", table.columns())):
            pattern = self.places.get(key)
            if pattern is not None:
                fits = {name for name in names if name == pattern or fnmatch.fnmatchcase(name, pattern)}
                if not fits:
                    raise ConfigError(
                        f"{key}={pattern}: {table.name} has no such {key}{near(pattern, names)}; "
                        f"set {key} to one of {', '.join(names)}, or to a pattern such as '*{names[-1][-4:]}'"
                    )
                cells = [cell for cell in cells if (cell.row if key == "row" else cell.column) in fits]
        return cells

    def outputs(self) -> Path:
        given = [o.split("=", 1)[1] for o in self.overrides if o.startswith("paths.outputs=")]
        return Path(given[-1] if given else "outputs")

    def scale(self) -> str:
        """full, unless something else is asked for or what is computed is changed."""
        groups = [o.split("=")[0].split(".")[0].lstrip("+~") for o in self.overrides]
        changed = [group for group in groups if group not in VOLATILE and group.split("/")[0] != "hydra"]
        return self.places.get("scale", "reduced" if changed else "full")

    def launcher(self) -> str:
        given = [o.split("=", 1)[1] for o in self.overrides if o.startswith("hydra/launcher=")]
        return given[-1] if given else "basic"


@dataclass
class Job:
    """The runs of one cell, which may fill several numbers."""

    overrides: list[str]
    command: str
    seeds: list[int]
    cells: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    blocked: str = ""
    identities: dict[int, str] = field(default_factory=dict)  # of its run with each seed
    done: list[int] = field(default_factory=list)

    @property
    def left(self) -> list[int]:
        return [] if self.blocked else [seed for seed in self.seeds if seed not in self.done]

    @property
    def hours(self) -> float:
        return (cost.hours(self.config) or 0.0) * len(self.left) if self.left and "epochs" in self.config else 0.0

    def arguments(self) -> list[str]:
        return ["-m", *self.overrides, f"seed={','.join(map(str, self.left))}"]

    def say(self) -> str:
        return shlex.join(["ssl-bench", self.command, *self.arguments()])


def main(arguments: Sequence[str]) -> int:
    """0: done, or nothing left to do. 1: a run failed. 2: wrong arguments. 128 + n: stopped by signal n."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if arguments else 2
    try:
        asked = Asked.read(arguments, ("--dry-run", "--all"))
        chosen = asked.tables()
        if asked.scale() == "smoke" and asked.launcher() != "basic":
            raise ConfigError("scale=smoke makes the images of each cell before it: leave hydra/launcher out")
        jobs = plan(asked, chosen)
    except ConfigError as error:
        print(f"ssl-bench: {error}", file=sys.stderr)
        return 2
    todo = _introduce(asked, jobs)
    if "--dry-run" in asked.flags:
        print(*(job.say() for job in todo), sep="\n")
        return 0
    try:
        if asked.launcher() != "basic":
            return max(_at_once(asked, todo), default=0)
        with _generated(asked) if asked.scale() == "smoke" else contextlib.nullcontext():
            return max(_one_by_one(asked, todo), default=0)
    except OSError as error:  # such as a full disk, met by the images of a smoke run
        print(f"ssl-bench: {error.filename or asked.outputs()}: {error.strerror}", file=sys.stderr)
        return 1


def plan(asked: Asked, chosen: Sequence[Table]) -> list[Job]:
    """What each cell that is asked for needs, cells of the same runs together."""
    jobs: dict[tuple[str, ...], Job] = {}
    finished = {run.identity for run in runs.finished(asked.outputs())}
    for table, cells in [(table, asked.cells(table)) for table in chosen]:
        for cell in _shown(cells, table.name):
            name = f"{table.name} {cell.row} | {cell.column}"
            if not cell.runs:
                reason = f"needs {cell.missing}" if cell.missing else "nothing to run"
                jobs.setdefault((name,), Job([], cell.command, [], [], blocked=reason)).cells[:] = [name]
                continue
            key = (cell.command, *cell.overrides)
            if key not in jobs:
                jobs[key] = _job(asked, cell, finished)
            if name not in jobs[key].cells:
                jobs[key].cells.append(name)
    return list(jobs.values())


def _shown(cells: Sequence[Cell], name: str) -> Iterable[Cell]:
    """Says on a terminal which table is being looked at: Hydra takes a tenth of a second to compose a cell."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(cells, name, console=console, transient=True, disable=not console.is_terminal)


def _job(asked: Asked, cell: Cell, finished: set[str]) -> Job:
    scale = asked.scale()
    try:
        seeds = [int(seed) for seed in asked.places["seed"].split(",")] if "seed" in asked.places else list(cell.seeds)
    except ValueError as error:
        raise ConfigError(f"seed={asked.places['seed']}: set seed to integers, such as 0,1,2") from error
    extra = list(asked.overrides)
    if scale != "full" and cell.command == "train":
        extra.append(f"scale={scale}")
    job = Job(tables.merge(list(cell.overrides), extra), cell.command, seeds[:1] if scale == "smoke" else seeds)
    try:
        job.config = runs.compose(cell.overrides, cell.command)
    except ConfigError as error:  # of the cell itself: the others go on
        job.blocked = str(error)
        return job
    if scale == "smoke":
        job.overrides = tables.merge(job.overrides, smoke.overrides(job.config, _data(asked)))
    job.config = runs.compose(job.overrides, cell.command)
    job.identities = {seed: run_id(runs.compose(job.overrides, cell.command, seed)) for seed in job.seeds}
    job.done = [seed for seed, identity in job.identities.items() if identity in finished]
    return job


def _introduce(asked: Asked, jobs: Sequence[Job]) -> list[Job]:
    """Says what is done, what cannot be and what the rest costs; gives the rest."""
    blocked = Counter(job.blocked for job in jobs if job.blocked)
    for job in jobs:
        if job.seeds and not job.blocked:
            state = f"{len(job.done)}/{len(job.seeds)} seeds"
            print(f"{'done' if not job.left else state:>10}  {job.cells[0]}")
    for reason, count in blocked.items():
        print(f"{count:>4} cells  not available: {reason}")
    todo = [job for job in jobs if job.left]
    count, hours = sum(len(job.left) for job in todo), sum(job.hours for job in todo)
    if asked.scale() == "reduced" and "scale" not in asked.places:
        print(f"{' '.join(asked.overrides)}: these runs count as scale=reduced and fill no cell of the paper")
    price = f", about {hours:.1f} h of pre-training on 8 V100" if asked.scale() == "full" else ""
    print(f"{count} runs to go in {len(todo)} cells{price if count else ''}", flush=True)
    return todo


def _one_by_one(asked: Asked, todo: Sequence[Job]) -> list[int]:
    codes: list[int] = []
    for job in todo:
        codes.append(_carry_out(asked, job))
        if codes[-1] > 128:  # stopped by a signal
            break
    return codes


def _carry_out(asked: Asked, job: Job) -> int:
    if asked.scale() == "smoke" and job.command == "train":
        smoke.write(job.config, _data(asked))
    print(f"\n{'; '.join(job.cells)}\n{job.say()}", flush=True)
    code: int = importlib.import_module(f"ssl_bench.commands.{job.command}").main(job.arguments())
    if asked.scale() == "smoke":  # a thousand networks that nobody goes on with
        for seed in job.left:
            shutil.rmtree(asked.outputs() / "smoke" / job.identities[seed] / "checkpoints", ignore_errors=True)
    return code


def _at_once(asked: Asked, todo: Sequence[Job]) -> list[int]:
    """As many commands at a time as this machine has places for runs; on Slurm its queue does the rest."""

    def carry_out(job: Job) -> int:
        print(f"{'; '.join(job.cells)}\n{job.say()}", flush=True)
        return subprocess.run(
            [sys.executable, "-m", "ssl_bench", job.command, *job.arguments()], check=False
        ).returncode

    config = todo[0].config if todo else {}
    limit = (
        SUBMITTED
        if asked.launcher() == "slurm"
        else places.jobs(config.get("devices", 1), config.get("runs_per_gpu", 1))
    )
    with ThreadPoolExecutor(limit) as pool:
        return list(pool.map(carry_out, todo))


def _data(asked: Asked) -> Path:
    """Where generated images are while they are needed: for every process the same, for it is in what a run is."""
    return asked.outputs() / ".smoke"


@contextlib.contextmanager
def _generated(asked: Asked) -> Iterator[None]:
    """Sees that the last process that needs generated images removes them."""
    _data(asked).mkdir(parents=True, exist_ok=True)
    with open(_data(asked) / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        try:
            yield
        finally:
            with contextlib.suppress(BlockingIOError):  # another one needs them
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(_data(asked), ignore_errors=True)
