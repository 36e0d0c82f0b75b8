"""Comparison of the rows of a table with one of them, cell by cell.

Of each cell, its mean less that of the reference row in the same column has a 95% interval over seeds and, where the
runs have recorded which images are right, over images (:mod:`ssl_bench.results.statistics`). Seeds are not paired: two
losses with one seed are no more alike than with two. The variance over seeds is pooled in a column over the rows of one
``spread``. Two questions are asked of each difference:

* is it 0? Two-sided; "better" or "worse" if not;
* is it as large as the margin? "no difference larger than" the margin if not.

Each has the error of the table, 5% unless it says otherwise, for all comparisons that the table plans, run or not, by
Holm's step-down. Comparing many with one as Dunnett (1955) gains little on it: the reference has more seeds than the
rest, so that differences hardly correlate.

A column has no verdict unless raw pixels and the network at initialisation lie at least ``gap`` below the reference.
The table has none unless the interval of each placebo, a row that is known to equal another, lies within half the
margin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ssl_bench.papers import design, measurements
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.cells import BASELINES, RAW, Cell, Table
from ssl_bench.papers.fill import fill
from ssl_bench.results import statistics
from ssl_bench.results.compared import Comparison
from ssl_bench.results.statistics import Estimate, mean

Values = Callable[[Cell], Mapping[int, float]]  # of a cell by seed
Right = Callable[[Cell], "np.ndarray | None"]  # share of the cell's seeds that have each image right [M]
Numbers = Mapping[Cell, Sequence[float]]  # of the seeds that the table names
Variances = Mapping[Cell, tuple[np.float64, int]]  # over seeds, with their degrees of freedom
PERCENT = 100


@dataclass(kw_only=True)
class CellComparison(Comparison):
    """A cell compared with that of another row: ``n`` values with ``to_n``, which are no pairs.

    Its verdict is ``not run`` if one of them has fewer than two; that of a placebo is ``holds`` or ``does not hold``.

    Attributes:
        margin: below which a difference does not matter; NaN: a part of a gap that is not known.
        obstacle: why there is no verdict in the column; empty: there is one.
    """

    cell: Cell
    to_n: int
    margin: float = math.nan
    obstacle: str = ""

    @property
    def name(self) -> str:
        """The row, of a placebo with the row that it equals, and the column."""
        return f"{self.of}{f' less {self.to}' * self.cell.placebo}, {self.where}"

    @property
    def line(self) -> str:
        """It in words."""
        numbers = f"{self.difference:+.2f} [{self.low:.2f}, {self.high:.2f}], n = {self.n} and {self.to_n}"
        varies = self.varies if self.varies == "seeds only" else f"mostly {self.varies}"
        return f"- {self.name}: {numbers}, {varies}: {self.verdict}"


@dataclass(frozen=True)
class TableComparison:
    """The cells of a table compared with those of other rows.

    Attributes:
        rows: all comparisons that are planned, also placebos.
        reasons: why there is no verdict on some, in sentences.
        deviations: over seeds as they are pooled, in words.
    """

    rows: list[CellComparison]
    reasons: Sequence[str] = ()
    deviations: Sequence[str] = ()

    @property
    def planned(self) -> int:
        """Number of the comparisons that are no placebos."""
        return sum(not row.cell.placebo for row in self.rows)

    @property
    def ran(self) -> list[CellComparison]:
        """The comparisons with enough values."""
        return [row for row in self.rows if min(row.n, row.to_n) > 1]


def compare_rows(table: Table, values: Values, right: Right = lambda cell: None) -> TableComparison:
    """Compare the cells of a table with those of its reference row, and its placebos with what they equal."""
    cells = {(cell.row, cell.column, cell.measure): cell for cell in table.cells}
    numbers = {cell: [value for seed, value in values(cell).items() if seed in cell.seeds] for cell in table.cells}
    others = {cell: cells[cell.against, cell.column, cell.measure] for cell in table.cells if cell.against}
    n = {cell: len(of_cell) for cell, of_cell in numbers.items()}
    rows = [
        CellComparison(cell.column, cell.label, cell.against, n[cell], cell=cell, to_n=n[other], verdict="not run")
        for cell, other in others.items()
    ]
    planned = TableComparison(rows)
    if not planned.ran:
        return planned
    variances, deviations = _pooled([cell for row in planned.ran for cell in (row.cell, others[row.cell])], numbers)
    asked = list[tuple[CellComparison, Estimate]]()
    for row in planned.ran:
        estimate, images = _estimate(row.cell, others[row.cell], numbers, variances, right)
        row.difference = float(estimate.mean)
        row.bound(estimate, images)
        row.margin, row.obstacle = _margin(table, row.cell, cells, numbers)
        if row.cell.placebo:
            row.verdict = "holds" if max(-row.low, row.high) < row.margin / 2 else "does not hold"
        else:
            asked.append((row, estimate))
    margins = np.array([row.margin for row, _ in asked])
    together = statistics.stacked([estimate for _, estimate in asked])
    unequal = [f"placebo {row.name}: {row.verdict}" for row in planned.rows if row.verdict == "does not hold"]
    for (row, _), answer in zip(
        asked, statistics.answers(together, margins, planned.planned, table.error), strict=True
    ):
        row.verdict = "no verdict" if unequal or row.obstacle else answer.verdict or "undecided"
    reasons = [*unequal, *dict.fromkeys(row.obstacle for row in planned.ran if row.obstacle)]
    return TableComparison(planned.rows, reasons, deviations)


def _pooled(cells: Sequence[Cell], numbers: Numbers) -> tuple[Variances, list[str]]:
    """The variance over seeds of each cell's group, with its degrees of freedom, and the deviations in words."""
    from scipy.stats import chi2

    cells = list(dict.fromkeys(cells))
    groups = [(cell.column, cell.measure, cell.spread) for cell in cells]
    names, n = list(dict.fromkeys(groups)), np.array([len(numbers[cell]) for cell in cells])
    of_cells = np.array([np.var(numbers[cell], ddof=1) for cell in cells])
    variance, degrees = statistics.pooled(of_cells, n, np.array([names.index(group) for group in groups]))
    excess = chi2.sf((n - 1) * of_cells / variance.clip(statistics.ROUNDING**2), n - 1) * len(cells) < statistics.ERROR
    words = []
    for name in names:
        members = [number for number, group in enumerate(groups) if group == name]
        larger = [cells[number].label for number in members if excess[number]]
        text = f"{' '.join(filter(None, name))} {math.sqrt(variance[members[0]]):.2f} ({degrees[members[0]]})"
        words.append(text + f", which does not hold for {', '.join(larger)}: set its spread" * bool(larger))
    return dict(zip(cells, zip(variance, degrees, strict=True), strict=True)), words


def _estimate(cell: Cell, other: Cell, numbers: Numbers, variances: Variances, right: Right) -> tuple[Estimate, bool]:
    """The difference of two cells, and whether their images are known."""
    sides = (cell, other)
    n = [len(numbers[side]) for side in sides]
    parts = [(variances[side][0] / count, variances[side][1]) for side, count in zip(sides, n, strict=True)]
    if cell.spread == other.spread:  # one estimate serves both
        parts = [(parts[0][0] + parts[1][0], parts[0][1])]
    difference, shares = np.mean(numbers[cell]) - np.mean(numbers[other]), [right(side) for side in sides]
    if shares[0] is None or shares[1] is None or len(shares[0]) != len(shares[1]):
        return statistics.difference(difference, parts, 0.0, 1), False
    variance, other_variance = (np.var(numbers[side], ddof=1) / PERCENT**2 for side in sides)
    images = statistics.images(shares[0], n[0], variance, shares[1], n[1], other_variance) * PERCENT**2
    return statistics.difference(difference, parts, images, len(shares[0])), True


def _margin(
    table: Table, cell: Cell, cells: Mapping[tuple[str, str, str], Cell], numbers: Numbers
) -> tuple[float, str]:
    """The margin in the cell's column, and why there is no verdict in it: baselines too near to the reference."""
    if not table.gap:
        return table.margin, ""
    where = f"{cell.column} {cell.measure}".rstrip()
    rows = (table.reference, *BASELINES)
    means = {row: mean(numbers[cells[row, cell.column, cell.measure]]) for row in rows}
    measured = {row: value for row, value in means.items() if value is not None}
    if absent := [row for row in rows if row not in measured]:
        return math.nan if table.relative else table.margin, f"{where}: no numbers of {' and '.join(absent)}"
    height, raw = measured[table.reference], measured[RAW]
    near = [f"{row} {measured[row]:.2f}" for row in BASELINES if height - measured[row] < table.gap]
    reason = f"{where}: {' and '.join(near)} not {table.gap:g} below {table.reference} {height:.2f}" if near else ""
    return table.margin * (height - raw) if table.relative else table.margin, reason


def measured(table: Table, results: Results) -> tuple[TableComparison, str]:
    """The comparison of the runs of a results folder, or of the committed ones if it has none.

    The second is " (project)" if it is of committed runs, else "".
    """
    if any(results.values(cell) for cell in table.cells):
        return compare_rows(table, results.values, results.right), ""
    return compare_rows(table, partial(measurements.values, table), partial(measurements.right, table)), " (project)"


def lines(table: Table, results: Results) -> list[str]:
    """Each comparison as a line; of a design what is fitted to it."""
    if table.design:
        return design.lines(table, fill(table, table.cells, results))
    comparison, whose = measured(table, results)
    if not comparison.ran:
        return []
    head = f"Difference to {table.reference}{whose}: mean [95% interval], seeds of both, what varies most: verdict"
    margins = dict.fromkeys(f"{row.cell.column} {row.margin:.2f}" for row in comparison.ran if row.margin > 0)
    margin = f"Margin: {'; '.join(margins)}." if table.relative else f"Margin: {table.margin:g}."
    return [
        f"{head}, {table.error:.0%} error for all {comparison.planned} that are planned.",
        "",
        *(row.line for row in comparison.ran),
        "",
        f"Deviation over seeds, pooled (degrees of freedom): {'; '.join(comparison.deviations)}. {margin}",
        *([f"No verdict: {'; '.join(comparison.reasons)}."] if comparison.reasons else []),
    ]
