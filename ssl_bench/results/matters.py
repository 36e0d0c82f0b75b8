"""What matters in a grid: its settings by their shares of the variance between cells, and what to say of them.

The statistics are those of :mod:`ssl_bench.results.effects`. Accuracies are in percent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ssl_bench.errors import ConfigError
from ssl_bench.evaluate.metric import Metric
from ssl_bench.launch.outcome import DIVERGED
from ssl_bench.record.printing import Sheet, SheetEntry, plain
from ssl_bench.results import effects
from ssl_bench.results.arrange import dividing, in_order, notes, text_of_value
from ssl_bench.results.comparison import bits_of, gap_of
from ssl_bench.results.differing import Value, differing, requested
from ssl_bench.results.effects import Confounded, Levels, Share, Trend
from ssl_bench.results.numbers import Key, Numbers, single
from ssl_bench.results.runs import RunFolder
from ssl_bench.results.scan import Entry, Status
from ssl_bench.results.statistics import at_least, joint_of

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
        notes: what the numbers mix, and what the runs warn of.
        said: sentences on what was chosen and left out.
    """

    name: str
    metric: Metric
    settings: list[str]
    levels: list[list[Value]]
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
        title = f"What matters for {self.name}{unit}: {self.cells} cells of {seeds}"
        sheet = Sheet(["setting", "share of variance", "range", "from", "to"], words=("from", "to"), title=title)
        numbers, pairs = sheet.numbers(self.notes), [share for share in self.shares if len(share.factors) == 2]
        hidden = [s for s in pairs if s.low == 0 and s.share < SMALLEST] if len(self.shares) > MANY else []
        for share in self.ordered:
            entries = [SheetEntry(self.setting(share)), SheetEntry(_interval(share), numbers)]
            if len(share.factors) == 1:
                (factor,), main = share.factors, self.main[share.factors[0]]
                ends = (text_of_value(self.levels[factor][level]) for level in (main.lowest, main.highest))
                low_high = "" if math.isnan(main.low) else f" [{self.text(main.low)}, {self.text(main.high)}]"
                entries += [SheetEntry(f"{self.text(main.range)}{low_high}"), *map(SheetEntry, ends)]
            elif share in hidden:
                continue
            sheet.rows.append(entries + [SheetEntry()] * (5 - len(entries)))
        left_out = [f"{len(hidden)} pairs with less than {SMALLEST:.1%} are not shown."] * bool(hidden)
        sheet.below = ["\n".join(self._lines()), self.sentence, *left_out, *self.said]
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


def what_matters(entries: Sequence[Entry], name: str | None = None, numbers: Numbers | None = None) -> Matters:
    """Divide the variance between the cells of a grid among the settings that vary.

    Args:
        name: of the number; None: the main one of most runs.
        numbers: of a larger set, whose names ``name`` has.

    Raises:
        ConfigError: there are no such runs, nothing varies, or settings vary together.
    """
    done = [entry for entry in entries if entry.run and entry.run.done]
    if not done:
        raise ConfigError("no run is finished: name others, or wait for these")
    diverged = [e for e in entries if e.run and e.state is Status.FAILED and DIVERGED in e.reason]
    varying, runs = differing([*done, *diverged]), [entry.run for entry in done if entry.run]
    numbers = numbers or Numbers(runs)
    name, chosen = numbers.choose("--metric", name, runs)
    metric, settings = numbers.meaning(name), dividing(varying, requested(done))
    columns = [varying.names.index(setting) for setting in settings]
    points = dict[int, tuple[Value, ...]]()  # the values of each run's settings
    for entry, values in zip([*done, *diverged], varying.values, strict=True):
        points[id(entry.run)] = tuple(values[column] for column in columns)
    kept = single(runs, name, numbers)
    value = {id(run): metric.scale * (numbers.value(name, run) or 0.0) for run in kept}
    finite = [run for run in kept if math.isfinite(value[id(run)])]
    worse = [run for run in kept if run not in finite] + [entry.run for entry in diverged if entry.run]
    if not finite:
        raise ConfigError(f"no run has a finite {name}: name others, or look at what has diverged")
    levels = [in_order({points[id(run)][n] for run in finite}) for n in range(len(settings))]
    varied = [n for n, of_setting in enumerate(levels) if len(of_setting) > 1]
    settings, levels = [settings[n] for n in varied], [levels[n] for n in varied]
    if not settings:
        raise ConfigError("these runs differ in no setting but the seed: name a grid whose settings vary")
    places = {key: tuple(point[n] for n in varied) for key, point in points.items()}
    gap = gap_of([value[id(run)] for run in finite])
    grid, cells = _grid(finite, places, value, levels)
    grid = _not_certain(grid, list(cells.values()), numbers.key(name), metric, gap)
    try:
        shares = effects.shares(grid)
    except Confounded as confounded:
        raise ConfigError(_together([settings[factor] for factor in confounded.factors])) from confounded
    placed = [run for run in worse if all(v in of for v, of in zip(places[id(run)], levels, strict=True))]
    lowest = (max if metric.sign < 0 else min)(value[id(run)] for run in finite)
    with_worst = list[Share]()
    if placed:
        worst_values = value | {id(run): lowest for run in placed}
        with_worst = effects.shares(_grid([*finite, *placed], places, worst_values, levels)[0])
    counts = [len(of_cell) for of_cell in cells.values()]
    said = [chosen] * bool(chosen)
    if left := len(runs) - len(kept):
        said.append(f"{left} finished runs have no {name} of their own, and are left out.")
    if waiting := len(entries) - len(done) - len(diverged):
        said.append(f"{waiting} of {len(entries)} runs are not finished, and left out.")
    return Matters(
        name,
        metric,
        settings,
        levels,
        shares,
        [effects.levels(grid, n) for n in range(len(settings))],
        [_trend(grid, n, of_setting) for n, of_setting in enumerate(levels)],
        len(cells),
        math.prod(map(len, levels)) - len(cells),
        len(finite),
        (min(counts), max(counts)),
        grid.deviation,
        images=_by_images(finite, numbers, name, metric),
        diverged=len(worse),
        with_diverged=with_worst,
        notes=notes(finite)[:1],
        said=said,
    )


def _grid(
    runs: Sequence[RunFolder],
    places: Mapping[int, tuple[Value, ...]],
    value: Mapping[int, float],
    levels: Sequence[Sequence[Value]],
) -> tuple[effects.Grid, dict[tuple[Value, ...], list[RunFolder]]]:
    """The means of cells, and their runs."""
    cells = dict[tuple[Value, ...], list[RunFolder]]()
    for run in runs:
        cells.setdefault(places[id(run)], []).append(run)
    for of_cell in cells.values():
        if len({run.seed for run in of_cell}) < len(of_cell):
            raise ConfigError("two runs with one seed differ in no setting on which results depend: name one of them")
    numbered = [[list(of).index(v) for v, of in zip(cell, levels, strict=True)] for cell in cells]
    pairs = [(n, run) for n, of_cell in enumerate(cells.values()) for run in of_cell]
    seeds = [-1 if run.seed is None else run.seed for _, run in pairs]
    values = [value[id(run)] for _, run in pairs]
    return effects.grid(np.array(numbered), [n for n, _ in pairs], seeds, values), cells


def _not_certain(
    grid: effects.Grid, cells: Sequence[Sequence[RunFolder]], key: Key, metric: Metric, gap: float
) -> effects.Grid:
    """The grid, whose variance is not below what the numbers can show (:func:`ssl_bench.results.statistics.at_least`).

    Args:
        cells: the runs of each.
        gap: the smallest difference between two numbers.
    """
    if not grid.degrees:
        return grid
    first, joint, step = bits_of(cells[0][0], key), None, gap
    if first is not None:
        joint, step = 0.0, metric.scale / len(first)
    if first is not None and at_least(grid.variance, grid.degrees, step, joint) > grid.variance:
        bits = [[bits_of(run, key) for run in of_cell] for of_cell in cells if len(of_cell) > 1]
        if all(of_run is not None and len(of_run) == len(first) for of_cell in bits for of_run in of_cell):
            of_cells = [metric.scale**2 * joint_of(np.array(of_cell)) / len(first) for of_cell in bits]
            joint = np.average(of_cells, weights=[len(of_cell) - 1 for of_cell in bits])
    return replace(grid, variance=float(at_least(grid.variance, grid.degrees, step, joint)))


def _by_images(runs: Sequence[RunFolder], numbers: Numbers, name: str, metric: Metric) -> float:
    """Standard deviation of an accuracy over test images; NaN if the first run has not recorded which are right."""
    right = bits_of(runs[0], numbers.key(name))
    if right is None:
        return math.nan
    shares = [numbers.value(name, run) or 0.0 for run in runs]
    return metric.scale * math.sqrt(sum(share * (1 - share) for share in shares) / len(shares) / len(right))


def _trend(grid: effects.Grid, factor: int, values: Sequence[Value]) -> Trend | None:
    numbers = [
        value for value in values if isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    ]
    return effects.trend(grid, factor, numbers) if len(numbers) == len(values) > 2 else None


def _together(names: Sequence[str]) -> str:
    if len(names) == 2:
        return f"{names[0]} and {names[1]} vary together: their shares cannot be told apart; name runs of one of either"
    return f"{', '.join(names)} vary together: their shares cannot be told apart; name runs that share some of them"
