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
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ssl_bench.papers import design, measurements
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.cells import BASELINES, RAW, Cell, Table
from ssl_bench.papers.fill import fill
from ssl_bench.results import statistics
from ssl_bench.results.statistics import Estimate, mean

Values = Callable[[Cell], Mapping[int, float]]  # of a cell by seed
Right = Callable[[Cell], "np.ndarray | None"]  # share of the cell's seeds that have each image right [M]
PERCENT = 100
Numbers = Mapping[Cell, Sequence[float]]


@dataclass(frozen=True)
class Difference:
    """A cell less that of another row.

    Attributes:
        n: seeds of both; empty if one has fewer than two.
        low, high: of its 95% interval, without correction.
        share: part of the images in its variance; NaN: it is of the seeds only.
        margin: below which it does not matter; NaN: a part of a gap that is not known.
        verdict: ``better``, ``worse``, ``no difference larger than``, ``undecided``, ``no verdict``, or ``not run``; of
            a placebo ``holds`` or ``does not hold``.
    """

    cell: Cell
    n: tuple[int, ...] = ()
    mean: float = math.nan
    low: float = math.nan
    high: float = math.nan
    share: float = math.nan
    margin: float = math.nan
    verdict: str = "not run"

    @property
    def name(self) -> str:
        """The row, of a placebo with the row that it equals, and the column."""
        return f"{self.cell.label}{f' less {self.cell.against}' * self.cell.placebo}, {self.cell.column}"

    @property
    def line(self) -> str:
        """It in words."""
        of = "seeds only" if math.isnan(self.share) else f"mostly {'images' if self.share > 0.5 else 'seeds'}"
        numbers = f"{self.mean:+.2f} [{self.low:.2f}, {self.high:.2f}], n = {' and '.join(map(str, self.n))}, {of}"
        return f"- {self.name}: {numbers}: {self.verdict}"


@dataclass(frozen=True)
class Comparison:
    """The differences of a table.

    Attributes:
        planned: number of the comparisons that are no placebos.
        reasons: why there is no verdict on some, in sentences.
        deviations: over seeds as they are pooled, in words.
    """

    differences: list[Difference]
    planned: int = 0
    reasons: Sequence[str] = ()
    deviations: Sequence[str] = ()

    @property
    def ran(self) -> list[Difference]:
        """Those with enough runs."""
        return [each for each in self.differences if each.n]


def compare(table: Table, values: Values, right: Right = lambda cell: None) -> Comparison:
    """Compare the cells of a table with those of its reference row, and its placebos with what they equal."""
    cells = {(cell.row, cell.column, cell.measure): cell for cell in table.cells}
    pairs = [(cell, cells[cell.against, cell.column, cell.measure]) for cell in table.cells if cell.against]
    numbers = {cell: [value for seed, value in values(cell).items() if seed in cell.seeds] for cell in table.cells}
    ran = [pair for pair in pairs if min(len(numbers[cell]) for cell in pair) > 1]
    differences = {cell: Difference(cell) for cell, _ in pairs}
    planned = sum(not cell.placebo for cell in differences)
    if not ran:
        return Comparison(list(differences.values()), planned)
    pooled, deviations = _pooled(list(dict.fromkeys(cell for pair in ran for cell in pair)), numbers)
    estimates = [_estimate(*pair, numbers, pooled, right) for pair in ran]
    found = statistics.stacked([each for each, _ in estimates])
    levels = [_level(table, cell, cells, numbers) for cell, _ in ran]
    margins, asked = np.array([margin for margin, _ in levels]), [not cell.placebo for cell, _ in ran]
    compared = [each for (each, _), ask in zip(estimates, asked, strict=True) if ask]
    words = iter(statistics.decided(statistics.stacked(compared), margins[asked], planned, table.error))
    shares = np.where([known for _, known in estimates], found.images / found.error**2, math.nan)
    printed = np.stack([found.mean, *found.interval(), shares, margins], axis=1).tolist()
    for (cell, other), (value, low, high, share, margin) in zip(ran, printed, strict=True):
        holds = "holds" if max(-low, high) < margin / 2 else "does not hold"
        verdict = holds if cell.placebo else next(words) or "undecided"
        n = len(numbers[cell]), len(numbers[other])
        differences[cell] = Difference(cell, n, value, low, high, share, margin, verdict)
    bad = [f"placebo {d.name}: {d.verdict}" for d in differences.values() if d.cell.placebo and d.verdict != "holds"]
    for (cell, _), (_, reason) in zip(ran, levels, strict=True):
        if not cell.placebo and (bad or reason):
            differences[cell] = replace(differences[cell], verdict="no verdict")
    reasons = [*bad, *dict.fromkeys(reason for _, reason in levels if reason)]
    return Comparison(list(differences.values()), planned, reasons, deviations)


def _pooled(cells: Sequence[Cell], numbers: Numbers) -> tuple[dict[Cell, tuple[np.float64, int]], list[str]]:
    """The variance over seeds of each cell's group, with its degrees of freedom, and the deviations in words."""
    from scipy.stats import chi2

    groups = [(cell.column, cell.measure, cell.spread) for cell in cells]
    names, n = list(dict.fromkeys(groups)), np.array([len(numbers[cell]) for cell in cells])
    own = np.array([np.var(numbers[cell], ddof=1) for cell in cells])
    variance, degrees = statistics.pooled(own, n, np.array([names.index(group) for group in groups]))
    excess = chi2.sf((n - 1) * own / variance.clip(statistics.ROUNDING**2), n - 1) * len(cells) < statistics.ERROR
    words = []
    for name in names:
        of = [i for i, group in enumerate(groups) if group == name]
        more = [cells[i].label for i in of if excess[i]]
        text = f"{' '.join(filter(None, name))} {math.sqrt(variance[of[0]]):.2f} ({degrees[of[0]]})"
        words.append(text + f", which does not hold for {', '.join(more)}: set its spread" * bool(more))
    return dict(zip(cells, zip(variance, degrees, strict=True), strict=True)), words


def _estimate(
    cell: Cell, other: Cell, numbers: Numbers, pooled: Mapping[Cell, tuple[np.float64, int]], right: Right
) -> tuple[Estimate, bool]:
    """The difference of two cells, and whether their images are known."""
    (variance, degrees), (its, freedom) = pooled[cell], pooled[other]
    n, of = len(numbers[cell]), len(numbers[other])
    parts = [(variance / n, degrees), (its / of, freedom)]
    if cell.spread == other.spread:  # one estimate serves both
        parts = [(variance / n + its / of, degrees)]
    value, share, its_share = np.mean(numbers[cell]) - np.mean(numbers[other]), right(cell), right(other)
    if share is None or its_share is None or len(share) != len(its_share):
        return statistics.difference(value, parts, 0.0, 1), False
    own, others = (np.var(numbers[each], ddof=1) / PERCENT**2 for each in (cell, other))
    images = statistics.images(share, n, own, its_share, of, others) * PERCENT**2
    return statistics.difference(value, parts, images, len(share)), True


def _level(table: Table, cell: Cell, cells: Mapping[tuple[str, str, str], Cell], numbers: Numbers) -> tuple[float, str]:
    """The margin in the cell's column, and why there is no verdict in it: baselines too near to the reference."""
    rows = (table.reference, *BASELINES)
    if not table.gap:
        return table.margin, ""
    where = f"{cell.column} {cell.measure}".rstrip()
    found = {row: mean(numbers[cells[row, cell.column, cell.measure]]) for row in rows}
    known = {row: value for row, value in found.items() if value is not None}
    if absent := [row for row in rows if row not in known]:
        return math.nan if table.relative else table.margin, f"{where}: no numbers of {' and '.join(absent)}"
    height, raw = known[table.reference], known[RAW]
    near = [f"{row} {known[row]:.2f}" for row in BASELINES if height - known[row] < table.gap]
    reason = f"{where}: {' and '.join(near)} not {table.gap:g} below {table.reference} {height:.2f}" if near else ""
    return table.margin * (height - raw) if table.relative else table.margin, reason


def measured(table: Table, results: Results) -> tuple[Comparison, str]:
    """The comparison of the runs of a results folder, or of the committed ones if it has none.

    The second is " (project)" if it is of committed runs, else "".
    """
    if any(results.values(cell) for cell in table.cells):
        return compare(table, results.values, results.right), ""
    return compare(table, partial(measurements.values, table), partial(measurements.right, table)), " (project)"


def lines(table: Table, results: Results) -> list[str]:
    """Each comparison as a line; of a design what is fitted to it."""
    if table.design:
        return design.lines(table, fill(table, table.cells, results))
    found, whose = measured(table, results)
    if not found.ran:
        return []
    head = f"Difference to {table.reference}{whose}: mean [95% interval], seeds of both, what varies most: verdict"
    levels = dict.fromkeys(f"{each.cell.column} {each.margin:.2f}" for each in found.ran if each.margin > 0)
    margin = f"Margin: {'; '.join(levels)}." if table.relative else f"Margin: {table.margin:g}."
    return [
        f"{head}, {table.error:.0%} error for all {found.planned} that are planned.",
        "",
        *(each.line for each in found.ran),
        "",
        f"Deviation over seeds, pooled (degrees of freedom): {'; '.join(found.deviations)}. {margin}",
        *([f"No verdict: {'; '.join(found.reasons)}."] if found.reasons else []),
    ]
