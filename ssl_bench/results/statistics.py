"""Means, deviations, and differences with their intervals and verdicts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

ERROR = 0.05  # of all answers to a question together, and of an interval
SAME = 1e-9  # of the mean of numbers, by which equal ones may differ
ROUNDING = 1e-15  # deviation of numbers that are equal up to rounding
Array = Any  # numbers, or a single one


def beyond(error: Array, degrees: Array) -> Array:
    """The value that Student's t exceeds with a probability; scipy.stats has the same, and takes long to import."""
    from scipy.special import stdtrit

    return -stdtrit(degrees, error)


def tail(value: Array, degrees: Array) -> Array:
    """The probability with which Student's t exceeds a value."""
    from scipy.special import stdtr

    return stdtr(degrees, -value)


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
    if (spread := deviation(values)) is None:
        return math.nan
    return float(beyond(error, len(values) - 1)) * max(spread, ROUNDING) / math.sqrt(len(values))


def smallest_gap(values: Sequence[float]) -> float:
    """The smallest difference between two numbers, beyond rounding; 0 if all are equal."""
    gaps = np.diff(np.sort(values))
    gaps = gaps[gaps > SAME * np.abs(values).mean()]
    return float(gaps.min()) if len(gaps) else 0.0


@dataclass(frozen=True)
class Estimate:
    """Differences of means [..., K].

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
        return np.sqrt(self.seeds + self.images)

    @property
    def t(self) -> Array:
        """How large each is beside its standard error."""
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
        left = np.maximum(p.shape[-2] - rejected.all(-1).sum(-1), 1)
        more = rejected | (p <= error / left[..., None, None])
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
    """The ends of intervals that agree with what is decided."""
    low = np.where(decided[..., 0] & (mean > 0), np.maximum(low, 0), low)
    high = np.where(decided[..., 0] & (mean < 0), np.minimum(high, 0), high)
    if margin is not None:
        low, high = (np.where(decided[..., 1], np.clip(end, -margin, margin), end) for end in (low, high))
    return low, high
