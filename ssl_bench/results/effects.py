"""What matters in a grid: how much of the variance between its cells each setting has, freed of noise, with intervals.

A cell is a combination of the levels of F factors, the settings that vary; its runs differ in the seed only. The sum of
squares of a factor is that of its levels beside all other factors, that of a pair what the pair adds beside all factors
and all other pairs (type II, by ordinary least squares over the means of the cells that are there); the rest is that of
interactions of three and more. A sum of squares holds noise as well: its expectation under the variance over seeds is
subtracted. Shares are of the sum of what is left, in which less than nothing counts as nothing.

Cells may lie in blocks whose means are not compared, as numbers of different test images: what is said is said within
each block, over all of them together.

The intervals are quantiles of draws from a normal law about the means of the cells. A draw holds noise twice, that of
the means and its own, of which it is freed. Resampled seeds would not do: with two seeds each cell has two values, and
the intervals hold the true share in half of all grids.

Shapes: C cells, F factors, N runs, D draws.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ssl_bench.results.statistics import ERROR, LEAST, SAME, beyond

DRAWS = 2000
REST = "rest"  # the interactions of three factors and more
SMALL = 1e-9  # of an eigenvalue of products of columns of zeros and ones, beside the largest
Array = Any


class Confounded(ValueError):
    """Factors vary together, so that their shares cannot be told apart; ``factors`` are their numbers."""

    def __init__(self, factors: Sequence[int]) -> None:
        super().__init__(factors)
        self.factors = factors


@dataclass(frozen=True)
class Share:
    """The share of a factor, a pair of factors, or the rest.

    Attributes:
        factors: their numbers; none for the rest.
        share: from 0 to 1; those of a grid have the sum 1.
        low, high: the ends of its interval; NaN without several seeds.
        deviation: square root of what its effects add to the variance between cells, in the metric's unit.
    """

    factors: tuple[int, ...]
    share: float
    low: float
    high: float
    deviation: float


@dataclass(frozen=True)
class Grid:
    """The means of cells and their noise.

    Attributes:
        levels: the level of each factor in each cell [C, F], numbered from 0.
        blocks: a column of zeros and ones for each block of cells [C, blocks].
        means: of the cells over their seeds [C].
        errors: covariance of the means in units of ``variance`` [C, C], but for what all means of a block have in
            common.
        variance: of a run within its cell, after a seed's own part is taken out where all cells share the seeds; 0
            without several seeds.
        degrees: of freedom of ``variance``; 0 without several seeds.
        deviation: of the runs of a cell, a seed's own part included; NaN without several seeds.
    """

    levels: np.ndarray
    blocks: np.ndarray
    means: np.ndarray
    errors: np.ndarray
    variance: float
    degrees: int
    deviation: float


def grid(levels: Array, cells: Array, seeds: Array, values: Array, blocks: Array = None) -> Grid:
    """Estimate the means of cells.

    Seeds have a part of their own, in each block another one, if each cell of a block can be compared with each by
    seeds that they have in common, and that leaves at least ``LEAST`` degrees of freedom.

    Args:
        levels: of each cell [C, F].
        cells, seeds: the numbers of the cell and of the seed of each run [N].
        values: of the runs [N].
        blocks: the number of the block of each cell [C]; None: there is one.
    """
    cells, values = np.asarray(cells), np.asarray(values, dtype=float)
    n = np.bincount(cells)
    in_blocks = _dummies(np.zeros(len(n), dtype=int) if blocks is None else np.asarray(blocks))
    _, seeds = np.unique(np.stack([in_blocks.argmax(1)[cells], seeds]), axis=1, return_inverse=True)
    seeds = seeds.reshape(-1)
    means = np.bincount(cells, values) / n
    within = ((values - means[cells]) ** 2).sum()
    free = len(values) - len(n)
    deviation = math.sqrt(within / free) if free else math.nan
    levels = np.asarray(levels)
    if not free:
        return Grid(levels, in_blocks, means, np.eye(len(n)), 0.0, 0, math.nan)
    counts = np.zeros((len(n), seeds.max() + 1))
    np.add.at(counts, (cells, seeds), 1)
    of_seeds = counts.sum(0)
    degrees, errors, connected = free - (counts.shape[1] - in_blocks.shape[1]), np.diag(1 / n), True
    of_blocks = in_blocks @ ((n * means) @ in_blocks / (n @ in_blocks))  # the mean of the runs of each cell's block
    if counts.all():  # every cell has every seed
        effects = means - of_blocks
    else:  # normal equations of cells, after the seeds' columns are projected out
        normal = np.diag(n.astype(float)) - (counts / of_seeds) @ counts.T
        rank = int(np.linalg.matrix_rank(normal, tol=SMALL * n.max(), hermitian=True))
        connected = rank == len(n) - in_blocks.shape[1]
        errors = np.linalg.pinv(normal, rcond=SMALL, hermitian=True) if connected else errors
        effects = errors @ (np.bincount(cells, values) - (counts / of_seeds) @ np.bincount(seeds, values))
    if not connected or degrees < LEAST:
        return Grid(levels, in_blocks, means, np.diag(1 / n), within / free, free, deviation)
    of_seed = (np.bincount(seeds, values) - counts.T @ effects) / of_seeds
    residual = ((values - effects[cells] - of_seed[seeds]) ** 2).sum()
    return Grid(levels, in_blocks, effects + of_blocks, errors, residual / degrees, degrees, deviation)


def shares(of: Grid, draws: int = DRAWS) -> list[Share]:
    """The shares of all factors, their pairs and the rest, in this order.

    A pair of factors whose levels meet too seldom for an interaction is left out: what it may have is in the rest.

    Raises:
        Confounded: two factors vary together, or several do.
    """
    effects = _effects(of)
    bases = [basis for _, basis in effects]
    squares = _squares(bases, of.means)
    noise = np.array([(basis * (of.errors @ basis)).sum() for basis in bases])
    noise[-1] = np.trace(of.errors) - noise[-1]
    noise *= of.variance * (noise > SAME * np.trace(of.errors))
    clean = squares - noise
    nothing = clean.sum() <= 0  # the cells differ no more than seeds
    of_all = squares if nothing else clean
    found = _nearest(of_all) if of_all.sum() else np.full(len(effects), 1 / len(effects))
    low, high = np.full((2, len(effects)), math.nan)
    if of.degrees:
        low, high = _interval(of, bases, noise, draws)
        low, high = (np.zeros_like(low), np.ones_like(high)) if nothing else (low, high)
    deviations = np.sqrt(clean.clip(0) / len(of.means))
    rows = zip(effects, found, low, high, deviations, strict=True)
    return [Share(factors, *map(float, numbers)) for (factors, _), *numbers in rows]


def _interval(of: Grid, bases: Sequence[np.ndarray], noise: np.ndarray, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """The ends of the intervals of shares."""
    rng = np.random.default_rng(0)
    diagonal = of.errors.diagonal()
    if np.count_nonzero(of.errors) == len(diagonal):
        root = np.diag(np.sqrt(diagonal))
    else:
        values, vectors = np.linalg.eigh(of.errors)
        root = vectors * np.sqrt(values.clip(0))
    # The variance is drawn, too: of few degrees of freedom it is known badly.
    variance = of.variance * of.degrees / rng.chisquare(of.degrees, draws)
    drawn = of.means + np.sqrt(variance)[:, None] * (rng.standard_normal((draws, len(of.means))) @ root.T)
    clean = _squares(bases, drawn) - 2 * noise
    own, others = clean.clip(0), (clean.sum(1, keepdims=True) - clean).clip(0)  # which are one sum, whatever its parts
    repeated = np.divide(own, own + others, out=np.zeros_like(own), where=own > 0)
    low, high = np.quantile(repeated, [ERROR / 2, 1 - ERROR / 2], axis=0)
    for number in range(len(bases)):
        if not np.delete(low, number).any():  # the others may be nothing, so this may be all
            high[number] = 1.0
    return low, high


def _squares(bases: Sequence[np.ndarray], means: np.ndarray) -> np.ndarray:
    """The sum of squares of each effect [..., effects], 0 of rounding; the last is of what its basis does not span."""
    *parts, last = (means @ basis for basis in bases)
    parts.append(means - last @ bases[-1].T)
    squares = np.stack([(part**2).sum(-1) for part in parts], axis=-1)
    return squares * (squares > SAME**2 * (means**2).sum(-1)[..., None])


def _nearest(squares: np.ndarray) -> np.ndarray:
    """The shares, none below 0 and 1 in sum, that are nearest to the squares over their sum [..., effects].

    To set what is below 0 to 0 and to divide by the new sum would take most from the largest, which would be too small.
    Where the sum is not above 0, there is nothing to share: all are 0.
    """
    total = squares.sum(-1, keepdims=True)
    raw = np.divide(squares, total, out=np.zeros_like(squares), where=total > 0)
    ordered = -np.sort(-raw, axis=-1)
    surplus = (ordered.cumsum(-1) - 1) / np.arange(1, raw.shape[-1] + 1)
    kept = (ordered > surplus).sum(-1, keepdims=True)  # those that stay above 0
    return (raw - np.take_along_axis(surplus, np.maximum(kept, 1) - 1, -1)).clip(0) * (total > 0)


def _effects(of: Grid) -> list[tuple[tuple[int, ...], np.ndarray]]:
    """The factors of each effect, and an orthonormal basis of its part of the space of the cells [C, degrees].

    The last one is the rest, whose basis is that of all others: the rest is what it does not span.
    """
    levels, count, columns = of.levels, of.levels.shape[1], dict[tuple[int, ...], np.ndarray]()
    for number in range(count):
        columns[(number,)] = _dummies(levels[:, number])
    for pair in itertools.combinations(range(count), 2):
        _, level = np.unique(levels[:, pair], axis=0, return_inverse=True)
        columns[pair] = _dummies(level.reshape(-1))
    effects = list[tuple[tuple[int, ...], np.ndarray]]()
    for factors, own in columns.items():
        beside = [other for key, other in columns.items() if key != factors and len(key) <= len(factors)]
        basis = _beyond(own, np.hstack([of.blocks, *beside]))
        if len(factors) == 1 and basis.shape[1] < own.shape[1] - 1:
            raise Confounded(_together(of, factors[0]))
        if basis.shape[1]:
            effects.append((factors, basis))
    return [*effects, ((), _basis(np.hstack([of.blocks, *columns.values()])))]


def _weights(of: Grid, columns: np.ndarray, factor: int) -> np.ndarray:
    """Weights of the cells in the coefficients of columns, by least squares beside the other factors [columns, C]."""
    others = [_dummies(of.levels[:, other]) for other in range(of.levels.shape[1]) if other != factor]
    return np.linalg.pinv(np.hstack([columns, of.blocks, *others]))[: columns.shape[1]]


def _together(of: Grid, factor: int) -> tuple[int, ...]:
    """The factors with which one varies together: one other if that is enough, else all."""
    levels = of.levels
    for other in range(levels.shape[1]):
        own, its = _dummies(levels[:, factor]), _dummies(levels[:, other])
        if other != factor and _beyond(own, np.hstack([of.blocks, its])).shape[1] < own.shape[1] - 1:
            return (factor, other) if factor < other else (other, factor)
    return tuple(range(levels.shape[1]))


def _dummies(level: np.ndarray) -> np.ndarray:
    """A column of zeros and ones for each level [C, levels]."""
    return np.eye(level.max() + 1)[level]


def _beyond(columns: np.ndarray, others: np.ndarray) -> np.ndarray:
    """An orthonormal basis of what columns span beyond others [C, degrees]."""
    known = _basis(others)
    return _basis(columns - known @ (known.T @ columns), len(columns))


def _basis(columns: np.ndarray, scale: float | None = None) -> np.ndarray:
    """An orthonormal basis of what columns span [C, degrees].

    Args:
        scale: of squares of columns that were not zero by rounding; None: the largest there is.
    """
    values, vectors = np.linalg.eigh(columns.T @ columns)
    kept = values > SMALL * (values.max() if scale is None else scale)
    return columns @ (vectors[:, kept] / np.sqrt(values[kept]))


@dataclass(frozen=True)
class Levels:
    """The means of a factor's levels, beside the other factors and averaged over them.

    Attributes:
        means: of the levels, in the metric's unit.
        halves: half of the interval of each mean; NaN without several seeds.
        lowest, highest: the levels with these means.
        low, high: ends of the interval of the difference of these two, which takes into account that they were chosen
            among all pairs (Bonferroni); NaN without several seeds.
    """

    means: np.ndarray
    halves: np.ndarray
    lowest: int
    highest: int
    low: float
    high: float

    @property
    def range(self) -> float:
        """The highest mean less the lowest."""
        return float(self.means[self.highest] - self.means[self.lowest])


def levels(of: Grid, factor: int) -> Levels:
    """The means of a factor's levels. The factors must not vary together (:func:`shares`)."""
    count = int(of.levels[:, factor].max()) + 1
    weights = _weights(of, _dummies(of.levels[:, factor]), factor)
    weights = weights - weights.mean(0)  # deviations from the mean of the levels
    means = weights @ of.means
    lowest, highest = int(means.argmin()), int(means.argmax())
    halves, low, high = np.full(count, math.nan), math.nan, math.nan
    if of.degrees:
        errors = np.sqrt(of.variance * np.einsum("lc,cd,ld->l", weights, of.errors, weights))
        halves = beyond(ERROR / 2, of.degrees) * errors
        apart = weights[highest] - weights[lowest]
        error = math.sqrt(of.variance * apart @ of.errors @ apart)
        half = float(beyond(ERROR / (count * (count - 1)), of.degrees)) * error
        low, high = means[highest] - means[lowest] - half, means[highest] - means[lowest] + half
    return Levels(means + of.means.mean(), halves, lowest, highest, float(low), float(high))


@dataclass(frozen=True)
class Trend:
    """By how much the metric grows with each doubling of a factor's value.

    Attributes:
        slope: in the metric's unit.
        low, high: ends of its interval; NaN without several seeds.
    """

    slope: float
    low: float
    high: float


def trend(of: Grid, factor: int, values: Sequence[float]) -> Trend:
    """The trend over a factor whose levels have positive ``values`` [levels], by least squares beside the others."""
    doublings = np.log2(np.asarray(values, dtype=float))[of.levels[:, factor], None]
    weights = _weights(of, doublings, factor)[0]
    slope = float(weights @ of.means)
    if not of.degrees:
        return Trend(slope, math.nan, math.nan)
    error = math.sqrt(of.variance * weights @ of.errors @ weights)
    half = float(beyond(ERROR / 2, of.degrees)) * error
    return Trend(slope, slope - half, slope + half)
