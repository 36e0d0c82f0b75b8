"""``ssl-bench reproduce dcl/table1``: train the runs that a paper's table still needs, as one grid.

``ssl-bench reproduce dcl/table1 row='CIFAR-10*' col=256 seed=0,1 devices=8 --dry-run``. Other ``key=value`` are added
to every cell; if they change what is computed, the runs are recorded with ``scale=reduced`` and fill no cell: ``table``
with the same ``key=value`` shows them. ``skip=impossible`` leaves out cells that cannot be. ``launcher=local
launcher.jobs=4`` or ``launcher=slurm`` trains several runs at the same time.
"""

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence

from ssl_bench.commands import grid_end
from ssl_bench.commands.arguments import Parser, in_sentences, show_progress
from ssl_bench.commands.hours import estimate
from ssl_bench.config.build import open_dataset
from ssl_bench.config.command import Command
from ssl_bench.errors import ConfigError
from ssl_bench.launch import lease
from ssl_bench.launch.grid import Grid, check_place, possible, take_skip
from ssl_bench.papers.plan import PlannedRuns, plan
from ssl_bench.papers.selection import HELP, Selection


@in_sentences
def main(arguments: Sequence[str]) -> int:
    """Plan and train.

    Returns:
        0: done, or nothing was left to do. 1: a run failed. 2: wrong arguments. 128 + n: stopped by signal n.
    """
    parser = Parser("reproduce", "Train the runs that tables of papers still need.")
    parser.add_argument(
        "names", nargs="*", metavar="TABLE", help="a table such as dcl/table1; a paper lists its tables"
    )
    parser.add_argument("--all", action="store_true", help="all tables of a paper")
    parser.add_argument("--dry-run", action="store_true", help="print the commands and train nothing")
    parser.add_config_dir()
    parser.epilog = f"{HELP} seed=0,1 replaces the seeds."
    options = parser.read(arguments)
    skip = take_skip(options.overrides)
    selection = Selection.read(options.names, options.all, options.overrides, options.config_dir)
    planned = plan(selection, show_progress)
    command = Command.of([*selection.of_machine, *selection.of_launcher], options.config_dir, True)
    check_place(command, options.dry_run)
    _leave_out_impossible(selection, planned, skip, options.dry_run)
    todo = [runs for runs in planned if runs.missing]
    summarise(selection, planned, command.launcher != "slurm")
    if options.dry_run:
        print(*(runs.line([*selection.flags, *selection.of_launcher]) for runs in todo), sep="\n")
        print(*(f"data missing: {sentence}" for sentence in missing_data(todo)), sep="\n")
        return 0
    for folder in {folder for runs in planned for folders in runs.done.values() for folder in folders}:
        lease.remove_stale(folder)
    return _train(selection, todo, command, shlex.join(["ssl-bench", "reproduce", *arguments])) if todo else 0


def _train(selection: Selection, todo: Sequence[PlannedRuns], command: Command, typed: str) -> int:
    """Train runs as one grid; return its exit code."""
    grid = Grid(command, typed)
    cells = [(words, config, f"{cell} {words[-1]}") for planned in todo for words, config, cell in planned.runs()]
    grid.runs = [grid.run(*cell) for cell in cells]
    code = grid_end.train(grid)
    words = [*selection.flags, *selection.names, *(["--all"] * selection.whole), *selection.changes]
    words.append(f"paths.outputs={selection.outputs}")
    print(f"beside the papers' numbers: {shlex.join(['ssl-bench', 'table', *words])}", flush=True)
    return code


def _leave_out_impossible(selection: Selection, planned: Sequence[PlannedRuns], skip: bool, dry_run: bool) -> None:
    """Check the runs that are not trained yet; with ``skip`` those that are refused count as unavailable.

    A dry run refuses no run for data or devices that this machine lacks.

    Raises:
        ConfigError: runs are refused, and ``skip`` is False.
    """
    todo = [runs for runs in planned if runs.missing]
    if not todo or (dry_run and not selection.changes + selection.of_machine):  # the cells themselves can be
        return
    from ssl_bench.training.validate import refusals  # imports torch

    here = not dry_run and selection.setting("launcher") != "slurm"
    errors = refusals([runs.config for runs in todo], here)
    refused = {number: error for number, error in enumerate(errors) if error}
    available = possible([f"cell={runs.cells[0]}" for runs in todo], refused, skip, "cells")
    for number in {*range(len(todo))} - {*available}:
        todo[number].unavailable = "impossible"


def summarise(selection: Selection, planned: Sequence[PlannedRuns], here: bool) -> None:
    """Print which cells need runs, how many are done or unavailable, and the steps and hours of the others.

    Args:
        here: they run on this machine.
    """
    available = [runs for runs in planned if runs.seeds and not runs.unavailable]
    for runs in available:
        if runs.missing:
            print(f"{len(runs.done):>4} of {len(runs.seeds)} seeds done  {runs.cells[0]}")
    if done := sum(not runs.missing for runs in available):
        print(f"{done:>4} cells  done")
    for reason, count in Counter(runs.unavailable for runs in planned if runs.unavailable).items():
        print(f"{count:>4} cells  not available: {reason}")
    if "scale=reduced" in selection.changes and selection.setting("scale") is None:
        print(f"{' '.join(selection.changes[:-1])}: these runs count as scale=reduced and fill no cell of the paper")
    configs = [config for runs in planned for _, config, _ in runs.runs()]
    price = f", {estimate(configs, here)}" if configs else ""
    print(f"{len(configs)} runs to go in {sum(bool(runs.missing) for runs in planned)} cells{price}", flush=True)


def missing_data(todo: Sequence[PlannedRuns]) -> Iterator[str]:
    """A sentence for each data set that the runs need and that is missing."""
    for config in {json.dumps(runs.config["dataset"]): runs.config for runs in todo}.values():
        try:
            open_dataset(config["dataset"], config["paths"]["data"]).check()
        except ConfigError as error:
            yield str(error)
