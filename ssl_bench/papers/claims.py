"""Claims of the papers at a reduced size: a few runs, and rules that say whether they show the claim.

A criterion makes one number of the runs of each seed, such as the difference of two cells, and compares the mean of
these numbers with a threshold. The claim is shown if the mean is on the right side with 95% confidence (Student's t,
one-sided, over the seeds), not shown if it is on the other side with 95% confidence, and undecided in between.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from ssl_bench.errors import ConfigError
from ssl_bench.papers.cells import Cell, Table

CONFIDENCE = 0.95  # of each side of an interval
Values = Mapping[int, float]  # by seed


class ClaimVerdict(Enum):
    """Of a criterion or a claim. A claim is shown if all of its criteria are, and not shown if one is not."""

    SHOWN = "shown"
    NOT_SHOWN = "not shown"
    UNDECIDED = "undecided"
    NOT_RUN = "not run"


def _trend(numbers: Sequence[float]) -> float:
    """Kendall's tau of the numbers and their order, in [-1, 1]: 1 if each is larger than the one before."""
    from scipy.stats import kendalltau  # slow to import

    tau = float(kendalltau(range(len(numbers)), numbers).statistic)
    return 0.0 if math.isnan(tau) else tau  # all numbers are equal


STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": lambda numbers: math.fsum(numbers) / len(numbers),
    "largest": max,
    "range": lambda numbers: max(numbers) - min(numbers),
    "trend": _trend,
}


@dataclass(frozen=True)
class Criterion:
    """A comparison that the runs of a claim must pass.

    Attributes:
        says: the comparison in words.
        statistic: of STATISTICS, which makes one number of several cells, in their order.
        of: the cells.
        minus: the cells whose number is subtracted, seed by seed; empty for none.
        above: the mean over the seeds must be above ``threshold``, not below it.
    """

    says: str
    statistic: str
    of: tuple[Cell, ...]
    minus: tuple[Cell, ...]
    above: bool
    threshold: float

    def numbers(self, values: Callable[[Cell], Values]) -> list[float]:
        """The number of each seed that all cells have, by seed."""
        by_cell = {cell: values(cell) for cell in (*self.of, *self.minus)}
        seeds = sorted(set.intersection(*(set(each) for each in by_cell.values())))

        def number(cells: Sequence[Cell], seed: int) -> float:
            return STATISTICS[self.statistic]([by_cell[cell][seed] for cell in cells])

        return [number(self.of, seed) - (number(self.minus, seed) if self.minus else 0.0) for seed in seeds]


@dataclass(frozen=True)
class Tested:
    """A criterion with the numbers of its seeds.

    Attributes:
        low, high: the mean lies above ``low``, and below ``high``, with 95% confidence each; NaN for a single seed.
    """

    criterion: Criterion
    numbers: list[float]
    mean: float
    low: float
    high: float
    verdict: ClaimVerdict


@dataclass(frozen=True)
class PaperClaim(Table):
    """A sentence of a paper, with the table of runs that can show it.

    Attributes:
        says: the claim in words.
        where: its place in the paper.
        minutes: time of all runs on two cores.
        beside: the paper's own numbers, as a line such as ``dcl/table1 row='CIFAR-10*'``; empty for none.
    """

    says: str
    where: str
    criteria: tuple[Criterion, ...]
    minutes: float
    beside: str

    def findings(self, values: Callable[[Cell], Values]) -> list[Tested]:
        """Apply each criterion to the values of the cells."""
        return [_judge(criterion, values, len(self.cells[0].seeds)) for criterion in self.criteria]


def verdict(findings: Sequence[Tested]) -> ClaimVerdict:
    """The verdict of a claim from those of its criteria."""
    found = {finding.verdict for finding in findings}
    for one in (ClaimVerdict.NOT_RUN, ClaimVerdict.NOT_SHOWN, ClaimVerdict.UNDECIDED):
        if one in found:
            return one
    return ClaimVerdict.SHOWN


def _judge(criterion: Criterion, values: Callable[[Cell], Values], seeds: int) -> Tested:
    numbers = criterion.numbers(values)
    mean = math.fsum(numbers) / len(numbers) if numbers else math.nan
    low, high = interval(numbers)
    inside, outside = (low, high) if criterion.above else (-high, -low)
    threshold = criterion.threshold if criterion.above else -criterion.threshold
    judged = ClaimVerdict.UNDECIDED
    if len(numbers) < seeds:
        judged = ClaimVerdict.NOT_RUN
    elif inside > threshold:
        judged = ClaimVerdict.SHOWN
    elif outside <= threshold:
        judged = ClaimVerdict.NOT_SHOWN
    return Tested(criterion, numbers, mean, low, high, judged)


def interval(numbers: Sequence[float]) -> tuple[float, float]:
    """The ends between which the mean of the numbers' distribution lies with 90% confidence; NaN for fewer than two."""
    if len(numbers) < 2:
        return math.nan, math.nan
    from scipy.stats import t  # slow to import

    mean = math.fsum(numbers) / len(numbers)
    variance = math.fsum((number - mean) ** 2 for number in numbers) / (len(numbers) - 1)
    half = float(t.ppf(CONFIDENCE, len(numbers) - 1)) * math.sqrt(variance / len(numbers))
    return mean - half, mean + half


def read_criterion(node: Mapping[str, object], table: Table, where: str) -> Criterion:
    """A criterion from a paper's file.

    Raises:
        ConfigError: a key is missing or unknown, or a selection has no cell.
    """
    known = {"says", "statistic", "of", "minus", "above", "below"}
    statistic = str(node.get("statistic", "mean"))
    if set(node) - known or "says" not in node or "of" not in node or ("above" in node) == ("below" in node):
        raise ConfigError(f"{where}: a criterion has says, of, and above or below; and may have statistic and minus")
    if statistic not in STATISTICS:
        raise ConfigError(f"{where}: statistic={statistic}: set statistic to one of {', '.join(STATISTICS)}")
    above = "above" in node
    return Criterion(
        says=" ".join(str(node["says"]).split()),
        statistic=statistic,
        of=_selected(node["of"], table, where),
        minus=_selected(node["minus"], table, where) if "minus" in node else (),
        above=above,
        threshold=float(str(node["above" if above else "below"])),
    )


def _selected(node: object, table: Table, where: str) -> tuple[Cell, ...]:
    """The cells that ``{row: PATTERN, column: PATTERN}`` names; a row is named with its measure."""
    if not isinstance(node, Mapping) or set(node) - {"row", "column"}:
        raise ConfigError(f"{where}: write the cells of a criterion as {{row: NAME, column: NAME}}, not {node!r}")
    row, column = (str(node.get(key, "*")) for key in ("row", "column"))
    cells = [c for c in table.cells if _is(c.label, row) and _is(c.column, column)]
    if not cells:
        raise ConfigError(f"{where}: no cell has row {row} and column {column}")
    return tuple(cells)


def _is(name: str, pattern: str) -> bool:
    return name == pattern or fnmatch.fnmatchcase(name, pattern)
