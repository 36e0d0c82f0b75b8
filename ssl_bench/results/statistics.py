"""Differences of accuracies over seeds and images, and what they decide.

Shapes: R rows, M images, leading dimensions of any kind.

Each run of a row has a seed of its own; the images are the same for all. If one of two rows has an image right more
often than the other, other images would not repeat that. So the variance of a difference of means has a part of the
seeds, a part of the images, and one of both together (Cornfield and Tukey 1956), each estimated without bias. The
variance over the seeds holds the joint part. So does that of the images' differences, from which it is subtracted.

The variance over seeds is pooled over rows that are taken to have the same. Parts with different degrees of freedom are
joined after Satterthwaite (1946).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

ERROR = 0.05  # of all answers to a question together, and of an interval
ROUNDING = 1e-15  # standard error of numbers that are equal up to rounding
TINY = 1e-300
Array = Any  # numbers, or a single one


@dataclass(frozen=True)
class Estimate:
    """Differences of means.

    Attributes:
        mean: of each.
        seeds, images: the parts of its variance; that of both together is in the seeds'.
        degrees: of freedom of the sum.
    """

    mean: Array
    seeds: Array
    images: Array
    degrees: Array

    @property
    def error(self) -> Array:
        """The standard error."""
        return np.maximum(np.sqrt(self.seeds + self.images), ROUNDING)

    def interval(self, error: float = ERROR) -> tuple[Array, Array]:
        """The ends of a two-sided interval by Student's t, without a correction for several."""
        from scipy.stats import t  # slow to import

        half = t.isf(error / 2, self.degrees) * self.error
        return self.mean - half, self.mean + half

    def differs(self) -> np.ndarray:
        """Two-sided p-values of no difference."""
        from scipy.stats import t

        return np.asarray(2 * t.sf(np.abs(self.mean) / self.error, self.degrees))

    def exceeds(self, margin: Array) -> np.ndarray:
        """P-values of a difference as large as the margin, by two one-sided tests (Schuirmann 1987)."""
        from scipy.stats import t

        return np.asarray(t.sf((margin - np.abs(self.mean)) / self.error, self.degrees))


def mean(values: Sequence[float]) -> float | None:
    """The mean; None of nothing."""
    return fmean(values) if values else None


def deviation(values: Sequence[float]) -> float | None:
    """Sample standard deviation, also of numbers that are not finite; None for fewer than two values."""
    if len(values) < 2:
        return None
    centre = fmean(values)
    return math.sqrt(sum((value - centre) ** 2 for value in values) / (len(values) - 1))


def half_width(values: Sequence[float], error: float = ERROR / 2) -> float:
    """Half of the mean's interval by Student's t, each end of which errs so often; NaN of fewer than two values."""
    from scipy.stats import t

    if (spread := deviation(values)) is None:
        return math.nan
    return float(t.isf(error, len(values) - 1)) * max(spread, ROUNDING) / math.sqrt(len(values))


def pooled(variance: Array, n: Array, group: Array) -> tuple[Array, Array]:
    """The variance over seeds of each row's group [..., R], and its degrees of freedom [R].

    Args:
        variance: over the seeds of each row [..., R].
        n: seeds of each row, at least 2 [R].
        group: rows with the same number have the same variance [R].
    """
    weight = (group[:, None] == group) * (n - 1)
    return variance @ weight.T / weight.sum(1), weight.sum(1)


def images(right: np.ndarray, n: int, variance: Array, other: np.ndarray, of: int, its: Array) -> Array:
    """The part of the images in the variance of a difference of two shares.

    Args:
        right, other: share of the seeds of either row that have an image right [..., M].
        n, of: number of these seeds.
        variance, its: of the shares of right images over them [...].
    """
    count = right.shape[-1]
    both = _joint(right, n, variance) + _joint(other, of, its)
    return ((right - other).var(-1, ddof=1) - both).clip(0) / count


def _joint(right: np.ndarray, n: int, variance: Array) -> Array:
    """Mean square of the residuals of seeds x images over n: of bits, their sum of squares is that of the shares."""
    count = right.shape[-1]
    within = n * (right * (1 - right)).sum(-1) - count * (n - 1) * variance
    return within / ((n - 1) * (count - 1) * n)


def difference(mean: Array, parts: list[tuple[Array, Array]], of_images: Array, count: int) -> Estimate:
    """A difference with the parts of its variance.

    Args:
        parts: variances by the seeds, each with its degrees of freedom.
        of_images: that by ``count`` images.
    """
    seeds = sum(variance for variance, _ in parts)
    squares = sum(variance**2 / degrees for variance, degrees in parts) + of_images**2 / max(count - 1, 1)
    degrees = (seeds + of_images) ** 2 / np.maximum(squares, TINY)
    return Estimate(mean, seeds, of_images, np.maximum(degrees, 1))


def expected_best(count: int) -> float:
    """The expected maximum of some independent standard normal numbers: 0 of one, 0.564 of two, 1.63 of twelve."""
    from scipy.integrate import quad
    from scipy.special import ndtr

    return float(quad(lambda x: 1 - ndtr(x) ** count - ndtr(-x) ** count, 0, math.inf)[0])


def holm(p: np.ndarray, planned: int, error: float = ERROR) -> np.ndarray:
    """The hypotheses that the step-down of Holm (1979) rejects [..., C], by their p-values.

    Args:
        planned: all comparisons that were planned, of which C have run.
    """
    order = np.argsort(p, axis=-1)
    small = np.take_along_axis(p, order, -1) <= error / (planned - np.arange(p.shape[-1]))
    rejected = np.empty_like(small)
    np.put_along_axis(rejected, order, np.logical_and.accumulate(small, axis=-1), -1)
    return rejected


def decided(
    estimate: Estimate,
    margin: Array | None,
    planned: int,
    error: float = ERROR,
    up: str = "better",
    down: str = "worse",
) -> list[str]:
    """The verdicts that differences give together, each in words; empty for undecided.

    Args:
        margin: a smaller difference does not matter; None: do not ask.
        planned: all comparisons that were planned, of which these have run.
        up, down: a difference above and below 0.
    """
    margins = np.full(estimate.mean.shape, math.nan if margin is None else margin)
    differs = holm(estimate.differs(), planned, error)
    equals = holm(estimate.exceeds(margins), planned, error)
    verdicts = list[str]()
    for value, differ, equal, most in zip(estimate.mean, differs, equals, margins, strict=True):
        words = [up if value > 0 else down] if differ else []
        verdicts.append(", ".join([*words, *([f"no difference larger than {most:.3g}"] if equal else [])]))
    return verdicts


def stacked(estimates: Sequence[Estimate]) -> Estimate:
    """Several estimates of one difference each as one of all."""
    columns = [(one.mean, one.seeds, one.images, one.degrees) for one in estimates]
    return Estimate(*np.array(columns, dtype=float).reshape(-1, 4).T)


def paired(differences: Array, bits: np.ndarray | None = None) -> Estimate:
    """The mean difference of pairs that have a seed in common.

    Its degrees of freedom are those of the seeds alone: few seeds that happen to agree must not become certain by the
    many images. So intervals are too wide, never too narrow, where the images are most of the variance.

    Args:
        differences: of each pair [..., n], at least 2.
        bits: of each pair and image, 1 if only the first has it right, -1 if only the second has, else 0 [..., n, M];
            None: the images are not known.
    """
    values = np.asarray(differences, dtype=float)
    n, by_seeds = values.shape[-1], values.var(-1, ddof=1) / values.shape[-1]
    of_images = np.zeros_like(by_seeds)
    if bits is not None:
        count, share, shares = bits.shape[-1], bits.mean(-2), bits.mean(-1)
        squares = (bits.astype(float) ** 2).sum((-2, -1)) - n * (share**2).sum(-1) - count * (shares**2).sum(-1)
        joint = (squares + n * count * share.mean(-1) ** 2) / ((n - 1) * (count - 1))
        of_images = (share.var(-1, ddof=1) - joint / n).clip(0) / count
    return Estimate(values.mean(-1), by_seeds, of_images, np.full_like(by_seeds, n - 1))


def seeds_to_decide(estimate: Estimate, n: int, margin: float | None, error: float) -> int | None:
    """How many more pairs would decide if mean and deviation stayed as they are; None: more than 1,000, or never."""
    from scipy.stats import t

    total = np.arange(n + 1, n + 1001)
    wide = np.sqrt(estimate.seeds * n / total + estimate.images)
    decided = abs(estimate.mean) > t.isf(error / 2, total - 1) * wide
    if margin is not None:
        decided |= margin - abs(estimate.mean) > t.isf(error, total - 1) * wide
    return int(total[decided.argmax()] - n) if decided.any() else None
