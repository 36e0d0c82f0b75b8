"""Comparison of the rows of a table with one of them, paired by seed.

Of each cell, the difference to the cell of the reference row in the same column is one number per seed. Their mean has
a two-sided interval by Student's t, and two questions are asked of it:

* is it 0? Two-sided; "better" or "worse" if not;
* is it as large as the margin? Two one-sided tests (Schuirmann 1987); "no difference larger than" the margin if not.

Each question is asked of every cell, so each has 5% for all of them together, divided by Holm's step-down: of m
p-values the smallest is compared with 5% / m, the next with 5% / (m - 1), up to the first that is larger.

The seeds vary the training. The images of the evaluation are the same for all, so the interval does not say what other
images would give.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ssl_bench.papers import measurements, surface
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.cells import Cell, Table
from ssl_bench.papers.claims import ERROR, ROUNDING
from ssl_bench.papers.fill import fill


@dataclass(frozen=True)
class Difference:
    """A cell less that of the reference row.

    Attributes:
        numbers: one for each seed that both have; empty if there are fewer than two.
        low, high: of the 95% interval of their mean, without correction.
        verdict: ``better``, ``worse``, ``undecided`` or ``not run``, or the margin that the difference lies within;
            corrected for the number of comparisons.
    """

    cell: Cell
    numbers: list[float]
    mean: float
    low: float
    high: float
    verdict: str


def compare(table: Table, values: Callable[[Cell], Mapping[int, float]]) -> list[Difference]:
    """Compare the cells of a table with those of its reference row; empty without one.

    Args:
        values: of a cell by seed.
    """
    from scipy.stats import t  # slow to import

    reference = {(cell.column, cell.measure): cell for cell in table.cells if cell.row == table.reference}
    cells = [cell for cell in table.cells if cell.row != table.reference and (cell.column, cell.measure) in reference]
    paired = {cell: _paired(values(cell), values(reference[cell.column, cell.measure])) for cell in cells}
    spread, differs, equals = dict[Cell, float](), dict[Cell, float](), dict[Cell, float]()
    for cell, numbers in paired.items():
        if numbers:
            error = max(statistics.stdev(numbers), ROUNDING) / math.sqrt(len(numbers))
            mean, degrees = abs(statistics.fmean(numbers)), len(numbers) - 1
            spread[cell] = float(t.isf(ERROR / 2, degrees)) * error
            differs[cell] = 2 * float(t.sf(mean / error, degrees))
            equals[cell] = float(t.sf((table.margin - mean) / error, degrees))
    unequal, equal = holm(differs), holm(equals)
    found = []
    for cell, numbers in paired.items():
        mean = statistics.fmean(numbers) if numbers else math.nan
        words = [("better" if mean > 0 else "worse")] if cell in unequal else []
        words += [f"no difference larger than {table.margin:g}"] if cell in equal else []
        verdict = ", ".join(words) or ("undecided" if numbers else "not run")
        half = spread.get(cell, math.nan)
        found.append(Difference(cell, numbers, mean, mean - half, mean + half, verdict))
    return found


def holm(p: Mapping[Cell, float], error: float = ERROR) -> set[Cell]:
    """The hypotheses that Holm's step-down rejects, by their p-values."""
    rejected = set[Cell]()
    for rank, cell in enumerate(sorted(p, key=lambda cell: p[cell])):
        if p[cell] > error / (len(p) - rank):
            break
        rejected.add(cell)
    return rejected


def measured(table: Table, results: Results) -> tuple[list[Difference], str]:
    """The differences that can be computed, of the runs of a results folder, or of the committed ones if it has none.

    The second is " (project)" if they are of committed runs, else "".
    """
    own = any(results.values(cell) for cell in table.cells)
    values = results.values if own else lambda cell: measurements.values(table, cell)
    return [each for each in compare(table, values) if each.numbers], "" if own else " (project)"


def lines(table: Table, results: Results) -> list[str]:
    """Each comparison as a line; of a design what is fitted to it."""
    if table.design:
        return surface.lines(table, fill(table, table.cells, results))
    ran, whose = measured(table, results)
    if not ran:
        return []
    head = f"Difference to {table.reference}, paired by seed{whose}: mean [95% interval]"
    return [f"{head}, verdict after Holm over {len(ran)}:", ""] + [
        f"- {each.cell.label}, {each.cell.column}: {each.mean:+.2f} [{each.low:.2f}, {each.high:.2f}], n = "
        f"{len(each.numbers)}: {each.verdict}"
        for each in ran
    ]


def _paired(of: Mapping[int, float], minus: Mapping[int, float]) -> list[float]:
    """The differences of the seeds that both have, if there are two or more."""
    seeds = sorted(set(of) & set(minus))
    return [of[seed] - minus[seed] for seed in seeds] if len(seeds) > 1 else []
