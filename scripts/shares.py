"""The arithmetic of the committed protocol: shares of variance with intervals, and verdicts with Holm's correction.

Shares are of the variance between points of cells, by factors and their pairs (type II), freed of the
noise of runs. Their intervals are quantiles of draws from a normal law about the values.

Shapes: C points, F factors, D draws, R rows of differences, M images.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ssl_bench.results.statistics import ERROR, Estimate, tail

DRAWS = 2000
SMALL, SAME = 1e-9, 1e-9  # of an eigenvalue beside the largest; of rounding beside the values
TINY = 1e-300
Array = Any  # numbers, or a single one


@dataclass(frozen=True)
class Share:
    """The share of a factor, a pair of factors, or the rest, whose ``factors`` are none, with its interval, 0 to 1."""

    factors: tuple[int, ...]
    share: float
    low: float
    high: float


def shares(levels: np.ndarray, values: np.ndarray, variance: float, degrees: int) -> list[Share]:
    """The shares of all factors, their pairs and the rest, in this order.

    Args:
        levels: of each point by factor [C, F].
        values: of the points [C].
        variance: of a value, with its degrees of freedom; 0 of none, and then there are no intervals.
    """
    effects = _effects(levels)
    bases = [basis for _, basis in effects]
    squares, noise = _squares(bases, values), np.array([float(basis.shape[1]) for basis in bases])
    noise[-1] = len(values) - 1 - (noise[-1] - 1)
    noise *= variance * (noise > SAME * len(values))
    low, high = np.full((2, len(effects)), np.nan)
    if degrees:
        low, high = _interval(values, bases, noise, variance, degrees)
    rows = zip(effects, _nearest(squares - noise), low, high, strict=True)
    return [Share(factors, *map(float, numbers)) for (factors, _), *numbers in rows]


def _interval(
    values: np.ndarray, bases: Sequence[np.ndarray], noise: np.ndarray, variance: float, degrees: int
) -> tuple[np.ndarray, np.ndarray]:
    """The ends of the intervals of shares; the variance is drawn, too: of few degrees of freedom it is known badly."""
    rng = np.random.default_rng(0)
    drawn_variance = variance * degrees / rng.chisquare(degrees, DRAWS)
    drawn = values + np.sqrt(drawn_variance)[:, None] * rng.standard_normal((DRAWS, len(values)))
    clean = _squares(bases, drawn) - 2 * noise
    own, others = clean.clip(0), (clean.sum(1, keepdims=True) - clean).clip(0)
    repeated = np.divide(own, own + others, out=np.zeros_like(own), where=own > 0)
    low, high = np.quantile(repeated, [ERROR / 2, 1 - ERROR / 2], axis=0)
    for number in range(len(bases)):
        if not np.delete(low, number).any():  # the others may be nothing, so this may be all
            high[number] = 1.0
    return low, high


def _squares(bases: Sequence[np.ndarray], values: np.ndarray) -> np.ndarray:
    """The sum of squares of each effect [..., effects]; the last is of what its basis does not span."""
    *parts, last = (values @ basis for basis in bases)
    parts.append(values - last @ bases[-1].T)
    squares = np.stack([(part**2).sum(-1) for part in parts], axis=-1)
    return np.asarray(squares * (squares > SAME**2 * (values**2).sum(-1)[..., None]))


def _nearest(squares: np.ndarray) -> np.ndarray:
    """The shares, none below 0 and 1 in sum, that are nearest to the squares over their sum [..., effects]."""
    raw = squares / squares.sum(-1, keepdims=True)
    ordered = -np.sort(-raw, axis=-1)
    surplus = (ordered.cumsum(-1) - 1) / np.arange(1, raw.shape[-1] + 1)
    kept = (ordered > surplus).sum(-1, keepdims=True)
    return np.asarray((raw - np.take_along_axis(surplus, np.maximum(kept, 1) - 1, -1)).clip(0))


def _effects(levels: np.ndarray) -> list[tuple[tuple[int, ...], np.ndarray]]:
    """The factors of each effect, and an orthonormal basis of its part; the last one is that of all others."""
    count, columns = levels.shape[1], dict[tuple[int, ...], np.ndarray]()
    for number in range(count):
        columns[(number,)] = _dummies(levels[:, number])
    for pair in itertools.combinations(range(count), 2):
        _, level = np.unique(levels[:, pair], axis=0, return_inverse=True)
        columns[pair] = _dummies(level.reshape(-1))
    one, effects = np.ones((len(levels), 1)), list[tuple[tuple[int, ...], np.ndarray]]()
    for factors, own in columns.items():
        beside = [other for key, other in columns.items() if key != factors and len(key) <= len(factors)]
        known = _basis(np.hstack([one, *beside]))
        basis = _basis(own - known @ (known.T @ own), len(own))
        effects += [(factors, basis)] if basis.shape[1] else []
    return [*effects, ((), _basis(np.hstack([one, *columns.values()])))]


def _dummies(level: np.ndarray) -> np.ndarray:
    return np.eye(level.max() + 1)[level]


def _basis(columns: np.ndarray, scale: float | None = None) -> np.ndarray:
    values, vectors = np.linalg.eigh(columns.T @ columns)
    kept = values > SMALL * (values.max() if scale is None else scale)
    return columns @ (vectors[:, kept] / np.sqrt(values[kept]))


def of_images(weights: np.ndarray, right: Sequence[np.ndarray]) -> np.ndarray:
    """The part of the images in the variance of sums of shares with weights, whose sum is 0 [rows of weights].

    Args:
        right: which images the runs of each row have right [R][runs, M].
    """
    share, n = np.array([of.mean(0) for of in right]), np.array([len(of) for of in right])
    count, variance = share.shape[1], np.array([of.mean(1).var(ddof=1) for of in right])
    within = n * (share * (1 - share)).sum(-1) - count * (n - 1) * variance
    joint = (weights**2 * within / ((n - 1) * (count - 1) * n)).sum(-1)
    return np.asarray(((weights @ share).var(-1, ddof=1) - joint).clip(0) / count)


def difference(mean: Array, of_seeds: Array, free: Array, images: Array, count: int) -> Estimate:
    """A difference with the parts of its variance: by seeds, with ``free`` degrees of freedom, and by count images."""
    squares = of_seeds**2 / free + images**2 / max(count - 1, 1)
    degrees = (of_seeds + images) ** 2 / np.maximum(squares, TINY)
    return Estimate(mean, of_seeds, images, np.maximum(degrees, 1))


def holm(p: np.ndarray, planned: int, error: float) -> tuple[np.ndarray, np.ndarray]:
    """The step-down of Holm (1979): which hypotheses it rejects, and the error at which it decides each [R]."""
    order = np.argsort(p)
    small, rejected = p[order] <= error / (planned - np.arange(len(p))), np.empty(len(p), dtype=bool)
    rejected[order] = np.logical_and.accumulate(small)
    return rejected, error / (planned - np.minimum(np.argsort(order), rejected.sum()))


@dataclass(frozen=True)
class Answer:
    """The verdict on a difference, empty for undecided, and the interval of the question that this answers."""

    verdict: str
    low: float
    high: float


def answers(estimate: Estimate, margin: float, planned: int, error: float) -> list[Answer]:
    """Verdicts on differences that hold together, of ``planned`` ones of which these have run."""
    differs, its_error = holm(2 * tail(estimate.t, estimate.degrees), planned, error)
    equals, other_error = holm(estimate.exceeds(margin), planned, error)
    two_sided, one_sided = estimate.interval(its_error), estimate.interval(2 * other_error)
    told = list[Answer]()
    for number, value in enumerate(estimate.mean):
        words, (low, high) = list[str](), (float(end[number]) for end in two_sided)
        inner = [float(end[number]) for end in one_sided]
        if differs[number]:
            words.append("better" if value > 0 else "worse")
        if equals[number]:
            words.append(f"no difference larger than {margin:.3g}")
            high = inner[1] if words[0] == "better" else high
            low = inner[0] if words[0] == "worse" else low
            low, high = (low, high) if differs[number] else (min(inner[0], 0.0), max(inner[1], 0.0))
        told.append(Answer(", ".join(words), low, high))
    return told
