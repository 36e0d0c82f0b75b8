"""Fit the surfaces of a design: the accuracy of each row and column over the logarithms of two keys.

A quadratic is fitted by least squares. Each row and column has its own height and slopes; the three coefficients of the
second order are shared by all rows with the same keys, as 16 points alone leave them uncertain. The optimum is the
highest place of the quadratic within the ranges, so that no single run decides what is best (Box and Wilson 1951). The
standard error of its height is that of the fit there, as the error of the place changes the height in the second order
only; each point has a variance of its own (White 1980; HC2 of MacKinnon and White 1985).

A quadratic does not fit a cliff: points more than CLIFF below the best of their row and column are left out, and runs
that diverged have none. In simulations with a cliff the settings that are chosen lie 0.01 below the true best, without
this rule 3 points (tests/papers/test_surface.py).

The expected value of the best of n trials is that over all samples of n of the points (Dodge et al. 2019), where a run
that diverged counts as the lowest of the table. Trials are compared by the table's first metric and have the value of
its last.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ssl_bench.papers.cells import Cell, Table
from ssl_bench.papers.fill import Filled
from ssl_bench.results.statistics import mean

CLIFF = 6.0  # points of accuracy
FEWEST = 6  # points of a row and column that are fitted
STEPS = 101  # places on each axis among which the highest is looked for
TRIALS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Fit:
    """The optimum of a row and column.

    Attributes:
        height, error: of the fit there, and its standard error.
        at: value of each key there.
        ends: the keys that are at an end of their range there.
        difference: from the height of the row that it is compared with in this column, and its standard error.
    """

    height: float
    error: float
    at: dict[str, float]
    ends: list[str]
    difference: tuple[float, float] | None = None


@dataclass(frozen=True)
class Arm:
    """A row and a column of a design.

    Attributes:
        cell: that of its first point.
        x: logarithms of the keys to the base 10 [points, 2].
        chosen, tested: values by the first and the last metric of the table; NaN of a run that has not ended [points].
        diverged: whether the run did [points].
        used: whether the point is fitted [points].
        fit: None for fewer than FEWEST points.
        best_of: expected value of the best of n points, by n; empty if a run is missing.
    """

    cell: Cell
    x: np.ndarray
    chosen: np.ndarray
    tested: np.ndarray
    diverged: np.ndarray
    used: np.ndarray
    fit: Fit | None = None
    best_of: dict[int, float] = field(default_factory=dict)

    @property
    def name(self) -> tuple[str, str]:
        """The row and the column."""
        return self.cell.row, self.cell.column

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of its points."""
        return tuple(key for key, *_ in self.cell.over)

    @property
    def texts(self) -> dict[str, str]:
        """The texts of a printed row, by the LINES of ``design.py``."""
        count, best = f"({self.used.sum()})", ", ".join(f"{value:.2f}" for value in self.best_of.values())
        texts = {"best of n": best} if best else {}
        if self.fit is None:
            return texts | {"optimum": f"no fit {count}"}
        at = (f"{key.rpartition('.')[2]} {value:g}{'!' * (key in self.fit.ends)}" for key, value in self.fit.at.items())
        texts |= {"optimum": f"{self.fit.height:.2f} ± {self.fit.error:.2f} {count}", "at": ", ".join(at)}
        return texts | ({"difference": "{:+.2f} ± {:.2f}".format(*self.fit.difference)} if self.fit.difference else {})

    def record(self) -> dict[str, Any]:
        """It as plain data."""
        counts = {name: int(getattr(self, name).sum()) for name in ("diverged", "used")}
        place = {"row": self.cell.row, "column": self.cell.column, "points": len(self.used), **counts}
        return place | {"fit": self.fit and vars(self.fit), "best_of": self.best_of}


def arms(table: Table, filled: Sequence[Filled]) -> list[Arm]:
    """The rows and columns of a design: of own runs, or of the committed ones if there are none."""
    found = list(_read([each for each in filled if each.cell.over]))
    families = list(dict.fromkeys(arm.keys for arm in found))
    fitted = [arm for arm in found if arm.used.sum() >= FEWEST]
    if not fitted:
        return found
    size, family = (len(families), len(fitted)), np.array([families.index(arm.keys) for arm in fitted])
    index = np.repeat(range(len(fitted)), [arm.used.sum() for arm in fitted])
    x, y = (np.concatenate([getattr(arm, name)[arm.used] for arm in fitted]) for name in ("x", "chosen"))
    coefficients, covariance = quadratic(terms(x, index, family[index], *size), y)
    own = coefficients.reshape(-1, 3)  # of each family, then of each row and column
    places = [highest(arm.cell, own[family[i]], own[len(families) + i]) for i, arm in enumerate(fitted)]
    at = terms(np.log10(places), np.arange(len(fitted)), family, *size)
    of = {arm.name: at[i] for i, arm in enumerate(fitted)}
    fits = dict[tuple[str, str], Fit]()
    for arm, place in zip(fitted, places, strict=True):
        ends = [key for (key, *ends), value in zip(arm.cell.over, place, strict=True) if value in ends]
        other = of.get((arm.cell.against, arm.cell.column))
        heights = [of[arm.name]] + ([] if other is None else [of[arm.name] - other])
        told = [(float(each @ coefficients), math.sqrt(each @ covariance @ each)) for each in heights]
        values = {key: float(f"{value:.3g}") for key, value in zip(arm.keys, place, strict=True)}
        fits[arm.name] = Fit(*told[0], values, ends, told[1] if told[1:] else None)
    return [replace(arm, fit=fits.get(arm.name)) for arm in found]


def _read(filled: Sequence[Filled]) -> Iterator[Arm]:
    """The rows and columns with their values, of several seeds the mean."""
    own = any(each.values for each in filled)
    cells: dict[tuple[str, str], dict[tuple[str, ...], list[Filled]]] = {}
    for each in filled:
        cells.setdefault((each.cell.row, each.cell.column), {}).setdefault(each.cell.overrides, []).append(each)
    values = {
        name: np.array([[mean(p.values if own else p.measured) for p in (of[0], of[-1])] for of in points.values()])
        for name, points in cells.items()
    }
    floor = min((v for each in values.values() for v in each[:, 1] if v is not None), default=math.nan)
    for name, points in cells.items():
        chosen, tested = values[name].astype(float).T
        first = [of[0] for of in points.values()]
        diverged = np.array([each.diverged for each in first]) & np.isnan(chosen)
        x = [[math.log10(float(each.cell.settings[key])) for key, *_ in each.cell.over] for each in first]
        best = np.nanmax(chosen) if np.isfinite(chosen).any() else math.nan
        used = np.isfinite(chosen) & ~(chosen < best - CLIFF)
        tested = np.where(diverged, floor, tested)
        best_of = {} if np.isnan(tested).any() else expected(np.where(diverged, -math.inf, chosen), tested)
        yield Arm(first[0].cell, np.array(x), chosen, tested, diverged, used, best_of=best_of)


def terms(x: np.ndarray, arm: np.ndarray, family: np.ndarray, families: int, arms: int) -> np.ndarray:
    """The terms of quadratics at places: three of the second order for each family, then three for each arm.

    Args:
        x: places [N, 2].
        arm, family: of each place [N]. The rows with the same keys are a family.
    """
    (u, v), rows = x.T, np.arange(len(x))
    matrix = np.zeros((len(x), families + arms, 3))
    matrix[rows, family] = np.stack([u * u, u * v, v * v], axis=1)
    matrix[rows, families + arm] = np.stack([np.ones_like(u), u, v], axis=1)
    return matrix.reshape(len(x), -1)


def quadratic(matrix: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients of least squares and their covariance, for noise with a variance of its own at each place."""
    inverse = np.linalg.pinv(matrix)
    coefficients = inverse @ y
    free = 1 - np.einsum("nk,kn->n", matrix, inverse)  # the part of each residual that the fit leaves
    scaled = inverse * ((y - matrix @ coefficients) / np.sqrt(free.clip(1e-3)))
    return coefficients, scaled @ scaled.T


def highest(cell: Cell, second: np.ndarray, first: np.ndarray) -> list[float]:
    """Values of the keys at the highest place of a quadratic within their ranges."""
    axes = [np.geomspace(low, high, STEPS) for _, low, high in cell.over]
    values = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    one = np.zeros(len(values), dtype=int)
    return list(values[np.argmax(terms(np.log10(values), one, one, 1, 1) @ [*second, *first])])


def expected(chosen: np.ndarray, tested: np.ndarray) -> dict[int, float]:
    """Expected value of the best of n points, over all samples of n of them.

    The k-th from below is the best of C(k - 1, n - 1) samples.
    """
    count, ordered = len(chosen), tested[np.argsort(chosen, kind="stable")]
    return {
        n: float(sum(math.comb(k, n - 1) * value for k, value in enumerate(ordered)) / math.comb(count, n))
        for n in TRIALS
        if n <= count
    }
