"""``ssl-bench train -m ... --dry-run``: the runs of a grid that are not finished, and what they cost."""

from pathlib import Path

from ssl_bench.errors import ConfigError
from ssl_bench.launch import slurm
from ssl_bench.launch.plan import Plan
from ssl_bench.papers import cost
from ssl_bench.record.printing import Sheet, SheetEntry, lines


def show(plan: Plan) -> None:
    """Print a line for each run: its hours, the values of the keys that vary, and its directory.

    What all runs have is printed once; under Slurm, the script of their jobs too.

    Raises:
        ConfigError: the runs are proposed one by one.
    """
    if any(override.is_interval_sweep() for override in plan.asked.space.values()):
        raise ConfigError("--dry-run lists the runs of a grid: values of an interval are proposed one by one")
    runs = plan.every()
    left = [run for run in runs if not run.done]
    on = cost.rates(Path(plan.asked.cfg.paths.outputs))
    hours = [cost.hours(run.config, on) if "epochs" in run.config else None for run in left]
    common = set(runs[0].overrides).intersection(*(run.overrides for run in runs))
    if left and common:
        print("all of them:", *(override for override in runs[0].overrides if override in common))
    rows = [dict(override.split("=", 1) for override in run.overrides if override not in common) for run in left]
    keys = list(dict.fromkeys(key for row in rows for key in row))
    sheet = Sheet(["hours", *keys, "directory"], left=0, words=[*keys, "directory"])
    for run, row, took in zip(left, rows, hours, strict=True):
        texts = ["" if took is None else f"{took:.2f}", *(row.get(key, "") for key in keys), str(run.folder)]
        sheet.rows.append([SheetEntry(text) for text in texts])
    if left:
        print(*lines(sheet), sep="\n")
    price = f", {cost.price(sum(filter(None, hours)), on)}" if any(hours) else ""
    print(f"{len(left)} runs to go{price}")
    if left and plan.asked.where == "slurm":
        plan.begin("")
        assert plan.folder is not None
        print("", slurm.script(plan.asked.launcher, plan.folder, len(left)), sep="\n", end="")
