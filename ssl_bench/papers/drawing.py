"""Draw a paper's figure from a table: each row is a curve, each column a place on the x axis."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ssl_bench.papers import verdicts
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.cells import Table, is_accuracy
from ssl_bench.papers.claims import ERROR, PaperClaim, half_width
from ssl_bench.papers.fill import Filled, deviation, fill, mean
from ssl_bench.papers.selection import Selection
from ssl_bench.record.plots import COLOURS, DASHES, MARKERS, STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THEORY: dict[str, Any] = {"color": "#555555", "linewidth": 2.5, "alpha": 0.7, "zorder": 1}
Panel = tuple[Table, Sequence[Filled], str]  # the last is the title


def panels(table: Table, filled: Sequence[Filled], results: Results) -> Iterator[Panel]:
    """The panels of a table: one, or for a claim one for each measure and then those of the paper's own numbers."""
    if not isinstance(table, PaperClaim):
        yield table, filled, f"{table.name}\n{_wrapped(table.title)}"
        return
    title = f"{table.name}: {verdicts.judge(table, results).words}\n{_wrapped(table.says)}"
    for measure in dict.fromkeys(each.cell.measure for each in filled):
        yield table, [each for each in filled if each.cell.measure == measure], title
    if table.beside:
        selection = Selection.of(table.beside)
        for other in selection.tables():
            cells = [cell for cell in selection.cells(other) if cell.paper is not None]
            yield from panels(other, fill(other, cells, results), results)


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 60)


def draw(drawn: Sequence[Panel]) -> Figure:
    """Draw panels side by side: hollow markers and dashes for the paper, filled ones with error bars for measurements.

    A cell without own runs has the number that is committed with the package, which the legend calls "project". A claim
    or comparison has the interval of its seeds for an error bar, a claim theory as a line.
    """
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(["default", STYLE]):
        figure = Figure((5.2 * len(drawn), 3.8), layout="constrained")
        axes = figure.subplots(1, len(drawn), squeeze=False)[0]
        for axis, panel in zip(axes, drawn, strict=True):
            _panel(axis, *panel)
        return figure


def _panel(axis: Any, table: Table, filled: Sequence[Filled], title: str) -> None:
    claim = table if isinstance(table, PaperClaim) else None
    judged = claim is not None or bool(table.reference)
    bar, theory = half_width if judged else deviation, claim.theory if claim else {}
    lines = {curve: THEORY | {"linestyle": DASHES[i % len(DASHES)]} for i, curve in enumerate(theory)}
    places = {column: float(i) for i, column in enumerate(table.columns())}  # of a table, which has no x axis
    x = {each.cell.column: places[each.cell.column] if each.cell.x is None else each.cell.x for each in filled}
    if claim and len(x) == 1:
        _rows(axis, claim, filled, title)
        return
    for i, label in enumerate(dict.fromkeys(each.cell.label for each in filled)):
        points = [each for each in filled if each.cell.label == label]
        name = points[0].cell.row if claim else label  # the axis has the measure of a claim
        look = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "label": name}
        reported = [(x[each.cell.column], each.cell.paper) for each in points if each.cell.paper is not None]
        own = [(x[each.cell.column], each.values) for each in points if each.values]
        project = [(x[each.cell.column], each.measured) for each in points if each.measured]
        if reported:
            axis.plot(*zip(*reported, strict=True), **look | {"label": f"{name} (paper)"}, linestyle="--", mfc="white")
        if measured := own or project:
            place, numbers = zip(*measured, strict=True)
            if label in theory:
                axis.plot(place, list(map(mean, numbers)), label=f"theory: {name}", **lines[label])
                continue
            named = look if own or claim else look | {"label": f"{name} (project)"}
            axis.errorbar(place, list(map(mean, numbers)), [bar(each) or 0.0 for each in numbers], **named, capsize=3)
        elif not reported:
            axis.plot([], [], **look | {"label": f"{name} (no numbers yet)"}, linestyle="none")
    for curve, of_columns in theory.items():
        if of_columns:
            given = [number for column, number in zip(table.columns(), of_columns, strict=True) if column in x]
            axis.plot(list(x.values()), given, label=f"theory: {curve}", **lines[curve])
    if table.doubling:
        axis.set_xscale("log", base=2)
    axis.set_xticks(list(x.values()), list(x))
    axis.minorticks_off()
    measures = {each.cell.measure for each in filled}
    plain = {f"{each.cell.metric} (%)" if is_accuracy(each.cell.metric) else each.cell.metric for each in filled}
    y = measures.pop() if claim and measures != {""} else table.y or ", ".join(sorted(plain))
    axis.set(xlabel=table.x or "column of the table", ylabel=y)
    axis.set_title(title, fontsize="medium")
    runs = max((len(each.values or each.measured) for each in filled), default=0)
    heading = f"mean and {1 - 2 * ERROR:.0%} interval of {runs} seeds" if judged and runs > 1 else None
    axis.legend(title=heading, edgecolor="none", framealpha=0.8)


def _rows(axis: Any, claim: PaperClaim, filled: Sequence[Filled], title: str) -> None:
    """Draw a claim with one column: its rows beside each other, and a thin line for each seed."""
    numbers = [each.values or each.measured for each in filled]
    for of_seed in zip(*numbers, strict=False):
        axis.plot(of_seed, **THEORY | {"linewidth": 0.8})
    for i, each in enumerate(numbers):
        axis.errorbar([i], [mean(each)], [half_width(each)], color=COLOURS[i % len(COLOURS)], marker="o", capsize=5)
    axis.set_xticks(range(len(filled)), [textwrap.fill(each.cell.label, 12) for each in filled])
    lines = f"{claim.x}: {filled[0].cell.column}\nmean and {1 - 2 * ERROR:.0%} interval; a thin line for each seed"
    axis.set(xlim=(-0.5, len(filled) - 0.5), xlabel=lines, ylabel=claim.y)
    axis.set_title(title, fontsize="medium")
