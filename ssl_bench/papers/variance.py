"""Divide the variance of a design among rows, columns, its two keys and their pairs.

A run that diverged counts as the lowest of the table.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from ssl_bench.papers.read_table import SOBOL
from ssl_bench.papers.surface import Arm

DRAWS = 1000  # of the bootstrap
FACTORS = [of for count in (1, 2) for of in itertools.combinations(range(4), count)]  # rows, columns, the two keys


def complete(found: Sequence[Arm]) -> list[list[Arm]]:
    """The rows whose runs have all ended, with their columns, without placebos: these are no other losses."""
    rows: dict[str, list[Arm]] = {}
    for arm in found:
        if not arm.cell.placebo:
            rows.setdefault(arm.cell.row, []).append(arm)
    most = max(map(len, rows.values()), default=0)
    return [of for of in rows.values() if len(of) == most and not any(np.isnan(arm.tested).any() for arm in of)]


def shares(found: Sequence[Arm]) -> list[tuple[str, float, float, float]]:
    """Shares of variance in percent, with the ends of their intervals, of the complete rows; empty for too few.

    The points are one in each part of a grid of the two keys, so the values are a full factorial. Main effects and
    pairs are freed of the noise that they hold (Kelley 1935); noise is what neither explains. The interval is of
    a bootstrap of these residuals (Efron 1979).
    """
    rows = complete(found)
    if not rows:
        return []
    count = len(rows[0][0].x)
    parts = 2 ** math.ceil(math.log2(count) / 2)
    strata = parts, count // parts
    stratum = [np.array(axis[:count]) * size // len(axis) for axis, size in zip(SOBOL, strata, strict=True)]
    order = np.lexsort(stratum[::-1])
    y = np.array([[arm.tested[order].reshape(strata) for arm in of] for of in rows])
    keys = [" or ".join(dict.fromkeys(names)) for names in zip(*(of[0].keys for of in rows), strict=True)]
    names = ["rows", "columns", *keys]
    effects, free = _effects(y), y.size - 1 - sum(_degrees(y))
    if free < 1 or y.min() == y.max():
        return []
    noise = y - y.mean() - sum(effects)
    drawn = np.random.default_rng(0).choice(noise.ravel() * math.sqrt(y.size / free), (DRAWS, *y.shape))
    repeated = _shares(y - noise + drawn)
    low, high = np.quantile(repeated - repeated.mean(0), [0.025, 0.975], axis=0)
    found_shares = _shares(y)
    ends = ((found_shares + end).clip(0, 100) for end in (low, high))
    varying = [degrees > 0 for degrees in _degrees(y)]
    told = zip([" x ".join(names[i] for i in of) for of in FACTORS], found_shares.clip(0, 100), *ends, strict=True)
    return [(name, *map(float, numbers)) for (name, *numbers), of in zip(told, varying, strict=True) if of]


def _effects(y: np.ndarray) -> list[np.ndarray]:
    """The main effects and the interactions of pairs of the last four axes, by FACTORS."""
    found = dict[tuple[int, ...], np.ndarray]()
    for of in FACTORS:
        means = y.mean(tuple(axis - 4 for axis in range(4) if axis not in of), keepdims=True)
        lower = [found[each,] for each in of if len(of) > 1]
        found[of] = means - y.mean((-4, -3, -2, -1), keepdims=True) - sum(lower)
    return list(found.values())


def _degrees(y: np.ndarray) -> list[int]:
    """Degrees of freedom of the effects."""
    return [math.prod(y.shape[axis - 4] - 1 for axis in of) for of in FACTORS]


def _shares(y: np.ndarray) -> np.ndarray:
    """Shares of the effects in percent [..., effects], freed of the noise that they hold."""
    size, degrees = math.prod(y.shape[-4:]), np.array(_degrees(y))
    squares = np.stack([size * (each**2).mean((-4, -3, -2, -1)) for each in _effects(y)], axis=-1)
    total = size * y.var((-4, -3, -2, -1))[..., None]
    noise = (total - squares.sum(-1, keepdims=True)) / (size - 1 - degrees.sum())
    return 100 * (squares - degrees * noise) / total
