"""The end of a grid: how its runs ended, and of the finished ones what ``table`` and ``compare`` print."""

import contextlib
import shlex
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ssl_bench.errors import ConfigError, printable
from ssl_bench.launch.grid import Grid
from ssl_bench.launch.outcome import State
from ssl_bench.record import runs
from ssl_bench.record.printing import Sheet, text_of
from ssl_bench.record.runs import Run
from ssl_bench.results import table as runs_table
from ssl_bench.results.matters import what_matters
from ssl_bench.results.pivot import pivot
from ssl_bench.results.status import list_of_runs

ALWAYS = (State.DONE, State.DONE_BEFORE, State.FAILED)  # counted in the summary even if there are none
# Directory and epochs of runs, by what distinguishes them beside the seed: numbers are those after so many epochs.
# None: it trains nothing.
Groups = Mapping[str, Sequence[tuple[Path, int | None]]]


def train(grid: Grid) -> int:
    """Carry out the runs of a grid and print how they ended; return the exit code."""
    stop = grid.train()
    code = summarise(grid)
    return 128 + stop if stop else code


def summarise(grid: Grid) -> int:
    """Print how each run of a grid ended, and tables of the finished ones; return its exit code if no signal came."""
    states = Counter(end.state for end in grid.ends.values())
    counts = [f"{states[state]} {state}" for state in State if state in ALWAYS or states[state]]
    not_begun = len(grid.runs) - len(grid.ends)
    counts += [f"{not_begun} not begun"] if not_begun else []
    counts += [f"{grid.left_out} left out: impossible"] if grid.left_out else []
    count = len(grid.runs) + grid.left_out
    print(f"{count} run{'s' * (count != 1)}: {', '.join(counts)}")
    overrides = [run.overrides for run in grid.runs]
    shared = set[str]().union(*overrides).intersection(*overrides)
    finished: dict[str, list[tuple[Path, int | None]]] = {}  # runs that differ in their seed only have one name
    for run in grid.runs:
        distinct = [override for override in run.overrides if override not in shared]
        seed = [override for override in distinct if override.startswith("seed=")]
        name = run.label or " ".join(override for override in distinct if override not in seed)
        end = grid.ends.get(run.number)
        if end and end.finished and end.folder:
            finished.setdefault(name or _seeds(overrides), []).append((Path(end.folder), run.config.get("epochs")))
        elif end and end.state in (State.FAILED, State.BUSY):
            named = " ".join([name, *seed] if run.label else distinct)
            reason = end.reason
            for override in distinct:  # named already
                reason = reason.removeprefix(f"{override}: ")
            print("  " + ": ".join(filter(None, (end.state.value, named, reason))))
    if len(grid.runs) > 1:
        show(_once(finished))
        if not any(run.label for run in grid.runs) and (line := _to_compare(grid, shared)):
            print(line)
    ends = [*grid.ends.values()]
    if ends and all(end.state is State.FAILED and end.code == ConfigError.exit_code for end in ends):
        return ConfigError.exit_code
    return 1 if states[State.FAILED] or states[State.BUSY] or not_begun else 0


def _to_compare(grid: Grid, shared: Collection[str]) -> str:
    """The command that compares the runs of a grid with two seeds or more, by the first setting that it varies."""
    varied = [key for key in grid.command.swept if key != "seed"]
    first = "loss" if "loss" in varied else next(iter(varied), "")
    names = [override.removeprefix("name=").strip("'\"") for override in shared if override.startswith("name=")]
    command = printable(shlex.join(["ssl-bench", "compare", *names, "--by", first]))
    return f"is one better? {command}" if first and "seed" in grid.command.swept else ""


def _once(groups: Groups) -> Groups:
    """The groups, those of the same runs as one: a grid over settings of an evaluator trains no run twice."""
    names: dict[tuple[tuple[Path, int | None], ...], list[str]] = {}
    for name, of in groups.items():
        names.setdefault(tuple(dict.fromkeys(of)), []).append(name)
    return {_common(given): list(of) for of, given in names.items()}


def _common(names: Sequence[str]) -> str:
    """The overrides that all names have; all names if they have none, or are labels."""
    words = [name.split(" ") for name in names]
    common = [word for word in words[0] if all(word in others for others in words)]
    return " ".join(common) if common and all("=" in word for word in common) else " and ".join(names)


def _seeds(runs: Sequence[Sequence[str]]) -> str:
    """The seeds of a grid, as on its command line."""
    seeds = (override.removeprefix("seed=") for run in runs for override in run if override.startswith("seed="))
    return f"seed={','.join(dict.fromkeys(seeds))}"


def show(groups: Groups) -> None:
    """Print tables of the numbers of a grid's finished runs, and what matters if it varies several settings.

    Args:
        groups: runs that differ in their seed only, by what else distinguishes them.
    """
    found = [_after(runs.read(folder), epochs) for of in groups.values() for folder, epochs in of]
    table, sheets = runs_table.finished(runs_table.of(found)), list[Sheet]()
    if not len(table):
        return
    main = runs_table.usual(table)
    for name in main or runs_table.numbers(table):
        with contextlib.suppress(ConfigError):  # too many tables, or several runs of one cell and seed
            sheets += [one.sheet() for one in pivot(table, None, None, name)]
    sheets = sheets or [list_of_runs(table, {})]
    with contextlib.suppress(ConfigError):  # nothing varies, or settings vary together
        told = what_matters(table)
        sheets += [told.sheet()] if len(told.settings) > 1 and told.measured.metric.sign else []
    print(text_of(sheets, "rich"), end="")
    if 1 < len(found) == len(groups) and main and runs_table.meaning(table, main[0]).sign:
        print(f"The best of {len(found)} settings with one seed looks better than it is: repeat it with several seeds.")


def _after(run: Run, epochs: int | None) -> Run:
    """A run as it was after some epochs, from which it may have gone on."""
    if epochs is None or not run.results:
        return run
    config = {**run.config, "epochs": epochs}
    return replace(run, config=config, results={**run.results, "config": config})
