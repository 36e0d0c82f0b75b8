"""Means and deviations of numbers, and one model of the runs of a grid with its verdicts.

A number is the sum of a part of its cell, a part of its seed, and an error (least squares). A cell is a combination of
settings; its runs differ in the seed only. Cells may lie in blocks, such as data sets, whose numbers are not compared.

A difference is a weighted sum of the numbers of all runs. Its variance has a part of the seeds, which is that of the
errors, and a part of the images: if the runs of one of two cells classify an image correctly more often than those of
the other, a test with other images would not repeat that. The variance that seeds and images have together is in the
part of the seeds, and subtracted from that of the images (Cornfield and Tukey 1956). Parts with different degrees of
freedom are added after Satterthwaite (1946).

The intervals of several differences hold together: they have the quantile of the largest |t| among them, by draws from
a normal distribution with their correlation. For all pairs of equally many runs that is Tukey's.

Shapes: N runs, C cells, F settings, K differences, M images of a block; "..." are several tables of one design.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np

ERROR = 0.05  # of all answers to a question together, and of an interval
SAME = 1e-9  # of the mean of numbers, by which equal ones may differ
LEAST = 3  # degrees of freedom that must remain for seeds to have a part of their own, or for a verdict without seeds
IMAGES = 1.5  # squared number of images by which runs differ at least, times the degrees of freedom
SMALL = 1e-6  # of what is 0 but for rounding, in products of zeros and ones
DRAWS, AT_ONCE, PARTS = 20_000, 2_000, 400  # of the normal law, of these at a time, and of the law of the deviation
Array = Any  # numbers, or a single one


def beyond(error: Array, degrees: Array) -> Array:
    """The value that Student's t exceeds with probability ``error``; scipy.stats would take long to import."""
    from scipy.special import stdtrit

    return -stdtrit(degrees, error)


def tail(value: Array, degrees: Array) -> Array:
    """The probability that Student's t exceeds a value."""
    from scipy.special import stdtr

    return stdtr(degrees, -value)


def mean(values: Sequence[float]) -> float | None:
    """The mean; None without values."""
    return fmean(values) if values else None


def deviation(values: Sequence[float]) -> float | None:
    """Sample standard deviation, also of numbers that are not finite; None for fewer than two values."""
    if len(values) < 2:
        return None
    centre = fmean(values)
    return math.sqrt(sum((value - centre) ** 2 for value in values) / (len(values) - 1))


def smallest_gap(values: Sequence[float]) -> float:
    """The smallest difference between two numbers, beyond rounding; 0 if all are equal."""
    gaps = np.diff(np.sort(values))
    gaps = gaps[gaps > SAME * np.abs(values).mean()]
    return float(gaps.min()) if len(gaps) else 0.0


@dataclass(frozen=True)
class Estimate:
    """Differences of means [..., K].

    Attributes:
        mean: the differences.
        seeds, images: the parts of their variances; the part of seeds and images together is in that of the seeds.
        degrees: degrees of freedom of the sum of the parts.
    """

    mean: Array
    seeds: Array
    images: Array
    degrees: Array

    @property
    def error(self) -> Array:
        """The standard error."""
        return np.sqrt(self.seeds + self.images)

    @property
    def t(self) -> Array:
        """The absolute value of each over its standard error."""
        return np.abs(self.mean) / self.error

    def interval(self, error: Array = ERROR) -> tuple[Array, Array]:
        """The ends of a two-sided interval by Student's t, without a correction for several."""
        half = beyond(error / 2, self.degrees) * self.error
        return self.mean - half, self.mean + half

    def exceeds(self, margin: Array) -> np.ndarray:
        """P-values of a difference as large as the margin, by two one-sided tests (Schuirmann 1987)."""
        return np.asarray(tail((margin - np.abs(self.mean)) / self.error, self.degrees))

    def of(self, places: Any) -> Estimate:
        """Some of the differences."""
        return Estimate(*(values[..., places] for values in (self.mean, self.seeds, self.images, self.degrees)))


def decide(p: np.ndarray, error: float = ERROR) -> np.ndarray:
    """Which hypotheses are rejected, in one pass for all kinds of questions (Holm 1979) [..., K, kinds].

    Each step has the error over the number of differences about which some question is open.

    Args:
        p: the p-values [..., K, kinds].
    """
    rejected = np.zeros(p.shape, dtype=bool)
    while True:
        remaining = np.maximum(p.shape[-2] - rejected.all(-1).sum(-1), 1)
        more = rejected | (p <= error / remaining[..., None, None])
        if (more == rejected).all():
            return rejected
        rejected = more


def answers(estimate: Estimate, margin: float | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The questions that differences decide together [..., K, kinds], and the ends of their joint intervals [..., K].

    The kinds are whether it differs from 0 and, with a margin, whether it is smaller than that. Where a question is
    decided by a later step of the pass, the interval ends at 0 or at the margin.
    """
    count = estimate.mean.shape[-1]
    p = [2 * tail(estimate.t, estimate.degrees)] + ([] if margin is None else [estimate.exceeds(margin)])
    decided = decide(np.stack(p, axis=-1))
    return (decided, *cut(estimate.mean, *estimate.interval(ERROR / count), decided, margin))


def cut(mean: Array, low: Array, high: Array, decided: Array, margin: float | None = None) -> tuple[Array, Array]:
    """The ends of intervals, cut at 0 or at the margin where the decision excludes what lies beyond."""
    low = np.where(decided[..., 0] & (mean > 0), np.maximum(low, 0), low)
    high = np.where(decided[..., 0] & (mean < 0), np.minimum(high, 0), high)
    if margin is not None:
        low, high = (np.where(decided[..., 1], np.clip(end, -margin, margin), end) for end in (low, high))
    return low, high


# ---- the model


class Confounded(ValueError):
    """Settings vary together, so that their effects cannot be separated; ``args[0]`` has their numbers."""


class Design:
    """The layout of a grid: the cell, the seed and the block of each run.

    Seeds have a part of their own in each block if shared seeds connect all cells of the block, and ``LEAST`` degrees
    of freedom remain. If each cell has one run, interactions of settings count as errors.

    Args:
        levels: the level of each setting in each cell, numbered from 0 [C, F].
        cells, seeds: cell and seed of each run [N].
        blocks: the block of each cell, numbered from 0 [C]; None: there is one block.

    Attributes:
        degrees: degrees of freedom of the errors.
        rows: the runs of each block.
        n: the number of runs of each cell [C].
        by_seeds: whether seeds have a part of their own.
        one_each: whether each cell has one run.
    """

    def __init__(self, levels: Array, cells: Array, seeds: Array, blocks: Array = None) -> None:
        self.levels, self.cells = np.asarray(levels), np.asarray(cells)
        blocks = np.zeros(len(self.levels), dtype=int) if blocks is None else np.asarray(blocks)
        of_run, self.n = blocks[self.cells], np.bincount(self.cells)
        self.rows = [np.flatnonzero(of_run == block) for block in range(of_run.max() + 1)]
        self._mean = dummies(self.cells).T / self.n[:, None]
        _, seed = np.unique(np.stack([of_run, seeds]), axis=1, return_inverse=True)
        self.seeds = dummies(seed.reshape(-1))
        within = self.seeds - (self._mean @ self.seeds)[self.cells]
        basis, free = _basis(within), len(self.cells) - len(self.n)
        self.one_each = free == 0
        connected = basis.shape[1] == self.seeds.shape[1] - len(self.rows)
        self.by_seeds = bool(connected and basis.shape[1] and free - basis.shape[1] >= LEAST)
        self._beside = np.hstack([dummies(of_run), *[self.seeds] * self.by_seeds])
        if self.one_each:
            self._out = _basis(np.hstack([*map(self.dummies, range(self.levels.shape[1])), self._beside]))
            free = len(self.cells)
        else:
            self._out = basis if self.by_seeds else basis[:, :0]
        self.degrees = free - self._out.shape[1]

    def dummies(self, factor: int) -> np.ndarray:
        """A column of zeros and ones for each level of a setting [N, levels]."""
        return dummies(self.levels[:, factor])[self.cells]

    def of_cells(self, values: np.ndarray) -> np.ndarray:
        """The means of the cells of values [..., N, M]."""
        return np.asarray(self._mean.astype(values.dtype) @ values)

    def errors(self, values: np.ndarray) -> np.ndarray:
        """The residuals of values [..., N, M]."""
        residuals = values if self.one_each else values - self.of_cells(values)[..., self.cells, :]
        out = self._out.astype(values.dtype)
        return np.asarray(residuals - out @ (out.T @ residuals))

    def cell_weights(self, signs: Array) -> np.ndarray:
        """The weights of the runs in sums of cells with ``signs`` [K, C]."""
        signs = np.asarray(signs)
        within = self.seeds - (self._mean @ self.seeds)[self.cells]
        of_seeds = (signs @ self._mean @ self.seeds) @ np.linalg.pinv(within, rcond=SMALL) if self.by_seeds else 0.0
        return np.asarray(signs @ self._mean - of_seeds)

    def weights(self, columns: Sequence[np.ndarray], signs: Array) -> tuple[np.ndarray, np.ndarray]:
        """The weights of the runs [K, N] in sums of coefficients with ``signs`` [K, D]; the model has blocks and seeds.

        Args:
            columns: that have these coefficients first [N, D].

        Returns:
            The weights, and whether each sum can be separated from the other columns [K].
        """
        every = np.hstack([*columns, self._beside])
        signs = np.pad(signs, ((0, 0), (0, every.shape[1] - np.shape(signs)[1])))
        weights = signs @ np.linalg.pinv(every, rcond=SMALL)
        return weights, np.isclose(weights @ every, signs, atol=1e-4).all(1)

    def _beside_factor(self, factor: int) -> list[np.ndarray]:
        return [self.dummies(other) for other in range(self.levels.shape[1]) if other != factor]

    def pairs(self, factor: int) -> list[tuple[int, int]]:
        """All pairs of a setting's levels."""
        return [*itertools.combinations(range(int(self.levels[:, factor].max()) + 1), 2)]

    @cached_property
    def settings(self) -> list[tuple[np.ndarray, Together]]:
        """For each setting the weights of the second level minus the first, for all pairs [K, N]. Raises Confounded."""
        pairs = [self.between(factor, self.pairs(factor)) for factor in range(self.levels.shape[1])]
        if not all(separable.all() for _, separable in pairs):
            raise Confounded([number for number, (_, separable) in enumerate(pairs) if not separable.all()])
        return [(weights, Together(weights)) for weights, _ in pairs]

    def between(self, factor: int, pairs: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
        """The weights of the second level minus the first of some pairs [K, N], and whether they are separable [K]."""
        unit, (first, second) = np.eye(int(self.levels[:, factor].max()) + 1), np.array(pairs, int).reshape(-1, 2).T
        return self.weights([self.dummies(factor), *self._beside_factor(factor)], unit[second] - unit[first])

    def slope(self, factor: int, values: Array) -> np.ndarray:
        """The weights of the effect of each doubling of a setting, whose levels have positive ``values`` [1, N]."""
        doublings = np.log2(np.asarray(values, dtype=float))[self.levels[self.cells, factor], None]
        return self.weights([doublings, *self._beside_factor(factor)], [[1.0]])[0]

    @cached_property
    def beyond_sum(self) -> tuple[list[tuple[int, ...]], np.ndarray, Together]:
        """The interactions, differences of differences, of two settings that can be separated from the others [K, N].

        Each is named by the two settings, the two levels of the first and the two of the second: by how much more the
        second level of the first setting is above the first one, at the second level of the second setting.
        """
        columns, names, places = list[np.ndarray](), list[tuple[int, ...]](), list[list[int]]()
        start = 0
        for pair in itertools.combinations(range(self.levels.shape[1]), 2):
            there, level = np.unique(self.levels[:, pair], axis=0, return_inverse=True)
            columns.append(dummies(level.reshape(-1))[self.cells])
            column = {tuple(of): start + number for number, of in enumerate(there.tolist())}
            start += len(there)
            for (i, j), (k, m) in itertools.product(self.pairs(pair[0]), self.pairs(pair[1])):
                four = [column.get(of) for of in ((j, m), (i, m), (j, k), (i, k))]
                if None not in four:
                    names.append((*pair, i, j, k, m))
                    places.append([place for place in four if place is not None])
        if not names or self.one_each:
            return [], (none := np.empty((0, len(self.cells)))), Together(none)
        signs = np.zeros((len(names), start))
        signs[np.arange(len(names))[:, None], places] = [1, -1, -1, 1]
        weights, separable = self.weights(columns, signs)
        return list(itertools.compress(names, separable)), weights[separable], Together(weights[separable])


class Fit:
    """The model of the numbers of the runs of a design.

    The variance of a run is at least what numbers of this resolution can show: few seeds may agree by chance.

    Args:
        values: the numbers of the runs [..., N].
        bits: for each block, which images each run classifies correctly [..., runs of the block, M]; None: not known.
        scale: the value of an accuracy of 1.
        gap: the smallest difference between two values; it is used if ``bits`` are not known.

    Attributes:
        variance, floor: the variance of a run within its cell [...], and its least value.
    """

    def __init__(self, design: Design, values: Array, bits: Any, scale: float = 1.0, gap: float = 0.0) -> None:
        self.design, self.values, self.bits, self.scale = design, np.asarray(values, dtype=float), bits, scale
        self._residuals = design.errors(self.values[..., None])[..., 0]
        degrees, self._joint, self.floor, self.images = max(design.degrees, 1), 0.0, gap**2 / 12, math.inf
        if bits is not None:
            self.images = min(right.shape[-1] for right in bits)
            joint: Array = 0.0
            for rows, correct in zip(design.rows, bits, strict=True):
                whole = np.zeros((*correct.shape[:-2], len(design.cells), correct.shape[-1]), dtype=np.float32)
                whole[..., rows, :] = correct
                residuals = design.errors(whole)[..., rows, :]
                residuals -= residuals.mean(-1, keepdims=True)
                squares = (residuals**2).sum((-2, -1), dtype=float)
                joint = joint + squares / (correct.shape[-1] * (correct.shape[-1] - 1)) / degrees
            self._joint = scale**2 * joint
            self.floor = np.maximum(self._joint, scale**2 * IMAGES / self.images**2 / degrees)
        self.variance = np.maximum((self._residuals**2).sum(-1) / degrees, self.floor)

    def estimate(self, weights: np.ndarray, single: bool = False) -> Estimate:
        """Differences [..., K] with weights of the runs [K, N].

        Args:
            single: each is of two single cells, whose own errors count if they are larger.
        """
        design = self.design
        of_seeds = np.asarray(self.variance)[..., None] * (weights**2).sum(1)
        if single:
            of_cells = design.of_cells((self._residuals**2)[..., None])[..., 0]
            of_cells = of_cells * len(design.cells) / max(design.degrees, 1)
            of_seeds = np.maximum(of_seeds, of_cells[..., design.cells] @ (weights**2).T)
        of_images = np.zeros_like(of_seeds)
        for rows, correct in zip(design.rows, self.bits or (), strict=self.bits is not None):
            part = weights[:, rows]
            shares = part.astype(np.float32) @ correct.astype(np.float32)
            variance = self.scale**2 * shares.var(-1, ddof=1, dtype=float) / correct.shape[-1]
            of_images += (variance - np.asarray(self._joint)[..., None] * (part**2).sum(1)).clip(0)
        return Estimate(self.values @ weights.T, of_seeds, of_images, self.degrees(of_seeds, of_images, design.degrees))

    def degrees(self, of_seeds: Array, of_images: Array, free: float) -> Array:
        """Degrees of freedom of a variance with a part of the seeds, which has ``free`` ones, and one of the images."""
        squares = of_seeds**2 / max(free, 1) + of_images**2 / max(self.images - 1, 1)
        return np.maximum((of_seeds + of_images) ** 2 / squares, 1)

    @property
    def deviation(self) -> float:
        """Standard deviation of the runs of a cell, the part of the seeds included; NaN if each cell has one run."""
        design = self.design
        if design.one_each:
            return math.nan
        within = self.values - design.of_cells(self.values[:, None])[design.cells, 0]
        return math.sqrt((within**2).sum() / (len(design.cells) - len(design.n)))

    def uneven(self) -> tuple[float, float, float]:
        """The p-value of equal deviations of all cells (Bartlett 1937), the least and the largest deviation."""
        from scipy.special import chdtrc

        free = (self.design.n - 1)[self.design.n > 1]
        if len(free) < 2:
            return 1.0, math.nan, math.nan
        within = self.values - self.design.of_cells(self.values[:, None])[self.design.cells, 0]
        variances = np.bincount(self.design.cells, within**2)[self.design.n > 1] / free
        variances, every = np.maximum(variances, self.floor), free.sum()
        ratio = every * math.log((free * variances).sum() / every) - (free * np.log(variances)).sum()
        ratio /= 1 + ((1 / free).sum() - 1 / every) / (3 * (len(free) - 1))
        return float(chdtrc(len(free) - 1, ratio)), math.sqrt(variances.min()), math.sqrt(variances.max())

    def moved_by_seeds(self, levels: np.ndarray) -> float:
        """The p-value of no interaction of seeds and levels [N] that is the same in all cells; 1 of too few runs."""
        from scipy.special import fdtrc

        design = self.design
        both = np.unique(np.stack([levels, design.seeds.argmax(1)]), axis=1, return_inverse=True)[1].reshape(-1)
        basis = _basis(design.errors(dummies(both)))
        free = design.degrees - basis.shape[1]
        if not design.by_seeds or free < LEAST or not basis.shape[1]:
            return 1.0
        explained = float(((self._residuals @ basis) ** 2).sum())
        rest = max(float((self._residuals**2).sum() - explained) / free, float(self.floor))
        return float(fdtrc(basis.shape[1], free, explained / basis.shape[1] / rest))


class Together:
    """The distribution of the largest |t| among several differences, by their weights [K, N], if there is none."""

    def __init__(self, weights: np.ndarray) -> None:
        self._alone, self._weights = len(weights) == 1, weights

    @cached_property
    def _largest(self) -> np.ndarray:
        """Draws of the largest of normal numbers with the correlation of the differences, sorted."""
        normed = self._weights / np.linalg.norm(self._weights, axis=1, keepdims=True)
        vectors, values, _ = np.linalg.svd(normed, full_matrices=False)
        root = (vectors * values)[:, values > SMALL]
        drawn = np.random.default_rng(0).standard_normal((DRAWS, root.shape[1]))
        parts = [np.abs(drawn[at : at + AT_ONCE] @ root.T).max(1) for at in range(0, DRAWS, AT_ONCE)]
        return np.sort(np.concatenate(parts))

    @staticmethod
    def _deviations(degrees: np.ndarray) -> np.ndarray:
        """Quantiles of the ratio of an estimated deviation to the true one [degrees, PARTS]."""
        from scipy.special import chdtri

        return np.asarray(np.sqrt(chdtri(degrees[:, None], (np.arange(PARTS) + 0.5) / PARTS) / degrees[:, None]))

    def _exceeded(self, t: np.ndarray, deviations: np.ndarray) -> np.ndarray:
        return 1 - np.searchsorted(self._largest, t[..., None] * deviations).mean(-1) / DRAWS

    def p(self, t: np.ndarray, degrees: np.ndarray) -> np.ndarray:
        """The probability that the largest |t| exceeds each t by chance [...]."""
        if self._alone:
            return np.asarray(2 * tail(t, degrees))
        different, place = np.unique(_rounded(degrees), return_inverse=True)
        return self._exceeded(np.abs(t), self._deviations(different)[place.reshape(t.shape)])

    def beyond(self, error: float, degrees: np.ndarray) -> np.ndarray:
        """The value that the largest |t| exceeds with probability ``error`` [...]."""
        if self._alone:
            return np.asarray(beyond(error / 2, degrees))
        different, place = np.unique(_rounded(degrees), return_inverse=True)
        deviations = self._deviations(different)
        low, high = np.zeros(len(different)), np.asarray(beyond(error / 2 / len(self._weights), different))
        for _ in range(30):
            middle = (low + high) / 2
            above = self._exceeded(middle, deviations) > error
            low, high = np.where(above, middle, low), np.where(above, high, middle)
        return np.asarray(high[place].reshape(np.shape(degrees)))


def _rounded(degrees: Array) -> np.ndarray:
    """Degrees of freedom to three digits, so that few different ones remain."""
    unit = 10 ** (np.floor(np.log10(degrees)) - 2)
    return np.asarray(np.round(degrees / unit) * unit)


def dummies(level: np.ndarray) -> np.ndarray:
    """A column of zeros and ones for each level [..., levels]."""
    return np.eye(int(level.max()) + 1)[level]


def _basis(columns: np.ndarray) -> np.ndarray:
    """An orthonormal basis of the span of columns of zeros and ones, or of their residuals."""
    vectors, values, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(vectors[:, values > SMALL])


class Settings:
    """Verdicts on all settings of a design together: the differences between the levels of each.

    The error of a setting is ``ERROR`` over the number of settings; the intervals of all pairs of its levels hold
    together.

    Attributes:
        estimates: the differences of all pairs of levels, for each setting [..., K].
        halves: half of their intervals [..., K]; NaN without a degree of freedom.
        decided: whether each setting matters, by Holm's step-down over the settings [..., F].
    """

    def __init__(self, fit: Fit) -> None:
        self.fit, self.design, of = fit, fit.design, fit.design.settings
        self._error, single = ERROR / len(of), len(fit.design.n) == 2
        self.estimates = [fit.estimate(weights, single) for weights, _ in of]
        pairs = list(zip(self.estimates, (together for _, together in of), strict=True))
        self.halves = [together.beyond(self._error, one.degrees) * one.error for one, together in pairs]
        p = np.stack([together.p(one.t, one.degrees).min(-1) for one, together in pairs], axis=-1)
        self.decided = decide(p[..., None])[..., 0]
        if fit.design.degrees < (LEAST if fit.design.one_each else 1):
            self.halves = [np.full_like(half, math.nan) for half in self.halves]
            self.decided = np.zeros_like(self.decided)

    def smallest(self, n: int) -> float:
        """A difference between two levels that is found in half of grids like this one with n seeds of each cell."""
        design, count, sizes = self.design, len(self.design.n), list[float]()
        free = degrees_of(count, n)
        for one, half, (_, together) in zip(self.estimates, self.halves, design.settings, strict=True):
            widest = half.argmax()
            of_seeds, of_images = one.seeds[widest] * len(design.cells) / count / n, one.images[widest]
            degrees = self.fit.degrees(of_seeds, of_images, free)
            sizes.append(float(together.beyond(self._error, degrees) * math.sqrt(of_seeds + of_images)))
        return max(sizes)


def degrees_of(cells: int, seeds: float) -> float:
    """Degrees of freedom of the errors in a grid of ``cells`` with ``seeds`` runs each."""
    return (cells - 1 if (cells - 1) * (seeds - 1) >= LEAST else cells) * (seeds - 1)


def smallest_before(images: int, runs: float, settings: int, deviation: float = math.nan, free: float = 0) -> float:
    """The difference in percent that is found in half of such grids, before there are numbers.

    The variances of an image's accuracy are those within and between cells of 176 runs.

    Args:
        images: the number of test images; 0: they have no part.
        runs: the number of runs of a level.
        settings: the number of settings that vary.
        deviation: the standard deviation of a run over seeds, NaN if unknown: then the images alone count.
        free: the degrees of freedom of ``deviation``.
    """
    from scipy.special import ndtri

    of_run, of_cell = 0.11, 0.02
    of_images = 100**2 * of_cell / images if images else 0.0
    if math.isnan(deviation):
        return -float(ndtri(ERROR / settings / 2)) * math.sqrt(100**2 * of_run / runs / images + of_images)
    return float(beyond(ERROR / settings / 2, free)) * math.sqrt(2 * deviation**2 / runs + of_images)
