"""Is A better than B? Runs that differ in one setting and the seed, by what else varies.

What else varies splits the runs into cells. The first comparison is that over all cells; then each cell has its own.
All are of one model of all runs (:mod:`ssl_bench.results.model`), that of ``compare NAME``. The verdicts of the cells
hold together with an error of 5%, and so do those over all cells.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ssl_bench.config.ranges import near
from ssl_bench.errors import ConfigError, InvalidValue, printable, require
from ssl_bench.evaluate.metric import Metric
from ssl_bench.record import runs
from ssl_bench.record.printing import Sheet, SheetEntry, plain
from ssl_bench.record.runs import Run
from ssl_bench.results import table as runs_table
from ssl_bench.results.matters import fitted
from ssl_bench.results.model import LEAST, Fit, Together
from ssl_bench.results.statistics import ERROR, Estimate, answers, seeds_to_decide
from ssl_bench.results.table import Measured, repr_of, text_of, words_of

if TYPE_CHECKING:
    from pandas import DataFrame

ALL_CELLS = "all cells"
SO, NOT_SO, UNDECIDED = 0, 1, 3  # exit codes
Seeds = dict[int, Run]  # runs that differ in nothing but the seed, by seed
UNNAMED = (*runs.ENVIRONMENT, *runs.COMPUTED, "git")
ALONE = "without a partner"


@dataclass
class Comparison:
    """One value of the named setting compared with another, in runs that are equal but for it and the seed.

    Attributes:
        where: what distinguishes it from the other comparisons; empty if it is the only one.
        of, to: what is compared.
        n: runs of the side that has fewer, and the ``seeds`` that both sides have.
        mean, to_mean, difference, low, high: NaN where it is not known. The interval from ``low`` to ``high`` holds
            together with those of the other comparisons.
        single_low, single_high: the interval of this comparison alone.
        varies: ``images`` or ``seeds``, whichever contributes more to the interval; ``seeds only`` if the runs have not
            recorded which images are right.
        verdict: ``better``, ``worse`` (``higher``, ``lower`` of a metric that does not say what is better), ``no
            difference larger than`` the margin, ``undecided`` or ``no verdict``.
        more: seeds to add to each cell that would decide at the deviation seen; None: none would, or it is decided.
        cells: over which it is a mean.
        vary: over all cells: whether these differ among themselves by more than chance.
        by_seed: over all cells: whether seeds move the difference alike in all of them: the interval is too narrow.
        differ: what the runs differ in that was not named, in words.
        commands: that train what is missing.
        estimate: the difference with the parts of its variance; None: nothing shows how runs vary.
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
        return {name: plain(value) for name, value in vars(self).items() if name != "estimate"}


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
        low, high = sorted(sign * float(end) for end in row.estimate.interval(2 * ERROR))
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
        return record | {"error": ERROR, "cells": [comparison.record() for comparison in self.rows]}

    def sheet(self) -> Sheet:
        """The comparisons as rows."""
        columns = ["runs", "n", "mean", "other", "difference", "interval", "varies by", "verdict", "seeds to add"]
        spared = ("varies by", "other", "mean", "seeds to add")
        title = f"{self.measured.title}, by {', '.join(self.by)}"
        sheet = Sheet(columns, words=("varies by", "verdict"), spared=spared, title=title)
        form = ".2f" if self.measured.metric.scale == 100 else ".4g"
        for name in dict.fromkeys(f"{row.of} minus {row.to}" for row in self.rows):
            rows = [row for row in self.rows if f"{row.of} minus {row.to}" == name]
            if len(rows) > 1:
                sheet.rows.append([SheetEntry(name), *[SheetEntry()] * (len(columns) - 1)])
            for row in rows:
                notes = sheet.numbers([f"different {condition}" for condition in row.differ])
                label = name if len(rows) == 1 else f"  {row.where}"
                sheet.rows.append([SheetEntry(label, notes), *map(SheetEntry, row.texts(form))])
        sheet.below, sheet.data = self._below(), self.record()
        sheet.records = [
            {name: "; ".join(map(str, value)) if isinstance(value, list) else value for name, value in record.items()}
            for record in sheet.data["cells"]
        ]
        return sheet

    def _below(self) -> list[str]:
        """The sentences below the table."""
        sentences = self.measured.below
        overall = [row for row in self.rows if row.where == ALL_CELLS]
        if any(row.estimate is not None for row in self.rows):
            margin = "" if self.margin is None else f" The margin is {self.margin:g}."
            apart = " over all cells, and all of single cells," if overall else " of this table"
            sentences.append(f"All verdicts{apart} together are wrong in at most 5% of such experiments.{margin}")
        known = any(row.estimate is not None for row in self.rows if row.where != ALL_CELLS)
        for row in overall if known else ():
            chance = "differ by more than chance: look at each" if row.vary else "differ no more than by chance"
            of_seeds = " Seeds move it alike in all of them: add seeds." * row.by_seed
            more = f" Over all cells, about {row.more} more seeds of each would decide." if row.more else ""
            sentences.append(f"{row.of} minus {row.to}: the cells {chance}.{of_seeds}{more}")
        if any(comparison.varies == "seeds only" for comparison in self.rows):
            sentences.append("Seeds only: these runs have not recorded which images are right.")
        if commands := list(dict.fromkeys(command for comparison in self.rows for command in comparison.commands)):
            sentences += ["Nothing shows how runs vary, so there is no verdict; these runs would show it:", *commands]
        return sentences


def compare(
    table: DataFrame,
    by: str | Sequence[str],
    to: str | None = None,
    metric: str | None = None,
    margin: float | None = None,
) -> Comparisons:
    """Compare runs that differ in one setting.

    Args:
        table: of runs (:mod:`ssl_bench.results.table`); those without the number are counted.
        by: the setting, such as ``loss``, or several; all keys of a group go with it.
        to: the value that the others are compared with; None: the one that most runs have.
        metric: the name of a number; None: the main one of most runs.
        margin: a smaller difference does not matter; None: do not ask.

    Raises:
        ConfigError: there are no such runs, results do not depend on ``by``, ``to`` is not one thing, or the margin is
            not positive.
    """
    require(margin is None or 0 < margin < math.inf, "--margin", margin, "a positive number")
    by = [_setting(table, name) for name in ([by] if isinstance(by, str) else by)]
    measured = Measured(table, metric)
    measured.said += measured.not_helped()
    arms = _Arms(table, measured, by)
    reference, every, found = arms.find(to), [*arms.names], [*measured.values]
    sides = [run.without(by) for run in found]
    others = [name for name in runs_table.varying(measured.runs) if not _below(name, by)]
    texts = [[*map(repr_of, row)] for row in measured.runs[others].to_numpy(object).tolist()]
    numbers = [{text: n for n, text in enumerate(dict.fromkeys(column))} for column in zip(*texts, strict=True)]
    levels = [[of[text] for of, text in zip(numbers, row, strict=True)] for row in texts]
    fit = fitted(measured, sides, [[every.index(arm), *of] for (arm, _), of in zip(sides, levels, strict=True)])
    where = _where(table, {rest: run for (_, rest), run in zip(sides, found, strict=True)}, by)
    rests = [rest for _, rest in dict.fromkeys(sides)]
    over, of_cells = decided(fit, rests, where, [*arms.names.values()], every.index(reference), measured.metric, margin)
    cells = [[found[place] for place in np.flatnonzero(fit.design.cells == cell)] for cell in range(len(rests))]
    paired = set[Run]()
    for row, pair in of_cells:
        of, its = ({run.seed or 0: run for run in cells[cell]} for cell in pair)
        paired |= {*of.values(), *its.values()}
        row.seeds = sorted(of.keys() & its.keys())
        row.commands = _commands(of, its) if row.estimate is None else []
        conditions = [run.conditions | {"git": run.environment.get("git")} for run in (*of.values(), *its.values())]
        row.differ = runs.different(conditions, UNNAMED)
    gone = [arm for arm in arms.names if not arms.counts[arm]]
    without = [arm for arm in arms.names if arm != reference and (arm in gone or reference in gone)]
    rows = [*over, *(row for row, _ in of_cells)]
    rows += [Comparison("", arms.names[arm], arms.names[reference]) for arm in without]
    alone = measured.runs.index[[run not in paired for run in measured.runs["run"]]]
    labels = dict(zip(table.index, runs_table.labels(table), strict=True))
    measured.missing |= {ALONE: [labels[place] for place in alone]} if len(alone) else {}
    full = {arm: name if "=" in name else f"{' '.join(by)}={name}" for arm, name in arms.names.items()}
    measured.said += [f"{full[a]} has no number: its {len(arms.lost[a])} runs have failed or diverged." for a in gone]
    uneven = [arm for arm in arms.names if arms.lost[arm] != arms.lost[reference] and arm != reference]
    if uneven:
        lost = ", ".join(f"{full[arm]} ({len(arms.lost[arm])} runs)" for arm in (*uneven, reference))
        measured.said.append(f"Failed or diverged: {lost}. Verdicts are about the runs that are left.")
    return Comparisons(by, measured, margin, rows, len(alone), bool(uneven))


def decided(
    fit: Fit,
    rests: Sequence[str],
    where: Mapping[str, str],
    names: Sequence[str],
    to: int,
    metric: Metric,
    margin: float | None,
) -> tuple[list[Comparison], list[tuple[Comparison, tuple[int, int]]]]:
    """The comparisons over all cells, and those of single cells with the cells of the model that they compare.

    Args:
        fit: of all runs; the first setting of its design is the arm.
        rests: all else that distinguishes each cell of the model, and ``where`` has it in words.
        names: of the arms.
        to: the number of the arm that the others are compared with.
    """
    design, over, of_cells = fit.design, list[Comparison](), list[tuple[Comparison, tuple[int, int]]]()
    arms = design.levels[:, 0].tolist()
    place = {key: cell for cell, key in enumerate(zip(rests, arms, strict=True))}
    for (rest, arm), cell in sorted(place.items(), key=lambda item: (item[0][1], item[1])):
        if arm != to and (rest, to) in place:
            pair = cell, place[rest, to]
            row = Comparison(where[rest], names[arm], names[to], n=int(design.n[[*pair]].min()))
            of_cells.append((row, pair))
    if not of_cells:
        return over, of_cells
    pairs = np.array([pair for _, pair in of_cells])
    unit, means = np.eye(len(design.n)), design.of_cells(fit.values[:, None])[:, 0]
    signs = unit[pairs[:, 0]] - unit[pairs[:, 1]]
    cells = [row for row, _ in of_cells]
    single = fit.estimate(design.cell_weights(signs), single=True)
    _decide(cells, single, means[pairs].mean(1), fit, metric, margin)
    known = [arm for arm in dict.fromkeys(np.take(arms, pairs[:, 0])) if (np.take(arms, pairs[:, 0]) == arm).sum() > 1]
    weights, told = design.between(0, [(to, arm) for arm in known])
    known, weights = [arm for arm, one in zip(known, told, strict=True) if one], weights[told]
    centres = np.empty(len(known))
    for number, arm in enumerate(known):
        own = np.take(arms, pairs[:, 0]) == arm
        row = Comparison(ALL_CELLS, names[arm], names[to], sum(of.n for of, one in zip(cells, own, strict=True) if one))
        row.cells, centres[number] = int(own.sum()), means[pairs[own]].mean()
        if not design.one_each:
            apart = design.cell_weights(signs[own] - signs[own].mean(0))
            of = fit.estimate(apart)
            row.vary = bool(Together(apart).p(of.t, of.degrees).min() < ERROR)
            row.by_seed = fit.moved_by_seeds(design.levels[design.cells, 0]) < ERROR
        over.append(row)
    if over:
        _decide(over, fit.estimate(weights), centres, fit, metric, margin)
    return over, of_cells


def _decide(
    rows: Sequence[Comparison], estimate: Estimate, centres: np.ndarray, fit: Fit, metric: Metric, margin: float | None
) -> None:
    """Set the differences, verdicts and intervals of comparisons, which hold together."""
    for number, row in enumerate(rows):
        row.difference = float(estimate.mean[number])
        row.mean, row.to_mean = centres[number] + row.difference / 2, centres[number] - row.difference / 2
    single = rows[0].where != ALL_CELLS
    if fit.design.degrees < 1 or (fit.design.one_each and (single or fit.design.degrees < LEAST)):
        return
    up, down = ("better", "worse")[:: metric.sign] if metric.sign else ("higher", "lower")
    (found, low, high), alone = answers(estimate, margin), estimate.interval()
    for number, row in enumerate(rows):
        row.estimate = estimate.of(number)
        words = [up if row.difference > 0 else down] * bool(found[number, 0])
        if margin is not None and found[number, 1]:
            words.append(f"no difference larger than {margin:.3g}")
        row.verdict, row.low, row.high = ", ".join(words) or "undecided", float(low[number]), float(high[number])
        row.single_low, row.single_high = (float(end[number]) for end in alone)
        row.varies = "images" if estimate.images[number] > estimate.seeds[number] else "seeds"
        row.varies = row.varies if fit.bits is not None else "seeds only"
        if not words:
            per_cell = round(len(fit.design.cells) / len(fit.design.n))
            row.more = seeds_to_decide(row.estimate, per_cell, margin, ERROR / len(rows))


def _setting(table: DataFrame, wanted: str) -> str:
    """The full name of a setting; it is refused if its values have other images."""
    columns = [column for column in runs_table.settings(table) if _below(column, [wanted])]
    images = dict[tuple[str, ...], set[str]]()  # by the values of the setting
    for run in table["run"] if wanted.partition(".")[0] == "dataset" else ():
        images.setdefault(tuple(repr_of(run.settings.get(n)) for n in columns), set()).add(run.images)
    if any(one.isdisjoint(other) for one in images.values() for other in images.values()):
        what = "its values have other test images, so that their numbers are not compared"
        raise ConfigError(f"--by {wanted}: {what}; set --by to a setting that varies within each, such as loss")
    return "batch_size" if wanted == runs.SIZE else runs_table.setting(table, "--by", wanted, groups=True)


def _below(name: str, settings: Sequence[str]) -> bool:
    """Whether a name is that of one of some settings or of a key below one."""
    return any(name == setting or name.startswith(f"{setting}.") for setting in settings)


class _Arms:
    """The runs of a table by the values of the named settings.

    Attributes:
        names: of the arms, by the named settings as a text.
        counts: of the runs of each that are compared.
        lost: of each arm the runs that have failed or diverged, as what else they depend on and their seed.
    """

    def __init__(self, table: DataFrame, measured: Measured, by: Sequence[str]) -> None:
        self._by, first = by, dict[str, Any]()  # of an arm the place of its first run
        self.counts, there = Counter[str](), set[tuple[str, str, Any]]()
        for place, run in measured.runs["run"].items():
            arm, rest = run.without(by)
            first.setdefault(arm, place)
            self.counts[arm] += 1
            there.add((arm, rest, run.seed))
        self.lost = dict[str, set[tuple[str, Any]]]()
        for place, run in measured.lost["run"].items():
            arm, rest = run.without(by)
            first.setdefault(arm, place)
            if (arm, rest, run.seed) not in there:  # or it has ended well in another folder
                self.lost.setdefault(arm, set()).add((rest, run.seed))
        self.names = dict(zip(first, _names(table.loc[[*first.values()]], by), strict=True))
        self.lost = {arm: self.lost.get(arm, set()) for arm in first}

    def find(self, to: str | None) -> str:
        """The arm that the others are compared with."""
        if len(self.names) < 2:
            remedy = "a setting that differs: all of these runs have one value of it"
            raise InvalidValue("--by", " ".join(self._by), remedy)
        if to is None:
            return max(self.names, key=lambda arm: self.counts[arm])
        plain = to.removeprefix("b") if self._by[0] == "batch_size" else to
        words = {to, plain, f"{self._by[0]}={plain}"}
        found = [arm for arm, name in self.names.items() if name in words]
        found = found or [arm for arm, name in self.names.items() if name.split(" ")[0] in words]
        if len(found) != 1:
            names = [*self.names.values()]
            raise InvalidValue("--to", to, f"one of {', '.join(names)}{near(to, names)}")
        return found[0]


def _names(first: DataFrame, by: Sequence[str]) -> list[str]:
    """The names of arms by the settings in which their first runs differ, such as ``dcl``."""
    shown = [name for name in runs_table.varying(first) if _below(name, by)]
    if any(not any(map(repr_of, row)) for row in first[shown].to_numpy().tolist()):  # one has none of these settings
        shown = [*(name for name in by if name in first and name not in shown), *shown]
    rows = first[shown].to_dict("records")
    if shown == [*by][:1]:
        return [text_of(row[shown[0]]) for row in rows]
    return [words_of(row, shown) for row in rows]


def _where(table: DataFrame, first: Mapping[str, Run], by: Sequence[str]) -> dict[str, str]:
    """The settings in which conditions differ from each other, as text, by a run of each."""
    of_runs = table[table["run"].isin(first.values())]
    names = [name for name in runs_table.varying(of_runs) if not _below(name, by)]
    return {key: words_of(run.settings, names) for key, run in first.items()}


def _commands(of: Seeds, to: Seeds) -> list[str]:
    """The commands that train what two pairs lack, as far as the commands of the runs were recorded."""
    trained = sorted(of.keys() | to.keys())
    candidates = [
        *sorted(of.keys() & to.keys()),
        *trained,
        *(seed for seed in range(len(trained) + 2) if seed not in trained),
    ]
    commands, wanted = list[str](), list(dict.fromkeys(candidates))[:2]
    for side in (of, to):
        command = next((run.command for run in side.values() if run.command), "")
        words = [word for word in shlex.split(command) if not word.startswith("seed=")]
        commands += [printable(shlex.join([*words, f"seed={seed}"])) for seed in wanted if words and seed not in side]
    return commands
