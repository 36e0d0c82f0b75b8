"""Compare cells each of which was tuned twice from nothing: points, optima, verdicts, and the simulation of it all.

A cell is a loss in a setting, such as DCL at batch 32. A replicate of it is tuned at 8 points of two keys, and its
optimum is then measured with 4 fresh seeds. So the difference between a cell's replicates holds all that its number
depends on by chance: the points, the noise of each, the seeds. Its size is estimated from all cells of a kind, such as
those of losses with a temperature. compare_losses.py trains the runs.

Shapes: C cells, Q questions, M images; replicates are a and b.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import shares as verdicts
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

# The first points of Sobol's sequence in the square (Sobol 1967), in sixteenths. Each of 4 x 2 equal parts of the
# square has one of the first 8, which are replicate a, and one of the last 8, which are b; each of 4 x 4 one of all.
SOBOL = np.array(
    [
        (0, 8, 12, 4, 6, 14, 10, 2, 3, 11, 15, 7, 5, 13, 9, 1),
        (0, 8, 4, 12, 6, 14, 2, 10, 5, 13, 1, 9, 3, 11, 7, 15),
    ]
).T
PLACES = (SOBOL + 0.5) / 16  # in the unit square, whose axes are logarithms [16, 2]
REPLICATES = {"a": slice(0, 8), "b": slice(8, 16)}  # their places
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
    """A planned difference: a sum of cells with signs.

    Attributes:
        text: it in words.
        cells: the sign of each cell by name.
    """

    text: str
    cells: Mapping[str, int]


@dataclass(frozen=True)
class Rules:
    """Numbers of the protocol.

    Attributes:
        margin: a smaller difference does not matter, in points.
        error: of all verdicts together, by Holm's correction.
        floor: a point further below the best of its cell counts as so far below, in points.
    """

    margin: float
    error: float
    floor: float


@dataclass(frozen=True)
class Decided:
    """The answers to the questions.

    Attributes:
        estimates: of those whose cells are measured, by text.
        answers: with the interval of each, which hold together.
        deviations: between the replicates of a cell, pooled over the cells of a kind, and how many these are, by kind.
    """

    estimates: dict[str, float]
    answers: dict[str, verdicts.Answer]
    deviations: dict[str, tuple[float, int]]


def decide(
    questions: Sequence[Question],
    replicates: Mapping[str, Sequence[float] | np.ndarray],
    kinds: Mapping[str, str],
    rules: Rules,
    right: Mapping[str, np.ndarray] | None = None,
) -> Decided:
    """Answer all questions whose cells are measured, with Holm's correction for all of them.

    Args:
        replicates: the means of both replicates of each cell, in points.
        kinds: that of each cell. Replicates of cells of one kind vary alike.
        right: which images the runs of each cell have right [runs, M]; None: it is not known of all.
    """
    names = list(replicates)
    values = np.array([replicates[name] for name in names], dtype=float).reshape(-1, 2)
    asked = [question for question in questions if question.cells.keys() <= replicates.keys()]
    found = dict.fromkeys(kinds[name] for name in names)
    members = {kind: np.array([kinds[name] == kind for name in names]) for kind in found}
    variances = {kind: float(values[of].var(1, ddof=1).mean()) for kind, of in members.items()}
    deviations = {kind: (math.sqrt(variances[kind]), int(of.sum())) for kind, of in members.items()}
    if not asked:
        return Decided({}, {}, deviations)
    weights = np.array([[question.cells.get(name, 0) for name in names] for question in asked], dtype=float)
    parts = np.array([variances[kind] / 2 * (weights[:, of] ** 2).sum(1) for kind, of in members.items()])
    variance, counts = parts.sum(0), np.array([[of.sum()] for of in members.values()])
    free = variance**2 / np.maximum((parts**2 / counts).sum(0), TINY**2)  # Satterthwaite 1946
    of_images, count = np.zeros(len(asked)), 1
    if right is not None:
        bits = [right[name].astype(float) for name in names]
        count, of_images = bits[0].shape[1], 100**2 * verdicts.of_images(weights, bits)
    mean = weights @ values.mean(1)
    estimate = verdicts.difference(mean, variance, np.maximum(free, 1), of_images, count)
    answers = verdicts.answers(estimate, rules.margin, len(questions), rules.error)
    texts = [question.text for question in asked]
    return Decided(
        dict(zip(texts, mean.tolist(), strict=True)),
        dict(zip(texts, answers, strict=True)),
        deviations,
    )


def shares(tables: Mapping[str, Sequence[str]], values: np.ndarray, variance: float, degrees: int) -> dict[str, str]:
    """The shares of the variance between all points of cells, in percent with their intervals, by factor.

    The factors are those of the cells and the two keys, each in quarters of its range.

    Args:
        tables: the level of each cell by factor; a factor with one level is left out.
        values: of all points of each cell [C, 16].
        variance: of a run by its seed, with its degrees of freedom.
    """
    names = [name for name, of in tables.items() if len(set(of)) > 1]
    levels = [np.unique(tables[name], return_inverse=True)[1] for name in names]
    rows = [[*(of[cell] for of in levels), *place] for cell in range(len(values)) for place in (SOBOL // 4).tolist()]
    names += ["rate", "second key"]
    return {
        " x ".join(names[number] for number in one.factors) or "the rest": f"{100 * one.share:.1f}"
        + (f" [{100 * one.low:.1f}, {100 * one.high:.1f}]" if degrees else "")
        for one in verdicts.shares(np.array(rows), values.ravel(), variance, degrees)
    }


def simulate(
    groups: Sequence[Sequence[str]],
    questions: Sequence[Question],
    kinds: Mapping[str, str],
    roughness: Mapping[str, float],
    rules: Rules,
    worlds: int,
) -> dict[str, float]:
    """Carry out the whole procedure in ``worlds`` in which the best settings of all cells are equally good.

    A surface is a bowl as that of the losses on CIFAR-10, over a hundredfold of the rate and a tenfold of the second
    key, with a cliff in the corner of high rates and low temperatures, and with a smooth field of the length 0.25 on
    it. A run deviates by 0.5 on the images that choose and by 0.4 on the others.

    Args:
        groups: the cells that share a kernel.
        kinds: that of each cell.
        roughness: the deviation of the field, by kind.

    Returns:
        The share of worlds in which a difference is called better or worse ("wrong"); of differences as large as the
        margin that are called smaller ("missed") and whose sign is decided ("found"); and in points the median half of
        the interval of a difference of two cells, and the mean of what chosen settings lose.
    """
    random, rows = np.random.default_rng(0), list[tuple[float, ...]]()
    names = {name for group in groups for name in group}
    rough = {name: roughness[kinds[name]] for name in names}
    pairs = [one for one in questions if len(one.cells) == 2 and one.cells.keys() <= names]
    for _ in range(worlds):
        heights = {name: of for group in groups for name, *of in _tuned(random, group, rough, rules.floor)}
        measured = {name: np.array(of) + random.normal(0, 0.4 / 2, 2) for name, of in heights.items()}
        same = decide(questions, measured, kinds, rules).answers
        pair = pairs[random.integers(len(pairs))]
        better = next(name for name, sign in pair.cells.items() if sign > 0)
        moved = {**measured, better: measured[better] + rules.margin}
        other = decide(questions, moved, kinds, rules).answers[pair.text]
        rows.append(
            (
                any(word in one.verdict for one in same.values() for word in ("better", "worse")),
                "no difference" in other.verdict,
                "better" in other.verdict,
                float(np.median([(same[one.text].high - same[one.text].low) / 2 for one in pairs])),
                -float(np.mean([*heights.values()])),
            )
        )
    means = np.mean(rows, axis=0).tolist()
    return dict(zip(("wrong", "missed", "found", "half of interval", "lost"), means, strict=True))


def _tuned(
    random: np.random.Generator, group: Sequence[str], roughness: Mapping[str, float], floor: float
) -> Iterator[tuple[str, float, float]]:
    """Cells with the true heights of the settings that either replicate chooses, 0 for the best ones."""
    surfaces = np.stack([_surface(random, roughness[name], np.concatenate([PLACES, GRID])) for name in group])
    surfaces -= surfaces[:, len(PLACES) :].max(1, keepdims=True)
    points = surfaces[:, : len(PLACES)] + random.normal(0, 0.5, (len(group), len(PLACES)))
    chosen = [optima(points[:, of], PLACES[of], floor) for of in REPLICATES.values()]
    index = [len(PLACES) + np.rint(of * (STEPS - 1)).astype(int) @ [STEPS, 1] for of in chosen]
    for number, name in enumerate(group):
        yield name, *(surfaces[number, of[number]] for of in index)


def _surface(random: np.random.Generator, roughness: float, places: np.ndarray) -> np.ndarray:
    """The values of a random surface at places [N]."""
    u, v = (places - random.uniform([0.35, 0.35], [0.65, 0.65])).T
    frequencies, phases = random.normal(0, 1 / 0.25, (2, 200)), random.uniform(0, 2 * np.pi, 200)
    field = roughness * np.sqrt(2 / 200) * np.cos(places @ frequencies + phases).sum(1)
    return field - (10 * u**2 + 14 * v**2 - 10 * u * v) - 20 * (u - v > 0.7)
