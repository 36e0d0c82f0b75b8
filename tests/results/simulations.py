"""Grids of known means, analysed as ``compare`` does it, many at once."""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import fdtrc, ndtri

from ssl_bench.results.statistics import ERROR, Confounded, Design, Fit, Settings, answers, decide

HARD, CELL = 2.0, 0.5  # deviations of an image's difficulty, and of that of one cell; see :func:`bits`


@dataclass(frozen=True)
class Found:
    """Shares of grids: some verdict on a setting, all intervals hold, each setting is found, here and by F tests."""

    any: float
    hold: float
    found: np.ndarray
    by_f: np.ndarray


def design(
    shape: tuple[int, ...], rng: np.random.Generator, n: int = 2, missing: float = 0.0, unequal: bool = False, **_: Any
) -> Design:
    """A design of all combinations, or some of them, with n seeds each, or with 1 to 5."""
    while True:
        every = np.array([*itertools.product(*map(range, shape))])
        levels = every[np.sort(rng.permutation(len(every))[: round(len(every) * (1 - missing))])]
        counts = rng.integers(1, 6, len(levels)) if unequal else np.full(len(levels), n)
        seeds = np.concatenate([np.arange(count) for count in counts])
        made = Design(levels, np.repeat(np.arange(len(levels)), counts), seeds)
        try:
            if made.settings and levels.max(0).tolist() == [size - 1 for size in shape]:
                return made
        except (Confounded, IndexError):
            continue


def bits(of: Design, worlds: int, images: int, accuracy: float, rng: np.random.Generator, run: float) -> np.ndarray:
    """Which images are right [worlds, N, M]: by the image, the image in a cell, the image in a run (deviation)."""
    z = HARD * rng.standard_normal((worlds, 1, images), dtype=np.float32)
    z = z + CELL * rng.standard_normal((worlds, len(of.n), images), dtype=np.float32)[:, of.cells]
    z += run * rng.standard_normal(z.shape, dtype=np.float32)
    return np.asarray(z > -ndtri(accuracy) * np.sqrt(HARD**2 + CELL**2 + run**2), dtype=np.float32)


def simulate(
    shape: tuple[int, ...],
    worlds: int,
    effect: float = 0.0,
    uneven: float = 1.0,
    seed: float = 0.0,
    images: int = 0,
    accuracy: float = 0.8,
    run: float = 0.7,
    state: int = 0,
    **kind: Any,
) -> Found:
    """Analyse grids of one shape.

    Args:
        effect: of the levels of the first setting, between the first and the last, in deviations of a run.
        uneven: the largest deviation of a cell over the least.
        seed: deviation of what a seed adds in all cells.
        images: number of test images; 0: only the numbers are known.
        accuracy, run: as of :func:`bits`.
        kind: as of :func:`design`.
    """
    rng, parts = np.random.default_rng(state), list[tuple[Any, ...]]()
    draws = 6 if kind.get("unequal") or kind.get("missing") or uneven > 1 else 1
    for _ in range(draws):
        of = design(shape, rng, **kind)
        means = effect * of.levels[:, 0] / (shape[0] - 1)
        spread = np.exp(np.linspace(0, np.log(uneven), len(of.n)))[rng.permutation(len(of.n))]
        spread /= np.sqrt((spread**2).mean())
        left = max(worlds // draws, 1)
        at_once = max(1, min(left, int(1.5e7 / len(of.cells) / images) if images else 500))
        while left > 0:
            count, left = min(at_once, left), left - at_once
            if images:
                right = bits(of, count, images, accuracy, rng, run)
                values, known = right.mean(-1, dtype=float), [right]
            else:
                values, known = rng.standard_normal((count, len(of.cells))) * spread[of.cells] + means[of.cells], None
                values += seed * rng.standard_normal((count, of.seeds.shape[1])) @ of.seeds.T
            fit = Fit(of, values, known, gap=1e-6)
            told = Settings(fit)
            held = np.ones(count, dtype=bool)
            for one, half, (weights, _) in zip(told.estimates, told.halves, of.settings, strict=True):
                held &= ~(np.abs(one.mean - means[of.cells] @ weights.T) > half + 1e-9).any(-1)  # NaN: none
            parts.append((told.decided, held, decide(f_tests(fit)[..., None])[..., 0]))
    decided, held, by_f = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Found(decided.any(-1).mean(), held.mean(), decided.mean(0), by_f.mean(0))


def f_tests(fit: Fit) -> np.ndarray:
    """The p-value of the F test of each setting [..., F]."""
    free, p = fit.design.degrees, list[np.ndarray]()
    for (weights, _), levels in zip(fit.design.settings, fit.design.levels.max(0), strict=True):
        sums = fit.values @ weights.T
        squares = ((sums @ np.linalg.pinv(weights @ weights.T)) * sums).sum(-1)
        p.append(fdtrc(levels, free, squares / levels / fit.variance))
    return np.stack(p, axis=-1)


def simulate_by(cells: int, n: int, worlds: int, margin: float | None = None, **kind: Any) -> tuple[float, float]:
    """Shares of grids of two arms in some cells with a wrong verdict of ``--by``, and whose intervals all hold.

    Args:
        margin: the true difference in every second cell, which is asked for; 0 in the others.
        kind: ``uneven``, ``images``, ``accuracy`` and ``run`` as of :func:`simulate`.
    """
    rng = np.random.default_rng(cells + n)
    of = design((2, cells) if cells > 1 else (2,), rng, n)
    signs = np.zeros((cells, 2 * cells))
    signs[np.arange(cells), np.arange(cells)], signs[np.arange(cells), cells + np.arange(cells)] = -1, 1
    weights = of.cell_weights(signs)
    truth = (margin or 0.0) * (np.arange(cells) % 2 == 0)
    if images := kind.get("images", 0):
        worlds = min(worlds, int(3e7 / len(of.cells) / images))
        right = bits(of, worlds, images, kind["accuracy"], rng, kind.get("run", 0.7))
        values, known = right.mean(-1, dtype=float), [right]
    else:
        spread = np.exp(np.linspace(0, np.log(kind.get("uneven", 1.0)), 2 * cells))[rng.permutation(2 * cells)]
        values = rng.standard_normal((worlds, len(of.cells))) * (spread / np.sqrt((spread**2).mean()))[of.cells]
        values, known = values + np.concatenate([np.zeros(cells), truth])[of.cells], None
    estimate = Fit(of, values, known, gap=1e-6).estimate(weights, single=True)
    decided, *_ = answers(estimate, margin)
    wrong = decided[..., 0] & ((truth == 0) | (np.sign(estimate.mean) != np.sign(truth)))
    if margin is not None:
        wrong |= decided[..., 1] & (truth >= margin)
    low, high = estimate.interval(ERROR / cells)
    return wrong.any(-1).mean(), ((low <= truth + 1e-9) & (truth <= high + 1e-9)).all(-1).mean()
