"""Draw a paper's figure from a table: each row is a curve, each column a place on the x axis."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.cells import Table
from ssl_bench.papers.claims import PaperClaim
from ssl_bench.papers.fill import Filled, deviation, fill, mean
from ssl_bench.papers.selection import Selection
from ssl_bench.record.plots import COLOURS, MARKERS, STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Panel = tuple[Table, Sequence[Filled]]


def panels(table: Table, filled: Sequence[Filled], results: Results) -> Iterator[Panel]:
    """The panels of a table: one, or for a claim one for each measure and then those of the paper's own numbers."""
    if not isinstance(table, PaperClaim):
        yield table, filled
        return
    for measure in dict.fromkeys(each.cell.measure for each in filled):
        yield table, [each for each in filled if each.cell.measure == measure]
    if table.beside:
        selection = Selection.of(table.beside)
        for other in selection.tables():
            cells = [cell for cell in selection.cells(other) if cell.paper is not None]
            yield other, fill(other, cells, results)


def draw(drawn: Sequence[Panel]) -> Figure:
    """Draw panels side by side: hollow markers and dashes for the paper, filled ones with error bars for measurements.

    A cell without own runs has the number that is committed with the package, which the legend calls "project".
    """
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(["default", STYLE]):
        figure = Figure((5.2 * len(drawn), 3.8), layout="constrained")
        axes = figure.subplots(1, len(drawn), squeeze=False)[0]
        for axis, (table, filled) in zip(axes, drawn, strict=True):
            _panel(axis, table, filled)
        return figure


def _panel(axis: Any, table: Table, filled: Sequence[Filled]) -> None:
    places = {column: float(i) for i, column in enumerate(table.columns())}  # of a table, which has no x axis
    x = {each.cell.column: places[each.cell.column] if each.cell.x is None else each.cell.x for each in filled}
    for i, label in enumerate(dict.fromkeys(each.cell.label for each in filled)):
        points = [each for each in filled if each.cell.label == label]
        look = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "label": label}
        reported = [(x[each.cell.column], each.cell.paper) for each in points if each.cell.paper is not None]
        own = [(each, each.mean, deviation(each.values)) for each in points if each.values]
        project = [(each, mean(each.measured), deviation(each.measured)) for each in points if each.measured]
        if reported:
            axis.plot(*zip(*reported, strict=True), **look | {"label": f"{label} (paper)"}, linestyle="--", mfc="white")
        if measured := own or project:
            named = look if own else look | {"label": f"{label} (project)"}
            deviations = [deviation or 0.0 for _, _, deviation in measured]
            axis.errorbar(
                [x[each.cell.column] for each, _, _ in measured],
                [m for _, m, _ in measured],
                deviations,
                **named,
                capsize=3,
            )
        elif not reported:
            axis.plot([], [], **look | {"label": f"{label} (no numbers yet)"}, linestyle="none")
    if table.doubling:
        axis.set_xscale("log", base=2)
    axis.set_xticks(list(x.values()), list(x))
    axis.minorticks_off()
    measures = {each.cell.measure for each in filled}
    axis.set(xlabel=table.x, ylabel=measures.pop() if isinstance(table, PaperClaim) and measures != {""} else table.y)
    axis.set_title("\n".join([table.name, *textwrap.wrap(table.title, 60)]), fontsize="medium")
    axis.legend(frameon=False)
