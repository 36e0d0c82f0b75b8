"""``ssl-bench train --dry-run``: the unfinished runs of a command, with their steps and hours."""

import contextlib
import json
import sys

from ssl_bench.commands import grid_end
from ssl_bench.commands.hours import estimate
from ssl_bench.launch.grid import Grid
from ssl_bench.record.printing import Sheet, SheetEntry, text_of
from ssl_bench.record.terminal import clock


def show(grid: Grid, skip: bool, as_json: bool) -> None:
    """Print a line for each run: its steps and time, the values of the keys that vary, and its directory.

    With ``launcher=slurm`` the script of the jobs follows. The time is unknown if the images are not on this disk.

    Args:
        skip: leave out the runs of a grid whose configuration is refused.
        as_json: print a list of objects instead: ``folder``, ``overrides``, ``steps`` and ``hours``, which are null
            where they are unknown.
    """
    with contextlib.redirect_stdout(sys.stderr if as_json else sys.stdout):
        runs = grid.every(skip) if grid.command.many else [grid.alone()]
    remaining = [run for run in runs if not run.done]
    cost = estimate([run.config for run in remaining], grid.command.launcher != "slurm")
    costs = list(zip(remaining, cost.steps, cost.hours, strict=True))
    if as_json:
        names = ("folder", "overrides", "steps", "hours")
        print(json.dumps([dict(zip(names, (str(r.folder), r.overrides, s, h), strict=True)) for r, s, h in costs]))
        return
    sheet = Sheet(["steps", "time", "run", "directory"], left=0, words=["run", "directory"])
    for run, steps, hours in costs:
        amounts = "" if steps is None else f"{steps:,}", "" if hours is None else clock(3600 * hours)
        sheet.rows.append([*map(SheetEntry, (*amounts, run.label, str(run.folder)))])
    sheet.below = [f"{len(remaining)} run{'s' * (len(remaining) != 1)} to go{f', {cost}' * bool(remaining)}"]
    alone = f"already done: {runs[0].folder}" if len(runs) == 1 else sheet.below[0]
    sheet.below += [power] if (power := grid_end.can_show(grid)) else []
    print(text_of([sheet], "rich").rstrip() if remaining else alone)
    if remaining and grid.command.launcher == "slurm":
        from ssl_bench.launch.slurm import script

        print("", script(grid.command.settings, grid.outputs / ".slurm", len(remaining)), sep="\n", end="")
