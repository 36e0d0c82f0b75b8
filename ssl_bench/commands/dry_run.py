"""``ssl-bench train --dry-run``: the runs of a command that are not finished, and what they cost."""

import contextlib
import json
import sys

from ssl_bench.commands.hours import duration, estimate
from ssl_bench.launch.grid import Grid
from ssl_bench.record.printing import Sheet, SheetEntry, text_of


def show(grid: Grid, skip: bool, as_json: bool) -> None:
    """Print a line for each run: its steps and time, the values of the keys that vary, and its directory.

    What all runs have is printed once; under Slurm, the script of their jobs too. A run whose images are not on this
    disk has steps and no time.

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
    common = set(runs[0].overrides).intersection(*(run.overrides for run in runs))
    rows = [dict(override.split("=", 1) for override in run.overrides if override not in common) for run in left]
    keys = list(dict.fromkeys(key for row in rows for key in row))
    shared = [override for override in runs[0].overrides if override in common] if len(runs) > 1 else []
    title = " ".join(["the same in all runs:", *shared]) if shared else ""
    sheet = Sheet(["steps", "time", *keys, "directory"], left=0, words=[*keys, "directory"], title=title)
    for row, (run, steps, hours) in zip(rows, costs, strict=True):
        amounts = ["" if steps is None else f"{steps:,}", "" if hours is None else duration(hours)]
        sheet.rows.append([SheetEntry(t) for t in (*amounts, *(row.get(key, "") for key in keys), str(run.folder))])
    sheet.below = [f"{len(left)} run{'s' * (len(left) != 1)} to go{f', {cost}' * bool(left)}"]
    alone = f"already done: {runs[0].folder}" if len(runs) == 1 else sheet.below[0]
    print(text_of([sheet], "rich").rstrip() if left else alone)
    if left and grid.command.launcher == "slurm":
        from ssl_bench.launch.slurm import script

        print("", script(grid.command.settings, grid.outputs / ".slurm", len(left)), sep="\n", end="")
