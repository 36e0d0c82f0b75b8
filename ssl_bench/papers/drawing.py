"""Draw a paper's figure from a table: each row is a curve, each column a value on the x axis."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ssl_bench.papers import verdicts
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.cells import Table
from ssl_bench.papers.claims import ERROR, PaperClaim
from ssl_bench.papers.fill import Filled
from ssl_bench.record import plots
from ssl_bench.record.plots import DASHES
from ssl_bench.results.statistics import deviation, half_width, mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THEORY: dict[str, Any] = {"color": "#555555", "linewidth": 2.5, "alpha": 0.7, "zorder": 1}


@dataclass(frozen=True)
class Panel:
    """A part of a figure: what draws it on an axis, and its height in inches."""

    draw: Callable[[Any], None]
    height: float = 4.3


def panels(table: Table, filled: Sequence[Filled], results: Results) -> Iterator[Panel]:
    """The panels of a table: one, or of a claim one for each measure that varies over its cells, if any does."""
    if isinstance(table, PaperClaim):
        yield from _of_claim(table, filled, results)
        return
    height = max(4.3, 3 + 0.2 * len({cell.cell.label for cell in filled}))  # with its legend
    yield Panel(partial(_curves, table=table, filled=filled, title=f"{table.name}\n{_wrapped(table.title)}"), height)


def _of_claim(claim: PaperClaim, filled: Sequence[Filled], results: Results) -> Iterator[Panel]:
    title = f"{claim.name}: {verdicts.judge(claim, results).words}\n{_wrapped(claim.says)}"
    measures = dict.fromkeys(cell.cell.measure for cell in filled)
    every = [[cell for cell in filled if cell.cell.measure == measure] for measure in measures]
    varied = [cells for cells in every if len({(one.cell.metric, one.cell.overrides) for one in cells}) > 1]
    for of_measure in varied or every:
        look = _rows if len({cell.cell.column for cell in of_measure}) == 1 else _curves
        yield Panel(partial(look, table=claim, filled=of_measure, title=title))


def _wrapped(text: str, width: int = 60) -> str:
    return textwrap.fill(text, width)


def draw(drawn: Sequence[Panel]) -> Figure:
    """Draw panels side by side: hollow markers and dashes for the paper, filled ones with error bars for measurements.

    A cell without own runs has the number that is committed with the package, which the legend calls "project". A claim
    has the interval of its seeds for an error bar, and theory as a line. Panels of one quantity have one range.
    """
    from matplotlib.figure import Figure

    size = 5.2 * len(drawn), max(panel.height for panel in drawn)
    with plots.panels(Figure, size, [1] * len(drawn)) as (figure, axes):
        for axis, panel in zip(axes, drawn, strict=True):
            panel.draw(axis)
        plots.share_range(axes)
    return figure


def _legend(axis: Any, title: str | None) -> None:
    """Put the legend below the axis and its label, where it hides nothing."""
    from matplotlib.transforms import offset_copy

    inches = 0.25 + 0.15 * len(axis.get_xlabel().splitlines())
    below = offset_copy(axis.transAxes, fig=axis.figure, y=-inches, units="inches")
    position = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "bbox_transform": below}
    short = all(len(name) < 28 for name in axis.get_legend_handles_labels()[1])
    axis.legend(title=title, ncols=2 if short else 1, frameon=False, **position)


def _curves(axis: Any, table: Table, filled: Sequence[Filled], title: str) -> None:
    claim = table if isinstance(table, PaperClaim) else None
    theory = claim.theory if claim else {}
    lines = {curve: THEORY | {"linestyle": DASHES[i % len(DASHES)]} for i, curve in enumerate(theory)}
    order = {column: float(i) for i, column in enumerate(table.columns())}  # of a table, which has no x axis
    x = {one.cell.column: order[one.cell.column] if one.cell.x is None else one.cell.x for one in filled}
    for i, label in enumerate(dict.fromkeys(one.cell.label for one in filled)):
        row = [one for one in filled if one.cell.label == label]
        # The axis has the measure of a claim.
        name = row[0].cell.row if claim else label
        _curve(partial(plots.line, axis, i), row, x, name, lines.get(label), claim is not None)
    for curve, numbers in theory.items():
        if numbers:
            given = [number for column, number in zip(table.columns(), numbers, strict=True) if column in x]
            axis.plot(list(x.values()), given, label=f"theory: {curve}", **lines[curve])
    plots.ticks(axis, list(x.values()), list(x), table.doubling)
    measures = {one.cell.measure for one in filled}
    metrics = {f"{one.cell.metric} (%)" if one.cell.share else one.cell.metric for one in filled}
    y = measures.pop() if claim and measures != {""} else table.y or ", ".join(sorted(metrics))
    axis.set(xlabel=table.x or "column of the table", ylabel=y)
    axis.set_title(title, fontsize="medium")
    runs = max((len(one.values or one.measured) for one in filled), default=0)
    _legend(axis, f"mean and {1 - 2 * ERROR:.0%} interval of {runs} seeds" if claim and runs > 1 else None)


def _curve(
    line: Callable[..., None],
    row: Sequence[Filled],
    x: Mapping[str, float],
    name: str,
    theory: Mapping[str, Any] | None,
    of_claim: bool,
) -> None:
    """Draw a row: the paper's numbers, and those of the runs, or else the committed ones.

    Args:
        line: draws points in the look of the row.
        x: values of the columns.
        theory: the look of a row that measures what a formula says, which is drawn as a line.
        of_claim: the bars are intervals of the mean, not deviations; committed numbers are not marked as such.
    """
    bar = partial(half_width, error=ERROR) if of_claim else deviation
    reported = [(x[one.cell.column], one.cell.paper) for one in row if one.cell.paper is not None]
    ours = [(x[one.cell.column], one.values) for one in row if one.values]
    measured = ours or [(x[one.cell.column], one.measured) for one in row if one.measured]
    if reported:
        line(*zip(*reported, strict=True), label=f"{name} (paper)", linestyle="--", mfc="white")
    if not measured:
        if not reported:
            line([], [], label=f"{name} (no numbers yet)", linestyle="none")
        return
    values_x, numbers = zip(*measured, strict=True)
    means = [mean(values) for values in numbers]
    if theory:
        line(values_x, means, label=f"theory: {row[0].cell.label}", marker="", **theory)
        return
    label = name if ours or of_claim else f"{name} (project)"
    line(values_x, means, [bar(values) or 0.0 for values in numbers], label=label, linestyle="-")


def _rows(axis: Any, table: PaperClaim, filled: Sequence[Filled], title: str) -> None:
    """Draw a claim with one column: its rows beside each other, and a thin line for each seed."""
    numbers = [one.values or one.measured for one in filled]
    for of_seed in zip(*numbers, strict=False):
        axis.plot(of_seed, **THEORY | {"linewidth": 0.8})
    for i, values in enumerate(numbers):
        if values:
            plots.line(axis, i, [i], [mean(values)], [half_width(values, ERROR)], marker="o", linestyle="-", capsize=5)
    plots.ticks(axis, range(len(filled)), [textwrap.fill(one.cell.label, 12) for one in filled])
    lines = f"{table.x}: {filled[0].cell.column}\nmean and {1 - 2 * ERROR:.0%} interval; a thin line for each seed"
    axis.set(xlim=(-0.5, len(filled) - 0.5), xlabel=lines, ylabel=table.y)
    axis.set_title(title, fontsize="medium")
