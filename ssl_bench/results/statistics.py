"""Differences of accuracies over seeds and images, and what they decide.

Shapes: R rows, M images, leading dimensions of any kind.

Each run of a row has a seed of its own; the images are the same for all. If one of two rows has an image right more
often than the other, other images would not repeat that. So the variance of a difference of means has a part of the
seeds, a part of the images, and one of both together (Cornfield and Tukey 1956), each estimated without bias. The
variance over the seeds holds the joint part. So does that of the images' differences, from which it is subtracted.

Parts with different degrees of freedom are joined after Satterthwaite (1946).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

ERROR = 0.05  # of all answers to a question together, and of an interval
ROUNDING = 1e-15  # standard error of numbers that are equal up to rounding
SAME = 1e-9  # of the mean of numbers, by which equal ones may differ
IMAGES = 1.5  # squared number of images by which runs differ at least, times the degrees of freedom
LEAST = 3  # degrees of freedom that must remain for seeds to have a part of their own
TINY = 1e-300
Array = Any  # numbers, or a single one


def beyond(error: Array, degrees: Array) -> Array:
    """The value that Student's t exceeds with a probability; scipy.stats has the same, and takes long to import."""
    from scipy.special import stdtrit

    return -stdtrit(degrees, error)


def tail(value: Array, degrees: Array) -> Array:
    """The probability with which Student's t exceeds a value."""
    from scipy.special import stdtr

    return stdtr(degrees, -value)


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

    def interval(self, error: Array = ERROR) -> tuple[Array, Array]:
        """The ends of a two-sided interval by Student's t, without a correction for several."""
        half = beyond(error / 2, self.degrees) * self.error
        return self.mean - half, self.mean + half

    def differs(self) -> np.ndarray:
        """Two-sided p-values of no difference."""
        return np.asarray(2 * tail(np.abs(self.mean) / self.error, self.degrees))

    def exceeds(self, margin: Array) -> np.ndarray:
        """P-values of a difference as large as the margin, by two one-sided tests (Schuirmann 1987)."""
        return np.asarray(tail((margin - np.abs(self.mean)) / self.error, self.degrees))


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


def at_least(variance: Array, degrees: Array, step: float, joint: Array | None) -> Array:
    """A variance over seeds, not below what numbers of this resolution can show: few seeds may agree by chance.

    Args:
        variance: of a number, with its ``degrees`` of freedom.
        step: of an accuracy the share of one image, else the smallest difference that two numbers have.
        joint: the variance of an accuracy if a seed had no part of its own, taken where the runs of a setting differ
            by an image or less; None: which images are right is not known.
    """
    if joint is None:
        return np.maximum(variance, step**2 / 12)
    least = IMAGES * step**2 / degrees
    return np.where(variance > least, variance, np.maximum(least, joint))


def images(weights: Array, right: np.ndarray, n: Array, variance: Array) -> Array:
    """The part of the images in the variance of sums of shares with weights.

    Args:
        weights: of the rows, which have the sum 0 [..., R].
        right: share of the seeds of each row that have an image right [..., R, M].
        n: number of these seeds [R].
        variance: of the shares of right images over them [..., R].
    """
    joint = (np.asarray(weights) ** 2 * _joint(right, n, variance)).sum(-1)
    sums = (np.asarray(weights)[..., None, :] @ right)[..., 0, :]
    return (sums.var(-1, ddof=1) - joint).clip(0) / right.shape[-1]


def _joint(right: np.ndarray, n: Array, variance: Array) -> Array:
    """Mean square of the residuals of seeds x images over n: of bits, their sum of squares is that of the shares."""
    count = right.shape[-1]
    within = n * (right * (1 - right)).sum(-1) - count * (n - 1) * variance
    return within / ((n - 1) * (count - 1) * n)


def difference(mean: Array, of_seeds: Array, free: Array, of_images: Array, count: int) -> Estimate:
    """A difference with the parts of its variance.

    Args:
        of_seeds: the variance by the seeds, with its ``free`` degrees of freedom.
        of_images: that by ``count`` images.
    """
    squares = of_seeds**2 / free + of_images**2 / max(count - 1, 1)
    degrees = (of_seeds + of_images) ** 2 / np.maximum(squares, TINY)
    return Estimate(mean, of_seeds, of_images, np.maximum(degrees, 1))


def holm(p: np.ndarray, planned: int, error: float = ERROR) -> tuple[np.ndarray, np.ndarray]:
    """The step-down of Holm (1979): which hypotheses it rejects, and the error at which it decides each [..., C].

    That of a hypothesis that is not rejected is the one of the first step that rejects none.

    Args:
        p: the p-values [..., C].
        planned: all comparisons that were planned, of which C have run.
    """
    order = np.argsort(p, axis=-1)
    small = np.take_along_axis(p, order, -1) <= error / (planned - np.arange(p.shape[-1]))
    rejected = np.empty_like(small)
    np.put_along_axis(rejected, order, np.logical_and.accumulate(small, axis=-1), -1)
    step = np.minimum(np.argsort(order, axis=-1), rejected.sum(-1, keepdims=True))
    return rejected, error / (planned - step)


@dataclass(frozen=True)
class Answer:
    """What a difference decides, and the interval of the question that this answers.

    Attributes:
        verdict: in words; empty for undecided.
        low, high: ends of the interval, which hold together with those of the other answers. Without a verdict it holds
            0, with one on the sign it does not; with one on the margin it lies within the margin.
    """

    verdict: str
    low: float
    high: float


def answers(
    estimate: Estimate,
    margin: Array | None,
    planned: int,
    error: float = ERROR,
    up: str = "better",
    down: str = "worse",
) -> list[Answer]:
    """What differences decide together.

    The interval of a difference that is no larger than the margin is that of two one-sided tests, with 0 (Berger and
    Hsu 1996). If its sign is decided as well, each end is that of its own question.

    Args:
        margin: a smaller difference does not matter; None: do not ask.
        planned: all comparisons that were planned, of which these have run.
        up, down: a difference above and below 0.
    """
    margins = np.full(estimate.mean.shape, math.nan if margin is None else margin)
    differs, its_error = holm(estimate.differs(), planned, error)
    equals, other_error = holm(estimate.exceeds(margins), planned, error)
    two_sided, one_sided = estimate.interval(its_error), estimate.interval(2 * other_error)
    told = list[Answer]()
    for number, (value, most) in enumerate(zip(estimate.mean, margins, strict=True)):
        words, (low, high) = list[str](), (float(end[number]) for end in two_sided)
        inner = [float(end[number]) for end in one_sided]
        if differs[number]:
            words.append(up if value > 0 else down)
        if equals[number]:
            words.append(f"no difference larger than {most:.3g}")
            high = inner[1] if words[0] == up else high
            low = inner[0] if words[0] == down else low
            low, high = (low, high) if differs[number] else (min(inner[0], 0.0), max(inner[1], 0.0))
        told.append(Answer(", ".join(words), low, high))
    return told


def stacked(estimates: Sequence[Estimate]) -> Estimate:
    """Several estimates of one difference each as one of all."""
    columns = [(one.mean, one.seeds, one.images, one.degrees) for one in estimates]
    return Estimate(*np.array(columns, dtype=float).reshape(-1, 4).T)


def paired(differences: Array, bits: np.ndarray | None = None, step: float = 0.0) -> Estimate:
    """The mean difference of pairs that have a seed in common.

    Its degrees of freedom are those of the seeds alone: few seeds that happen to agree must not become certain by the
    many images. So intervals are too wide, never too narrow, where the images are most of the variance.

    Args:
        differences: of each pair [..., n], at least 2.
        bits: of each pair and image, 1 if only the first has it right, -1 if only the second has, else 0 [..., n, M];
            None: the images are not known.
        step: of the numbers that are subtracted (:func:`at_least`).
    """
    values = np.asarray(differences, dtype=float)
    n, variance, joint = values.shape[-1], values.var(-1, ddof=1), None
    of_images = np.zeros_like(variance)
    if bits is not None:
        joint = joint_of(bits) / bits.shape[-1]
        of_images = (bits.mean(-2).var(-1, ddof=1) / bits.shape[-1] - joint / n).clip(0)
    by_seeds = at_least(variance, n - 1, math.sqrt(2) * step, joint) / n
    return Estimate(values.mean(-1), by_seeds, of_images, np.full_like(by_seeds, n - 1))


def joint_of(bits: np.ndarray) -> Array:
    """Mean square of the residuals of seeds x images, of ``bits`` [..., n, M]."""
    n, count = bits.shape[-2:]
    share, shares = bits.mean(-2), bits.mean(-1)
    squares = (bits.astype(float) ** 2).sum((-2, -1)) - n * (share**2).sum(-1) - count * (shares**2).sum(-1)
    return (squares + n * count * share.mean(-1) ** 2) / ((n - 1) * (count - 1))


@dataclass(frozen=True)
class OverCells:
    """The mean of a difference over cells.

    Attributes:
        estimate: of the mean.
        by_seed: seeds move the difference alike in all cells (F test, 5%), so that its interval is too narrow.
        vary: the cells differ among themselves by more than chance, so that the mean says little about any of them.
    """

    estimate: Estimate
    by_seed: bool
    vary: bool


def over_cells(
    differences: Sequence[Mapping[int, float]],
    bits: Sequence[np.ndarray] | None = None,
    step: float = 0.0,
    images: Sequence[object] = (),
) -> OverCells | None:
    """Average the differences of pairs over cells, each of which counts once; None if no cell has two pairs.

    The variance between the pairs of a cell is pooled over the cells. Whether the cells differ is asked without the
    part that seeds have in all cells, if these have the same seeds and that leaves ``LEAST`` degrees of freedom.

    Args:
        differences: of each cell's pairs by their seed.
        bits: of each cell, as :func:`paired` takes them [n, M]; None: the images are not known.
        step: as of :func:`paired`.
        images: the name of the test images of each cell; empty: all cells have the same.
    """
    from scipy.special import fdtrc  # the tail of the F law

    cells = [np.array(list(of_cell.values())) for of_cell in differences]
    n, means, count = np.array([len(cell) for cell in cells]), np.array([cell.mean() for cell in cells]), len(cells)
    degrees = int((n - 1).sum())
    if not degrees:
        return None
    step, joint, of_images = math.sqrt(2) * step, None, 0.0
    if bits is not None:
        joint = float(np.mean([joint_of(of_cell) / of_cell.shape[1] for of_cell in bits if len(of_cell) > 1]))
        named = [*images] or [None] * count
        for name in dict.fromkeys(named):
            places = [place for place, of_cell in enumerate(named) if of_cell == name]
            share = np.sum([bits[place].mean(0) for place in places], axis=0) / count
            of_images += max(float(share.var(ddof=1) / share.size - joint * (1 / n[places]).sum() / count**2), 0.0)
    squares = sum(((cell - cell.mean()) ** 2).sum() for cell in cells)
    variance = max(float(at_least(squares / degrees, degrees, step, joint)), ROUNDING**2)
    by_seed, own, free = False, variance, degrees
    if len({frozenset(of_cell) for of_cell in differences}) == 1 and (count - 1) * (n[0] - 1) >= LEAST:
        table = np.array([[of_cell[seed] for seed in differences[0]] for of_cell in differences])
        of_seeds, free = table.mean(0), (count - 1) * (n[0] - 1)
        left = table - of_seeds - table.mean(1, keepdims=True) + table.mean()
        own = max(float(at_least((left**2).sum() / free, free, step, joint)), ROUNDING**2)
        by_seed = bool(fdtrc(n[0] - 1, free, count * of_seeds.var(ddof=1) / own) < ERROR)
    between = (n * (means - np.average(means, weights=n)) ** 2).sum() / max(count - 1, 1)
    vary = count > 1 and bool(fdtrc(count - 1, free, between / own) < ERROR)
    by_seeds = variance * (1 / n).sum() / count**2
    return OverCells(Estimate(*map(np.float64, (means.mean(), by_seeds, of_images, degrees))), by_seed, vary)


def seeds_to_decide(estimate: Estimate, n: int, margin: float | None, error: float) -> int | None:
    """How many more pairs would decide if mean and deviation stayed as they are; None: more than 1,000, or never."""
    total = np.arange(n + 1, n + 1001)
    wide = np.sqrt(estimate.seeds * n / total + estimate.images)
    decided = abs(estimate.mean) > beyond(error / 2, total - 1) * wide
    if margin is not None:
        decided |= margin - abs(estimate.mean) > beyond(error, total - 1) * wide
    return int(total[decided.argmax()] - n) if decided.any() else None
