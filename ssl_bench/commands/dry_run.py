"""``ssl-bench train -m ... --dry-run``: the runs of a grid that are not finished, and what they cost."""

import contextlib
import json
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ssl_bench.launch import slurm
from ssl_bench.launch.grid import Grid
from ssl_bench.papers import cost
from ssl_bench.record.printing import Sheet, SheetEntry, text_of

OF_A_STEP = ("backbone", "head", "framework", "augment", "batch_size", "precision", "threads", "channels_last")
MOST_KINDS = 8  # of runs whose steps are timed
MOST_GFLOP = 300  # of a step that is timed: a few seconds on a core
Config = Mapping[str, Any]


def show(grid: Grid, skip: bool, as_json: bool) -> None:
    """Print a line for each run: its steps and hours, the values of the keys that vary, and its directory.

    What all runs have is printed once; under Slurm, the script of their jobs too. A run whose images are not on this
    disk has steps and no hours.

    Args:
        skip: leave out the runs of a grid that cannot be.
        as_json: print a list of objects instead: ``folder``, ``overrides``, ``steps`` and ``hours``, which are null
            where they are unknown.
    """
    with contextlib.redirect_stdout(sys.stderr if as_json else sys.stdout):
        runs = grid.every(skip) if grid.command.many else [grid.alone()]
    left = [run for run in runs if not run.done]
    timed = _timed([run.config for run in left]) if grid.command.launcher != "slurm" else {}
    costs = [(cost.steps(run.config), _hours(run.config, timed)) for run in left]
    if as_json:
        of_runs = [{"folder": str(run.folder), "overrides": run.overrides} for run in left]
        print(json.dumps([run | {"steps": s, "hours": h} for run, (s, h) in zip(of_runs, costs, strict=True)]))
        return
    common = set(runs[0].overrides).intersection(*(run.overrides for run in runs))
    rows = [dict(override.split("=", 1) for override in run.overrides if override not in common) for run in left]
    keys = list(dict.fromkeys(key for row in rows for key in row))
    title = " ".join(["all of them:" * bool(common), *(one for one in runs[0].overrides if one in common)])
    sheet = Sheet(["steps", "hours", *keys, "directory"], left=0, words=[*keys, "directory"], title=title)
    for run, row, (steps, took) in zip(left, rows, costs, strict=True):
        amounts = ["" if steps is None else str(steps), "" if took is None else f"{took:.2f}"]
        sheet.rows.append([SheetEntry(t) for t in (*amounts, *(row.get(key, "") for key in keys), str(run.folder))])
    known = [took for _, took in costs if took is not None]
    hours = sum(known) if len(known) == len(left) else None
    price = f", {cost.price([run.config for run in left], hours, bool(timed))}" if any(s for s, _ in costs) else ""
    sheet.below = [f"{len(left)} runs to go{price}"]
    print(text_of([sheet], "rich").rstrip() if left else sheet.below[0])
    if left and grid.command.launcher == "slurm":
        settings = grid.command.settings
        print("", slurm.script(settings, grid.outputs / ".slurm", len(left)), sep="\n", end="")


def _hours(config: Config, timed: Mapping[str, float]) -> float | None:
    """Hours of a run by its steps on this machine, or else on 8 V100; None where its images are not on this disk."""
    if not config["epochs"]:
        return 0.0
    steps = cost.steps(config)
    if steps is None or config["dataset"].get("content", "") is None:
        return None
    return steps * timed[_kind(config)] / 3600 if timed else cost.hours(config)


def _kind(config: Config) -> str:
    """A text that runs with equally long steps have in common: losses, negatives and rates are not in it."""
    values = {key: config.get(key) for key in OF_A_STEP} | {"size": config["dataset"].get("size")}
    return json.dumps(values, default=str)


def _timed(configs: Sequence[Config]) -> dict[str, float]:
    """Seconds of a step of each kind of run; none if this machine has a GPU, or one would take too long."""
    configs = [config for config in configs if config["epochs"]]
    kinds = {_kind(config): config for config in configs if config["devices"] == 1}
    some = 0 < len(kinds) <= MOST_KINDS and all(_kind(config) in kinds for config in configs)
    if not some or any((cost.gflop_of_a_step(config) or math.inf) > MOST_GFLOP for config in kinds.values()):
        return {}
    import torch  # heavy: only where steps are timed

    from ssl_bench.check.speed import seconds_of_a_step

    if any(config["device"] != "cpu" for config in configs) and torch.cuda.is_available():
        return {}
    with tempfile.TemporaryDirectory() as folder:
        return {kind: seconds_of_a_step(dict(config), Path(folder)) for kind, config in kinds.items()}
