"""The result of a comparison of runs, and its rows as a sheet.

Accuracies, their differences and the margin are in percent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ssl_bench.errors import ConfigError, require
from ssl_bench.record import hits
from ssl_bench.record.printing import Sheet, SheetEntry, plain
from ssl_bench.record.runs import Run
from ssl_bench.results import statistics
from ssl_bench.results import table as runs_table
from ssl_bench.results.statistics import Estimate

if TYPE_CHECKING:
    from pandas import DataFrame

LOST = ("failed", "diverged")  # states of runs that will have no number
ALL_CELLS = "all cells"
NOT_PRINTED = {"estimate", "differences", "step", "test_images", "bits"}  # what a verdict rests on
EXPECTED = ("better", "not-worse", "equivalent")
SO, NOT_SO, UNDECIDED = 0, 1, 3  # exit codes


class Measured:
    """One number of the runs of a table.

    Args:
        metric: its name; None: the main one of most runs.

    Attributes:
        name, metric: the number, and what it means.
        said: sentences on which number was chosen among several, and on values all of whose runs have failed.
        runs: those that have a finite value, each training with its seed once.
        values: of these runs, accuracies in percent.
        lost: the runs that have failed or diverged, also those whose value is not finite.
        missing: the labels of all runs without a finite value, by why they have none; of ``total`` runs.

    Raises:
        ConfigError: no run is finished, or none has the number.
    """

    def __init__(self, table: DataFrame, metric: str | None) -> None:
        self._table, done = table, runs_table.finished(table)
        if not len(done):
            states = ", ".join(f"{count} {state}" for state, count in Counter(table["state"]).items())
            raise ConfigError(f"no run is finished ({states or 'there is none'}): name others, or wait for these")
        self.name, chosen = runs_table.choose(done, "--metric", metric)
        self.said, self.total = [chosen] * bool(chosen), len(table)
        self.metric = runs_table.meaning(done, self.name)
        self._names = runs_table.name_numbers(done["run"])
        there = runs_table.once(done, self.name)
        finite = np.isfinite(there[self.name].to_numpy(float))
        self.runs, endless = there[finite], there.index[~finite]
        values = zip(self.runs["run"], self.metric.scale * self.runs[self.name], strict=True)
        self.values = {run: float(value) for run, value in values}
        self.missing = runs_table.missing(table, self.name)
        self.lost = table[table["state"].isin(LOST) | table.index.isin(endless)]

    def labels(self, places: Iterable[Any]) -> list[str]:
        """The labels of some runs of the table."""
        every = dict(zip(self._table.index, runs_table.labels(self._table), strict=True))
        return [every[place] for place in places]

    @property
    def title(self) -> str:
        """The number with its unit."""
        return self.name + ", percent" * (self.metric.scale == 100)

    @property
    def below(self) -> list[str]:
        """What stands below a table of it: sentences, also on the runs that are left out."""
        return self.said + runs_table.in_sentences(self.missing, self.total)

    def record(self) -> dict[str, Any]:
        """What it is as plain data, with the runs that are left out."""
        left_out = [{"why": why, "runs": labels} for why, labels in self.missing.items()]
        unit = "percent" if self.metric.scale == 100 else "number"
        return {"metric": self.name, "unit": unit, "better": self.metric.better, "left_out": left_out}

    @property
    def gap(self) -> float:
        """The smallest difference between two values. Raises ConfigError if all are equal."""
        if not (gap := statistics.smallest_gap([*self.values.values()])):
            raise ConfigError(f"all runs have the same number, {self.name}: nothing to compare")
        return gap

    @cached_property
    def image_counts(self) -> dict[str, int]:
        """The number of test images of each data set; empty if it was not recorded which of them are right."""
        bits = {run.images: self.bits(run) for run in reversed(self.values)}
        counts = {images: len(of_run) for images, of_run in bits.items() if of_run is not None}
        return counts if len(counts) == len(bits) else {}

    def bits(self, run: Run) -> np.ndarray | None:
        """Which test images a run has right [M]; None: that was not recorded."""
        made = {(m, e["id"], e.get("images")): e for e in run.evaluations for m in e["metrics"]}
        key = next((key for key in made if self._names[key] == self.name), None)
        return hits.read(run.place, made[key], key[0]) if key else None


@dataclass
class Comparison:
    """One value of the named setting compared with another, in runs that are equal but for it and the seed.

    Attributes:
        where: what distinguishes it from the other comparisons; empty if it is the only one.
        of, to: what is compared.
        seeds: of the pairs, ``n`` of them.
        mean, to_mean, difference, low, high: NaN where ``n`` is too small. The interval from ``low`` to ``high`` holds
            together with those of the other comparisons, and answers the question that the verdict answers.
        single_low, single_high: the interval of this comparison alone.
        varies: ``images`` or ``seeds``, whichever contributes more to the interval; ``seeds only`` if the runs have not
            recorded which images are right.
        verdict: ``better``, ``worse`` (``higher``, ``lower`` of a metric that does not say what is better), ``no
            difference larger than`` the margin, ``undecided`` or ``no verdict``.
        more: pairs of each cell that would decide at the deviation seen; None: no number would, or it is decided.
        cells: over which it is a mean.
        vary: over all cells: whether these differ among themselves by more than chance.
        by_seed: over all cells: whether seeds move the difference alike in all of them: the interval is too narrow.
        differ: what the runs differ in that was not named, in words.
        commands: that train what is missing.
        estimate: the difference with the parts of its variance; None of fewer than two pairs.
        differences: of the pairs of a cell, by their seed.
        bits: which images only one of a pair has right, as :func:`ssl_bench.results.statistics.paired` takes them.
        step: as of it.
        test_images: their name.
    """

    where: str
    of: str
    to: str
    n: int = 0
    seeds: list[int] = field(default_factory=list)
    mean: float = math.nan
    to_mean: float = math.nan
    difference: float = math.nan
    low: float = math.nan
    high: float = math.nan
    single_low: float = math.nan
    single_high: float = math.nan
    varies: str = ""
    verdict: str = "no verdict"
    more: int | None = None
    cells: int = 1
    vary: bool = False
    by_seed: bool = False
    differ: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    estimate: Estimate | None = None
    differences: dict[int, float] = field(default_factory=dict)
    step: float = 0.0
    test_images: str = ""
    bits: np.ndarray | None = None

    def bound(self, estimate: Estimate, images: bool) -> None:
        """Set the interval of the difference.

        Args:
            images: whether the estimate knows which images are right.
        """
        self.estimate = estimate
        self.low, self.high = self.single_low, self.single_high = tuple(map(float, estimate.interval()))
        self.varies = "seeds only" if not images else "images" if estimate.images > estimate.seeds else "seeds"

    def texts(self, form: str) -> list[str]:
        """The numbers and the verdict as texts; those that are not known are empty.

        Args:
            form: of a number, such as ``.2f``.
        """
        numbers = zip((self.mean, self.to_mean, self.difference), ("", "", "+"), strict=True)
        interval = "" if math.isnan(self.low) else f"[{self.low:+{form}}, {self.high:+{form}}]"
        texts = ["" if math.isnan(number) else f"{number:{sign}{form}}" for number, sign in numbers]
        more = "" if self.more is None else str(self.more)
        return [str(self.n), *texts, interval, self.varies, self.verdict, more]

    def record(self) -> dict[str, Any]:
        """The comparison as plain data."""
        return {name: plain(value) for name, value in vars(self).items() if name not in NOT_PRINTED}


@dataclass
class Comparisons:
    """The comparisons of the values of a setting with one of them, whose verdicts hold together.

    Attributes:
        by: the named settings.
        measured: what is compared.
        margin: a smaller difference does not matter; None: it was not asked.
        unpaired: number of runs whose counterpart is missing.
        uneven: an arm has failed or diverged runs whose counterparts have not.
    """

    by: Sequence[str]
    measured: Measured
    margin: float | None
    rows: list[Comparison]
    unpaired: int
    uneven: bool

    def code(self, expected: str) -> int:
        """The exit code of a gate: whether the first comparison, that over all cells if there are several, is so.

        ``better`` is a verdict. ``not-worse`` asks whether it is worse by less than the margin, 0 without one, and
        ``equivalent`` whether the difference is smaller than it, both by one-sided tests of 5%. The first two are
        undecided where runs of one side have failed or diverged and those of the other have not: what is left is not
        what was asked for.

        Raises:
            ConfigError: there is nothing to decide by, or more than one first comparison.
        """
        first = [row for row in self.rows if row.where == ALL_CELLS] or self.rows
        if len({(row.of, row.to) for row in self.rows}) > 1:
            raise ConfigError(
                "--expect: several values are compared with one: name one of them, such as loss=dcl,infonce"
            )
        if expected == "equivalent" and self.margin is None:
            raise ConfigError("--expect equivalent: set --margin to the largest difference that does not matter")
        if not self.measured.metric.sign and expected != "equivalent":
            raise ConfigError(f"--expect {expected}: {self.measured.name} does not say what is better")
        row = next(iter(first), None)
        if row is None or row.estimate is None or (self.uneven and expected != "equivalent"):
            return UNDECIDED
        sign, margin = self.measured.metric.sign or 1, self.margin or 0.0
        low, high = sorted(sign * float(end) for end in row.estimate.interval(2 * statistics.ERROR))
        if expected == "better":
            equal = self.margin is not None and -margin < low and high < margin
            two_sided = sorted(sign * float(end) for end in row.estimate.interval())
            return SO if two_sided[0] > 0 else NOT_SO if two_sided[1] < 0 or equal else UNDECIDED
        if expected == "not-worse":
            return SO if low > -margin else NOT_SO if high < -margin else UNDECIDED
        return SO if -margin < low and high < margin else NOT_SO if low > margin or high < -margin else UNDECIDED

    def record(self) -> dict[str, Any]:
        """The comparisons as plain data."""
        record = {"by": list(self.by), **self.measured.record(), "margin": self.margin, "alone": self.unpaired}
        return record | {"error": statistics.ERROR, "cells": [comparison.record() for comparison in self.rows]}

    def sheet(self) -> Sheet:
        """The comparisons as rows."""
        title = f"{self.measured.title}, by {', '.join(self.by)}, in pairs by seed"
        columns = ["runs", "n", "mean", "other", "difference", "interval", "varies by", "verdict", "more seeds"]
        spared = ("varies by", "other", "mean", "more seeds")
        sheet = Sheet(columns, words=("varies by", "verdict"), spared=spared, title=title)
        form = ".2f" if self.measured.metric.scale == 100 else ".4g"
        for name in dict.fromkeys(f"{row.of} less {row.to}" for row in self.rows):
            rows = [row for row in self.rows if f"{row.of} less {row.to}" == name]
            if len(rows) > 1:
                sheet.rows.append([SheetEntry(name), *[SheetEntry()] * (len(columns) - 1)])
            for row in rows:
                notes = sheet.numbers([f"different {condition}" for condition in row.differ])
                label = name if len(rows) == 1 else f"  {row.where}"
                sheet.rows.append([SheetEntry(label, notes), *map(SheetEntry, row.texts(form))])
        sheet.below = self._below()
        sheet.data = self.record()
        sheet.records = [
            {name: "; ".join(map(str, value)) if isinstance(value, list) else value for name, value in record.items()}
            for record in sheet.data["cells"]
        ]
        return sheet

    def _below(self) -> list[str]:
        """The sentences below the table."""
        sentences = self.measured.below
        overall = [row for row in self.rows if row.where == ALL_CELLS]
        together = "those over all cells together, and those of the cells" if overall else "all together"
        if any(row.n > 1 for row in self.rows):
            margin = "" if self.margin is None else f" The margin is {self.margin:g}."
            sentences.append(f"Verdicts and intervals have an error of 5%: {together} (Holm).{margin}")
        for row in overall:
            chance = "differ by more than chance: look at each" if row.vary else "differ no more than by chance"
            of_seeds = " Seeds move it alike in all of them: add seeds." * row.by_seed
            more = f" Over all cells, about {row.more} more seeds of each would decide." if row.more else ""
            sentences.append(f"{row.of} less {row.to}: the cells {chance}.{of_seeds}{more}")
        if any(comparison.varies == "seeds only" for comparison in self.rows):
            sentences.append("Seeds only: these runs have not recorded which images are right.")
        if commands := list(dict.fromkeys(command for comparison in self.rows for command in comparison.commands)):
            sentences += ["Fewer than two pairs give no verdict; these runs make them:", *commands]
        return sentences


def check_margin(margin: float | None) -> None:
    """Refuse a difference that does not matter and is no positive number, or None."""
    require(margin is None or 0 < margin < math.inf, "--margin", margin, "a positive number")
