"""Figures of any grid: lines with intervals over seeds, heat maps of two numeric settings, what matters, curves."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

from matplotlib import style
from matplotlib.figure import Figure

from ssl_bench.record.plots import COLOURS, DASHES, MARKERS, STYLE, share_range
from ssl_bench.results.curves import SeedCurve
from ssl_bench.results.matters import Matters
from ssl_bench.results.pivot import Pivot
from ssl_bench.results.statistics import half_width
from ssl_bench.results.table import text_of as text_of_value


class Picture(Figure):
    """A figure that a notebook shows."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


def draw(pivots: Sequence[Pivot], heat: bool) -> Picture:
    """Draw a panel for each table: its columns lie on the x axis, its rows are lines, or the y axis of a heat map.

    Lines have the mean and the 95% interval over the seeds; a cell of a heat map has its mean and number of runs. All
    panels have one range of the y axis, and all heat maps one scale of colours.
    """
    means = [fmean(cell.values) for pivot in pivots for cell in pivot.cells.values()]
    with style.context(["default", STYLE]):
        figure = Picture((5.2 * len(pivots), 4.3), layout="constrained")
        for axis, pivot in zip(figure.subplots(1, len(pivots), squeeze=False)[0], pivots, strict=True):
            _heat(axis, pivot, means) if heat else _lines(axis, pivot)
            axis.set_title(pivot.title, fontsize="medium")
            axis.set_xlabel(pivot.names[1])
        if not heat:
            share_range(figure.axes)
        _say(figure, (sentence for pivot in pivots for sentence in pivot.below))
    return figure


def _say(figure: Picture, sentences: Iterable[str]) -> None:
    """Write below a figure what else varies and what is missing."""
    width = round(15 * figure.get_figwidth())  # characters of a line
    lines = [textwrap.fill(sentence, width, break_on_hyphens=False) for sentence in dict.fromkeys(sentences)]
    if lines:
        figure.supxlabel("\n".join(lines).replace("$", r"\$"), fontsize="x-small", x=0.02, ha="left")


def _lines(axis: Any, pivot: Pivot) -> None:
    columns = pivot.axis(1)
    numeric = all(isinstance(value, int | float) for value in columns)
    x: dict[Any, Any] = {value: value if numeric else n for n, value in enumerate(columns)}
    log = numeric and min(x.values()) > 0 and max(x.values()) >= 4 * min(x.values())
    rows = pivot.axis(0)
    for i, row in enumerate(rows):
        places = _beside([*x.values()], i - (len(rows) - 1) / 2, len(rows), log)
        points = [(at, cell) for at, c in zip(places, columns, strict=True) if (cell := pivot.cells.get((row, c)))]
        means = [fmean(cell.values) for _, cell in points]
        look = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "capsize": 3}
        label = f"{pivot.names[0]}={text_of_value(row)}" if pivot.names[0] else None
        halves = [half_width(cell.values) if len(cell.values) > 1 else 0.0 for _, cell in points]
        axis.errorbar([at for at, _ in points], means, halves, **look, linestyle=DASHES[i % len(DASHES)], label=label)
    if log:
        axis.set_xscale("log", base=2)
    axis.set_xticks(list(x.values()), list(map(text_of_value, columns)))
    axis.minorticks_off()
    counts = sorted({len(cell.values) for cell in pivot.cells.values()})
    of = f"{counts[0]} seeds" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    axis.set_ylabel(f"{pivot.label}\nmean" + f" and 95% interval of {of}" * (counts[-1] > 1))
    if pivot.names[0]:
        axis.legend(frameon=False)


def _beside(x: Sequence[float], line: float, lines: int, log: bool) -> list[float]:
    """Places on the x axis for a line, a little aside of those of other lines, whose intervals would cover its own.

    Args:
        line: its number, 0 for the middle one.
    """
    scaled = [math.log2(value) for value in x] if log else [*x]
    gap = min((after - before for before, after in pairwise(scaled)), default=1.0)
    moved = [value + line * min(0.05, 0.3 / lines) * gap for value in scaled]
    return [2**value for value in moved] if log else moved


def _heat(axis: Any, pivot: Pivot, scale: Sequence[float]) -> None:
    """Draw a heat map; ``scale`` has the numbers of all heat maps of the figure."""
    import numpy as np

    rows, columns = pivot.axis(0), pivot.axis(1)
    means = np.full((len(rows), len(columns)), np.nan)
    for (row, column), cell in pivot.cells.items():
        means[rows.index(row), columns.index(column)] = fmean(cell.values)
    axis.grid(False)
    image = axis.imshow(means, origin="lower", aspect="auto", cmap="viridis", vmin=min(scale), vmax=max(scale))
    middle = (min(scale) + max(scale)) / 2
    for (row, column), cell in pivot.cells.items():
        mean, at = fmean(cell.values), (columns.index(column), rows.index(row))
        text = f"{mean:.1f}" if pivot.metric.unit == "share" else f"{mean:.3g}"
        colour = "white" if mean < middle else "black"
        axis.text(*at, f"{text}\n({len(cell.values)})", ha="center", va="center", color=colour, fontsize="small")
    axis.set_xticks(range(len(columns)), list(map(text_of_value, columns)))
    axis.set_yticks(range(len(rows)), list(map(text_of_value, rows)))
    axis.set_ylabel(pivot.names[0])
    axis.figure.colorbar(image, ax=axis, label=f"{pivot.label}, mean (runs)")


def draw_matters(matters: Matters) -> Picture:
    """Draw a bar for each share of the variance, and a panel for each setting with the means of its values.

    Intervals are of 95%. The panels have one axis, so that what matters little is flat.
    """
    count = len(matters.settings)
    with style.context(["default", STYLE]):
        size = (4.4 + 2.2 * count, max(3.4, 1.6 + 0.3 * len(matters.shares)))
        figure = Picture(size, layout="constrained")
        ratios = [2.0, *[max(1.0, 0.35 * len(levels)) for levels in matters.levels]]
        grid = figure.add_gridspec(1, 1 + count, width_ratios=ratios)
        _bars(figure.add_subplot(grid[0]), matters)
        first: Any = None
        for n in range(count):
            axis = figure.add_subplot(grid[1 + n], sharey=first)
            _means(axis, matters, n)
            if first is None:
                first = axis
                axis.set_ylabel(f"{matters.label}, mean and 95% interval")
            else:
                axis.tick_params(labelleft=False)
        figure.suptitle(
            f"What matters for {matters.label}: {matters.cells} cells, {matters.runs} runs", fontsize="medium"
        )
    return figure


def _bars(axis: Any, matters: Matters) -> None:
    shares = matters.ordered[::-1]  # the first one above
    values = [100 * share.share for share in shares]
    colours = [COLOURS[0] if len(share.factors) == 1 else "#b0b0b0" for share in shares]
    axis.barh(range(len(shares)), values, color=colours, height=0.6)
    if not any(math.isnan(share.low) for share in shares):
        # A share may lie beside its interval by rounding.
        low = [max(value - 100 * share.low, 0) for value, share in zip(values, shares, strict=True)]
        high = [max(100 * share.high - value, 0) for value, share in zip(values, shares, strict=True)]
        axis.errorbar(values, range(len(shares)), xerr=[low, high], fmt="none", ecolor="black", capsize=3, linewidth=1)
    axis.set_yticks(range(len(shares)), [matters.setting(share) for share in shares])
    axis.set_xlim(0, 100)
    axis.set_xlabel("share of the variance between cells (%)")
    axis.grid(axis="y", visible=False)


def _means(axis: Any, matters: Matters, number: int) -> None:
    values, main = matters.levels[number], matters.main[number]
    halves = [0.0 if math.isnan(half) else half for half in main.halves]
    line = "-" if all(isinstance(value, int | float) for value in values) else "none"
    look = {"color": COLOURS[0], "marker": MARKERS[0], "linestyle": line, "capsize": 3}
    axis.errorbar(range(len(values)), main.means, halves, **look)
    axis.set_xticks(range(len(values)), list(map(text_of_value, values)))
    axis.set_xlim(-0.5, len(values) - 0.5)
    if sum(len(text_of_value(value)) for value in values) > 24:
        axis.tick_params(axis="x", rotation=45)
    axis.set_xlabel(matters.settings[number])


def draw_curves(curves: Sequence[SeedCurve], label: str, below: Sequence[str] = ()) -> Picture:
    """Draw a line for each curve, and a band of one standard deviation over its seeds.

    Args:
        label: of the y axis.
        below: sentences on what is missing.
    """
    with style.context(["default", STYLE]):
        figure = Picture((6.4, 4.3), layout="constrained")
        axis = figure.subplots()
        for i, curve in enumerate(curves):
            colour, line = COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)]
            marker = MARKERS[i % len(MARKERS)] if len(curve.x) < 30 else ""
            axis.plot(curve.x, curve.mean, color=colour, linestyle=line, marker=marker, label=curve.legend)
            if curve.seeds > 1:
                ends = curve.mean - curve.deviation, curve.mean + curve.deviation
                axis.fill_between(curve.x, *ends, color=colour, alpha=0.2, linewidth=0)
        axis.set_xlabel("epoch")
        axis.set_ylabel(f"{label}\nmean" + " and standard deviation" * any(curve.seeds > 1 for curve in curves))
        axis.legend(frameon=False)
        _say(figure, below)
    return figure
