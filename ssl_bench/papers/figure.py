"""Draw a paper's figure from a table: each row is a curve, each column a place on the x axis."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ssl_bench.papers.cells import Table
from ssl_bench.papers.formats import Filled
from ssl_bench.record.plots import COLOURS, MARKERS, STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(panels: Sequence[tuple[Table, Sequence[Filled]]]) -> Figure:
    """Draw the panels side by side: hollow markers and dashes for the paper, filled ones with error bars for ours."""
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(["default", STYLE]):
        figure = Figure((5.2 * len(panels), 3.8), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, (table, filled) in zip(axes, panels, strict=True):
            _panel(axis, table, filled)
        return figure


def _panel(axis: Any, table: Table, filled: Sequence[Filled]) -> None:
    for i, label in enumerate(dict.fromkeys(each.cell.label for each in filled)):
        points = [each for each in filled if each.cell.label == label and each.cell.x is not None]
        look = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "label": label}
        reported = [(each.cell.x, each.cell.paper) for each in points if each.cell.paper is not None]
        measured = [(each.cell.x, each.mean, each.std or 0.0) for each in points if each.mean is not None]
        if reported:
            axis.plot(*zip(*reported, strict=True), **look | {"label": f"{label} (paper)"}, linestyle="--", mfc="white")
        if measured:
            x, mean, std = zip(*measured, strict=True)
            axis.errorbar(x, mean, std, **look, capsize=3)
        if not reported and not measured:
            axis.plot([], [], **look | {"label": f"{label} (no numbers yet)"}, linestyle="none")
    if table.doubling:
        axis.set_xscale("log", base=2)
    ticks = {each.cell.x: each.cell.column for each in filled if each.cell.x is not None}
    axis.set_xticks(list(ticks), list(ticks.values()))
    axis.minorticks_off()
    axis.set(xlabel=table.x, ylabel=table.y)
    axis.set_title("\n".join([table.name, *textwrap.wrap(table.title, 60)]), fontsize="medium")
    axis.legend(frameon=False)
