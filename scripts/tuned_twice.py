"""Compare cells each of which was tuned several times from nothing: points, optima, verdicts, and the simulation of it.

A cell is a loss in a setting, such as DCL at batch 32. A replicate of it is tuned at 8 points of two keys, and its
optimum is then measured with fresh seeds. So the difference between a cell's replicates holds all that its number
depends on by chance: the points, the noise of each, the seeds. Its size is estimated from all cells of a kind, such as
those of losses with a temperature. Replicates are blocks: in one of them all cells have the same points and seeds.
compare_losses.py trains the runs.

Shapes: C cells, B replicates, Q questions, M images.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.stats import qmc
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from ssl_bench.results import statistics
from ssl_bench.results.statistics import Estimate, tail

POINTS = 8  # of a replicate
# Sobol's sequence (1967) in the unit square, in sixteenths: each of 4 x 2 equal parts of the square has one of the
# points of each replicate, and each of 4 x 4 one of each pair of replicates. The axes are logarithms.
PLACES = ((qmc.Sobol(2, scramble=False).random(4 * POINTS) * 16).astype(int) + 0.5) / 16
STEPS = 41  # places on each axis among which an optimum is looked for
CAUTION = 0.5  # standard deviations: a place far from all points is not believed to be the best
GRID = np.stack(np.meshgrid(*2 * [np.linspace(0, 1, STEPS)], indexing="ij"), axis=-1).reshape(-1, 2)
TINY = 1e-9
TRIALS = (1, 2, 4, 8, 16)


def clipped(values: np.ndarray, floor: float) -> np.ndarray:
    """Values of points [..., points], none more than ``floor`` below the best of its row; NaN, of a run that diverged,
    is there."""
    least = np.nanmax(values, axis=-1, keepdims=True) - floor
    return np.fmax(values, least)


def optima(values: np.ndarray, places: np.ndarray, floor: float) -> np.ndarray:
    """The best places of Gaussian processes with one kernel, each about the mean of its cell [C, 2].

    The best is where the mean less half a standard deviation is highest. What settings lose varies less by it in
    simulations than by the mean alone, which may be highest beside a cliff where nothing was trained.

    Args:
        values: of the points [C, points], NaN of a run that diverged.
        places: of the points [points, 2].
        floor: values further below the best of their cell count as so far below: no smooth function has a cliff.
    """
    y = clipped(values, floor).T
    y = y - y.mean(0)
    scale = max(float(y.std()), TINY)
    kernel = ConstantKernel(1.0, (0.1, 100)) * RBF(0.5, (0.15, 3)) + WhiteKernel(0.05, (1e-3, 1))
    with warnings.catch_warnings(category=ConvergenceWarning, action="ignore"):  # at an end of these ranges
        process = GaussianProcessRegressor(kernel, alpha=TINY).fit(places, y / scale)
    mean, deviation = (of.reshape(len(GRID), -1) for of in process.predict(GRID, return_std=True))
    return GRID[(mean - CAUTION * deviation).argmax(0)]


def expected(chosen: np.ndarray, tested: np.ndarray) -> dict[int, float]:
    """Expected ``tested`` value of the best of n points by ``chosen``, over all samples of n of them (Dodge 2019).

    The k-th from below is the best of C(k - 1, n - 1) samples.
    """
    count, ordered = len(chosen), tested[np.argsort(chosen, kind="stable")]
    return {
        n: float(sum(math.comb(k, n - 1) * value for k, value in enumerate(ordered)) / math.comb(count, n))
        for n in TRIALS
        if n <= count
    }


@dataclass(frozen=True)
class Question:
    """A difference of two cells that is asked for, by their names.

    Attributes:
        third: the difference with its interval, by the third edition of the protocol.
        paper: the difference of the losses' own paper, in points.
    """

    of: str
    minus: str
    third: tuple[float, float, float] | None = None
    paper: float | None = None

    @property
    def text(self) -> str:
        """It in words."""
        return f"{self.of} minus {self.minus}"


@dataclass(frozen=True)
class Rules:
    """Numbers of the protocol.

    Attributes:
        margin: a smaller difference does not matter, in points.
        error: of all verdicts together.
        floor: a point further below the best of its cell counts as so far below, in points.
    """

    margin: float
    error: float
    floor: float

    def verdict(self, low: float, high: float) -> str:
        """The verdict of an interval, which lies on one side of zero or within the margin if it decides."""
        words = ["better"] * (low >= 0) + ["worse"] * (high <= 0)
        words += [f"no difference larger than {self.margin:g}"] * (max(-low, high) <= self.margin)
        return ", ".join(words) or f"undecided; {max(-low, high):.1f} at most"


class Answer(NamedTuple):
    """A difference with the ends of its interval; those of all answers hold together."""

    difference: float
    low: float
    high: float


@dataclass(frozen=True)
class Decided:
    """The answers to the questions.

    Attributes:
        answers: of those whose cells are measured, by their text.
        deviations: of a replicate beside cell and block, and of blocks beside that, with the number of cells, by kind.
    """

    answers: dict[str, Answer]
    deviations: dict[str, tuple[float, float, int]]


def decide(
    questions: Sequence[Question],
    replicates: Mapping[str, Sequence[float] | np.ndarray],
    kinds: Mapping[str, str],
    rules: Rules,
    right: Mapping[str, np.ndarray] | None = None,
) -> Decided:
    """Answer the questions whose cells are measured, in one pass over all of them.

    The mean of a replicate is that of its cell, that of its block, and an error, within each kind. Blocks cancel in a
    difference between two cells of a kind, and count between two kinds.

    Args:
        replicates: the means of the replicates of each cell, in points.
        kinds: that of each cell. Cells of one kind have the same blocks.
        right: which images the runs of each cell have right [runs, M]; None: it is not known of all.
    """
    asked = [question for question in questions if {question.of, question.minus} <= replicates.keys()]
    count, mean, parts = max(len(asked), 1), np.zeros(len(asked)), list[tuple[np.ndarray, int]]()
    deviations = dict[str, tuple[float, float, int]]()
    for kind in dict.fromkeys(kinds[name] for name in replicates):
        names = [name for name in replicates if kinds[name] == kind]
        values = np.array([replicates[name] for name in names], dtype=float)
        weights, (cells, blocks) = _weights(asked, names), values.shape
        mean += weights @ values.mean(1)
        of_blocks, free = values.mean(0) - values.mean(), blocks - 1
        left = values - values.mean(1, keepdims=True) - of_blocks
        error = float((left**2).sum() / max((cells - 1) * free, 1))
        between = float(cells * (of_blocks**2).sum() / free)
        joint = weights.sum(1) ** 2 / cells
        parts += [
            (error * ((weights**2).sum(1) - joint) / blocks, (cells - 1) * free),
            (between * joint / blocks, free),
        ]
        deviations[kind] = math.sqrt(error), math.sqrt(max(between - error, 0) / cells), cells
    variance = np.sum([part for part, _ in parts], axis=0)
    squares = np.sum([part**2 / max(free, 1) for part, free in parts], axis=0)
    images = np.zeros(len(asked))
    if right is not None and asked:
        names, bits = [*replicates], [right[name].astype(float) for name in replicates]
        images = 100**2 * of_images(_weights(asked, names), bits)
        squares = squares + images**2 / (bits[0].shape[1] - 1)
    degrees = np.maximum((variance + images) ** 2 / np.maximum(squares, TINY**2), 1)  # Satterthwaite 1946
    estimate = Estimate(mean, variance, images, degrees)
    p = np.stack([2 * tail(estimate.t, degrees), estimate.exceeds(rules.margin)], axis=-1)
    known = statistics.decide(p, rules.error)
    low, high = statistics.cut(mean, *estimate.interval(rules.error / count), known, rules.margin)
    answers = (Answer(*map(float, one)) for one in zip(mean, low, high, strict=True))
    return Decided(dict(zip((question.text for question in asked), answers, strict=True)), deviations)


def _weights(questions: Sequence[Question], names: Sequence[str]) -> np.ndarray:
    """The weight of each cell in each difference that a question asks for, [Q, C]."""
    signs = [[(name == question.of) - (name == question.minus) for name in names] for question in questions]
    return np.array(signs, dtype=float).reshape(-1, len(names))


def of_images(weights: np.ndarray, right: Sequence[np.ndarray]) -> np.ndarray:
    """The part of the images in the variance of sums of shares with weights, whose sum is 0 [rows of weights].

    Args:
        right: which images the runs of each cell have right [C][runs, M].
    """
    share, n = np.array([of.mean(0) for of in right]), np.array([len(of) for of in right])
    count, variance = share.shape[1], np.array([of.mean(1).var(ddof=1) for of in right])
    within = n * (share * (1 - share)).sum(-1) - count * (n - 1) * variance
    joint = (weights**2 * within / ((n - 1) * (count - 1) * n)).sum(-1)
    return np.asarray(((weights @ share).var(-1, ddof=1) - joint).clip(0) / count)


def simulate(
    groups: Sequence[Sequence[str]],
    questions: Sequence[Question],
    kinds: Mapping[str, str],
    seeds: Mapping[str, Sequence[int]],
    roughness: Mapping[str, float],
    rules: Rules,
    worlds: int,
) -> dict[str, float]:
    """Carry out the whole procedure in ``worlds``, with equal cells and with some that are better by the margin.

    A surface is a bowl as that of the losses on CIFAR-10, over a hundredfold of the rate and a tenfold of the second
    key, with a cliff in the corner of high rates and low temperatures, and with a smooth field of the length 0.25 on
    it. A run deviates by 0.5 on the images that choose and by 0.4 on the others, and a block of a kind by 0.2.

    Args:
        groups: the cells that share a kernel.
        kinds: that of each cell.
        seeds: the number of them in each replicate, by kind.
        roughness: the deviation of the field, by kind.

    Returns:
        The share of worlds with equal cells in which a verdict is wrong and in which all intervals hold the truth; the
        same of worlds in which half of the cells are better by the margin; of differences as large as it the share
        whose sign is decided; in points the median half of an interval, and the mean of what chosen settings lose.
    """
    random, rows = np.random.default_rng(0), list[tuple[float, ...]]()
    for _ in range(worlds):
        blocks = {kind: random.normal(0, 0.2, len(of)) for kind, of in seeds.items()}
        heights, measured = dict[str, np.ndarray](), dict[str, np.ndarray]()
        for group in groups:
            of_kind = kinds[group[0]]
            heights |= dict(
                zip(group, _tuned(random, group, roughness, kinds, len(blocks[of_kind]), rules), strict=True)
            )
        for name, height in heights.items():
            kind = kinds[name]
            measured[name] = height + blocks[kind] + random.normal(0, 0.4 / np.sqrt(seeds[kind]))
        row = list[float]()
        better = {name: float(rules.margin * random.integers(2)) for name in heights}
        for shift in (dict.fromkeys(heights, 0.0), better):
            answers = decide(questions, {n: of + shift[n] for n, of in measured.items()}, kinds, rules).answers
            told = [(answers[one.text], shift[one.of] - shift[one.minus]) for one in questions if one.text in answers]
            wrong = [(of.low >= 0 >= truth) or (of.high <= 0 <= truth) for of, truth in told]
            wrong += [max(-of.low, of.high) <= rules.margin <= abs(truth) for of, truth in told]
            row += [float(any(wrong)), float(not any(wrong) and all(of.low <= truth <= of.high for of, truth in told))]
        row.append(float(np.mean([float(of.low * of.high >= 0) for of, truth in told if truth] or [np.nan])))
        row.append(float(np.median([(of.high - of.low) / 2 for of, _ in told])))
        rows.append((*row, -float(np.mean(np.concatenate([*heights.values()])))))
    names = ("wrong", "hold", "wrong, some better", "hold, some better", "found", "half of interval", "lost")
    return dict(zip(names, np.nanmean(rows, axis=0).tolist(), strict=True))


def _tuned(
    random: np.random.Generator,
    group: Sequence[str],
    roughness: Mapping[str, float],
    kinds: Mapping[str, str],
    replicates: int,
    rules: Rules,
) -> np.ndarray:
    """The true heights of the settings that each replicate of cells chooses, 0 for the best ones [C, B]."""
    places = PLACES[: POINTS * replicates]
    surfaces = np.stack([_surface(random, roughness[kinds[name]], np.concatenate([places, GRID])) for name in group])
    surfaces -= surfaces[:, len(places) :].max(1, keepdims=True)
    points = surfaces[:, : len(places)] + random.normal(0, 0.5, (len(group), len(places)))
    heights = np.empty((len(group), replicates))
    for number in range(replicates):
        of = slice(POINTS * number, POINTS * (number + 1))
        chosen = np.rint(optima(points[:, of], places[of], rules.floor) * (STEPS - 1)).astype(int) @ [STEPS, 1]
        heights[:, number] = surfaces[np.arange(len(group)), len(places) + chosen]
    return heights


def _surface(random: np.random.Generator, roughness: float, places: np.ndarray) -> np.ndarray:
    """The values of a random surface at places [N]."""
    u, v = (places - random.uniform([0.35, 0.35], [0.65, 0.65])).T
    frequencies, phases = random.normal(0, 1 / 0.25, (2, 200)), random.uniform(0, 2 * np.pi, 200)
    field = roughness * np.sqrt(2 / 200) * np.cos(places @ frequencies + phases).sum(1)
    return field - (10 * u**2 + 14 * v**2 - 10 * u * v) - 20 * (u - v > 0.7)
