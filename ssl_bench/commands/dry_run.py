"""``ssl-bench train --dry-run``: the runs of a command that are not finished, and what they cost."""

import contextlib
import json
import sys

from ssl_bench.commands import grid_end
from ssl_bench.commands.hours import duration, estimate
from ssl_bench.launch.grid import Grid
from ssl_bench.record.printing import Sheet, SheetEntry, text_of


def show(grid: Grid, skip: bool, as_json: bool) -> None:
    """Print a line for each run: its steps and time, the values of the keys that vary, and its directory.

    Under Slurm, the script of their jobs too. A run whose images are not on this disk has steps and no time.

    Args:
        skip: leave out the runs of a grid that cannot be.
        as_json: print a list of objects instead: ``folder``, ``overrides``, ``steps`` and ``hours``, which are null
            where they are unknown.
    """
    with contextlib.redirect_stdout(sys.stderr if as_json else sys.stdout):
        runs = grid.every(skip) if grid.command.many else [grid.alone()]
    left = [run for run in runs if not run.done]
    cost = estimate([run.config for run in left], grid.command.launcher != "slurm")
    costs = list(zip(left, cost.steps, cost.hours, strict=True))
    if as_json:
        names = ("folder", "overrides", "steps", "hours")
        print(json.dumps([dict(zip(names, (str(r.folder), r.overrides, s, h), strict=True)) for r, s, h in costs]))
        return
    sheet = Sheet(["steps", "time", "run", "directory"], left=0, words=["run", "directory"])
    for run, steps, hours in costs:
        amounts = "" if steps is None else f"{steps:,}", "" if hours is None else duration(hours)
        sheet.rows.append([*map(SheetEntry, (*amounts, run.label, str(run.folder)))])
    sheet.below = [f"{len(left)} run{'s' * (len(left) != 1)} to go{f', {cost}' * bool(left)}"]
    alone = f"already done: {runs[0].folder}" if len(runs) == 1 else sheet.below[0]
    sheet.below += [told] if (told := grid_end.can_show(grid)) else []
    print(text_of([sheet], "rich").rstrip() if left else alone)
    if left and grid.command.launcher == "slurm":
        from ssl_bench.launch.slurm import script

        print("", script(grid.command.settings, grid.outputs / ".slurm", len(left)), sep="\n", end="")
