"""What matters in a grid: of each setting the largest difference between two of its levels, and what it decides.

The statistics are those of :mod:`ssl_bench.results.model`. Accuracies are in percent. Data sets that vary are blocks:
numbers of different test images are not compared, and differences are those within each data set, over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ssl_bench.errors import ConfigError
from ssl_bench.evaluate.metric import NOT_HELPED
from ssl_bench.record.printing import Sheet, SheetEntry, plain
from ssl_bench.results import table as runs_table
from ssl_bench.results.model import Confounded, Design, Fit, Settings, smallest_by_images
from ssl_bench.results.statistics import ERROR, SAME, Estimate, cut
from ssl_bench.results.table import Measured, in_order, repr_of, text_of

if TYPE_CHECKING:
    from pandas import DataFrame

UNEVEN = 0.01  # p-value below which deviations of cells are said to differ
FEW, MANY = 6, 5  # degrees of freedom below which a size is rough; seeds that are proposed


@dataclass(frozen=True)
class Setting:
    """The largest difference between the means of two of a setting's levels.

    Attributes:
        low, high: ends of its interval, which holds together with those of all settings; NaN of one seed.
        start, end: the level with the lower mean, and with the higher one.
        most: the largest difference of any two levels that the intervals allow.
        verdict: in words.
        per_doubling: what each doubling adds and its 95% interval; None unless it has three positive numbers or more.
    """

    setting: str
    difference: float
    low: float
    high: float
    start: Any
    end: Any
    most: float
    verdict: str
    per_doubling: dict[str, float] | None

    def record(self) -> dict[str, Any]:
        """It as plain data."""
        record = {name: plain(getattr(self, name)) for name in ("setting", "difference", "low", "high")}
        slope = self.per_doubling and {name: plain(value) for name, value in self.per_doubling.items()}
        return record | {"from": self.start, "to": self.end, "verdict": self.verdict, "per_doubling": slope}


@dataclass
class Matters:
    """What matters in a grid.

    Attributes:
        measured: the number.
        settings: that vary, those that matter most first.
        beyond: what is largest beyond their sum, by how much, with p-value and interval, and it in words; None: it was
            not asked.
        cells: combinations of values that have runs, and ``missing`` those that have none.
        seeds: the least and the most runs in a cell.
        deviation: between the runs of a cell; NaN without several seeds.
        images: of the test images the number and the deviation of an accuracy over them; NaN if it is not known which
            are right.
        smallest: for numbers of seeds, the difference that is found in half of such grids.
        data_sets: what distinguishes the data sets within which differences are; empty of one.
        said: sentences.
        notes: what the numbers mix, or what the runs warn of.
    """

    measured: Measured
    settings: list[Setting]
    beyond: dict[str, Any] | None
    cells: int
    missing: int
    seeds: tuple[int, int]
    deviation: float
    images: tuple[int, float]
    smallest: dict[int, float]
    data_sets: list[str]
    said: list[str]
    notes: list[str]

    @property
    def label(self) -> str:
        """The metric with its unit."""
        return runs_table.label(self.measured.name, self.measured.metric)

    def record(self) -> dict[str, Any]:
        """All of it as plain data."""
        diverged = int((self.measured.lost["state"] != "failed").sum())
        record = self.measured.record() | {"runs": len(self.measured.values), "combinations": self.cells}
        record |= {"missing": self.missing, "diverged": diverged, "data_sets": self.data_sets, "notes": self.notes}
        record |= {"settings": [one.record() for one in self.settings]}
        record |= {"beyond": self.beyond and {name: plain(v) for name, v in self.beyond.items() if name != "words"}}
        record["seeds"] = {"least": self.seeds[0], "most": self.seeds[1], "deviation": plain(self.deviation)}
        record["images"] = {"count": self.images[0] or None, "deviation": plain(self.images[1])}
        sizes = [{"seeds": n, "half": of, "nine_in_ten": 1.5 * of} for n, of in self.smallest.items()]
        return record | {"smallest": sizes}

    @property
    def title(self) -> str:
        """What it is of."""
        few, many = self.seeds
        seeds = f"{many} seed{'s' * (many > 1)}" if few == many else f"{few} to {many} seeds"
        within = f", within each of {len(self.data_sets)} data sets" if self.data_sets else ""
        images = f", {self.images[0]} test images" * bool(self.images[0])
        return f"{self.measured.title}{within}: {self.cells} cells of {seeds}{images}"

    def sheet(self) -> Sheet:
        """A row for each setting, and the sentences below."""
        columns = ["setting", "largest difference", "all together, 95%", "verdict"]
        sheet, scale = Sheet(columns, words=columns[1:], title=self.title), self.measured.metric.scale
        numbers = sheet.numbers(self.notes)
        for one in self.settings:
            levels = f"{text_of(one.start)} < {text_of(one.end)}"
            texts = [f"{_text(one.difference, scale)}  {levels}", between(one.low, one.high, scale), one.verdict]
            sheet.rows.append([SheetEntry(one.setting, numbers), *map(SheetEntry, texts)])
        sheet.below, sheet.data = ["\n".join(self.said), *self.measured.below], self.record()
        sheet.records = sheet.data["settings"]
        return sheet


def _text(number: float, scale: float, sign: str = "") -> str:
    return f"{number:{sign}{'.2f' if scale == 100 else '.3g'}}"


def between(low: float, high: float, scale: float, sign: str = "") -> str:
    """An interval with as many digits as its width has; empty without one."""
    form = ".3g" if scale != 100 else ".1f" if high - low >= 2 else ".2f"
    return "" if math.isnan(low) else f"[{low:{sign}{form}}, {high:{sign}{form}}]"


def what_matters(table: DataFrame, metric: str | None = None, margin: float | None = None) -> Matters:
    """Say of each setting of a grid that varies what its largest difference decides.

    Args:
        table: of runs (:mod:`ssl_bench.results.table`); those without the number are counted.
        metric: the name of the number; None: the main one of most runs.
        margin: a smaller difference does not matter; None: do not ask.

    Raises:
        ConfigError: there are no such runs, nothing varies, all have one number, or settings vary together.
    """
    measured = Measured(table, metric)
    measured.said += measured.not_helped()
    images, scale = [run.images for run in measured.runs["run"]], measured.metric.scale
    settings = runs_table.varying(measured.runs, images)
    measured.said += (gone := _gone(table, measured))
    if not settings and not gone:
        raise ConfigError(_one_cell(measured))
    rows = measured.runs[settings].to_numpy(object).tolist()
    values = [in_order([row[n] for row in rows]) for n in range(len(settings))]
    numbers = [{repr_of(value): number for number, value in enumerate(of)} for of in values]
    levels = [[of[repr_of(value)] for of, value in zip(numbers, row, strict=True)] for row in rows]
    fit = fitted(measured, [*zip(images, map(tuple, levels), strict=True)], levels)
    try:
        told = Settings(fit) if settings else None
    except Confounded as confounded:
        names = " and ".join(settings[factor] for factor in confounded.factors)
        what = "vary together: their differences cannot be told apart; name runs that share one of them"
        raise ConfigError(f"{names} {what}") from confounded
    design, counts = fit.design, measured.image_counts
    found = [_setting(told, n, name, values[n], margin, scale) for n, name in enumerate(settings) if told]
    per_cell, count = len(design.cells) / len(design.n), min(counts.values(), default=0)
    sizes = (round(per_cell), *[MANY] * (per_cell < MANY)) if told and not math.isnan(found[0].low) else ()
    blocks = measured.runs[[images.index(one) == n for n, one in enumerate(images)]]  # the first run of each
    of_data = [name for name in runs_table.varying(blocks) if name.partition(".")[0] == "dataset"]
    named = [runs_table.words_of(row, of_data) for row in blocks.to_dict("records")]
    of_data_sets = ([run for run in measured.values if run.images == one] for one in dict.fromkeys(images))
    matters = Matters(
        measured,
        sorted(found, key=lambda one: (not one.verdict.startswith("matters"), -one.difference)),
        _beyond(fit, settings, values, scale),
        cells=len(design.n),
        missing=len(blocks) * math.prod(map(len, values)) - len(design.n),
        seeds=(int(design.n.min()), int(design.n.max())),
        deviation=fit.deviation,
        images=(count, _by_images(measured)),
        smallest={n: told.smallest(n) for n in sizes if told},
        data_sets=named if len(blocks) > 1 else [],
        said=[],
        notes=[n for members in of_data_sets for n in runs_table.notes(members) if n != NOT_HELPED][:1],
    )
    matters.said = _sentences(matters, fit, settings)
    return matters


def fitted(measured: Measured, cells: Sequence[Hashable], levels: Sequence[Sequence[int]]) -> Fit:
    """The model of a number.

    Args:
        cells: the key of the cell of each run.
        levels: of each run, the numbers of the levels of its settings.
    """
    runs, first = [*measured.values], dict[Hashable, int]()
    for place, cell in enumerate(cells):
        runs_table.refuse_two_recipes(runs[first.setdefault(cell, place)], runs[place])
    number, images = {cell: n for n, cell in enumerate(first)}, [*dict.fromkeys(run.images for run in runs)]
    design = Design(
        np.array([levels[place] for place in first.values()], dtype=int),
        [number[cell] for cell in cells],
        [-1 if run.seed is None else run.seed for run in runs],
        [images.index(runs[place].images) for place in first.values()],
    )
    every = [[measured.bits(runs[place]) for place in rows] for rows in design.rows] if measured.image_counts else []
    lengths = [{-1 if right is None else len(right) for right in of} for of in every]
    known = bool(every) and all(len(of) == 1 and -1 not in of for of in lengths)
    bits = [np.array(of, dtype=np.float32) for of in every] if known else None
    return Fit(design, [*measured.values.values()], bits, measured.metric.scale, measured.gap)


def _setting(told: Settings, n: int, name: str, values: Sequence[Any], margin: float | None, scale: float) -> Setting:
    """What is decided about a setting."""
    estimate, half, pairs = told.estimates[n], told.halves[n], told.design.pairs(n)
    widest = int(np.abs(estimate.mean).argmax())
    difference, most = abs(float(estimate.mean[widest])), float((np.abs(estimate.mean) + half).max())
    ends = difference - half[widest], difference + half[widest]
    low, high = map(float, cut(np.asarray(difference), *ends, told.decided[n, None]))
    start, end = pairs[widest] if estimate.mean[widest] > 0 else pairs[widest][::-1]
    small = f"{most:{'.3g' if scale != 100 else '.1f' if most >= 1 else '.2f'}} at most"
    verdict = "matters" if told.decided[n] else "one seed" if math.isnan(low) else f"not shown; {small}"
    if margin is not None and most < margin:
        verdict += f", smaller than {margin:g}"
    slope, positive = None, all(type(value) in (int, float) and value > 0 for value in values)
    if positive and len(values) > 2:
        of = told.fit.estimate(told.design.slope(n, values))
        its_low, its_high = of.interval() if not math.isnan(low) else (np.full(1, math.nan),) * 2
        slope = {"slope": float(of.mean[0]), "low": float(its_low[0]), "high": float(its_high[0])}
    return Setting(name, difference, low, high, values[start], values[end], most, verdict, slope)


def _beyond(fit: Fit, settings: Sequence[str], values: Sequence[Sequence[Any]], scale: float) -> dict[str, Any] | None:
    """What is most beyond the sum of the settings; None where it cannot be asked."""
    names, weights, together = fit.design.beyond_sum
    if not names:
        return None
    of: Estimate = fit.estimate(weights)
    p = together.p(of.t, of.degrees)
    place = int(p.argmin()) if p.min() > 0 else int(of.t.argmax())
    half = float(together.beyond(ERROR, of.degrees[place]) * of.error[place])
    first, second, *ends = names[place]
    i, j = ends[:2]
    k, m = ends[2:] if of.mean[place] > 0 else ends[:1:-1]
    size = abs(float(of.mean[place]))
    pair = f"{settings[first]} x {settings[second]}"
    by_chance = float(p[place])
    told = {"p": by_chance, "settings": pair, "difference": size, "low": size - half, "high": size + half}
    if by_chance > ERROR:
        return told | {"words": f"beyond their sum: no sign (p = {by_chance:.2f})"}
    arms, at = values[first], values[second]
    size_of = f"{_text(size, scale)} {between(size - half, size + half, scale)}"
    what = f"{text_of(arms[j])} minus {text_of(arms[i])} is {size_of}"
    return told | {"words": f"{pair}: {what} higher at {text_of(at[m])} than at {text_of(at[k])}"}


def _sentences(of: Matters, fit: Fit, settings: Sequence[str]) -> list[str]:
    """What stands below the table."""
    scale, design = of.measured.metric.scale, fit.design
    lines = [of.beyond["words"]] if of.beyond else []
    for one in of.settings:
        if slope := one.per_doubling:
            ends = between(slope["low"], slope["high"], scale, "+")
            lines.append(
                f"Each doubling of {one.setting} adds {_text(slope['slope'], scale, '+')} {ends}".rstrip() + "."
            )
    if of.data_sets:
        lines.append(f"Data sets: {'; '.join(of.data_sets)}. Their numbers are of other test images, and not compared.")
    p, least, largest = fit.uneven()
    if p < UNEVEN:
        ends = f"{_text(least, scale)} to {_text(largest, scale)}"
        lines.append(f"Deviations of cells differ ({ends}): intervals of the uneven are too narrow.")
    for n, name in enumerate(settings):
        if fit.moved_by_seeds(design.levels[design.cells, n]) < ERROR / len(settings):
            lines.append(f"Seeds move the levels of {name} alike in all cells: add seeds.")
    if of.deviation < SAME * abs(fit.values.mean()):
        lines.append("The runs of each cell have one number: they vary by as little as such numbers can show.")
    if design.one_each and of.smallest:
        rest = "what is beyond the sum of the settings counts as noise, that of seeds included"
        lines.append(f"One run in each cell: {rest}.")
    if settings:
        lines.append(can_show(of, fit, len(settings)))
    if of.missing:
        lines.append(f"{of.missing} of {of.cells + of.missing} combinations of these values have no run.")
    return lines


def can_show(of: Matters, fit: Fit, settings: int) -> str:
    """What the grid can show: which differences are found, with the seeds that it has and with more."""
    scale, points = of.measured.metric.scale, " points" * (of.measured.metric.scale == 100)
    more = f"ssl-bench train -m ... seed={','.join(map(str, range(MANY)))}"
    parts = list[str]()
    if not math.isnan(of.deviation):
        images = f", other test images by {_text(of.images[1], scale)}" * (not math.isnan(of.images[1]))
        parts.append(f"Another seed moves a run by {_text(of.deviation, scale)}{images}.")
    if not of.smallest:
        per_level = len(fit.design.cells) / (fit.design.levels.max(0) + 1).max()
        alone = beforehand(of.images[0], per_level, settings)
        return " ".join([*parts, *[alone] * bool(alone), f"One seed gives no verdict: {more}"])
    roughly = "roughly" if fit.design.degrees < FEW else "about"
    (n, size), *others = of.smallest.items()
    found = (
        f"With {n} seed{'s' * (n > 1)} a difference of {roughly} {size:.2g}{points} is found in half of such grids, "
    )
    found += f"one of {1.5 * size:.2g} in nine of ten"
    found += "".join(f"; with {n} seeds about {of:.2g} and {1.5 * of:.2g}: {more}" for n, of in others)
    return " ".join([*parts, found + "." * (not others)])


def beforehand(images: int, per_level: float, settings: int) -> str:
    """What a grid can show before it has numbers, in a sentence; empty if the number of test images is not known.

    Args:
        per_level: runs of each level of the setting that has most.
        settings: that vary.
    """
    if not (images and settings):
        return ""
    least = smallest_by_images(images, per_level, settings)
    return f"Of {images} test images alone, a difference is found from {least:.2g} points on; seeds add to it."


def _one_cell(measured: Measured) -> str:
    """That nothing varies, with what there is."""
    values = [*measured.values.values()]
    form = ".2f" if measured.metric.scale == 100 else ".4g"
    spread = f", deviation {np.std(values, ddof=1):{form}}" if len(values) > 1 else ""
    runs = f"{len(values)} seed{'s' * (len(values) > 1)}, {measured.name} {np.mean(values):{form}}{spread}"
    return f"all runs have the same settings: {runs}; nothing to compare"


def _gone(table: DataFrame, measured: Measured) -> list[str]:
    """Sentences on values of settings all of whose runs have failed or diverged."""
    every, sentences = table.loc[measured.runs.index.union(measured.lost.index, sort=False)], list[str]()
    for name in runs_table.varying(every, [run.images for run in every["run"]]) if len(measured.lost) else ():
        there, lost = {*map(repr_of, measured.runs[name])}, [*map(repr_of, measured.lost[name])]
        for value in in_order([value for value in measured.lost[name] if repr_of(value) not in there]):
            count = lost.count(repr_of(value))
            sentences.append(f"{name}={text_of(value)} has no number: its {count} runs have failed or diverged.")
    return sentences


def _by_images(measured: Measured) -> float:
    """Standard deviation of an accuracy over test images; NaN if it was not recorded which of them are right."""
    if not (counts := measured.image_counts):
        return math.nan
    shares = [(value / measured.metric.scale, counts[run.images]) for run, value in measured.values.items()]
    return measured.metric.scale * math.sqrt(sum(share * (1 - share) / count for share, count in shares) / len(shares))
