"""The end of a grid: how its runs ended, and the output of ``table`` and ``compare`` for the finished ones."""

import contextlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ssl_bench.config.build import open_dataset
from ssl_bench.errors import ConfigError
from ssl_bench.launch.grid import Grid
from ssl_bench.launch.processes import State
from ssl_bench.record import runs
from ssl_bench.record.printing import Sheet, text_of
from ssl_bench.record.runs import Run
from ssl_bench.results import table as runs_table
from ssl_bench.results.matters import beforehand, what_matters
from ssl_bench.results.pivot import pivot
from ssl_bench.results.status import list_of_runs, main_metrics

ACCURATE = ("knn", "linear", "finetune")  # evaluators of accuracies on test images
ALWAYS = (State.DONE, State.DONE_BEFORE, State.FAILED)  # counted in the summary even if there are none


def train(grid: Grid) -> int:
    """Print the difference that a grid can detect, carry out its runs, print how they ended; return the exit code."""
    if sentence := "" if all(run.done for run in grid.runs) else can_show(grid):
        print(sentence, flush=True)
    stop, code = grid.train(), summarise(grid)
    return 128 + stop if stop else code


def can_show(grid: Grid) -> str:
    """The difference that a grid can detect, from finished runs of its experiments, else from its test images.

    Empty if both are unknown: the images are not on this disk, or the runs are evaluated on another data set.
    """
    varied = [f"{key}=" for key in grid.command.swept if key != "seed"]
    levels = [len({w for run in grid.runs for w in run.overrides if w.startswith(key)}) for key in varied]
    if not (levels := [count for count in levels if count > 1]):
        return ""
    first, count = grid.runs[0].config, 0
    evaluate, one = first.get("evaluate") or {}, not any(key.startswith("dataset") for key in varied)
    with contextlib.suppress(ConfigError, OSError):
        if one and {*ACCURATE} & {*evaluate} and not evaluate.get("on"):
            count = len(open_dataset(first["dataset"], first["paths"]["data"]).split("test"))
    folders = [folder for place in {run.folder.parent for run in grid.runs} for folder in runs.folders(place)]
    table = runs_table.of([*map(runs.read, folders)]) if folders else None
    return beforehand(count, levels, len(grid.runs), table)


def summarise(grid: Grid) -> int:
    """Print how each run of a grid ended, and tables of the finished ones; return its exit code if no signal came."""
    states = Counter(end.state for end in grid.ends.values())
    not_begun, count = len(grid.runs) - len(grid.ends), len(grid.runs) + grid.left_out
    counts = [f"{states[state]} {state}" for state in State if state in ALWAYS or states[state]]
    counts += [f"{not_begun} not begun"] * (not_begun > 0)
    counts += [f"{grid.left_out} left out: impossible"] * (grid.left_out > 0)
    print(f"{count} run{'s' * (count != 1)}: {', '.join(counts)}")
    for run in grid.runs:
        end = grid.ends.get(run.number)
        if end and end.state is State.FAILED:
            reason = end.reason.removeprefix(f"{run.label}: ")
            print("  " + ": ".join(filter(None, (end.state.value, run.label, reason))))
    if len(grid.runs) > 1:
        ends = [(grid.ends[run.number], run.config.get("epochs")) for run in grid.runs if run.number in grid.ends]
        show({Path(end.folder): epochs for end, epochs in ends if end.finished and end.folder})
    if grid.ends and all(end.code == ConfigError.exit_code for end in grid.ends.values()):
        return ConfigError.exit_code
    return 1 if states[State.FAILED] or not_begun else 0


def show(finished: Mapping[Path, int | None]) -> None:
    """Print tables of the metrics of finished runs, and which settings matter if the grid varies several.

    Args:
        finished: for each run its directory, and the epoch whose metrics are shown; None: the run trains nothing.
    """
    read = [_after(runs.read(folder), epochs) for folder, epochs in finished.items()]
    table, sheets = runs_table.finished(runs_table.of(read)), list[Sheet]()
    if not len(table):
        return
    for name in runs_table.usual(table) or runs_table.numbers(table):
        with contextlib.suppress(ConfigError):  # too many tables, or several runs of one cell and seed
            sheets += [one.sheet() for one in pivot(table, None, None, name)]
    sheets = sheets or [list_of_runs(table, {}, main_metrics(table))]
    with contextlib.suppress(ConfigError):  # nothing varies, or settings vary together
        matters = what_matters(table)
        sheets += [matters.sheet()] if len(matters.data["settings"]) > 1 and matters.measured.metric.sign else []
    print(text_of(sheets, "rich"), end="")


def _after(run: Run, epochs: int | None) -> Run:
    """A run with its results after ``epochs``, also if it was extended to more epochs since."""
    if epochs is None or not run.results:
        return run
    config = {**run.config, "epochs": epochs}
    return replace(run, config=config, results={**run.results, "config": config})
