"""Draw a paper's figure from a table: each row is a curve, each column a place on the x axis."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ssl_bench.papers import comparison, verdicts
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.cells import Table
from ssl_bench.papers.claims import ERROR, PaperClaim
from ssl_bench.papers.comparison import Difference
from ssl_bench.papers.fill import Filled, fill
from ssl_bench.papers.selection import Selection
from ssl_bench.record.plots import COLOURS, DASHES, MARKERS, STYLE
from ssl_bench.results.statistics import deviation, half_width, mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THEORY: dict[str, Any] = {"color": "#555555", "linewidth": 2.5, "alpha": 0.7, "zorder": 1}
MOST_CURVES = 8  # of a comparison; more cannot be told apart, and their differences are drawn anyway


@dataclass(frozen=True)
class Panel:
    """A part of a figure: what draws it on an axis, and its height in inches."""

    draw: Callable[[Any], None]
    height: float = 4.3


def panels(table: Table, filled: Sequence[Filled], results: Results) -> Iterator[Panel]:
    """The panels of a table.

    A table has one. A claim has one for each measure that depends on the column, and those of the paper's own numbers.
    A comparison has its curves, unless they are many, and the differences to the reference.
    """
    if not isinstance(table, PaperClaim):
        compared, whose = comparison.measured(table, results)
        differences = [each for each in compared.ran if not each.cell.placebo or each.cell.against == table.reference]
        rows = list(dict.fromkeys(each.cell.row for each in differences))
        shown = [each for each in filled if not rows or each.cell.row in (*rows, table.reference)]
        if len(rows) < MOST_CURVES:
            drawn = partial(_curves, table=table, filled=shown, title=f"{table.name}\n{_wrapped(table.title)}")
            yield Panel(drawn, max(4.3, 3 + 0.2 * len({each.cell.label for each in shown})))  # with its legend
        if rows:
            title = f"{table.name}{whose}\n{_wrapped(table.title, 42)}"  # the names of the rows take room
            drawn = partial(_differences, table=table, differences=differences, rows=rows, title=title)
            yield Panel(drawn, max(4.3, 2 + 0.32 * len(rows)))
        return
    title = f"{table.name}: {verdicts.judge(table, results).words}\n{_wrapped(table.says)}"
    for measure in dict.fromkeys(each.cell.measure for each in filled):
        of_measure = [each for each in filled if each.cell.measure == measure]
        if len({(each.cell.metric, each.cell.overrides) for each in of_measure}) > 1:
            look = _rows if len({each.cell.column for each in of_measure}) == 1 else _curves
            yield Panel(partial(look, table=table, filled=of_measure, title=title))
    if table.beside:
        selection = Selection.of(table.beside)
        for other in selection.tables():
            cells = [cell for cell in selection.cells(other) if cell.paper is not None]
            yield from panels(other, fill(other, cells, results), results) if cells else ()


def _wrapped(text: str, width: int = 60) -> str:
    return textwrap.fill(text, width)


def draw(drawn: Sequence[Panel]) -> Figure:
    """Draw panels side by side: hollow markers and dashes for the paper, filled ones with error bars for measurements.

    A cell without own runs has the number that is committed with the package, which the legend calls "project". A claim
    or comparison has the interval of its seeds for an error bar, a claim theory as a line.
    """
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(["default", STYLE]):
        figure = Figure((5.2 * len(drawn), max(panel.height for panel in drawn)), layout="constrained")
        axes = figure.subplots(1, len(drawn), squeeze=False)[0]
        for axis, panel in zip(axes, drawn, strict=True):
            panel.draw(axis)
        return figure


def _differences(axis: Any, table: Table, differences: Sequence[Difference], rows: Sequence[str], title: str) -> None:
    """Draw the rows of a comparison less its reference: a place for each row, a colour for each column."""
    columns = [column for column in table.columns() if any(each.cell.column == column for each in differences)]
    for i, column in enumerate(columns):
        of_column = [each for each in differences if each.cell.column == column]
        means = [each.mean for each in of_column]
        places = [rows.index(each.cell.row) + 0.6 * ((i + 0.5) / len(columns) - 0.5) for each in of_column]
        ends = [[each.mean - each.low for each in of_column], [each.high - each.mean for each in of_column]]
        look = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "linestyle": "none"}
        axis.errorbar(means, places, xerr=ends, **look, capsize=2, label=column)
    axis.axvline(0, color="#555555", linewidth=1)
    margin = min((each.margin for each in differences if each.margin > 0), default=0)
    axis.axvspan(-margin, margin, color="#555555", alpha=0.12, linewidth=0)
    axis.set_yticks(range(len(rows)), rows)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    minus = f"minus that of {table.reference}: mean and {1 - ERROR:.0%} interval"
    axis.set(xlabel=f"{table.y}\n{minus}\nshaded: less than {margin:.3g}")
    axis.set_title(title, fontsize="medium")
    _legend(axis, table.x)


def _legend(axis: Any, title: str | None) -> None:
    """Put the legend below the axis and its label, where it hides nothing."""
    from matplotlib.transforms import offset_copy

    inches = 0.25 + 0.15 * len(axis.get_xlabel().splitlines())
    below = offset_copy(axis.transAxes, fig=axis.figure, y=-inches, units="inches")
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "bbox_transform": below}
    short = all(len(name) < 28 for name in axis.get_legend_handles_labels()[1])
    axis.legend(title=title, ncols=2 if short else 1, frameon=False, **place)


def _curves(axis: Any, table: Table, filled: Sequence[Filled], title: str) -> None:
    """Draw each row as a curve over the columns."""
    claim = table if isinstance(table, PaperClaim) else None
    judged = claim is not None or bool(table.reference)
    bar, theory = partial(half_width, error=ERROR) if judged else deviation, claim.theory if claim else {}
    lines = {curve: THEORY | {"linestyle": DASHES[i % len(DASHES)]} for i, curve in enumerate(theory)}
    places = {column: float(i) for i, column in enumerate(table.columns())}  # of a table, which has no x axis
    x = {each.cell.column: places[each.cell.column] if each.cell.x is None else each.cell.x for each in filled}
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
    plain = {f"{each.cell.metric} (%)" if each.cell.share else each.cell.metric for each in filled}
    y = measures.pop() if claim and measures != {""} else table.y or ", ".join(sorted(plain))
    axis.set(xlabel=table.x or "column of the table", ylabel=y)
    axis.set_title(title, fontsize="medium")
    runs = max((len(each.values or each.measured) for each in filled), default=0)
    heading = f"mean and {1 - 2 * ERROR:.0%} interval of {runs} seeds" if judged and runs > 1 else None
    _legend(axis, heading)


def _rows(axis: Any, table: PaperClaim, filled: Sequence[Filled], title: str) -> None:
    """Draw a claim with one column: its rows beside each other, and a thin line for each seed."""
    numbers = [each.values or each.measured for each in filled]
    for of_seed in zip(*numbers, strict=False):
        axis.plot(of_seed, **THEORY | {"linewidth": 0.8})
    for i, each in enumerate(numbers):
        axis.errorbar(
            [i], [mean(each)], [half_width(each, ERROR)], color=COLOURS[i % len(COLOURS)], marker="o", capsize=5
        )
    axis.set_xticks(range(len(filled)), [textwrap.fill(each.cell.label, 12) for each in filled])
    lines = f"{table.x}: {filled[0].cell.column}\nmean and {1 - 2 * ERROR:.0%} interval; a thin line for each seed"
    axis.set(xlim=(-0.5, len(filled) - 0.5), xlabel=lines, ylabel=table.y)
    axis.set_title(title, fontsize="medium")
