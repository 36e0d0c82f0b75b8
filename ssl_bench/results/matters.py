"""The comparison of a grid: of each setting the largest difference between two of its levels, and what it decides.

The model is that of :mod:`ssl_bench.results.statistics`. Accuracies are in percent. Data sets that vary are blocks:
numbers of different test images are not compared, and a difference combines those within each data set.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ssl_bench.errors import ConfigError
from ssl_bench.evaluate.metric import NOT_HELPED
from ssl_bench.record.drawing import figure_of, intervals
from ssl_bench.record.printing import Sheet, SheetEntry, plain
from ssl_bench.results import statistics
from ssl_bench.results import table as runs_table
from ssl_bench.results.statistics import ERROR, LEAST, SAME, Confounded, Design, Estimate, Fit, Settings
from ssl_bench.results.table import Measured, in_order, repr_of, text_of

if TYPE_CHECKING:
    from pandas import DataFrame

UNEVEN = 0.01  # p-value below which deviations of cells are said to differ
FEW, MANY = 6, 5  # degrees of freedom below which a size is rough; seeds that are proposed
MORE = f"ssl-bench train -m ... seed={','.join(map(str, range(MANY)))}"


@dataclass(frozen=True)
class Matters:
    """Which settings matter in a grid.

    Attributes:
        measured: the number.
        title: what it is of, with the numbers of cells, seeds and test images.
        said: sentences below the table.
        data: all of it as plain data. ``settings`` has a record for each setting that varies, those that matter most
            first: the largest ``difference`` between the means of two of its levels, ``from`` the lower ``to`` the
            higher one, the ends of its interval, ``low`` and ``high``, which holds together with those of all settings
            (None of one seed), the ``verdict``, and ``per_doubling``, what each doubling adds with its 95% interval, of
            a setting of three positive numbers or more. ``beyond`` is what is largest beyond the sum of the settings;
            None: it was not asked. ``smallest`` has for numbers of seeds the difference that is found in half of such
            grids, and in nine of ten.
    """

    measured: Measured
    title: str
    said: list[str]
    data: dict[str, Any]

    def sheet(self) -> Sheet:
        """A row for each setting, and the sentences below."""
        columns = ["setting", "largest difference", "all together, 95%", "verdict"]
        sheet, scale = Sheet(columns, words=columns[1:], title=self.title), self.measured.metric.scale
        numbers = sheet.numbers(self.data["notes"])
        for of in self.data["settings"]:
            size = f"{_text(of['difference'], scale)}  {text_of(of['from'])} < {text_of(of['to'])}"
            texts = [size, between(of["low"], of["high"], scale), of["verdict"]]
            sheet.rows.append([SheetEntry(of["setting"], numbers), *map(SheetEntry, texts)])
        sheet.below, sheet.data = ["\n".join(self.said), *self.measured.below], self.data
        sheet.records, more = self.data["settings"], len(self.data["smallest"]) != 1
        sheet.commands = [f"More seeds: {MORE}"] * (more and bool(sheet.rows))
        return sheet

    def figure(self) -> Any:
        """For each setting its largest difference with the interval, which holds together with the others."""
        records, strong = self.data["settings"], [of["verdict"].startswith("matters") for of in self.data["settings"]]
        sizes = ("difference", "low", "high")
        ends = [tuple(of["difference"] if of[name] is None else of[name] for name in sizes) for of in records]
        names = [f"{of['setting']}\n{text_of(of['from'])} < {text_of(of['to'])}" for of in records]
        axes: dict[str, Any] = {"yticks": range(len(names)), "yticklabels": names}
        axes["xlabel"] = f"largest difference, {self.measured.label}"
        panel = partial(intervals, ends=ends, strong=strong, axes=axes)
        return figure_of([panel], (6.4, 2.8 + 0.5 * len(names)), below=[self.title, *self.said])


def _text(number: float, scale: float, sign: str = "") -> str:
    return f"{number:{sign}{'.2f' if scale == 100 else '.3g'}}"


def between(low: float | None, high: float | None, scale: float, sign: str = "") -> str:
    """An interval with as many digits as its width has; empty without one."""
    if low is None or high is None:
        return ""
    form = ".3g" if scale != 100 else ".1f" if high - low >= 2 else ".2f"
    return f"[{low:{sign}{form}}, {high:{sign}{form}}]"


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
    images = [run.images for run in measured.runs["run"]]
    settings = runs_table.varying(measured.runs, images)
    measured.said += measured.not_helped() + (lost := gone(table, measured))
    if not settings and not lost:
        raise ConfigError(_one_cell(measured))
    texts = [[*map(repr_of, measured.runs[name])] for name in settings]
    values = [in_order([*measured.runs[name]]) for name in settings]
    numbers = [{repr_of(value): number for number, value in enumerate(of)} for of in values]
    levels = [[of[text] for of, text in zip(numbers, row, strict=True)] for row in zip(*texts, strict=True)]
    levels = levels or [[] for _ in images]
    fit = fitted(measured, [*zip(images, map(tuple, levels), strict=True)], levels)
    try:
        told = Settings(fit) if settings else None
    except Confounded as confounded:
        names = " and ".join(settings[factor] for factor in confounded.args[0])
        what = "vary together: their differences cannot be told apart; name runs that share one of them"
        raise ConfigError(f"{names} {what}") from confounded
    records = [_setting(told, n, name, values[n], margin) for n, name in enumerate(settings) if told]
    records.sort(key=lambda of: (not of["verdict"].startswith("matters"), -of["difference"]))
    blocks = measured.runs[[images.index(one) == n for n, one in enumerate(images)]]  # the first run of each
    of_data = [name for name in runs_table.varying(blocks) if name.partition(".")[0] == "dataset"]
    named = [runs_table.words_of(row, of_data) for row in blocks.to_dict("records")] if len(blocks) > 1 else []
    of_data_sets = ([run for run in measured.values if run.images == one] for one in dict.fromkeys(images))
    notes = [n for members in of_data_sets for n in runs_table.notes(members) if n != NOT_HELPED]
    per_cell = len(fit.design.cells) / len(fit.design.n)
    sizes = (round(per_cell), *[MANY] * (per_cell < MANY)) if told and records[0]["low"] is not None else ()
    counts, beyond = measured.image_counts, _beyond(fit, settings, values, measured.metric.scale)
    data = measured.record() | {"runs": len(images), "combinations": len(fit.design.n)}
    data["missing"] = len(blocks) * math.prod(map(len, values)) - len(fit.design.n)
    data["diverged"] = int((measured.lost["state"] != "failed").sum())
    data |= {"data_sets": named, "notes": notes[:1], "settings": records}
    data["beyond"] = beyond and {name: plain(value) for name, value in beyond.items() if name != "words"}
    least, most = int(fit.design.n.min()), int(fit.design.n.max())
    data["seeds"] = {"least": least, "most": most, "deviation": plain(fit.deviation)}
    data["images"] = {"count": min(counts.values(), default=None), "deviation": _by_images(measured)}
    halves = {n: told.smallest(n) for n in sizes if told}
    data["smallest"] = [{"seeds": n, "half": half, "nine_in_ten": 1.5 * half} for n, half in halves.items()]
    said = [beyond["words"]] if beyond else []
    return Matters(measured, _title(measured, data), said + _sentences(measured, data, fit, settings), data)


def fitted(measured: Measured, cells: Sequence[Hashable], levels: Any) -> Fit:
    """The model of a number.

    Args:
        cells: the key of the cell of each run.
        levels: of each run the numbers of the levels of its settings [N, F].
    """
    runs, first = [*measured.values], dict[Hashable, int]()
    for place, cell in enumerate(cells):
        runs_table.refuse_two_recipes(runs[first.setdefault(cell, place)], runs[place])
    number, images = {cell: n for n, cell in enumerate(first)}, [*dict.fromkeys(run.images for run in runs)]
    of_cells, blocks = (
        np.array([levels[n] for n in first.values()], int),
        [images.index(runs[n].images) for n in first.values()],
    )
    seeds = [-1 if run.seed is None else run.seed for run in runs]
    design = Design(of_cells, [number[cell] for cell in cells], seeds, blocks)
    every: list[list[Any]] = [[measured.bits(runs[place]) for place in rows] for rows in design.rows]
    known = all(right is not None and len(right) == len(of[0]) for of in every for right in of)
    bits = [np.array(of, dtype=np.float32) for of in every] if known else None
    if not (gap := statistics.smallest_gap(values := [*measured.values.values()])):
        raise ConfigError(f"all runs have the same number, {measured.name}: nothing to compare")
    return Fit(design, values, bits, measured.metric.scale, gap)


def _setting(told: Settings, n: int, name: str, values: Sequence[Any], margin: float | None) -> dict[str, Any]:
    """The difference, interval and verdict of a setting, as plain data."""
    estimate, half, pairs, scale = told.estimates[n], told.halves[n], told.design.pairs(n), told.fit.scale
    widest = int(np.abs(estimate.mean).argmax())
    difference, most = abs(float(estimate.mean[widest])), float((np.abs(estimate.mean) + half).max())
    ends = difference - half[widest], difference + half[widest]
    low, high = map(float, statistics.cut(np.asarray(difference), *ends, told.decided[n, None]))
    start, end = pairs[widest] if estimate.mean[widest] > 0 else pairs[widest][::-1]
    small = f"{most:{'.3g' if scale != 100 else '.1f' if most >= 1 else '.2f'}} at most"
    verdict = "matters" if told.decided[n] else "one seed" if math.isnan(low) else f"not shown; {small}"
    if margin is not None and most < margin:
        verdict += f", smaller than {margin:g}"
    slope = None
    if len(values) > 2 and all(type(value) in (int, float) and value > 0 for value in values):
        of = told.fit.estimate(told.design.slope(n, values))
        its = [None, None] if math.isnan(low) else [float(one[0]) for one in of.interval()]
        slope = {"slope": float(of.mean[0]), "low": its[0], "high": its[1]}
    record = {"setting": name, "difference": difference, "low": plain(low), "high": plain(high)}
    return record | {"from": values[start], "to": values[end], "verdict": verdict, "per_doubling": slope}


def _beyond(fit: Fit, settings: Sequence[str], values: Sequence[Sequence[Any]], scale: float) -> dict[str, Any] | None:
    """The largest difference of differences of two settings, as plain data; None without two settings."""
    names, weights, together = fit.design.beyond_sum
    if not names:
        return None
    of: Estimate = fit.estimate(weights)
    p = together.p(of.t, of.degrees)
    place = int(p.argmin()) if p.min() > 0 else int(of.t.argmax())
    half = float(together.beyond(ERROR, of.degrees[place]) * of.error[place])
    first, second, i, j, k, m = names[place]
    k, m = (k, m) if of.mean[place] > 0 else (m, k)
    size, by_chance, pair = abs(float(of.mean[place])), float(p[place]), f"{settings[first]} x {settings[second]}"
    told = {"p": by_chance, "settings": pair, "difference": size, "low": size - half, "high": size + half}
    if by_chance > ERROR:
        return told | {"words": f"beyond their sum: no sign (p = {by_chance:.2f})"}
    less, more, at, than = map(text_of, (*(values[first][n] for n in (i, j)), *(values[second][n] for n in (m, k))))
    what = f"{more} minus {less} is {_text(size, scale)} {between(size - half, size + half, scale)}"
    return told | {"words": f"{pair}: {what} higher at {at} than at {than}"}


def _title(measured: Measured, data: dict[str, Any]) -> str:
    """The title of a table: the number, its cells, seeds and test images."""
    few, many = data["seeds"]["least"], data["seeds"]["most"]
    seeds = f"{many} seed{'s' * (many > 1)}" if few == many else f"{few} to {many} seeds"
    within = f", within each of {len(data['data_sets'])} data sets" if data["data_sets"] else ""
    images = f", {data['images']['count']} test images" if data["images"]["count"] else ""
    return f"{measured.title}{within}: {data['combinations']} cells of {seeds}{images}"


def _sentences(measured: Measured, data: dict[str, Any], fit: Fit, settings: Sequence[str]) -> list[str]:
    """The sentences below the table, but for what is beyond the sum of the settings."""
    scale, design, lines = measured.metric.scale, fit.design, list[str]()
    for of in (of for of in data["settings"] if of["per_doubling"]):
        slope, low, high = of["per_doubling"].values()
        size = f"{_text(slope, scale, '+')} {between(low, high, scale, '+')}".rstrip()
        lines.append(f"Each doubling of {of['setting']} adds {size}.")
    if names := data["data_sets"]:
        lines.append(f"Data sets: {'; '.join(names)}. Their numbers are of other test images, and not compared.")
    p, least, largest = fit.uneven()
    if p < UNEVEN:
        ends = f"{_text(least, scale)} to {_text(largest, scale)}"
        lines.append(f"Deviations of cells differ ({ends}): intervals of the uneven are too narrow.")
    for n, name in enumerate(settings):
        if fit.moved_by_seeds(design.levels[design.cells, n]) < ERROR / len(settings):
            lines.append(f"Seeds move the levels of {name} alike in all cells: add seeds.")
    if fit.deviation < SAME * abs(fit.values.mean()):
        lines.append("The runs of each cell have one number: they vary by as little as such numbers can show.")
    if design.one_each and data["smallest"]:
        rest = "what is beyond the sum of the settings counts as noise, that of seeds included"
        lines.append(f"One run in each cell: {rest}.")
    if settings:
        lines.append(_can_show(measured, data, fit))
    if missing := data["missing"]:
        lines.append(f"{missing} of {data['combinations'] + missing} combinations of these values have no run.")
    return lines


def _can_show(measured: Measured, data: dict[str, Any], fit: Fit) -> str:
    """Say which differences the grid can show, with the seeds that it has and with more."""
    scale, (count, of_images) = measured.metric.scale, data["images"].values()
    parts, points = list[str](), " points" * (scale == 100)
    if (deviation := data["seeds"]["deviation"]) is not None:
        images = f", other test images by {_text(of_images, scale)}" if of_images is not None else ""
        parts.append(f"Another seed moves a run by {_text(deviation, scale)}{images}.")
    if not data["smallest"]:
        told = beforehand(count or 0, (fit.design.levels.max(0) + 1).tolist(), len(fit.values))
        return " ".join([*parts, told.replace(f": {MORE}", ".")])
    (n, half, most), *others = (of.values() for of in data["smallest"])
    roughly = "roughly" if fit.design.degrees < FEW else "about"
    found = f"With {n} seed{'s' * (n > 1)} a difference of {roughly} {half:.2g}{points} is found in half of such "
    found += f"grids, one of {most:.2g} in nine of ten"
    found += "".join(f"; with {n} seeds about {half:.2g} and {most:.2g}" for n, half, most in others)
    return " ".join([*parts, f"{found}."])


def beforehand(images: int, levels: Sequence[int], count: int, table: DataFrame | None = None) -> str:
    """Say what a grid can show before it has numbers; empty if nothing is known.

    Args:
        images: the number of test images; 0: it is not known.
        levels: how many each setting has that varies.
        count: of runs.
        table: runs that there are already: their deviation is that of the seeds.
    """
    cells = math.prod(levels)
    degrees, deviation = statistics.degrees_of(cells, count / cells) or count - 1 - sum(levels) + len(levels), math.nan
    one_seed = f" One seed gives no verdict: {MORE}" if count <= cells and degrees < LEAST else ""
    with contextlib.suppress(ConfigError):  # none is finished, or all have one number
        if table is not None and not one_seed and (measured := Measured(table, None)).metric.scale == 100:
            recipes = [run.recipe for run in measured.values]
            deviation = fitted(measured, recipes, [[]] * len(recipes)).deviation
            images = min(measured.image_counts.values(), default=images)
    if math.isnan(deviation) and not images:
        return one_seed.strip()
    least = statistics.smallest_before(images, count / max(levels), len(levels), deviation, degrees)
    if math.isnan(deviation):
        sizes = f"a difference is found from {least:.2g} points on; seeds add to it."
        return f"Of {images} test images alone, {sizes}{one_seed}"
    sizes = f"{least:.2g} points is found in half of such grids, one of {1.5 * least:.2g} in nine of ten"
    alone = "" if images else "; other test images add to it"
    return f"Another seed moves finished runs by {deviation:.2f}: a difference of about {sizes}{alone}."


def _one_cell(measured: Measured) -> str:
    """That nothing varies, with what there is."""
    values, form = [*measured.values.values()], ".2f" if measured.metric.scale == 100 else ".4g"
    spread = f", deviation {np.std(values, ddof=1):{form}}" if len(values) > 1 else ""
    runs = f"{len(values)} seed{'s' * (len(values) > 1)}, {measured.name} {np.mean(values):{form}}{spread}"
    return f"all runs have the same settings: {runs}; nothing to compare"


def gone(table: DataFrame, measured: Measured) -> list[str]:
    """Sentences on values of settings all of whose runs have failed or diverged."""
    every, sentences = table.loc[measured.runs.index.union(measured.lost.index, sort=False)], list[str]()
    for name in runs_table.varying(every, [run.images for run in every["run"]]) if len(measured.lost) else ():
        there, lost = {*map(repr_of, measured.runs[name])}, [*map(repr_of, measured.lost[name])]
        for value in in_order([value for value in measured.lost[name] if repr_of(value) not in there]):
            what = f"has no number: its {lost.count(repr_of(value))} runs have failed or diverged."
            sentences.append(f"{name}={text_of(value)} {what}")
    return sentences


def _by_images(measured: Measured) -> float | None:
    """Standard deviation of an accuracy over test images; None if it was not recorded which of them are right."""
    if not (counts := measured.image_counts):
        return None
    shares = [(value / measured.metric.scale, counts[run.images]) for run, value in measured.values.items()]
    return measured.metric.scale * math.sqrt(sum(share * (1 - share) / count for share, count in shares) / len(shares))
