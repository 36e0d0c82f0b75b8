"""Figures of any grid: lines with intervals over seeds, heat maps of two numeric settings, what matters, curves."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.transforms import offset_copy

from ssl_bench.record.plots import COLOURS, DASHES, line, panels, render, ticks
from ssl_bench.results.curves import SeedCurve
from ssl_bench.results.matters import Matters
from ssl_bench.results.pivot import Pivot
from ssl_bench.results.statistics import half_width
from ssl_bench.results.table import text_of

ENDS = ("difference", "low", "high")


class Picture(Figure):
    """A figure that a notebook shows."""

    def _repr_png_(self) -> bytes:
        return render(lambda: self)


def draw(pivots: Sequence[Pivot], heat: bool) -> Picture:
    """Draw a panel for each table: its columns lie on the x axis, its rows are lines, or the y axis of a heat map.

    Lines have the mean and the 95% interval over the seeds; a cell of a heat map has its mean and number of runs. All
    panels have one range of the y axis, and all heat maps one scale of colours.
    """
    means = [fmean(cell.values()) for pivot in pivots for cell in pivot.cells.values()]
    with panels(len(pivots), (5.2, 4.3), kind=Picture, sharey=not heat) as (figure, axes):
        for axis, pivot in zip(axes, pivots, strict=True):
            _heat(axis, pivot, (min(means), max(means))) if heat else _lines(axis, pivot)
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
    ticks(axis, [*x.values()], [*map(text_of, columns)], numeric and 0 < 4 * min(columns) <= max(columns))
    for i, row in enumerate(rows):
        cells = {x[column]: [*cell.values()] for column in columns if (cell := pivot.cells.get((row, column)))}
        means, halves = np.array([*map(fmean, cells.values())]), np.array([*map(half_width, cells.values())])
        # Intervals of several lines would cover each other. What is moved aside has no part in the range of the axes.
        aside = offset_copy(axis.transData, axis.figure, 4 * (i - (len(rows) - 1) / 2), units="points")
        label = f"{name}={text_of(row)}" if name else None
        line(axis, i, [*cells], means, halves, transform=aside, label=label)
        for ends in (means, means - halves, means + halves):
            axis.update_datalim([*zip(cells, ends, strict=True)])
    axis.autoscale_view()
    few, *_, many = [*(counts := sorted(map(len, pivot.cells.values()))), counts[-1]]
    of = f"{few} seeds" if few == many else f"{few} to {many} seeds"
    axis.set_ylabel(f"{pivot.measured.label}\nmean" + f" and 95% interval of {of}" * (many > 1))
    if name:
        axis.legend()


def _heat(axis: Any, pivot: Pivot, scale: tuple[float, float]) -> None:
    """Draw a heat map; ``scale`` has the ends of the colours."""
    rows, columns = pivot.axis(0), pivot.axis(1)
    means = np.full((len(rows), len(columns)), np.nan)
    for (row, column), cell in pivot.cells.items():
        y, x, mean = rows.index(row), columns.index(column), fmean(cell.values())
        means[y, x], colour = mean, "white" if mean < sum(scale) / 2 else "black"
        text = f"{mean:.1f}" if pivot.measured.metric.unit == "share" else f"{mean:.3g}"
        axis.text(x, y, f"{text}\n({len(cell)})", ha="center", va="center", color=colour, fontsize="small")
    image = axis.imshow(means, origin="lower", aspect="auto", vmin=scale[0], vmax=scale[1])
    ticks(axis, range(len(columns)), list(map(text_of, columns)))
    axis.set(yticks=range(len(rows)), yticklabels=list(map(text_of, rows)), ylabel=pivot.names[0])
    axis.grid(visible=False)
    axis.figure.colorbar(image, ax=axis, label=f"{pivot.measured.label}, mean (runs)")


def draw_matters(matters: Matters) -> Picture:
    """Draw for each setting its largest difference with the interval, which holds together with the others."""
    with panels(1, (6.4, 2.8 + 0.5 * len(matters.data["settings"])), kind=Picture) as (figure, (axis,)):
        for place, of in enumerate(matters.data["settings"]):
            size, low, high = (of["difference"] if of[name] is None else of[name] for name in ENDS)
            colour = COLOURS[0] if of["verdict"].startswith("matters") else "#808080"
            axis.errorbar([size], [place], xerr=[[size - low], [high - size]], fmt="o", color=colour, capsize=3)
        axis.axvline(0, color="black", linewidth=0.8)
        names = [f"{of['setting']}\n{text_of(of['from'])} < {text_of(of['to'])}" for of in matters.data["settings"]]
        axis.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -0.5))
        axis.set_xlabel(f"largest difference, {matters.measured.label}")
        axis.grid(axis="y", visible=False)
        _say(figure, [matters.title, *matters.said])
    return figure  # type: ignore[no-any-return]


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
