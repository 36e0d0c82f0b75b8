"""Which settings matter in a grid: the largest difference between two values of each setting, and its verdict.

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

UNEVEN = 0.01  # p-value below which the deviations of cells are called different
FEW, MANY = 6, 5  # degrees of freedom below which a size is rough; seeds that are proposed
MORE = f"ssl-bench train -m ... seed={','.join(map(str, range(MANY)))}"


@dataclass(frozen=True)
class Matters:
    """Which settings matter in a grid.

    Attributes:
        measured: the number.
        title: its name, with the numbers of cells, seeds and test images.
        said: sentences below the table.
        data: all of it as plain data. ``settings`` has a record for each setting that varies, those that matter first,
            then by the size of the difference: the largest ``difference`` between the means of two of its values,
            ``from`` the value with the lower mean ``to`` the one with the higher mean, the ends ``low`` and ``high`` of
            its interval (the intervals of all settings hold together; None of one seed), the ``verdict``, and
            ``per_doubling``: how much each doubling adds, with a 95% interval, if the setting has three positive
            numbers or more. ``beyond`` is the largest interaction of two settings (None: there are not two settings,
            or each cell has one run). ``smallest`` has for numbers of seeds the difference that is found in half of
            such grids, and that in nine of ten.
    """

    measured: Measured
    title: str
    said: list[str]
    data: dict[str, Any]

    def sheet(self) -> Sheet:
        """A row for each setting, and the sentences below."""
        columns = ["setting", "largest difference", "joint 95% interval", "verdict"]
        sheet, scale = Sheet(columns, words=columns[1:], title=self.title), self.measured.metric.scale
        footnotes = sheet.numbers(self.data["notes"])
        for record in self.data["settings"]:
            size = f"{_text(record['difference'], scale)}  {text_of(record['from'])} < {text_of(record['to'])}"
            texts = [size, between(record["low"], record["high"], scale), record["verdict"]]
            sheet.rows.append([SheetEntry(record["setting"], footnotes), *map(SheetEntry, texts)])
        sheet.below, sheet.data = ["\n".join(self.said), *self.measured.below], self.data
        sheet.records, more = self.data["settings"], len(self.data["smallest"]) != 1
        sheet.commands = [f"More seeds: {MORE}"] * (more and bool(sheet.rows))
        return sheet

    def figure(self) -> Any:
        """For each setting its largest difference with the interval; the intervals of all settings hold together."""
        records, sizes = self.data["settings"], ("difference", "low", "high")
        strong = [record["verdict"].startswith("matters") for record in records]
        ends = [tuple(of["difference"] if of[name] is None else of[name] for name in sizes) for of in records]
        names = [f"{of['setting']}\n{text_of(of['from'])} < {text_of(of['to'])}" for of in records]
        axes: dict[str, Any] = {"yticks": range(len(names)), "yticklabels": names}
        axes["xlabel"] = f"largest difference, {self.measured.label}"
        panel = partial(intervals, ends=ends, strong=strong, axes=axes)
        return figure_of([panel], (6.4, 2.8 + 0.5 * len(names)), below=[self.title, *self.said])


def _text(number: float, scale: float, sign: str = "") -> str:
    return f"{number:{sign}{'.2f' if scale == 100 else '.3g'}}"


def between(low: float | None, high: float | None, scale: float, sign: str = "") -> str:
    """The text of an interval, with digits according to its width; empty without one."""
    if low is None or high is None:
        return ""
    form = ".3g" if scale != 100 else ".1f" if high - low >= 2 else ".2f"
    return f"[{low:{sign}{form}}, {high:{sign}{form}}]"


def what_matters(table: DataFrame, metric: str | None = None, margin: float | None = None) -> Matters:
    """Decide for each setting that varies in a grid whether it matters.

    Args:
        table: of runs (:mod:`ssl_bench.results.table`); runs without the number are counted.
        metric: the name of the number; None: the main number of most runs.
        margin: a difference below it does not matter; None: there is no margin.

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
        verdicts = Settings(fit) if settings else None
    except Confounded as confounded:
        names = " and ".join(settings[factor] for factor in confounded.args[0])
        what = "vary together: their differences cannot be told apart; name runs that share one of them"
        raise ConfigError(f"{names} {what}") from confounded
    records = [_setting(verdicts, n, name, values[n], margin) for n, name in enumerate(settings) if verdicts]
    records.sort(key=lambda record: (not record["verdict"].startswith("matters"), -record["difference"]))
    blocks = measured.runs[[images.index(one) == n for n, one in enumerate(images)]]  # the first run of each
    keys = [name for name in runs_table.varying(blocks) if name.partition(".")[0] == "dataset"]
    data_sets = [runs_table.words_of(row, keys) for row in blocks.to_dict("records")] if len(blocks) > 1 else []
    members = ([run for run in measured.values if run.images == one] for one in dict.fromkeys(images))
    notes = [note for runs in members for note in runs_table.notes(runs) if note != NOT_HELPED]
    seeds = len(fit.design.cells) / len(fit.design.n)  # of a cell, on average
    sizes = (round(seeds), *[MANY] * (seeds < MANY)) if verdicts and records[0]["low"] is not None else ()
    counts, interaction = measured.image_counts, _interaction(fit, settings, values, measured.metric.scale)
    data = measured.record() | {"runs": len(images), "combinations": len(fit.design.n)}
    data["missing"] = len(blocks) * math.prod(map(len, values)) - len(fit.design.n)
    data["diverged"] = int((measured.lost["state"] != "failed").sum())
    data |= {"data_sets": data_sets, "notes": notes[:1], "settings": records}
    data["beyond"] = interaction and {name: plain(value) for name, value in interaction.items() if name != "words"}
    least, most = int(fit.design.n.min()), int(fit.design.n.max())
    data["seeds"] = {"least": least, "most": most, "deviation": plain(fit.deviation)}
    data["images"] = {"count": min(counts.values(), default=None), "deviation": _by_images(measured)}
    halves = {n: verdicts.smallest(n) for n in sizes if verdicts}
    data["smallest"] = [{"seeds": n, "half": half, "nine_in_ten": 1.5 * half} for n, half in halves.items()]
    sentences = [interaction["words"]] if interaction else []
    return Matters(measured, _title(measured, data), sentences + _sentences(measured, data, fit, settings), data)


def fitted(measured: Measured, cells: Sequence[Hashable], levels: Any) -> Fit:
    """The model of a number.

    Args:
        cells: the key of the cell of each run.
        levels: the numbers of the values of the settings of each run [N, F].
    """
    runs, first = [*measured.values], dict[Hashable, int]()  # the place of the first run of each cell
    for place, cell in enumerate(cells):
        runs_table.refuse_two_recipes(runs[first.setdefault(cell, place)], runs[place])
    number, images = {cell: n for n, cell in enumerate(first)}, [*dict.fromkeys(run.images for run in runs)]
    cell_levels = np.array([levels[place] for place in first.values()], int)
    blocks = [images.index(runs[place].images) for place in first.values()]
    seeds = [-1 if run.seed is None else run.seed for run in runs]
    design = Design(cell_levels, [number[cell] for cell in cells], seeds, blocks)
    correct: list[list[Any]] = [[measured.bits(runs[place]) for place in rows] for rows in design.rows]
    recorded = all(one is not None and len(one) == len(of_block[0]) for of_block in correct for one in of_block)
    bits = [np.array(of_block, dtype=np.float32) for of_block in correct] if recorded else None
    if not (gap := statistics.smallest_gap(values := [*measured.values.values()])):
        raise ConfigError(f"all runs have the same number, {measured.name}: nothing to compare")
    return Fit(design, values, bits, measured.metric.scale, gap)


def _setting(verdicts: Settings, n: int, name: str, values: Sequence[Any], margin: float | None) -> dict[str, Any]:
    """The largest difference of a setting with its interval and verdict, as plain data."""
    fit, estimate, half = verdicts.fit, verdicts.estimates[n], verdicts.halves[n]
    widest = int(np.abs(estimate.mean).argmax())
    difference, most = abs(float(estimate.mean[widest])), float((np.abs(estimate.mean) + half).max())
    ends = difference - half[widest], difference + half[widest]
    low, high = map(float, statistics.cut(np.asarray(difference), *ends, verdicts.decided[n, None]))
    start, end = verdicts.design.pairs(n)[widest][:: 1 if estimate.mean[widest] > 0 else -1]
    small = f"{most:{'.3g' if fit.scale != 100 else '.1f' if most >= 1 else '.2f'}} at most"
    verdict = "matters" if verdicts.decided[n] else "one seed" if math.isnan(low) else f"not shown; {small}"
    if margin is not None and most < margin:
        verdict += f", smaller than {margin:g}"
    doubling = None
    if len(values) > 2 and all(type(value) in (int, float) and value > 0 for value in values):
        slope = fit.estimate(fit.design.slope(n, values))
        slope_ends = [None, None] if math.isnan(low) else [float(one[0]) for one in slope.interval()]
        doubling = {"slope": float(slope.mean[0]), "low": slope_ends[0], "high": slope_ends[1]}
    record = {"setting": name, "difference": difference, "low": plain(low), "high": plain(high)}
    return record | {"from": values[start], "to": values[end], "verdict": verdict, "per_doubling": doubling}


def _interaction(
    fit: Fit, settings: Sequence[str], values: Sequence[Sequence[Any]], scale: float
) -> dict[str, Any] | None:
    """The largest interaction, a difference of differences, of two settings as plain data; None without any."""
    names, weights, together = fit.design.beyond_sum
    if not names:
        return None
    estimate: Estimate = fit.estimate(weights)
    p = together.p(estimate.t, estimate.degrees)
    place = int(p.argmin()) if p.min() > 0 else int(estimate.t.argmax())
    half = float(together.beyond(ERROR, estimate.degrees[place]) * estimate.error[place])
    first, second, i, j, k, m = names[place]
    k, m = (k, m) if estimate.mean[place] > 0 else (m, k)
    size, p_value, pair = abs(float(estimate.mean[place])), float(p[place]), f"{settings[first]} x {settings[second]}"
    record = {"p": p_value, "settings": pair, "difference": size, "low": size - half, "high": size + half}
    if p_value > ERROR:
        return record | {"words": f"No interaction of settings is shown (p = {p_value:.2f})."}
    less, more, at, than = map(text_of, (*(values[first][n] for n in (i, j)), *(values[second][n] for n in (m, k))))
    what = f"{more} minus {less} is {_text(size, scale)} {between(size - half, size + half, scale)}"
    return record | {"words": f"{pair}: {what} higher at {at} than at {than}"}


def _title(measured: Measured, data: dict[str, Any]) -> str:
    """The title of a table: the number, its cells, seeds and test images."""
    few, many = data["seeds"]["least"], data["seeds"]["most"]
    seeds = f"{many} seed{'s' * (many > 1)}" if few == many else f"{few} to {many} seeds"
    within = f", within each of {len(data['data_sets'])} data sets" if data["data_sets"] else ""
    images = f", {data['images']['count']} test images" if data["images"]["count"] else ""
    return f"{measured.title}{within}: {data['combinations']} cells of {seeds}{images}"


def _sentences(measured: Measured, data: dict[str, Any], fit: Fit, settings: Sequence[str]) -> list[str]:
    """The sentences below the table, but for that on interactions."""
    scale, design, lines = measured.metric.scale, fit.design, list[str]()
    for record in (record for record in data["settings"] if record["per_doubling"]):
        slope, low, high = record["per_doubling"].values()
        size = f"{_text(slope, scale, '+')} {between(low, high, scale, '+')}".rstrip()
        lines.append(f"Each doubling of {record['setting']} adds {size}.")
    if names := data["data_sets"]:
        lines.append(f"Data sets: {'; '.join(names)}. Numbers of different data sets are not compared.")
    p, least, largest = fit.uneven()
    if p < UNEVEN:
        ends = f"{_text(least, scale)} to {_text(largest, scale)}"
        lines.append(f"The deviations of cells differ ({ends}): intervals of cells with large ones are too narrow.")
    for n, name in enumerate(settings):
        if fit.moved_by_seeds(design.levels[design.cells, n]) < ERROR / len(settings):
            lines.append(f"A seed moves the numbers of a value of {name} alike in all cells: add seeds.")
    if fit.deviation < SAME * abs(fit.values.mean()):
        lines.append("All runs of a cell have the same number: the least deviation that such numbers can show counts.")
    if design.one_each and data["smallest"]:
        lines.append("Each cell has one run: interactions of settings count as noise, as that of seeds does.")
    if settings:
        lines.append(_can_show(measured, data, fit))
    if missing := data["missing"]:
        lines.append(f"{missing} of {data['combinations'] + missing} combinations of these values have no run.")
    return lines


def _can_show(measured: Measured, data: dict[str, Any], fit: Fit) -> str:
    """Say which differences the grid can show, with the seeds that it has and with more."""
    scale, (count, by_images) = measured.metric.scale, data["images"].values()
    parts, points = list[str](), " points" * (scale == 100)
    if (deviation := data["seeds"]["deviation"]) is not None:
        images = f", {_text(by_images, scale)} over test images" if by_images is not None else ""
        parts.append(f"A run's standard deviation is {_text(deviation, scale)} over seeds{images}.")
    if not data["smallest"]:
        levels = (fit.design.levels.max(0) + 1).tolist()
        return " ".join([*parts, beforehand(count or 0, levels, len(fit.values), more="")])
    (n, half, most), *others = (record.values() for record in data["smallest"])
    roughly = "roughly" if fit.design.degrees < FEW else "about"
    sizes = f"With {n} seed{'s' * (n > 1)} a difference of {roughly} {half:.2g}{points} is found in half of such "
    sizes += f"grids, one of {most:.2g} in nine of ten"
    sizes += "".join(f"; with {n} seeds about {half:.2g} and {most:.2g}" for n, half, most in others)
    return " ".join([*parts, f"{sizes}."])


def beforehand(images: int, levels: Sequence[int], count: int, table: DataFrame | None = None, more: str = MORE) -> str:
    """Say what a grid can show before it has numbers; empty if nothing is known.

    Args:
        images: the number of test images; 0: it is not known.
        levels: the number of values of each setting that varies.
        count: the number of runs.
        table: finished runs, whose deviation over seeds is used; None: there are none.
        more: the command that trains more seeds; empty: it is not named.
    """
    cells = math.prod(levels)
    degrees, deviation = statistics.degrees_of(cells, count / cells) or count - 1 - sum(levels) + len(levels), math.nan
    one_seed = f" One seed gives no verdict{f': {more}' if more else '.'}" if count <= cells and degrees < LEAST else ""
    with contextlib.suppress(ConfigError):  # none is finished, or all have one number
        if table is not None and not one_seed and (measured := Measured(table, None)).metric.scale == 100:
            recipes = [run.recipe for run in measured.values]
            deviation = fitted(measured, recipes, [[]] * len(recipes)).deviation
            images = min(measured.image_counts.values(), default=images)
    if math.isnan(deviation) and not images:
        return one_seed.strip()
    least = statistics.smallest_before(images, count / max(levels), len(levels), deviation, degrees)
    if math.isnan(deviation):
        what = f"a difference must have {least:.2g} points to be found in half of such grids, and more as seeds vary"
        return f"With {images} test images {what}.{one_seed}"
    sizes = f"{least:.2g} points is found in half of such grids, one of {1.5 * least:.2g} in nine of ten"
    alone = "" if images else "; other test images add to it"
    return f"The standard deviation of finished runs over seeds is {deviation:.2f}: a difference of {sizes}{alone}."


def _one_cell(measured: Measured) -> str:
    """That nothing varies, with the mean and the deviation of the runs."""
    values, form = [*measured.values.values()], ".2f" if measured.metric.scale == 100 else ".4g"
    if len(values) == 1:
        return f"only one run has {measured.name} ({values[0]:{form}}): nothing to compare"
    spread = f"mean {np.mean(values):{form}}, deviation {np.std(values, ddof=1):{form}}"
    what = f"the {len(values)} runs that have {measured.name} differ in nothing but the seed"
    return f"{what} ({spread}): nothing to compare"


def gone(table: DataFrame, measured: Measured) -> list[str]:
    """Sentences on values of settings all of whose runs have failed or diverged."""
    every, sentences = table.loc[measured.runs.index.union(measured.lost.index, sort=False)], list[str]()
    for name in runs_table.varying(every, [run.images for run in every["run"]]) if len(measured.lost) else ():
        with_number, lost = {*map(repr_of, measured.runs[name])}, [*map(repr_of, measured.lost[name])]
        for value in in_order([value for value in measured.lost[name] if repr_of(value) not in with_number]):
            n = lost.count(repr_of(value))
            its = f"all of its {n} runs have" if n > 1 else "its 1 run has"
            sentences.append(f"{name}={text_of(value)} has no number: {its} failed or diverged.")
    return sentences


def _by_images(measured: Measured) -> float | None:
    """Standard deviation of an accuracy over test images; None if it was not recorded which of them are correct."""
    if not (counts := measured.image_counts):
        return None
    shares = [(value / measured.metric.scale, counts[run.images]) for run, value in measured.values.items()]
    return measured.metric.scale * math.sqrt(sum(share * (1 - share) / count for share, count in shares) / len(shares))
