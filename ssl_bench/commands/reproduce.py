"""``ssl-bench reproduce dcl/table1``: train the runs that a paper's table still needs, one command per cell.

``ssl-bench reproduce dcl/table1 row='CIFAR-10*' col=256 seed=0,1 devices=8 --dry-run``. Other ``key=value`` are added
to every cell; if they change what is computed, the runs are recorded with ``scale=reduced`` and fill no cell.
``skip=impossible`` leaves out cells that cannot be.
``scale=smoke`` tries every cell with two steps on generated images. With ``hydra/launcher=local`` or ``slurm`` several
commands run at the same time. ``--recipe`` only says in words what the cells train.
"""

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from ssl_bench import hardware
from ssl_bench.commands import train as train_command
from ssl_bench.commands.arguments import Parser, in_sentences, show_progress
from ssl_bench.config import schema
from ssl_bench.config.build import converted
from ssl_bench.errors import ConfigError, require
from ssl_bench.launch import impossible
from ssl_bench.launch.workers import signals_passed_on
from ssl_bench.papers import cost, recipe, smoke
from ssl_bench.papers.plan import PlannedRuns, Request, plan
from ssl_bench.papers.selection import HELP, Selection
from ssl_bench.record import folders

SUBMITTED = 32  # commands that wait for jobs of Slurm at the same time, each in a process of its own


@in_sentences
def main(arguments: Sequence[str]) -> int:
    """Plan and train.

    Returns:
        0: done, or nothing was left to do. 1: a run failed. 2: wrong arguments. 128 + n: stopped by signal n.
    """
    parser = Parser("reproduce", "Train the runs that tables of papers still need.")
    parser.add_argument("names", nargs="*", metavar="TABLE", help="such as dcl/table1; a paper alone lists its tables")
    parser.add_argument("--all", action="store_true", help="all tables of a paper")
    parser.add_argument("--dry-run", action="store_true", help="print the commands and train nothing")
    parser.add_argument("--recipe", action="store_true", help="print in words what each cell trains, and train nothing")
    parser.add_config_dir()
    parser.epilog = (
        f"{HELP} seed=0,1 replaces the seeds; scale=smoke tries every cell for two steps on generated images; any "
        "other key=value is added to every cell."
    )
    options = parser.read(arguments)
    skip = impossible.taken_skip(options.overrides)
    selection = Selection.read(options.names, options.all, options.overrides, options.config_dir)
    request = Request.read(selection)
    converted(request.scale, schema.EXACT["scale"], "scale")
    require(all(seed >= 0 for seed in request.seeds), "seed", list(request.seeds), "integers of 0 or more")
    planned = plan(request, show_progress)
    if options.recipe:
        for text, cells in recipe.recipes(planned).items():
            print(*cells, text, "", sep="\n")
        return 0
    _leave_out_impossible(request, planned, skip, options.dry_run)
    summarise(request, planned)
    todo = [runs for runs in planned if runs.missing]
    if options.dry_run:
        print(*(runs.line() for runs in todo), sep="\n")
        if request.scale != "smoke":  # which generates its images
            print(*(f"data missing: {sentence}" for sentence in missing_data(todo)), sep="\n")
        return 0
    return train(request, todo)


def train(request: Request, todo: Sequence[PlannedRuns]) -> int:
    """Train runs as the request says; return the largest exit code of their commands."""
    if request.launcher != "basic":
        return max(_train_at_once(request, todo), default=0)
    try:
        return max(_train_in_turn(request, todo), default=0)
    finally:
        if request.scale == "smoke":
            shutil.rmtree(request.smoke_data, ignore_errors=True)


def _leave_out_impossible(request: Request, planned: Sequence[PlannedRuns], skip: bool, dry_run: bool) -> None:
    """Check the runs that are left to train; with ``skip`` those that cannot be are no longer available.

    Data and devices that this machine lacks are no reason in a dry run. Smoke runs generate their images.

    Raises:
        ConfigError: some cannot be, and they are not to be left out.
    """
    todo = [runs for runs in planned if runs.missing]
    if not todo or request.scale == "smoke" or (dry_run and not request.overrides):  # the cells themselves can be
        return
    from ssl_bench.training.refusals import refusals  # imports torch

    found = refusals([runs.config for runs in todo], here=not dry_run and request.launcher != "slurm")
    refused = {number: error for number, error in enumerate(found) if error}
    possible = impossible.left([[f"cell={runs.cells[0]}"] for runs in todo], refused, skip, "cells")
    for number in {*range(len(todo))} - {*possible}:
        todo[number].unavailable = "impossible"


def summarise(request: Request, planned: Sequence[PlannedRuns]) -> None:
    """Print which cells still need runs, how many are done or unavailable, and what the other ones cost."""
    available = [runs for runs in planned if runs.seeds and not runs.unavailable]
    for runs in available:
        if runs.missing:
            state = f"{len(runs.done)}/{len(runs.seeds)} seeds"
            print(f"{state:>10}  {runs.cells[0]}")
    if done := sum(not runs.missing for runs in available):
        print(f"{done:>4} cells  done")
    for reason, count in Counter(runs.unavailable for runs in planned if runs.unavailable).items():
        print(f"{count:>4} cells  not available: {reason}")
    if request.scale == "reduced" and request.selection.setting("scale") is None:
        print(f"{' '.join(request.overrides)}: these runs count as scale=reduced and fill no cell of the paper")
    todo = [runs for runs in planned if runs.missing]
    count = sum(len(runs.missing) for runs in todo)
    price = f", {_price(request, todo)}" if request.scale == "full" and count else ""
    print(f"{count} runs to go in {len(todo)} cells{price}", flush=True)


def missing_data(todo: Sequence[PlannedRuns]) -> Iterator[str]:
    """Name the data that the runs need and that are not there, a sentence for each dataset."""
    from ssl_bench.training.parts import Parts  # imports torch

    configs = [runs.config for runs in todo]
    for config in {json.dumps(config["dataset"]): config for config in configs}.values():
        try:
            Parts(config).dataset.check()
        except ConfigError as error:
            yield str(error)


def _price(request: Request, todo: Sequence[PlannedRuns]) -> str:
    """The hours of runs, on this machine if it was checked, and else on 8 V100."""
    on = cost.rates(request.outputs)
    return cost.price(sum(runs.hours(on) for runs in todo), on)


def _train_in_turn(request: Request, todo: Sequence[PlannedRuns]) -> Iterator[int]:
    """Train one cell after another in this process; yield the exit codes, the last one of an interrupted cell."""
    for runs in todo:
        if request.scale == "smoke":
            smoke.write(runs.config, request.smoke_data)
        print(f"\n{'; '.join(runs.cells)}\n{runs.line()}", flush=True)
        code = train_command.main(runs.arguments())
        if request.scale == "smoke" and runs.composition:  # checkpoints of a thousand networks that are not used again
            for seed in runs.missing:
                shutil.rmtree(folders.find(runs.composition.config(seed)) / "checkpoints", ignore_errors=True)
        yield code
        if code > 128:  # stopped by a signal
            return


class _Process(subprocess.Popen[bytes]):
    """A command in a process that is sent signals as a worker is."""

    send = subprocess.Popen.send_signal


def _train_at_once(request: Request, todo: Sequence[PlannedRuns]) -> list[int]:
    """Train cells in processes of their own, as many at a time as fit on this machine, or as Slurm's queue may hold."""
    running: list[_Process] = []

    def train(runs: PlannedRuns) -> int:
        if received:
            return 128 + received[0]
        print(f"{'; '.join(runs.cells)}\n{runs.line()}", flush=True)
        with _Process([sys.executable, "-m", "ssl_bench", "train", *runs.arguments()]) as process:
            running.append(process)
            if received:  # while the process was being started
                process.send(received[0])
            code = process.wait()
        return code if code >= 0 else 128 - code

    config = todo[0].config if todo else {}
    limit = SUBMITTED
    if request.launcher != "slurm":
        limit = hardware.concurrent_runs(
            config.get("devices", 1), config.get("runs_per_gpu", 1), config.get("device", "auto")
        )
    with signals_passed_on(running) as received, ThreadPoolExecutor(limit) as pool:
        return list(pool.map(train, todo))
