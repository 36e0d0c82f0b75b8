"""The end of a grid: tables of what it varies, or a line for each run of single seeds, and what matters."""

from __future__ import annotations

import contextlib
import math
import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from ssl_bench.errors import ConfigError
from ssl_bench.launch.grid import Groups
from ssl_bench.record import runs
from ssl_bench.record.printing import WIDEST, Sheet, SheetEntry, text_of
from ssl_bench.record.runs import Run
from ssl_bench.results import statistics
from ssl_bench.results import table as runs_table
from ssl_bench.results.matters import what_matters
from ssl_bench.results.pivot import Pivot, pivot

if TYPE_CHECKING:
    from pandas import DataFrame


def show(groups: Groups) -> None:
    """Print the numbers of a grid's finished runs as tables of what it varies, or a line for each run of single seeds.

    Args:
        groups: runs that differ in their seed only, by what else distinguishes them.
    """
    found = {name: [_after(runs.read(folder), epochs) for folder, epochs in of] for name, of in groups.items()}
    table = runs_table.finished(runs_table.of([run for of in found.values() for run in of]))
    if not len(table):
        return
    single = all(len(of) == 1 for of in found.values())
    sheets = [] if single else _tables(table)
    print(text_of(sheets or [_lines(found, table)], "rich"), end="")
    if single and len(found) > 1 and (sentence := _flattered(len(found), table)):
        print(sentence)
    with contextlib.suppress(ConfigError):  # nothing varies, or settings vary together
        told = what_matters(table)
        if len(told.settings) > 1 and told.metric.sign:
            print("", *(textwrap.fill(line, WIDEST) for line in told.short.splitlines()), sep="\n")


def _after(run: Run, epochs: int | None) -> Run:
    """A run as it was after some epochs, from which it may have gone on."""
    if epochs is None or not run.results:
        return run
    config = {**run.config, "epochs": epochs}
    return replace(run, config=config, results={**run.results, "config": config})


def _tables(table: DataFrame) -> list[Sheet]:
    """A table of each number that ranks the runs, with its best mean; none of runs that make no tables."""
    names = [name for name in runs_table.usual(table) if runs_table.meaning(table, name).sign]
    with contextlib.suppress(ConfigError):  # too many tables, or several runs of one cell and seed
        return [_with_best(one, table) for name in names for one in pivot(table, None, None, name)]
    return []


def _with_best(one: Pivot, table: DataFrame) -> Sheet:
    """A table with the best mean of its cells below it, and the mean of the networks at initialisation."""
    lines, sign = list[str](), one.metric.sign
    means = {key: sign * fmean(cell.values) for key, cell in one.cells.items() if all(map(math.isfinite, cell.values))}
    if len(means) > 1:
        best = max(means, key=means.__getitem__)
        words = (f"{name}={runs_table.text_of(v)}" for name, v in zip(one.names, best, strict=True) if name)
        which = "highest" if sign > 0 else "lowest"
        lines.append(f"{which} mean: {' '.join(words)} (n={len(one.cells[best].values)}).")
    if (initial := one.name.replace("/", "_init/", 1)) in table:
        mean = one.metric.text(float(table[initial].mean()))
        lines.append(f"The networks at initialisation: {mean} on average.")
    sheet = one.sheet()
    return replace(sheet, below=[" ".join(lines)] * bool(lines) + sheet.below)


def _lines(groups: Mapping[str, Sequence[Run]], table: DataFrame) -> Sheet:
    """A line for each run with its main numbers and those at initialisation, the best first."""
    main = runs_table.usual(table)
    both = [n for name in main for n in (name, name.replace("/", "_init/", 1)) if n in table]
    names = both or runs_table.numbers(table)
    meanings = {name: runs_table.meaning(table, name) for name in names}
    ranks = {n: (meanings[n].sign * table[n]).tolist() for n in main if len(table) > 1}
    label = {run: " ".join([name, *[f"seed={run.seed}"] * (len(of) > 1)]) for name, of in groups.items() for run in of}
    sheet, rows = Sheet(["", *names]), list[tuple[float, list[SheetEntry]]]()
    for number, (run, values) in enumerate(zip(table["run"], table[names].to_dict("records"), strict=True)):
        row = [SheetEntry(label[run], sheet.numbers(run.warnings))]
        for name, value in values.items():
            best = name in ranks and ranks[name][number] == max(filter(math.isfinite, ranks[name]), default=None)
            row.append(SheetEntry("" if math.isnan(value) else meanings[name].text(value), best=best))
        first: list[float] = next(iter(ranks.values()), [])[number:]
        rows.append((-first[0] if first and not math.isnan(first[0]) else math.inf, row))
    sheet.rows = [row for _, row in sorted(rows, key=lambda pair: pair[0])]
    return sheet


def _flattered(count: int, table: DataFrame) -> str:
    """Say that the best of some settings by one seed is flattered, and by how much if they have other seeds too.

    They are compared by the main number of most runs; empty if it does not say what is better. Where all settings are
    equal, the best one lies above their mean by the deviation between seeds, times the expected maximum of as many
    standard normal numbers. Runs of other seeds are looked for in the folder of all of these runs.
    """
    name = next(iter(runs_table.usual(table)), "")
    if not name or not (meaning := runs_table.meaning(table, name)).sign:
        return ""
    amount, places = "", [run.place for run in table["run"]]
    folder = Path(os.path.commonpath(places))
    every = runs_table.read(folder.parent if folder in places else folder)
    every = runs_table.finished(every[runs_table.same_recipe(every).isin(runs_table.same_recipe(table))])
    with contextlib.suppress(ConfigError):  # two folders have other values
        of_recipes = (there := runs_table.once(every, name)).groupby(runs_table.same_recipe(there))[name]
        squares, degrees = (of_recipes.var() * (of_recipes.count() - 1)).sum(), (of_recipes.count() - 1).sum()
        if degrees:
            deviation = meaning.scale * math.sqrt(squares / degrees)
            more = f"{deviation * statistics.expected_best(count):.3g}{' points' * (meaning.unit == 'share')}"
            amount = f", by {more} if all were equal, at the deviation of {deviation:.3g} between seeds"
    remedy = "train it with several seeds before its number is reported"
    return f"the best of {count} settings by one seed is flattered by chance{amount}: {remedy}"
