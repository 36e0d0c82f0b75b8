"""Figures of any grid: lines with intervals over seeds, heat maps of two numeric settings, what matters, curves."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.transforms import offset_copy

from ssl_bench.record.plots import COLOURS, DASHES, line, panels, ticks
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
    with panels(len(pivots), (5.2, 4.3), kind=Picture, sharey=not heat) as (figure, axes):
        for axis, pivot in zip(axes, pivots, strict=True):
            _heat(axis, pivot, means) if heat else _lines(axis, pivot)
            axis.set(title=pivot.title, xlabel=pivot.names[1])
        _say(figure, (sentence for pivot in pivots for sentence in pivot.below))
    return figure  # type: ignore[no-any-return]


def _say(figure: Picture, sentences: Iterable[str]) -> None:
    """Write below a figure what else varies and what is missing."""
    width = round(15 * figure.get_figwidth())  # characters of a line
    every = dict.fromkeys("\n".join(sentences).splitlines())
    lines = [textwrap.fill(sentence, width, break_on_hyphens=False) for sentence in every]
    figure.supxlabel("\n".join(lines), fontsize="x-small", x=0.02, ha="left")


def _lines(axis: Any, pivot: Pivot) -> None:
    (rows, columns), name = (pivot.axis(0), pivot.axis(1)), pivot.names[0]
    numeric = all(isinstance(value, int | float) for value in columns)
    x: dict[Any, Any] = {value: value if numeric else n for n, value in enumerate(columns)}
    ticks(axis, [*x.values()], [*map(text_of_value, columns)], numeric and 0 < 4 * min(columns) <= max(columns))
    for i, row in enumerate(rows):
        cells = {x[column]: cell.values for column in columns if (cell := pivot.cells.get((row, column)))}
        means, halves = np.array([*map(fmean, cells.values())]), np.array([*map(half_width, cells.values())])
        # Intervals of several lines would cover each other. What is moved aside has no part in the range of the axes.
        aside = offset_copy(axis.transData, axis.figure, 4 * (i - (len(rows) - 1) / 2), units="points")
        label = f"{name}={text_of_value(row)}" if name else None
        line(axis, i, [*cells], means, halves, transform=aside, label=label)
        for ends in (means, means - halves, means + halves):
            axis.update_datalim([*zip(cells, ends, strict=True)])
    axis.autoscale_view()
    counts = sorted({len(cell.values) for cell in pivot.cells.values()})
    of = f"{counts[0]} seeds" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} seeds"
    axis.set_ylabel(f"{pivot.label}\nmean" + f" and 95% interval of {of}" * (counts[-1] > 1))
    if name:
        axis.legend()


def _heat(axis: Any, pivot: Pivot, scale: Sequence[float]) -> None:
    """Draw a heat map; ``scale`` has the numbers of all heat maps of the figure."""
    rows, columns = pivot.axis(0), pivot.axis(1)
    means, (low, high) = np.full((len(rows), len(columns)), np.nan), (min(scale), max(scale))
    for (row, column), cell in pivot.cells.items():
        y, x, mean = rows.index(row), columns.index(column), fmean(cell.values)
        means[y, x], colour = mean, "white" if mean < (low + high) / 2 else "black"
        text = f"{mean:.1f}" if pivot.metric.unit == "share" else f"{mean:.3g}"
        axis.text(x, y, f"{text}\n({len(cell.values)})", ha="center", va="center", color=colour, fontsize="small")
    axis.grid(False)
    image = axis.imshow(means, origin="lower", aspect="auto", vmin=low, vmax=high)
    ticks(axis, range(len(columns)), list(map(text_of_value, columns)))
    axis.set_yticks(range(len(rows)), [text_of_value(row) for row in rows])
    axis.set_ylabel(pivot.names[0])
    axis.figure.colorbar(image, ax=axis, label=f"{pivot.label}, mean (runs)")


def draw_matters(matters: Matters) -> Picture:
    """Draw a bar for each share of the variance, and a panel for each setting with the means of its values.

    Intervals are of 95%. The panels have one axis, so that what matters little is flat.
    """
    widths, height = [2.0, *(max(1.0, 0.35 * len(of)) for of in matters.levels)], 1.6 + 0.3 * len(matters.shares)
    with panels(len(widths), (3.0, max(3.4, height)), kind=Picture, width_ratios=widths) as (figure, axes):
        bars, first, *others = axes
        _bars(bars, matters)
        for axis in others:
            axis.sharey(first)
            axis.tick_params(labelleft=False)
        for number, axis in enumerate((first, *others)):
            _means(axis, matters, number)
        first.set_ylabel(f"{matters.label}, mean and 95% interval")
        runs = len(matters.measured.values)
        figure.suptitle(f"What matters for {matters.label}: {matters.cells} cells, {runs} runs")
    return figure  # type: ignore[no-any-return]


def _bars(axis: Any, matters: Matters) -> None:
    names = [matters.setting(share) for share in matters.ordered]
    share, low, high = np.array([(each.share, each.low, each.high) for each in matters.ordered]).T * 100
    # A share may lie beside its interval by rounding.
    bars = None if np.isnan(low).any() else np.maximum([share - low, high - share], 0)
    colours = [COLOURS[0] if len(each.factors) == 1 else "#b0b0b0" for each in matters.ordered]
    axis.barh(names, share, xerr=bars, color=colours, height=0.6, capsize=3)
    axis.set(xlim=(0, 100), xlabel="share of the variance between cells (%)")
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)


def _means(axis: Any, matters: Matters, number: int) -> None:
    values, main = matters.levels[number], matters.main[number]
    dashes = "-" if all(isinstance(value, int | float) for value in values) else "none"
    line(axis, 0, range(len(values)), main.means, np.nan_to_num(main.halves), linestyle=dashes)
    names = list(map(text_of_value, values))
    ticks(axis, range(len(values)), names)
    axis.tick_params(axis="x", rotation=45 * (sum(map(len, names)) > 24))
    axis.set(xlim=(-0.5, len(values) - 0.5), xlabel=matters.settings[number])


def draw_curves(curves: Sequence[SeedCurve], label: str, below: Sequence[str] = ()) -> Picture:
    """Draw a line for each curve, and a band of one standard deviation over its seeds.

    Args:
        label: of the y axis.
        below: sentences on what is missing.
    """
    with panels(1, (6.4, 4.3), kind=Picture) as (figure, (axis,)):
        for i, curve in enumerate(curves):
            look = {"label": curve.legend, "linestyle": DASHES[i // len(COLOURS) % len(DASHES)]}
            line(axis, i, curve.x, curve.mean, markevery=max(1, len(curve.x) // 30), **look)
            if curve.seeds > 1:
                ends = curve.mean - curve.deviation, curve.mean + curve.deviation
                axis.fill_between(curve.x, *ends, color=COLOURS[i % len(COLOURS)], alpha=0.2, linewidth=0)
        y = f"{label}\nmean" + " and standard deviation" * any(curve.seeds > 1 for curve in curves)
        axis.set(xlabel="epoch", ylabel=y)
        axis.legend()
        _say(figure, below)
    return figure  # type: ignore[no-any-return]
