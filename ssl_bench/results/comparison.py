"""Is A better than B? Runs that differ in one setting and the seed, in each combination of the other settings.

Each combination of the other settings that vary is a cell. The first comparison is the mean over all cells; then each
cell has its own. All use one model of all runs (:mod:`ssl_bench.results.statistics`), that of ``compare NAME``. All
verdicts of single cells together have an error of 5%, and so have all verdicts over all cells.
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
from ssl_bench.errors import ConfigError, InvalidValue, command_line, require
from ssl_bench.record import runs
from ssl_bench.record.printing import Sheet, SheetEntry
from ssl_bench.record.runs import Run
from ssl_bench.results import table as runs_table
from ssl_bench.results.matters import fitted, gone
from ssl_bench.results.statistics import ERROR, LEAST, Estimate, Fit, Together, answers
from ssl_bench.results.table import Measured, repr_of, text_of, words_of

if TYPE_CHECKING:
    from pandas import DataFrame

ALL_CELLS = "all cells"
SO, NOT_SO, UNDECIDED = 0, 1, 3  # exit codes
Name = str | None
UNNAMED = (*runs.ENVIRONMENT, *runs.COMPUTED, "git")
ALONE = "without a partner"


ENDS = ("low", "high", "single_low", "single_high")
NUMBERS = ("mean", "to_mean", "difference", *ENDS)


@dataclass
class Comparisons:
    """The comparisons of the values of a setting with one of them, whose verdicts hold together.

    Attributes:
        by: the named settings.
        measured: the number that is compared.
        margin: a smaller difference does not matter; None: there is no margin.
        rows: a record for each comparison, as plain data: ``where`` (the settings of its cell; empty for the only
            comparison), ``of`` and ``to`` (the compared values), ``n`` (runs of the side that has fewer) and the
            ``seeds`` that both sides have, ``mean``, ``to_mean``, ``difference``, ``low`` and ``high`` (the interval;
            all intervals hold together), ``single_low`` and ``single_high`` (the interval of this comparison alone;
            None where no interval is known), ``varies`` (``images`` or ``seeds``, whichever contributes more to the
            interval; ``seeds only`` if it was not recorded which images are correct), ``verdict`` (``better``,
            ``worse``, or ``higher``, ``lower`` of a metric that does not say what is better, ``no difference larger
            than`` the margin, ``undecided`` or ``no verdict``), ``cells`` (the number of cells whose mean it is),
            ``vary`` (whether the cells differ by more than chance), ``by_seed`` (whether a seed moves the difference
            alike in all cells: the interval is too narrow), ``differ`` (conditions, such as the version of torch, in
            which the runs differ), ``commands`` (train the missing runs where there is no verdict).
        first: the difference of the first row; None: the runs do not show how much runs vary.
        unpaired: number of runs whose counterpart is missing.
        uneven: a value has failed or diverged runs whose counterparts have not.
    """

    by: Sequence[str]
    measured: Measured
    margin: float | None
    rows: list[dict[str, Any]] = field(default_factory=list)
    first: Estimate | None = None
    unpaired: int = 0
    uneven: bool = False

    def decide(
        self, fit: Fit, sides: Sequence[tuple[str, str]], where: Mapping[str, str], names: Mapping[str, str], to: str
    ) -> set[Run]:
        """Add the comparisons over all cells and those of single cells; return the runs that are compared.

        An arm is the part of a recipe that is compared, as a text; the rest of the recipe is another text.

        Args:
            fit: of all runs; the first setting of its design is the arm.
            sides: arm and rest of each run.
            where: the settings of a rest in words.
            names: names of the arms.
            to: the arm that the others are compared with.
        """
        design, cell, paired = fit.design, {side: n for n, side in enumerate(dict.fromkeys(sides))}, set[Run]()
        keys = [(arm, rest) for arm in names if arm != to for a, rest in cell if a == arm and (to, rest) in cell]
        if not keys:
            return paired
        pairs, of_arm = np.array([(cell[key], cell[to, key[1]]) for key in keys]), np.array([arm for arm, _ in keys])
        unit, means = np.eye(len(design.n)), design.of_cells(fit.values[:, None])[:, 0]
        signs, decidable = unit[pairs[:, 0]] - unit[pairs[:, 1]], not design.one_each and design.degrees > 0
        members, estimate = [*self.measured.values], fit.estimate(design.cell_weights(signs), single=True)
        of_cells, self.first = self._verdicts(fit, estimate, means[pairs].mean(1), decidable)
        for row, (arm, rest), pair in zip(of_cells, keys, pairs, strict=True):
            places = (np.flatnonzero(design.cells == one).tolist() for one in pair)
            of, its = ({members[n].seed or 0: members[n] for n in of_cell} for of_cell in places)
            both = [*of.values(), *its.values()]
            row |= {"where": where[rest], "of": names[arm], "to": names[to], "n": int(design.n[pair].min())}
            row |= {"seeds": sorted(of.keys() & its.keys()), "commands": [] if decidable else _commands(of, its)}
            row["differ"] = runs_table.different(
                [r.conditions | {"git": r.environment.get("git")} for r in both], UNNAMED
            )
            paired |= {*both}
        several = [arm for arm, count in Counter(of_arm.tolist()).items() if count > 1]
        weights, can = design.between(0, [([*names].index(to), [*names].index(arm)) for arm in several])
        several, over = [arm for arm, one in zip(several, can, strict=True) if one], list[dict[str, Any]]()
        if several:
            centres = np.array([means[pairs[of_arm == arm]].mean() for arm in several])
            decidable = design.degrees >= (LEAST if design.one_each else 1)
            over, self.first = self._verdicts(fit, fit.estimate(weights[can]), centres, decidable)
        for row, arm in zip(over, several, strict=True):
            selected = of_arm == arm
            row |= {"where": ALL_CELLS, "of": names[arm], "to": names[to], "cells": int(selected.sum())}
            row["n"] = sum(one["n"] for one, chosen in zip(of_cells, selected, strict=True) if chosen)
            if not design.one_each:
                spread = fit.estimate(apart := design.cell_weights(signs[selected] - signs[selected].mean(0)))
                row["vary"] = bool(Together(apart).p(spread.t, spread.degrees).min() < ERROR)
                row["by_seed"] = fit.moved_by_seeds(design.levels[design.cells, 0]) < ERROR
        self.rows = over + of_cells
        return paired

    def _verdicts(
        self, fit: Fit, estimate: Estimate, centres: np.ndarray, decidable: bool
    ) -> tuple[list[dict[str, Any]], Estimate | None]:
        """The records of comparisons that are decided together, and the first difference; None unless ``decidable``."""
        sizes, rows = [float(size) for size in estimate.mean], list[dict[str, Any]]()
        for size, centre in zip(sizes, map(float, centres), strict=True):
            rows.append(_row("", "", "", mean=centre + size / 2, to_mean=centre - size / 2, difference=size))
        if not decidable:
            return rows, None
        sign, margin = self.measured.metric.sign, self.margin
        up, down = ("better", "worse")[::sign] if sign else ("higher", "lower")
        (decided, *ends), alone = answers(estimate, margin), estimate.interval()
        for n, row in enumerate(rows):
            words = [up if row["difference"] > 0 else down] * bool(decided[n, 0])
            words += [f"no difference larger than {margin:.3g}"] if margin is not None and decided[n, 1] else []
            row |= {name: float(of[n]) for name, of in zip(ENDS, (*ends, *alone), strict=True)}
            of_images = fit.bits is not None and estimate.images[n] > estimate.seeds[n]
            more = "images" if of_images else "seeds" if fit.bits is not None else "seeds only"
            row |= {"varies": more, "verdict": ", ".join(words) or "undecided"}
        return rows, estimate.of(0)

    def code(self, expected: str) -> int:
        """The exit code of ``--expect``: whether the first comparison, over all cells if there are several, is so.

        ``better`` is a verdict. ``not-worse`` tests whether it is worse by less than the margin, 0 without one, and
        ``equivalent`` whether the difference is smaller than the margin, both by one-sided tests of 5%. The first two
        are undecided if runs of one side have failed or diverged and those of the other side have not: the remaining
        runs are a biased selection.

        Raises:
            ConfigError: there is nothing to decide by, or more than one first comparison.
        """
        if len({(row["of"], row["to"]) for row in self.rows}) > 1:
            several = "several values are compared with one: name one of them, such as loss=dcl,infonce"
            raise ConfigError(f"--expect: {several}")
        if expected == "equivalent" and self.margin is None:
            raise ConfigError("--expect equivalent: set --margin to the largest difference that does not matter")
        if not self.measured.metric.sign and expected != "equivalent":
            raise ConfigError(f"--expect {expected}: {self.measured.name} does not say what is better")
        if self.first is None or (self.uneven and expected != "equivalent"):
            return UNDECIDED
        sign, margin = self.measured.metric.sign or 1, self.margin or 0.0
        low, high = sorted(sign * float(end) for end in self.first.interval(2 * ERROR))
        equal = self.margin is not None and -margin < low and high < margin
        if expected == "better":
            least, most = sorted(sign * float(end) for end in self.first.interval())
            return SO if least > 0 else NOT_SO if most < 0 or equal else UNDECIDED
        if expected == "not-worse":
            return SO if low > -margin else NOT_SO if high < -margin else UNDECIDED
        return SO if equal else NOT_SO if low > margin or high < -margin else UNDECIDED

    def record(self) -> dict[str, Any]:
        """The comparisons as plain data."""
        record = {"by": list(self.by), **self.measured.record(), "margin": self.margin, "alone": self.unpaired}
        return record | {"error": ERROR, "cells": self.rows}

    def sheet(self) -> Sheet:
        """The comparisons as rows."""
        columns = ["runs", "n", "first", "second", "difference", "interval", "varies by", "verdict"]
        sheet = Sheet(columns, words=("varies by", "verdict"), spared=("varies by", "second", "first"))
        sheet.title = f"{self.measured.title}, by {', '.join(self.by)}"
        form = ".2f" if self.measured.metric.scale == 100 else ".4g"
        names = [f"{row['of']} minus {row['to']}" for row in self.rows]
        for name in dict.fromkeys(names):
            rows = [row for row, its in zip(self.rows, names, strict=True) if its == name]
            if len(rows) > 1:
                sheet.rows.append([SheetEntry(name), *[SheetEntry()] * (len(columns) - 1)])
            for row in rows:
                notes = sheet.numbers([f"different {condition}" for condition in row["differ"]])
                label = name if len(rows) == 1 else f"  {row['where']}"
                numbers = ((row["mean"], ""), (row["to_mean"], ""), (row["difference"], "+"))
                texts = ["" if number is None else f"{number:{sign}{form}}" for number, sign in numbers]
                texts.append("" if row["low"] is None else f"[{row['low']:+{form}}, {row['high']:+{form}}]")
                texts += [row["varies"], row["verdict"]]
                sheet.rows.append([SheetEntry(label, notes), SheetEntry(str(row["n"])), *map(SheetEntry, texts)])
        sheet.below, sheet.data = self._below(), self.record()
        if commands := dict.fromkeys(command for row in self.rows for command in row["commands"]):
            sheet.commands = [
                "Nothing shows how runs vary, so there is no verdict; these runs would show it:",
                *commands,
            ]
        lists = ({n: "; ".join(map(str, v)) for n, v in row.items() if isinstance(v, list)} for row in self.rows)
        sheet.records = [row | texts for row, texts in zip(self.rows, lists, strict=True)]
        return sheet

    def _below(self) -> list[str]:
        """The sentences below the table."""
        sentences, decided = self.measured.below, [row for row in self.rows if row["low"] is not None]
        overall = [row for row in self.rows if row["where"] == ALL_CELLS]
        if decided:
            margin = "" if self.margin is None else f" The margin is {self.margin:g}."
            apart = " over all cells, and all of single cells," if overall else " of this table"
            sentences.append(f"All verdicts{apart} together are wrong in at most 5% of such experiments.{margin}")
        for row in overall if any(row["where"] != ALL_CELLS for row in decided) else ():
            chance = "differ by more than chance: look at each" if row["vary"] else "differ no more than by chance"
            of_seeds = " A seed moves the difference alike in all cells: add seeds." * row["by_seed"]
            sentences.append(f"{row['of']} minus {row['to']}: the cells {chance}.{of_seeds}")
        if any(row["varies"] == "seeds only" for row in decided):
            sentences.append("Seeds only: these runs have not recorded which images they classify correctly.")
        return sentences


def compare(
    table: DataFrame, by: str | Sequence[str], to: Name = None, metric: Name = None, margin: float | None = None
) -> Comparisons:
    """Compare runs that differ in one setting.

    Args:
        table: of runs (:mod:`ssl_bench.results.table`); runs without the number are counted.
        by: the setting, such as ``loss``, or several; a group is compared with all of its keys.
        to: the value that the others are compared with; None: the value that most runs have.
        metric: the name of a number; None: the main number of most runs.
        margin: a smaller difference does not matter; None: there is no margin.

    Raises:
        ConfigError: there are no such runs, results do not depend on ``by``, not exactly one value is called ``to``, or
            the margin is not positive.
    """
    from pandas import factorize

    require(margin is None or 0 < margin < math.inf, "--margin", margin, "a positive number")
    by = [_setting(table, name) for name in ([by] if isinstance(by, str) else by)]
    measured = Measured(table, metric)
    measured.said += measured.not_helped() + gone(table, measured)
    members, lost = [*measured.values], [*measured.lost["run"]]
    side = {run: run.without(by) for run in (*members, *lost)}  # the arm of a run, and the rest of its recipe
    first, sides = {side[run][0]: run for run in reversed(side)}, [side[run] for run in members]
    names, counts = _names(table, {arm: first[arm] for arm, _ in side.values()}, by), Counter(arm for arm, _ in sides)
    finished = {(*side[run], run.seed) for run in members}  # a copy of the run in another folder may have failed
    missing = {(*side[run], run.seed) for run in lost} - finished
    failed = {arm: {run[1:] for run in missing if run[0] == arm} for arm in names}
    reference, every = _find(to, by, names, counts), [*names]
    others = [name for name in runs_table.varying(measured.runs) if not _below(name, by)]
    levels = [factorize(measured.runs[name].map(repr_of))[0] for name in others]
    fit = fitted(measured, sides, np.column_stack([[every.index(arm) for arm, _ in sides], *levels]))
    compared = Comparisons(by, measured, margin)
    paired = compared.decide(fit, sides, _where(table, dict(zip(members, sides, strict=True)), by), names, reference)
    without = [arm for arm in names if arm != reference and not (counts[arm] and counts[reference])]
    compared.rows += [_row("", names[arm], names[reference]) for arm in without]
    labels = dict(zip(table["run"], runs_table.labels(table), strict=True))
    if alone := [labels[run] for run in members if run not in paired]:
        measured.missing[ALONE] = alone
    compared.unpaired = len(alone)
    if uneven := [arm for arm in names if failed[arm] != failed[reference]]:
        words = {arm: name if "=" in name else f"{' '.join(by)}={name}" for arm, name in names.items()}
        counted = ", ".join(f"{len(failed[arm])} with {words[arm]}" for arm in (*uneven, reference))
        measured.said.append(f"Failed or diverged runs: {counted}. Verdicts are about the remaining runs.")
    compared.uneven = bool(uneven)
    return compared


def _row(where: str, of: str, to: str, **values: Any) -> dict[str, Any]:
    """The record of a comparison."""
    row: dict[str, Any] = {"where": where, "of": of, "to": to, "n": 0, "seeds": [], **dict.fromkeys(NUMBERS)}
    row |= {"varies": "", "verdict": "no verdict", "cells": 1, "vary": False, "by_seed": False}
    return row | {"differ": [], "commands": []} | values


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


def _find(to: str | None, by: Sequence[str], names: Mapping[str, str], counts: Counter[str]) -> str:
    """The arm that the others are compared with."""
    require(len(names) > 1, "--by", " ".join(by), "a setting that differs: all of these runs have one value of it")
    if to is None:
        return max(names, key=lambda arm: counts[arm])
    plain = to.removeprefix("b") if by[0] == "batch_size" else to
    words = {to, plain, f"{by[0]}={plain}"}
    arms = [arm for arm, name in names.items() if name in words]
    arms = arms or [arm for arm, name in names.items() if name.split(" ")[0] in words]
    if len(arms) != 1:
        raise InvalidValue("--to", to, f"one of {', '.join(names.values())}{near(to, [*names.values()])}")
    return arms[0]


def _names(table: DataFrame, first: Mapping[str, Run], by: Sequence[str]) -> dict[str, str]:
    """The names of arms by the settings in which their first runs differ, such as ``dcl``."""
    of_runs = table[table["run"].isin(first.values())]
    shown = [name for name in runs_table.varying(of_runs) if _below(name, by)]
    settings = {arm: run.settings for arm, run in first.items()}
    if any(not any(repr_of(of.get(name)) for name in shown) for of in settings.values()):  # an arm has none of these
        shown = [*(name for name in by if name in table and name not in shown), *shown]
    if shown == [*by][:1]:
        return {arm: text_of(of.get(shown[0])) for arm, of in settings.items()}
    return {arm: words_of(of, shown) for arm, of in settings.items()}


def _where(table: DataFrame, sides: Mapping[Run, tuple[str, str]], by: Sequence[str]) -> dict[str, str]:
    """The settings in which the cells differ from each other, as text, by the rest of their recipe."""
    first = {rest: run for run, (_, rest) in sides.items()}
    of_runs = table[table["run"].isin(first.values())]
    names = [name for name in runs_table.varying(of_runs) if not _below(name, by)]
    return {key: words_of(run.settings, names) for key, run in first.items()}


def _commands(of: Mapping[int, Run], to: Mapping[int, Run]) -> list[str]:
    """The commands of the runs that are missing for two pairs, if the commands of the existing runs were recorded."""
    both, trained, commands = sorted(of.keys() & to.keys()), sorted(of.keys() | to.keys()), list[str]()
    wanted = list(dict.fromkeys([*both, *trained, *range(len(trained) + 2)]))[:2]
    for side in (of, to):
        command = next((run.command for run in side.values() if run.command), "")
        words = [word for word in shlex.split(command) if not word.startswith("seed=")]
        commands += [command_line([*words, f"seed={seed}"]) for seed in wanted if words and seed not in side]
    return commands
