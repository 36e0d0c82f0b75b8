"""Draw a paper's figure from a table: each row is a curve, each column a value on the x axis."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ssl_bench.papers import verdicts
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.cells import Table
from ssl_bench.papers.claims import ERROR, PaperClaim
from ssl_bench.papers.fill import Filled
from ssl_bench.record.plots import DASHES, line, panels, ticks
from ssl_bench.results.statistics import deviation, half_width, mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THEORY: dict[str, Any] = {"color": "#555555", "linewidth": 2.5, "alpha": 0.7, "zorder": 1}


def draw(filled: Sequence[tuple[Table, Sequence[Filled]]], results: Results) -> Figure:
    """Draw tables side by side: hollow markers and dashes for the paper, filled ones with error bars for measurements.

    A cell without own runs has the number that is committed with the package, which the legend calls "project". A claim
    has the interval of its seeds for an error bar, theory as a line, and a panel for each measure that varies over its
    cells, if any does. Panels of one quantity have one range.
    """
    drawn = [(table, cells) for table, of_table in filled for cells in _parts(table, of_table)]
    labels = [len({one.cell.label for one in cells}) for table, cells in drawn if not isinstance(table, PaperClaim)]
    with panels(len(drawn), (5.2, max(4.3, 3 + 0.2 * max(labels, default=0)))) as (figure, axes):
        for axis, (table, cells) in zip(axes, drawn, strict=True):
            name, text, look = table.name, table.title, _curves
            if isinstance(table, PaperClaim):
                name, text = f"{name}: {verdicts.judge(table, results).words}", table.says
                look = _rows if len({one.cell.column for one in cells}) == 1 else _curves
            look(axis, table, cells)
            axis.set_title(f"{name}\n{textwrap.fill(text, 60)}")
        quantities = [axis.get_ylabel() for axis in axes]
        for quantity in {*quantities}:
            of_it = [axis for axis, name in zip(axes, quantities, strict=True) if name == quantity]
            ends = [end for axis in of_it for end in axis.get_ylim()]
            for axis in of_it:
                axis.set_ylim(min(ends), max(ends))
    return figure  # type: ignore[no-any-return]


def _parts(table: Table, filled: Sequence[Filled]) -> Sequence[Sequence[Filled]]:
    """The cells of each panel of a table."""
    if not isinstance(table, PaperClaim):
        return [filled]
    measures = dict.fromkeys(one.cell.measure for one in filled)
    every = [[one for one in filled if one.cell.measure == measure] for measure in measures]
    return [cells for cells in every if len({(one.cell.metric, one.cell.overrides) for one in cells}) > 1] or every


def _curves(axis: Any, table: Table, filled: Sequence[Filled]) -> None:
    """Draw a line for each row: the paper's numbers, and those of the runs, or else the committed ones."""
    claim = table if isinstance(table, PaperClaim) else None
    theory = claim.theory if claim else {}  # a row that measures what a formula says is drawn as a line, too
    looks = {
        curve: THEORY | {"label": f"theory: {curve}", "linestyle": DASHES[i % len(DASHES)]}
        for i, curve in enumerate(theory)
    }
    order = {column: float(i) for i, column in enumerate(table.columns())}  # of a table, which has no x axis
    x = {one.cell.column: order[one.cell.column] if one.cell.x is None else one.cell.x for one in filled}
    bar = partial(half_width, error=ERROR) if claim else deviation
    for i, label in enumerate(dict.fromkeys(one.cell.label for one in filled)):
        row = [one for one in filled if one.cell.label == label]
        name = row[0].cell.row if claim else label  # the axis has the measure of a claim
        paper = {x[one.cell.column]: one.cell.paper for one in row if one.cell.paper is not None}
        ours = {x[one.cell.column]: one.values for one in row if one.values}
        measured = ours or {x[one.cell.column]: one.measured for one in row if one.measured}
        means, halves = list(map(mean, measured.values())), [bar(values) or 0.0 for values in measured.values()]
        if paper:
            line(axis, i, [*paper], [*paper.values()], label=f"{name} (paper)", linestyle="--", mfc="white")
        if not measured and not paper:
            line(axis, i, [], [], label=f"{name} (no numbers yet)", linestyle="none")
        elif measured and label in looks:
            axis.plot([*measured], means, **looks[label])
        elif measured:
            line(
                axis, i, [*measured], means, halves, label=name + " (project)" * (not ours and not claim), linestyle="-"
            )
    for curve, numbers in theory.items():
        if numbers:
            given = [number for column, number in zip(table.columns(), numbers, strict=True) if column in x]
            axis.plot([*x.values()], given, **looks[curve])
    ticks(axis, [*x.values()], [*x], table.doubling)
    measures = {one.cell.measure for one in filled}
    metrics = {f"{one.cell.metric} (%)" if one.cell.share else one.cell.metric for one in filled}
    y = measures.pop() if claim and measures != {""} else table.y or ", ".join(sorted(metrics))
    axis.set(xlabel=table.x or "column of the table", ylabel=y)
    runs = max((len(one.values or one.measured) for one in filled), default=0)
    title = f"mean and {1 - 2 * ERROR:.0%} interval of {runs} seeds" if claim and runs > 1 else None
    short = all(len(name) < 28 for name in axis.get_legend_handles_labels()[1])
    # Below the axis and its label it hides nothing.
    axis.legend(title=title, ncols=1 + short, loc="upper center", bbox_to_anchor=(0.5, -0.14))


def _rows(axis: Any, table: Table, filled: Sequence[Filled]) -> None:
    """Draw a claim with one column: its rows beside each other, and a thin line for each seed."""
    numbers = [one.values or one.measured for one in filled]
    for of_seed in zip(*numbers, strict=False):
        axis.plot(of_seed, **THEORY | {"linewidth": 0.8})
    for i, values in enumerate(numbers):
        if values:
            line(axis, i, [i], [mean(values)], [half_width(values, ERROR)], marker="o", capsize=5)
    ticks(axis, range(len(filled)), [textwrap.fill(one.cell.label, 12) for one in filled])
    lines = f"{table.x}: {filled[0].cell.column}\nmean and {1 - 2 * ERROR:.0%} interval; a thin line for each seed"
    axis.set(xlim=(-0.5, len(filled) - 0.5), xlabel=lines, ylabel=table.y)
