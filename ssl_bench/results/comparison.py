"""Is A better than B? Runs that differ in one setting and the seed, paired by seed, by what else varies.

Two runs are a pair if their configurations are equal in all that their weights depend on but the named setting, and
they have one seed. What else varies splits the pairs into cells. The first comparison is that over all cells; then each
cell has its own. A mean difference has an interval over seeds and, where the runs have recorded which images are right,
over images (:mod:`ssl_bench.results.statistics`). The verdicts of the cells hold together with an error of 5% (Holm
1979), and so do those over all cells; an interval is that of the question which its verdict answers.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ssl_bench.config.build import near
from ssl_bench.errors import ConfigError, InvalidValue, printable, require
from ssl_bench.evaluate.metric import Metric
from ssl_bench.record import runs
from ssl_bench.record.printing import Sheet, SheetEntry, plain
from ssl_bench.record.runs import Run
from ssl_bench.results import statistics
from ssl_bench.results import table as runs_table
from ssl_bench.results.statistics import Estimate
from ssl_bench.results.table import Measured, repr_of, text_of, words_of

if TYPE_CHECKING:
    from pandas import DataFrame

ALL_CELLS = "all cells"
NOT_PRINTED = {"estimate", "differences", "step", "test_images", "bits"}  # what a verdict rests on
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
    arms = _Arms(table, measured, by)
    reference = arms.find(to)
    both = [(rest, sides) for rest, sides in arms.conditions.items() if sides.get(reference)]
    others = ((arm, rest, sides) for rest, sides in both for arm in sides if arm != reference and sides[arm])
    pairs = [(arm, rest, sides[arm], sides[reference]) for arm, rest, sides in others]
    where = _where(table, {rest: next(iter(to_runs.values())) for _, rest, _, to_runs in pairs}, by)
    gap, cells = measured.gap if pairs else 0.0, dict[str, list[Comparison]]()  # by the arm compared with the reference
    for arm, rest, of, to_runs in pairs:
        cell = Comparison(where[rest], arms.names[arm], arms.names[reference], step=gap)
        cells.setdefault(arm, []).append(cell)
        _measure(cell, of, to_runs, measured)
    over = [overall for of_arm in cells.values() if (overall := _over_cells(of_arm)) is not None]
    of_cells = [cell for of_arm in cells.values() for cell in of_arm]
    for together in (over, of_cells):
        _decide(together, measured.metric, margin)
    gone = [arm for arm in arms.names if not arms.counts[arm]]
    without = [arm for arm in arms.names if arm != reference and (arm in gone or reference in gone)]
    rows = [*over, *of_cells, *(Comparison("", arms.names[arm], arms.names[reference]) for arm in without)]
    paired = {side[seed] for _, _, of, its in pairs for seed in of.keys() & its.keys() for side in (of, its)}
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
        conditions: these runs by all else that their weights depend on, then by arm, then by seed.
        lost: of each arm the runs that have failed or diverged, as what else they depend on and their seed.
    """

    def __init__(self, table: DataFrame, measured: Measured, by: Sequence[str]) -> None:
        self._by, first = by, dict[str, Any]()  # of an arm the place of its first run
        self.counts, self.conditions = Counter[str](), dict[str, dict[str, Seeds]]()
        for place, run in measured.runs["run"].items():
            arm, rest = run.without(by)
            first.setdefault(arm, place)
            self.counts[arm] += 1
            of_arm = self.conditions.setdefault(rest, {}).setdefault(arm, {})
            if run.seed is not None:
                of_arm[run.seed] = run
        self.lost = dict[str, set[tuple[str, Any]]]()
        for place, run in measured.lost["run"].items():
            arm, rest = run.without(by)
            if not run.config:  # it failed before it began: its overrides say what it is
                arm = next((key for key, at in first.items() if _fits(run, table["run"][at], by)), arm)
            first.setdefault(arm, place)
            if run.seed not in self.conditions.get(rest, {}).get(arm, {}):  # or it has ended well in another folder
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


def _fits(run: Run, other: Run, by: Sequence[str]) -> bool:
    """Whether the overrides of a run that has not begun give it the named settings of another one."""
    given = {name: value for name, value in run.settings.items() if _below(name, by)}
    return bool(given) and all(repr_of(other.settings.get(n)) == repr_of(value) for n, value in given.items())


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
    """What distinguishes conditions from each other, by a run of each."""
    of_runs = table[table["run"].isin(first.values())]
    names = [name for name in runs_table.varying(of_runs) if not _below(name, by)]
    return {key: words_of(run.settings, names) for key, run in first.items()}


def _measure(cell: Comparison, of: Seeds, to: Seeds, measured: Measured) -> None:
    """Set all of a comparison but its verdict; its step is the smallest gap between the numbers of all runs."""
    seeds, scale = sorted(of.keys() & to.keys()), measured.metric.scale
    sides = [[runs[seed] for seed in seeds] for runs in (of, to)]
    cell.n, cell.seeds = len(seeds), seeds
    conditions = [run.conditions | {"git": run.environment.get("git")} for run in (*sides[0], *sides[1])]
    cell.differ = runs.different(conditions, UNNAMED)
    values = np.array([[measured.values[run] for run in side] for side in sides])
    cell.differences = dict(zip(seeds, (values[0] - values[1]).tolist(), strict=True))
    cell.test_images = next(iter(of.values())).images
    if seeds:
        cell.mean, cell.to_mean = values.mean(1).tolist()
        cell.difference = cell.mean - cell.to_mean
    if len(seeds) < 2:
        cell.commands = _commands(of, to, seeds)
    bits = [measured.bits(run) for side in sides for run in side]
    recorded = [run_bits for run_bits in bits if run_bits is not None]
    if seeds and len(recorded) == len(bits) and len({len(run_bits) for run_bits in recorded}) == 1:
        right = np.array(recorded, dtype=np.int8).reshape(2, len(seeds), -1)
        cell.bits, cell.step = scale * (right[0] - right[1]).astype(np.float32), scale / right.shape[2]
    if len(seeds) > 1:
        cell.bound(statistics.paired(values[0] - values[1], cell.bits, cell.step), cell.bits is not None)


def _over_cells(cells: Sequence[Comparison]) -> Comparison | None:
    """The comparison over all cells; None of fewer than two cells, or if none has two pairs."""
    cells = [cell for cell in cells if cell.differences]
    if len(cells) < 2:
        return None
    bits = [cell.bits for cell in cells if cell.bits is not None]
    counts = {(cell.test_images, cell.bits.shape[1]) for cell in cells if cell.bits is not None}
    images = [cell.test_images for cell in cells]
    known = len(bits) == len(cells) and len(counts) == len({*images})
    step = max(cell.step for cell in cells)
    over = statistics.over_cells([cell.differences for cell in cells], bits if known else None, step, images)
    if over is None:
        return None
    seeds = sorted({seed for cell in cells for seed in cell.seeds})
    comparison = Comparison(ALL_CELLS, cells[0].of, cells[0].to, sum(cell.n for cell in cells), seeds)
    comparison.mean, comparison.to_mean = np.mean([(cell.mean, cell.to_mean) for cell in cells], axis=0).tolist()
    comparison.difference, comparison.vary, comparison.cells = float(over.estimate.mean), over.vary, len(cells)
    comparison.bound(over.estimate, known)
    comparison.by_seed = over.by_seed
    return comparison


def _decide(comparisons: Sequence[Comparison], metric: Metric, margin: float | None) -> None:
    """Set the verdicts and the intervals, which hold together."""
    asked = [(row, row.estimate) for row in comparisons if row.estimate is not None]
    if not asked:
        return
    up, down = ("better", "worse")[:: metric.sign] if metric.sign else ("higher", "lower")
    together = statistics.stacked([estimate for _, estimate in asked])
    answers = statistics.answers(together, margin, len(asked), up=up, down=down)
    for (comparison, estimate), answer in zip(asked, answers, strict=True):
        comparison.verdict, comparison.low, comparison.high = answer.verdict or "undecided", answer.low, answer.high
        if not answer.verdict:
            error = statistics.ERROR / len(asked)
            comparison.more = statistics.seeds_to_decide(estimate, comparison.n // comparison.cells, margin, error)


def _commands(of: Seeds, to: Seeds, seeds: Sequence[int]) -> list[str]:
    """The commands that train what two pairs lack, as far as the commands of the runs were recorded."""
    trained = sorted(of.keys() | to.keys())
    candidates = [*seeds, *trained, *(seed for seed in range(len(trained) + 2) if seed not in trained)]
    commands, wanted = list[str](), list(dict.fromkeys(candidates))[:2]
    for side in (of, to):
        command = next((run.command for run in side.values() if run.command), "")
        words = [word for word in shlex.split(command) if not word.startswith("seed=")]
        commands += [printable(shlex.join([*words, f"seed={seed}"])) for seed in wanted if words and seed not in side]
    return commands
