"""What matters in a grid: its settings by their shares of the variance between cells, and what to say of them.

The statistics are those of :mod:`ssl_bench.results.effects`. Accuracies are in percent. Data sets that vary are blocks:
numbers of different test images are not compared, and effects are those within each data set, over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ssl_bench.errors import ConfigError
from ssl_bench.record.printing import Sheet, SheetEntry, plain
from ssl_bench.record.runs import Run
from ssl_bench.results import effects
from ssl_bench.results import table as runs_table
from ssl_bench.results.effects import Confounded, Levels, Share, Trend
from ssl_bench.results.statistics import at_least, joint_of
from ssl_bench.results.table import Measured, in_order, repr_of, text_of

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass
class Matters:
    """What matters in a grid.

    Attributes:
        measured: the number, of ``diverged`` more runs not finite.
        settings: that vary.
        levels: the values of each setting, numbers in order, then texts.
        shares: of the settings, their pairs and the rest; their sum is 1.
        main: the means of each setting's levels.
        trends: of each setting; None unless it has three positive numbers or more.
        cells: combinations of values that have runs, and ``missing`` those that have none.
        seeds: the least and the most runs in a cell.
        deviation: between the runs of a cell; NaN without several seeds.
        images: deviation of an accuracy over test images; NaN if it is not known which are right.
        data_sets: what distinguishes the data sets within which effects are; empty of one.
        notes: what the numbers mix, or what the runs warn of.
    """

    measured: Measured
    settings: list[str]
    levels: list[list[Any]]
    shares: list[Share]
    main: list[Levels]
    trends: list[Trend | None]
    cells: int
    missing: int
    seeds: tuple[int, int]
    deviation: float
    images: float
    diverged: int
    data_sets: list[str]
    notes: list[str]

    @property
    def label(self) -> str:
        """The metric with its unit."""
        return runs_table.label(self.measured.name, self.measured.metric)

    def setting(self, share: Share) -> str:
        """The name of a share: a setting, a pair of them such as ``loss x negatives.k``, or ``rest``."""
        return " x ".join(self.settings[factor] for factor in share.factors) or effects.REST

    def text(self, number: float, sign: str = "") -> str:
        """A number in the metric's unit."""
        return f"{number:{sign}{'.2f' if self.measured.metric.scale == 100 else '.3g'}}"

    def between(self, low: float, high: float, sign: str = "") -> str:
        """An interval behind a number; empty without one."""
        return "" if math.isnan(low) else f" [{self.text(low, sign)}, {self.text(high, sign)}]"

    @property
    def ordered(self) -> list[Share]:
        """The shares, the largest first, the rest last."""
        return sorted(self.shares, key=lambda share: (not share.factors, -share.share))

    @property
    def sentence(self) -> str:
        """What matters, in one sentence."""
        if not self.settings:
            return "The runs that have the number differ in no setting but the seed."
        if all(share.low == 0 for share in self.shares):
            return "The cells differ no more than seeds do: nothing here is shown to matter."
        first, *others = self.ordered
        most = all(first.low > other.high for other in others) or math.isnan(first.low)
        words = [f"{self.setting(first)} {'matters most' if most else 'has the largest share'}: {_interval(first)}"]
        words += [self._beside(share) for share in others if len(share.factors) == 1]
        return "; ".join(words) + "."

    def _beside(self, share: Share) -> str:
        size = f"at most {share.high:.0%}" if share.low == 0 else _interval(share)
        return f"{self.setting(share)} {size}" + (", less than seeds" if share.deviation < self.deviation else "")

    def record(self) -> dict[str, Any]:
        """All of it as plain data."""
        record = self.measured.record() | {"runs": len(self.measured.values), "combinations": self.cells}
        record |= {name: plain(getattr(self, name)) for name in ("missing", "diverged", "deviation", "images")}
        record |= {name: getattr(self, name) for name in ("data_sets", "sentence", "notes")}
        ends = ((share, plain(share.low), plain(share.high)) for share in self.shares)
        record["shares"] = [
            {"setting": self.setting(s), "share": s.share, "low": low, "high": high} for s, low, high in ends
        ]
        record["settings"] = []
        for name, levels, main, trend in zip(self.settings, self.levels, self.main, self.trends, strict=True):
            of = {"setting": name, "levels": levels, "means": main.means.tolist()}
            of["half_intervals"] = [plain(half) for half in main.halves.tolist()]
            of |= {end: plain(getattr(main, end)) for end in ("range", "low", "high")}
            of["per_doubling"] = trend and {key: plain(value) for key, value in vars(trend).items()}
            record["settings"].append(of)
        return record

    def sheet(self) -> Sheet:
        """The shares and ranges as rows."""
        few, many = self.seeds
        seeds = f"{many} seed{'s' * (many > 1)}" if few == many else f"{few} to {many} seeds"
        within = f", within each of {len(self.data_sets)} data sets" if self.data_sets else ""
        title = f"What matters for {self.measured.title}{within}: {self.cells} cells of {seeds}"
        sheet = Sheet(["setting", "share of variance", "range", "from", "to"], words=("from", "to"), title=title)
        numbers = sheet.numbers(self.notes)
        for share in self.ordered:
            texts = ["", "", ""]
            if len(share.factors) == 1:
                main, levels = self.main[share.factors[0]], self.levels[share.factors[0]]
                texts = [self.text(main.range) + self.between(main.low, main.high)]
                texts += [text_of(levels[end]) for end in (main.lowest, main.highest)]
            entries = [SheetEntry(self.setting(share)), SheetEntry(_interval(share), numbers)]
            sheet.rows.append([*entries, *map(SheetEntry, texts)])
        sheet.below, sheet.data = ["\n".join(self._lines()), self.sentence, *self.measured.below], self.record()
        sheet.records = sheet.data["shares"]
        return sheet

    def _lines(self) -> list[str]:
        lines = [
            f"Each doubling of {name} adds {self.text(trend.slope, '+')}{self.between(trend.low, trend.high, '+')}."
            for name, trend in zip(self.settings, self.trends, strict=True)
            if trend
        ]
        if self.data_sets:
            other = "Their numbers are of other test images, and not compared."
            lines.append(f"Data sets: {'; '.join(self.data_sets)}. {other}")
        if math.isnan(self.deviation):
            lines.append("One run in each cell: the shares hold the noise of seeds as well, and have no intervals.")
        else:
            images = "" if math.isnan(self.images) else f"; other test images by {self.text(self.images)}"
            lines.append(f"Another seed moves a run by {self.text(self.deviation)} (standard deviation){images}.")
        if self.missing:
            lines.append(f"{self.missing} of {self.cells + self.missing} combinations of these values have no run.")
        return lines


def _interval(share: Share) -> str:
    return f"{share.share:.0%}" + ("" if math.isnan(share.low) else f" [{100 * share.low:.0f}, {100 * share.high:.0f}]")


def what_matters(table: DataFrame, metric: str | None = None) -> Matters:
    """Divide the variance between the cells of a grid among the settings that vary.

    Args:
        table: of runs (:mod:`ssl_bench.results.table`); those without the number are counted.
        metric: the name of the number; None: the main one of most runs.

    Raises:
        ConfigError: there are no such runs, nothing varies, or settings vary together.
    """
    measured = Measured(table, metric)
    if not measured.values:
        raise ConfigError(f"no run has a finite {measured.name}: name others, or look at what has diverged")
    images = [run.images for run in measured.runs["run"]]
    settings = runs_table.varying(measured.runs, images)
    measured.said += (gone := _gone(table, measured))
    if not settings and not gone:
        raise ConfigError("these runs differ in no setting but the seed: name a grid whose settings vary")
    rows = measured.runs[settings].to_numpy(object).tolist()
    levels = [{repr_of(v): v for v in in_order([row[n] for row in rows])} for n in range(len(settings))]
    of = _Cells(measured, [[*map(repr_of, row)] for row in rows], levels)
    grid = _not_certain(of, measured) if settings else of.grid
    try:
        shares = effects.shares(grid) if settings else []
    except Confounded as confounded:
        names = " and ".join(settings[factor] for factor in confounded.factors)
        what = "vary together: their shares cannot be told apart; name runs that share one of them"
        raise ConfigError(f"{names} {what}") from confounded
    blocks = measured.runs[[images.index(one) == n for n, one in enumerate(images)]]  # the first run of each
    of_data = [name for name in runs_table.varying(blocks) if name.partition(".")[0] == "dataset"]
    named = [runs_table.words_of(row, of_data) for row in blocks.to_dict("records")]
    of_data_sets = ([run for run in measured.values if run.images == one] for one in dict.fromkeys(images))
    counts = [len(of_cell) for of_cell in of.runs]
    return Matters(
        measured,
        settings,
        [[*of_setting.values()] for of_setting in levels],
        shares,
        [effects.levels(grid, n) for n in range(len(settings))],
        [_trend(grid, n, [*of_setting.values()]) for n, of_setting in enumerate(levels)],
        cells=len(counts),
        missing=len(blocks) * math.prod(map(len, levels)) - len(counts),
        seeds=(min(counts), max(counts)),
        deviation=grid.deviation,
        images=_by_images(measured),
        diverged=int((measured.lost["state"] != "failed").sum()),
        data_sets=named if len(blocks) > 1 else [],
        notes=[note for members in of_data_sets for note in runs_table.notes(members)][:1],
    )


def _gone(table: DataFrame, measured: Measured) -> list[str]:
    """Sentences on values of settings all of whose runs have failed or diverged."""
    begun = measured.lost[[bool(run.config) for run in measured.lost["run"]]]
    every, sentences = table.loc[measured.runs.index.union(begun.index, sort=False)], list[str]()
    for name in runs_table.varying(every, [run.images for run in every["run"]]) if len(begun) else ():
        there, lost = {*map(repr_of, measured.runs[name])}, [*map(repr_of, begun[name])]
        for value in in_order([value for value in begun[name] if repr_of(value) not in there]):
            count = lost.count(repr_of(value))
            sentences.append(f"{name}={text_of(value)} has no number: its {count} runs have failed or diverged.")
    return sentences


class _Cells:
    """Runs by the values of settings and their data set; those of a cell differ in their seed only.

    Attributes:
        grid: their means.
        runs: of each cell.
    """

    def __init__(
        self, measured: Measured, places: Sequence[Sequence[str]], levels: Sequence[Mapping[str, Any]]
    ) -> None:
        cells, images = dict[tuple[str, ...], dict[Any, Run]](), list(dict.fromkeys(r.images for r in measured.values))
        for run, place in zip(measured.values, places, strict=True):
            of_cell = cells.setdefault((run.images, *place), {})
            runs_table.refuse_two_recipes(next(iter(of_cell.values()), run), run)
            of_cell.setdefault(run.seed, run)
        self.runs = [[*of_cell.values()] for of_cell in cells.values()]
        numbers = [[list(of).index(v) for v, of in zip(key[1:], levels, strict=True)] for key in cells]
        pairs = [(n, run) for n, of_cell in enumerate(self.runs) for run in of_cell]
        self.grid = effects.grid(
            np.array(numbers, dtype=int).reshape(len(cells), len(levels)),
            [n for n, _ in pairs],
            [-1 if run.seed is None else run.seed for _, run in pairs],
            [measured.values[run] for _, run in pairs],
            [images.index(key[0]) for key in cells],
        )


def _not_certain(of: _Cells, measured: Measured) -> effects.Grid:
    """The grid with a variance that is not below what its numbers can show."""
    grid, step, joint, counts = of.grid, measured.gap, None, measured.image_counts
    if not grid.degrees:
        return grid
    if counts:
        joint, step = 0.0, measured.metric.scale / min(counts.values())
    if joint is not None and at_least(grid.variance, grid.degrees, step, joint) > grid.variance:
        every = [[measured.bits(run) for run in of_cell] for of_cell in of.runs if len(of_cell) > 1]
        lengths = [{-1 if bits is None else len(bits) for bits in of_cell} for of_cell in every]
        if all(len(of_cell) == 1 and -1 not in of_cell for of_cell in lengths):
            of_cells = [joint_of(np.array(of)) / count for of, (count,) in zip(every, lengths, strict=True)]
            weights = [len(of_cell) - 1 for of_cell in every]
            joint = float(measured.metric.scale**2 * np.average(of_cells, weights=weights))
    return replace(grid, variance=float(at_least(grid.variance, grid.degrees, step, joint)))


def _by_images(measured: Measured) -> float:
    """Standard deviation of an accuracy over test images; NaN if it was not recorded which are right."""
    if not (counts := measured.image_counts):
        return math.nan
    shares = [(value / measured.metric.scale, counts[run.images]) for run, value in measured.values.items()]
    return measured.metric.scale * math.sqrt(sum(share * (1 - share) / count for share, count in shares) / len(shares))


def _trend(grid: effects.Grid, factor: int, values: Sequence[Any]) -> Trend | None:
    positive = all(type(value) in (int, float) and value > 0 for value in values)
    return effects.trend(grid, factor, values) if positive and len(values) > 2 else None
