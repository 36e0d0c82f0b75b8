"""Figures of any grid: lines with intervals over seeds, heat maps of two numeric settings, what matters, curves."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ssl_bench.record.plots import COLOURS, DASHES, line, panels, share_range, ticks
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
    with panels(Picture, (5.2 * len(pivots), 4.3), [1] * len(pivots)) as (figure, axes):
        for axis, pivot in zip(axes, pivots, strict=True):
            _heat(axis, pivot, means) if heat else _lines(axis, pivot)
            axis.set_title(pivot.title, fontsize="medium")
            axis.set_xlabel(pivot.names[1])
        if not heat:
            share_range(axes)
        _say(figure, (sentence for pivot in pivots for sentence in pivot.below))
    return figure


def _say(figure: Picture, sentences: Iterable[str]) -> None:
    """Write below a figure what else varies and what is missing."""
    width = round(15 * figure.get_figwidth())  # characters of a line
    lines = [textwrap.fill(sentence, width, break_on_hyphens=False) for sentence in dict.fromkeys(sentences)]
    if lines:
        figure.supxlabel("\n".join(lines), fontsize="x-small", x=0.02, ha="left")


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
        label = f"{pivot.names[0]}={text_of_value(row)}" if pivot.names[0] else None
        halves = [half_width(cell.values) if len(cell.values) > 1 else 0.0 for _, cell in points]
        line(axis, i, [at for at, _ in points], means, halves, label=label)
    ticks(axis, list(x.values()), list(map(text_of_value, columns)), log)
    counts = sorted({len(cell.values) for cell in pivot.cells.values()})
    of = f"{counts[0]} seeds" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    axis.set_ylabel(f"{pivot.label}\nmean" + f" and 95% interval of {of}" * (counts[-1] > 1))
    if pivot.names[0]:
        axis.legend(frameon=False)


def _beside(x: Sequence[float], number: float, lines: int, log: bool) -> list[float]:
    """Places on the x axis for a line, a little aside of those of other lines, whose intervals would cover its own.

    Args:
        number: of the line, 0 for the middle one.
    """
    scaled = [math.log2(value) for value in x] if log else [*x]
    gap = min((after - before for before, after in pairwise(scaled)), default=1.0)
    moved = [value + number * min(0.05, 0.3 / lines) * gap for value in scaled]
    return [2**value for value in moved] if log else moved


def _heat(axis: Any, pivot: Pivot, scale: Sequence[float]) -> None:
    """Draw a heat map; ``scale`` has the numbers of all heat maps of the figure."""
    rows, columns = pivot.axis(0), pivot.axis(1)
    cells = [[pivot.cells.get((row, column)) for column in columns] for row in rows]
    means = np.array([[fmean(cell.values) if cell else np.nan for cell in of_row] for of_row in cells])
    axis.grid(False)
    image = axis.imshow(means, origin="lower", aspect="auto", cmap="viridis", vmin=min(scale), vmax=max(scale))
    for (row, column), mean in np.ndenumerate(means):
        if (cell := cells[row][column]) is not None:
            text = f"{mean:.1f}" if pivot.metric.unit == "share" else f"{mean:.3g}"
            look = {"color": "white" if mean < (min(scale) + max(scale)) / 2 else "black", "fontsize": "small"}
            axis.text(column, row, f"{text}\n({len(cell.values)})", ha="center", va="center", **look)
    ticks(axis, range(len(columns)), list(map(text_of_value, columns)))
    axis.set_yticks(range(len(rows)), [text_of_value(row) for row in rows])
    axis.set_ylabel(pivot.names[0])
    axis.figure.colorbar(image, ax=axis, label=f"{pivot.label}, mean (runs)")


def draw_matters(matters: Matters) -> Picture:
    """Draw a bar for each share of the variance, and a panel for each setting with the means of its values.

    Intervals are of 95%. The panels have one axis, so that what matters little is flat.
    """
    size = 4.4 + 2.2 * len(matters.settings), max(3.4, 1.6 + 0.3 * len(matters.shares))
    with panels(Picture, size, [2.0, *(max(1.0, 0.35 * len(of)) for of in matters.levels)]) as (figure, axes):
        bars, first, *others = axes
        _bars(bars, matters)
        first.set_ylabel(f"{matters.label}, mean and 95% interval")
        for axis in others:
            axis.sharey(first)
            axis.tick_params(labelleft=False)
        for number, axis in enumerate((first, *others)):
            _means(axis, matters, number)
        title = f"What matters for {matters.label}: {matters.cells} cells, {len(matters.measured.values)} runs"
        figure.suptitle(title, fontsize="medium")
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
    dashes = "-" if all(isinstance(value, int | float) for value in values) else "none"
    line(axis, 0, range(len(values)), main.means, halves, linestyle=dashes)
    ticks(axis, range(len(values)), list(map(text_of_value, values)))
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
    with panels(Picture, (6.4, 4.3)) as (figure, (axis,)):
        for i, curve in enumerate(curves):
            look = {"label": curve.legend} | ({"marker": ""} if len(curve.x) >= 30 else {})
            line(axis, i, curve.x, curve.mean, linestyle=DASHES[i // len(COLOURS) % len(DASHES)], **look)
            if curve.seeds > 1:
                ends = curve.mean - curve.deviation, curve.mean + curve.deviation
                axis.fill_between(curve.x, *ends, color=COLOURS[i % len(COLOURS)], alpha=0.2, linewidth=0)
        axis.set_xlabel("epoch")
        axis.set_ylabel(f"{label}\nmean" + " and standard deviation" * any(curve.seeds > 1 for curve in curves))
        axis.legend(frameon=False)
        _say(figure, below)
    return figure
