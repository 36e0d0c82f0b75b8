"""Claims of the papers at a reduced size: a few runs, and rules that say whether they show the claim.

A criterion makes one number of the runs of each seed. An interval of their mean, by Student's t over the seeds,
decides: the criterion is shown if the interval lies wholly within its limits, contradicted if wholly outside, and
undecided in between. A margin around 0 has two limits, so that this is two one-sided tests.

Each end of a control's interval errs in 5% of cases. The criteria share these 5% after Holm: of m one-sided p-values,
on the side where the mean lies, the smallest is compared with 5% / m, the next with 5% / (m - 1), and so on up to the
first that is larger, whose level the rest keeps. A criterion's interval has the level at which it was compared, so that
what is printed is what decides. A criterion whose runs are not complete counts as one of the m, and comes last.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ssl_bench.papers.cells import Cell, Table
from ssl_bench.results.statistics import beyond, deviation, tail

ERROR = 0.05  # of one end of an interval, before Holm's correction


class ClaimVerdict(Enum):
    """The verdict on a criterion or on a claim."""

    SHOWN = "shown"
    CONTRADICTED = "contradicted"
    UNDECIDED = "undecided"
    NOT_RUN = "not run"


STATISTICS: dict[str, Callable[[Sequence[float], Sequence[float]], float]] = {  # of numbers y at the values x
    "mean": lambda y, x: statistics.fmean(y),
    "largest": lambda y, x: max(y),
    "range": lambda y, x: max(y) - min(y),
    "endpoints": lambda y, x: y[-1] - y[0],
    "slope": lambda y, x: statistics.linear_regression([math.log2(value) for value in x], y).slope,
}


def half_width(values: Sequence[float], error: float = ERROR) -> float:
    """Half of the mean's interval by Student's t, each end of which errs so often; NaN of fewer than two values."""
    if (spread := deviation(values)) is None:
        return math.nan
    return float(beyond(error, len(values) - 1)) * max(spread, 1e-15) / math.sqrt(len(values))  # equal up to rounding


@dataclass(frozen=True)
class Criterion:
    """A comparison that the runs of a claim must pass.

    Attributes:
        says: the comparison in words.
        limit: where the mean over the seeds must lie, in words.
        limits: the ends of this open interval.
        statistic: a key of STATISTICS: the function that makes one number of several cells, in their order.
        of: the cells.
        minus: the cells whose number is subtracted, seed by seed; empty for none.
        control: the claim is undecided unless this is shown.
    """

    says: str
    limit: str
    limits: tuple[float, float]
    statistic: str
    of: tuple[Cell, ...]
    minus: tuple[Cell, ...]
    control: bool

    @property
    def seeds(self) -> list[int]:
        """The seeds that the paper's file names; runs with others do not count."""
        return sorted(set.intersection(*(set(cell.seeds) for cell in (*self.of, *self.minus))))

    def numbers(self, values: Callable[[Cell], Mapping[int, float]]) -> list[float]:
        """The number of each seed that all cells have, by seed."""
        by_cell = {cell: values(cell) for cell in (*self.of, *self.minus)}

        def number(cells: Sequence[Cell], seed: int) -> float:
            return STATISTICS[self.statistic]([by_cell[cell][seed] for cell in cells], [cell.x or 0 for cell in cells])

        complete = [seed for seed in self.seeds if all(seed in of_cell for of_cell in by_cell.values())]
        return [number(self.of, seed) - (number(self.minus, seed) if self.minus else 0.0) for seed in complete]


@dataclass(frozen=True)
class Tested:
    """A criterion with the numbers of its seeds.

    Attributes:
        error: probability that one end of the interval from ``low`` to ``high`` is wrong.
        low, high: NaN for fewer than two seeds.
        p: the error at which the interval would end at the nearest limit.
    """

    criterion: Criterion
    numbers: list[float]
    error: float
    mean: float
    low: float
    high: float
    p: float
    verdict: ClaimVerdict


@dataclass(frozen=True)
class PaperClaim(Table):
    """A sentence of a paper, or of ours, with the table of runs that can show it.

    Attributes:
        says: the claim in words, with "Ours: " before a sentence that is no paper's.
        ours: whether it is no paper's.
        where: the section, table or figure of the paper that it is in or about.
        kind: exact, trend or comparison.
        seeds_because: why these seeds, and so many.
        criteria: the controls, and then what the claim asks.
        minutes: time of all runs on two cores.
        theory: what a formula gives for each column, by the name of the curve; empty for a row that measures it.
        contradicted: the verdict in words if a criterion is contradicted.
    """

    says: str
    ours: bool
    where: str
    kind: str
    seeds_because: str
    criteria: tuple[Criterion, ...]
    minutes: float
    theory: Mapping[str, Sequence[float]]
    contradicted: str

    def findings(self, values: Callable[[Cell], Mapping[int, float]]) -> list[Tested]:
        """Apply each criterion to the values of the cells, by seed."""
        tested = {criterion: judge(criterion, criterion.numbers(values)) for criterion in self.criteria}
        others = [finding for finding in tested.values() if not finding.criterion.control]
        others.sort(key=lambda finding: (finding.verdict is ClaimVerdict.NOT_RUN, finding.p))
        error, decided = ERROR, True
        for rank, finding in enumerate(others):
            error = ERROR / (len(others) - rank) if decided else error
            judged = judge(finding.criterion, finding.numbers, error)
            tested[finding.criterion] = judged
            decided = judged.verdict in (ClaimVerdict.SHOWN, ClaimVerdict.CONTRADICTED)
        return list(tested.values())


def verdict(findings: Sequence[Tested]) -> ClaimVerdict:
    """The verdict of a claim: undecided if a control fails, and else the worst of its criteria."""
    verdicts = {finding.verdict for finding in findings}
    if failed(findings) and ClaimVerdict.NOT_RUN not in verdicts:
        return ClaimVerdict.UNDECIDED
    worst = (ClaimVerdict.NOT_RUN, ClaimVerdict.CONTRADICTED, ClaimVerdict.UNDECIDED, ClaimVerdict.SHOWN)
    return next(one for one in worst if one in verdicts)


def failed(findings: Sequence[Tested]) -> list[Tested]:
    """The controls whose interval is not wholly on the right side."""
    ill = (ClaimVerdict.CONTRADICTED, ClaimVerdict.UNDECIDED)
    return [finding for finding in findings if finding.criterion.control and finding.verdict in ill]


def judge(criterion: Criterion, numbers: list[float], error: float = ERROR) -> Tested:
    """Judge a criterion by the numbers of its seeds."""
    (lower, upper), half = criterion.limits, half_width(numbers, error)
    mean = statistics.fmean(numbers) if numbers else math.nan
    halves = min(abs(mean - lower), abs(mean - upper)) / half  # from the mean to the nearest limit
    degrees = len(numbers) - 1
    p = float(tail(halves * beyond(error, degrees), degrees)) if degrees > 0 else 1.0
    judged = ClaimVerdict.UNDECIDED
    if len(numbers) < len(criterion.seeds):
        judged = ClaimVerdict.NOT_RUN
    elif lower < mean - half and mean + half < upper:
        judged = ClaimVerdict.SHOWN
    elif mean + half < lower or upper < mean - half:
        judged = ClaimVerdict.CONTRADICTED
    return Tested(criterion, numbers, error, mean, mean - half, mean + half, p, judged)
