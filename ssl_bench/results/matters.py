"""What matters in a grid: its settings by their shares of the variance between cells, and what to say of them.

The statistics are those of :mod:`ssl_bench.results.effects`. Accuracies are in percent. Data sets that vary are blocks:
numbers of different test images are not compared, and effects are those within each data set, over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ssl_bench.errors import ConfigError
from ssl_bench.evaluate.metric import Metric
from ssl_bench.record.printing import Sheet, SheetEntry, plain
from ssl_bench.record.runs import Run
from ssl_bench.results import effects
from ssl_bench.results import table as runs_table
from ssl_bench.results.comparison import Measured
from ssl_bench.results.effects import Confounded, Levels, Share, Trend
from ssl_bench.results.pivot import notes
from ssl_bench.results.statistics import at_least, joint_of
from ssl_bench.results.table import in_order, repr_of, text_of

if TYPE_CHECKING:
    from pandas import DataFrame

SMALLEST, MANY = 0.005, 12  # a pair's share that is shown although it may be nothing; shares that are all shown


@dataclass
class Matters:
    """What matters in a grid.

    Attributes:
        name, metric: of the number.
        settings: that vary.
        levels: the values of each setting, numbers in order, then texts.
        shares: of the settings, their pairs and the rest; their sum is 1.
        main: the means of each setting's levels.
        trends: of each setting; None unless it has three positive numbers or more.
        cells: combinations of values that have runs, and ``missing`` those that have none.
        runs: that have the number, from ``seeds[0]`` to ``seeds[1]`` of them in a cell.
        deviation: between the runs of a cell; NaN without several seeds.
        images: deviation of an accuracy over test images; NaN if it is not known which are right.
        diverged: runs that are not finite, which are left out; ``with_diverged`` has the shares if each counts as the
            worst run of the grid.
        data_sets: what distinguishes the data sets within which effects are; empty of one.
        missing_runs: the labels of all runs without the number, by why they have none; of ``total`` runs.
        notes: what the numbers mix, or what the runs warn of.
        said: sentences on the number that was chosen, and on values all of whose runs have failed.
    """

    name: str
    metric: Metric
    settings: list[str]
    levels: list[list[Any]]
    shares: list[Share]
    main: list[Levels]
    trends: list[Trend | None]
    cells: int
    missing: int
    runs: int
    seeds: tuple[int, int]
    deviation: float
    images: float = math.nan
    diverged: int = 0
    with_diverged: list[Share] = field(default_factory=list)
    data_sets: list[str] = field(default_factory=list)
    missing_runs: dict[str, list[str]] = field(default_factory=dict)
    total: int = 0
    notes: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The metric with its unit."""
        return f"{self.name} (%)" if self.metric.unit == "share" else self.name

    def setting(self, share: Share) -> str:
        """The name of a share: a setting, a pair of them such as ``loss x negatives.k``, or ``rest``."""
        return " x ".join(self.settings[factor] for factor in share.factors) or effects.REST

    def text(self, number: float, sign: str = "") -> str:
        """A number in the metric's unit."""
        return f"{number:{sign}{'.2f' if self.metric.scale == 100 else '.3g'}}"

    @property
    def ordered(self) -> list[Share]:
        """The shares, the largest first, the rest last."""
        return sorted(self.shares, key=lambda share: (not share.factors, -share.share))

    @property
    def short(self) -> str:
        """Three lines for the end of a grid."""
        single = [share for share in self.ordered if len(share.factors) == 1]
        pairs = max((share.share for share in self.shares if len(share.factors) == 2), default=0.0)
        parts = [f"{self.setting(share)} {_interval(share)}" for share in single]
        parts += [f"pairs at most {pairs:.0%} each"] * (len(single) > 2) + [f"rest {self.shares[-1].share:.0%}"]
        return "\n".join([f"Shares of the variance of {self.name}: {', '.join(parts)}.", self.sentence, self._of_seeds])

    @property
    def sentence(self) -> str:
        """What matters, in one sentence."""
        if not self.settings:
            return "The runs that have the number differ in no setting but the seed."
        if all(share.low == 0 for share in self.shares):
            return "The cells differ no more than seeds do: nothing here is shown to matter."
        first, *others = [share for share in self.ordered if share.factors]
        rest = next(share for share in self.shares if not share.factors)
        most = all(first.low > other.high for other in (*others, rest)) or math.isnan(first.low)
        singles = [share for share in others if len(share.factors) == 1]
        words = [f"{self.setting(first)} {'matters most' if most else 'has the largest share'}: {_interval(first)}"]
        words += [self._beside(share) for share in singles]
        return "; ".join(words) + "."

    def _beside(self, share: Share) -> str:
        size = f"at most {share.high:.0%}" if share.low == 0 else _interval(share)
        return f"{self.setting(share)} {size}" + (", less than seeds" if share.deviation < self.deviation else "")

    def record(self) -> dict[str, Any]:
        """All of it as plain data."""
        record: dict[str, Any] = {"metric": self.name, "unit": "percent" if self.metric.scale == 100 else "number"}
        record |= {"better": self.metric.better, "runs": self.runs, "combinations": self.cells, "missing": self.missing}
        record |= {"diverged": self.diverged, "deviation": plain(self.deviation), "images": plain(self.images)}
        record |= {"shares": self.shares_record(self.shares), "sentence": self.sentence, "notes": self.notes}
        record["with_diverged"] = self.shares_record(self.with_diverged)
        record["data_sets"] = self.data_sets
        record["left_out"] = [{"why": why, "runs": labels} for why, labels in self.missing_runs.items()]
        record["settings"] = [
            {
                "setting": name,
                "levels": levels,
                "means": main.means.tolist(),
                "half_intervals": list(map(plain, main.halves.tolist())),
                "range": main.range,
                "low": plain(main.low),
                "high": plain(main.high),
                "per_doubling": trend and {key: plain(value) for key, value in vars(trend).items()},
            }
            for name, levels, main, trend in zip(self.settings, self.levels, self.main, self.trends, strict=True)
        ]
        return record

    def shares_record(self, shares: Iterable[Share]) -> list[dict[str, Any]]:
        """Shares as plain data."""
        ends = ((share, plain(share.low), plain(share.high)) for share in shares)
        return [{"setting": self.setting(s), "share": s.share, "low": low, "high": high} for s, low, high in ends]

    def sheet(self) -> Sheet:
        """The shares and ranges as rows."""
        unit = ", percent" if self.metric.scale == 100 else ""
        few, many = self.seeds
        seeds = f"{many} seed{'s' * (many > 1)}" if few == many else f"{few} to {many} seeds"
        within = f", within each of {len(self.data_sets)} data sets" if self.data_sets else ""
        title = f"What matters for {self.name}{unit}{within}: {self.cells} cells of {seeds}"
        sheet = Sheet(["setting", "share of variance", "range", "from", "to"], words=("from", "to"), title=title)
        numbers, pairs = sheet.numbers(self.notes), [share for share in self.shares if len(share.factors) == 2]
        hidden = [s for s in pairs if s.low == 0 and s.share < SMALLEST] if len(self.shares) > MANY else []
        for share in self.ordered:
            entries = [SheetEntry(self.setting(share)), SheetEntry(_interval(share), numbers)]
            if len(share.factors) == 1:
                (factor,), main = share.factors, self.main[share.factors[0]]
                ends = (text_of(self.levels[factor][level]) for level in (main.lowest, main.highest))
                low_high = "" if math.isnan(main.low) else f" [{self.text(main.low)}, {self.text(main.high)}]"
                entries += [SheetEntry(f"{self.text(main.range)}{low_high}"), *map(SheetEntry, ends)]
            elif share in hidden:
                continue
            sheet.rows.append(entries + [SheetEntry()] * (5 - len(entries)))
        left_out = [f"{len(hidden)} pairs with less than {SMALLEST:.1%} are not shown."] * bool(hidden)
        missing = runs_table.in_sentences(self.missing_runs, self.total)
        sheet.below = ["\n".join(self._lines()), self.sentence, *left_out, *self.said, *missing]
        sheet.data = self.record()
        sheet.records = sheet.data["shares"]
        return sheet

    @property
    def _of_seeds(self) -> str:
        images = "" if math.isnan(self.images) else f"; other test images by {self.text(self.images)}"
        if math.isnan(self.deviation):
            return "One run in each cell: the shares hold the noise of seeds as well, and have no intervals."
        return f"Another seed moves a run by {self.text(self.deviation)} (standard deviation){images}."

    def _lines(self) -> list[str]:
        lines = list[str]()
        for name, trend in zip(self.settings, self.trends, strict=True):
            if trend:
                ends = "" if math.isnan(trend.low) else f" [{self.text(trend.low, '+')}, {self.text(trend.high, '+')}]"
                lines.append(f"Each doubling of {name} adds {self.text(trend.slope, '+')}{ends}.")
        if self.data_sets:
            lines.append(
                f"Data sets: {'; '.join(self.data_sets)}. Their numbers are of other test images, and not compared."
            )
        lines.append(self._of_seeds)
        if self.missing:
            lines.append(f"{self.missing} of {self.cells + self.missing} combinations of these values have no run.")
        if self.diverged:
            counted = "; ".join(f"{self.setting(share)} {share.share:.0%}" for share in self.with_diverged)
            beside = f" Counted as the worst of the grid, they make it {counted}." if counted else ""
            lines.append(f"{self.diverged} runs have diverged, and are left out.{beside}")
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
    blocks = [of for _, of in measured.runs.groupby(measured.runs["run"].map(lambda run: run.images), sort=False)]
    settings = runs_table.varying(measured.runs, [run.images for run in measured.runs["run"]])
    gone = _gone(table, measured)
    if not settings and not gone:
        raise ConfigError("these runs differ in no setting but the seed: name a grid whose settings vary")
    rows = measured.runs[settings].to_numpy(object).tolist()
    places = dict(zip(measured.runs["run"], (tuple(map(repr_of, row)) for row in rows), strict=True))
    levels = [{repr_of(v): v for v in in_order([row[n] for row in rows])} for n in range(len(settings))]
    finite = _Cells(measured.values, places, levels)
    grid = _not_certain(finite, measured) if settings else finite.grid
    try:
        shares = effects.shares(grid) if settings else []
    except Confounded as confounded:
        raise ConfigError(_together([settings[factor] for factor in confounded.factors])) from confounded
    diverged = measured.lost[measured.lost["state"] != "failed"]
    rows = [[run.settings.get(name) for name in settings] for run in diverged["run"]]
    lost = dict(zip(diverged["run"], (tuple(map(repr_of, row)) for row in rows), strict=True))
    known, recipes = {run.images for run in measured.values}, dict[tuple[str, ...], str]()  # of each cell
    for run, place in places.items():
        recipes[run.images, *place] = run.recipe
    placed = [
        run
        for run, place in lost.items()
        if run.images in known
        and all(v in of for v, of in zip(place, levels, strict=True))
        and recipes.setdefault((run.images, *place), run.recipe) == run.recipe
    ]
    with_worst = list[Share]()
    if placed and settings:
        worst = min if measured.metric.sign >= 0 else max
        lowest = {images: worst(v for run, v in measured.values.items() if run.images == images) for images in known}
        values = measured.values | {run: lowest[run.images] for run in placed}
        with_worst = effects.shares(_Cells(values, places | lost, levels).grid)
    counts = [len(of_cell) for of_cell in finite.runs]
    names = runs_table.varying(measured.runs.loc[[members.index[0] for members in blocks]])
    of_data = [name for name in names if name.partition(".")[0] == "dataset"]
    return Matters(
        measured.name,
        measured.metric,
        settings,
        [[*of.values()] for of in levels],
        shares,
        [effects.levels(grid, n) for n in range(len(settings))],
        [_trend(grid, n, [*of.values()]) for n, of in enumerate(levels)],
        len(finite.runs),
        len(blocks) * math.prod(map(len, levels)) - len(finite.runs),
        len(measured.values),
        (min(counts), max(counts)),
        grid.deviation,
        images=_by_images(measured),
        diverged=len(diverged),
        with_diverged=with_worst,
        data_sets=[
            " ".join(f"{name}={text_of(members.iloc[0][name])}" for name in of_data)
            for members in blocks
            if len(blocks) > 1
        ],
        missing_runs=measured.missing,
        total=len(table),
        notes=[note for members in blocks for note in notes(list(members["run"]))][:1],
        said=[measured.chosen] * bool(measured.chosen) + gone,
    )


def _gone(table: DataFrame, measured: Measured) -> list[str]:
    """Sentences on values of settings all of whose runs have failed or diverged."""
    begun = measured.lost[[bool(run.config) for run in measured.lost["run"]]]
    every, sentences = table.loc[measured.runs.index.union(begun.index, sort=False)], list[str]()
    if not len(begun):
        return []
    names = runs_table.varying(every, [run.images for run in every["run"]])
    for name in names:
        there = {*map(repr_of, measured.runs[name])}
        for value in in_order([value for value in begun[name] if repr_of(value) not in there]):
            count = sum(repr_of(other) == repr_of(value) for other in begun[name])
            sentences.append(f"{name}={text_of(value)} has no number: its {count} runs have failed or diverged.")
    return sentences


class _Cells:
    """Runs by the values of settings and their data set; those of a cell differ in their seed only.

    Attributes:
        grid: their means.
        runs: of each cell.
    """

    def __init__(
        self, values: Mapping[Run, float], places: Mapping[Run, tuple[str, ...]], levels: Sequence[Mapping[str, Any]]
    ) -> None:
        cells = dict[tuple[str, ...], dict[Any, Run]]()
        for run in values:
            of_cell = cells.setdefault((run.images, *places[run]), {})
            if run.recipe != (first := next(iter(of_cell.values()), run)).recipe:
                where = f"{first.folder} and {run.folder}"
                raise ConfigError(f"{where} are two trainings that differ in no setting: name one of them")
            of_cell.setdefault(run.seed, run)
        self.runs = [[*of_cell.values()] for of_cell in cells.values()]
        images = list(dict.fromkeys(key[0] for key in cells))
        numbers = [[list(of).index(v) for v, of in zip(key[1:], levels, strict=True)] for key in cells]
        pairs = [(n, run) for n, of_cell in enumerate(self.runs) for run in of_cell]
        self.grid = effects.grid(
            np.array(numbers, dtype=int).reshape(len(cells), len(levels)),
            [n for n, _ in pairs],
            [-1 if run.seed is None else run.seed for _, run in pairs],
            [values[run] for _, run in pairs],
            [images.index(key[0]) for key in cells],
        )


def _not_certain(of: _Cells, measured: Measured) -> effects.Grid:
    """The grid with a variance that is not below what its numbers can show."""
    grid, step, joint = of.grid, measured.gap, None
    if not grid.degrees:
        return grid
    first = [measured.bits(of_cell[0]) for of_cell in of.runs]
    counts = [len(bits) for bits in first if bits is not None]
    if len(counts) == len(first):
        joint, step = 0.0, measured.metric.scale / min(counts)
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
    first = {run.images: run for run in measured.values}
    bits = {images: measured.bits(run) for images, run in first.items()}
    counts = {images: len(of_run) for images, of_run in bits.items() if of_run is not None}
    if len(counts) < len(bits):
        return math.nan
    shares = [(value / measured.metric.scale, counts[run.images]) for run, value in measured.values.items()]
    return measured.metric.scale * math.sqrt(sum(share * (1 - share) / count for share, count in shares) / len(shares))


def _trend(grid: effects.Grid, factor: int, values: Sequence[Any]) -> Trend | None:
    numbers = [
        value for value in values if isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    ]
    return effects.trend(grid, factor, numbers) if len(numbers) == len(values) > 2 else None


def _together(names: Sequence[str]) -> str:
    if len(names) == 2:
        return f"{names[0]} and {names[1]} vary together: their shares cannot be told apart; name runs of one of either"
    return f"{', '.join(names)} vary together: their shares cannot be told apart; name runs that share some of them"
