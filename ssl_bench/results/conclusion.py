"""The end of a grid: what it varies as tables, if it has several seeds; else a line for each run."""

from __future__ import annotations

import contextlib
import math
import os
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from ssl_bench.errors import ConfigError
from ssl_bench.record import runs
from ssl_bench.record.cache import Cache
from ssl_bench.record.printing import WIDEST, Sheet, text_of
from ssl_bench.record.summary import Groups, print_grid
from ssl_bench.results import statistics
from ssl_bench.results import table as runs_table
from ssl_bench.results.arrange import Pivot, arrange, text_of_value
from ssl_bench.results.matters import what_matters
from ssl_bench.results.numbers import Numbers, single
from ssl_bench.results.runs import Runs
from ssl_bench.results.scan import Entry, Status

if TYPE_CHECKING:
    from pandas import DataFrame


def show(groups: Groups) -> None:
    """Print the numbers of a grid's finished runs.

    Args:
        groups: runs that differ in their seed only, by what else distinguishes them.
    """
    entries = finished_entries(groups)
    sheets = tables(entries) if len(groups) > 1 and any(len(runs) > 1 for runs in groups.values()) else []
    if sheets:
        print(text_of(sheets, "rich"), end="")
    else:
        print_grid(groups)
        if len(groups) > 1 and all(len(runs) == 1 for runs in groups.values()):
            flattered = of_one_seed(len(groups), [folder for runs in groups.values() for folder, _ in runs])
            print(flattered, end="\n" * bool(flattered))
    found = [runs.read(folder) for of in groups.values() for folder, _ in of]
    if lines := matter(runs_table.of(found)) if entries else "":
        print("", *(textwrap.fill(line, WIDEST) for line in lines.splitlines()), sep="\n")


def of_one_seed(count: int, folders: Collection[Path]) -> str:
    """Say that the best of some settings by one seed is flattered, and by how much if they have other seeds too.

    They are compared by the main metric of most runs; empty if it does not say what is better.

    Where all settings are equal, the best one lies above their mean by the deviation between seeds, times the expected
    maximum of as many standard normal numbers.

    Args:
        count: of the settings.
        folders: of their runs; runs in the folder of all of them that differ from these in their seed only are looked
            for.
    """
    outputs = _folder_of_all(folders)
    runs = [run for run in Runs(outputs, Cache(outputs)).find() if run.done]
    paths = {os.path.relpath(folder, outputs) for folder in folders}
    settings = {run.shared.key for run in runs if run.path in paths}
    runs, amount = [run for run in runs if run.shared.key in settings], ""
    numbers = Numbers(runs)
    usual = numbers.usual(runs)
    if not usual or not numbers.meaning(usual[0]).sign:
        return ""
    with contextlib.suppress(ConfigError):  # several evaluations have made it, or two folders have other values
        name, _ = numbers.choose("--metric", None, runs)
        meaning, values = numbers.meaning(name), dict[str, list[float]]()
        for run in single(runs, name, numbers):
            values.setdefault(run.shared.key, []).append(meaning.scale * (numbers.value(name, run) or 0.0))
        if (deviation := _between_seeds([of for of in values.values() if len(of) > 1])) is not None:
            more = f"{deviation * statistics.expected_best(count):.3g}{' points' * (meaning.unit == 'share')}"
            amount = f", by {more} if all were equal, at the deviation of {deviation:.3g} between seeds"
    remedy = "train it with several seeds before its number is reported"
    return f"the best of {count} settings by one seed is flattered by chance{amount}: {remedy}"


def _between_seeds(groups: Sequence[Sequence[float]]) -> float | None:
    """The deviation in groups of several seeds, pooled; None if it is not known."""
    squares = math.fsum(len(group) * float(np.var(group)) for group in groups)
    degrees = sum(len(group) - 1 for group in groups)
    return math.sqrt(squares / degrees) if degrees and math.isfinite(squares) else None


def _folder_of_all(folders: Collection[Path]) -> Path:
    """The folder that has all of some runs."""
    outputs = Path(os.path.commonpath(folders))
    return outputs.parent if outputs in folders else outputs


def matter(table: DataFrame) -> str:
    """What matters, in three lines; empty unless two settings vary whose shares can be told apart."""
    try:
        matters = what_matters(table)
    except ConfigError:
        return ""
    return matters.short if len(matters.settings) > 1 and matters.metric.sign else ""


def finished_entries(groups: Groups) -> list[Entry]:
    """The runs; none if there are none, or some have gone on to more epochs."""
    lengths = {str(folder): epochs for runs in groups.values() for folder, epochs in runs}
    if not lengths:
        return []
    outputs = _folder_of_all([*map(Path, lengths)])
    runs = Runs(outputs, Cache(outputs)).at(os.path.relpath(folder, outputs) for folder in lengths)
    longer = any(lengths[str(run.folder)] not in (None, run.config.get("epochs")) for run in runs)
    return [] if longer else [Entry(run, None, -1, Status.DONE) for run in runs]


def tables(entries: Sequence[Entry]) -> list[Sheet]:
    """A table of each metric that ranks the runs; none if they make no tables."""
    runs = [entry.run for entry in entries if entry.run]
    try:
        numbers = Numbers(runs)
        names = [name for name in numbers.usual(runs) if numbers.meaning(name).sign]
        return [_table(pivot, numbers) for name in names for pivot in arrange(entries, None, None, name)]
    except ConfigError:  # too many tables, or runs that another setting distinguishes
        return []


def _table(pivot: Pivot, numbers: Numbers) -> Sheet:
    """A table with the best mean of its cells below it, and what the networks at initialisation have on average."""
    sheet, initial = pivot.sheet(), pivot.name.replace("/", "_init/", 1)
    runs = [run for cell in pivot.cells.values() for run in cell.runs]
    initial_values = [of_run[initial] for of_run in map(numbers.of, runs) if initial in of_run]
    average = pivot.metric.text(fmean(initial_values)) if initial_values else ""
    lines = [f"The networks at initialisation: {average} on average."] if average else []
    sign, means = pivot.metric.sign, {key: fmean(cell.values) for key, cell in pivot.cells.items()}
    if len(finite := {key: mean for key, mean in means.items() if math.isfinite(mean)}) > 1:
        best = max(finite, key=lambda key: sign * finite[key])
        words = (f"{name}={text_of_value(value)}" for name, value in zip(pivot.names, best, strict=True) if name)
        which = f"{'highest' if sign > 0 else 'lowest'} mean: {' '.join(words)} (n={len(pivot.cells[best].values)})."
        lines = [" ".join([which, *lines])]
    return replace(sheet, below=[*lines, *sheet.below])
