"""The end of a grid: of its runs what ``ssl-bench table`` and ``ssl-bench compare`` print."""

import contextlib
from dataclasses import replace

from ssl_bench.errors import ConfigError
from ssl_bench.launch.grid import Groups
from ssl_bench.record import runs
from ssl_bench.record.printing import Sheet, text_of
from ssl_bench.record.runs import Run
from ssl_bench.results import table as runs_table
from ssl_bench.results.matters import what_matters
from ssl_bench.results.pivot import pivot
from ssl_bench.results.status import list_of_runs


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
