"""Shares of variance, means of levels and trends: by naive least squares, closed forms and simulated grids."""

import itertools
import math
from collections import defaultdict

import numpy as np
import pytest
from scipy import stats

from ssl_bench.results import effects

Factors = tuple[int, ...]


def full(*shape: int) -> np.ndarray:
    """All cells of a grid."""
    return np.array(list(np.ndindex(*shape)))


def runs(means: np.ndarray, values: np.ndarray) -> tuple[list[int], list[int], list[float]]:
    """Cells, seeds and values of runs whose values are given by cell and seed."""
    places = list(np.ndindex(*values.shape))
    return [c for c, _ in places], [s for _, s in places], [float(means[c] + values[c, s]) for c, s in places]


def naive_squares(levels: np.ndarray, means: np.ndarray) -> dict[Factors, float]:
    """Type II sums of squares: what a model's residual loses by the effect, beside all effects that do not hold it."""
    names: list[Factors] = [(f,) for f in range(levels.shape[1])]
    names += list(itertools.combinations(range(levels.shape[1]), 2))

    def residual(models: list[Factors]) -> float:
        columns = [np.ones(len(levels))]
        for model in models:
            keys = [tuple(row) for row in levels[:, list(model)]]
            columns += [np.array([key == level for key in keys], dtype=float) for level in sorted(set(keys))]
        fitted = np.stack(columns, 1) @ np.linalg.lstsq(np.stack(columns, 1), means, rcond=None)[0]
        return float(((means - fitted) ** 2).sum())

    squares = {}
    for name in names:
        beside = [other for other in names if other != name and len(other) <= len(name)]
        squares[name] = residual(beside) - residual([*beside, name])
    return squares | {(): residual(names)}


@pytest.mark.parametrize("holes", [0, 4])
def test_sums_of_squares_are_those_of_least_squares(holes: int) -> None:
    rng = np.random.default_rng(holes)
    levels = full(3, 4, 2)[np.sort(rng.permutation(24)[holes:])]
    means = rng.normal(size=len(levels))
    grid = effects.grid(levels, range(len(levels)), [0] * len(levels), means)
    shares, expected = effects.shares(grid), naive_squares(levels, means)
    total = sum(expected.values())
    assert {share.factors: share.share for share in shares} == pytest.approx(
        {k: v / total for k, v in expected.items()}
    )
    assert math.isclose(sum(share.share for share in shares), 1) and all(math.isnan(share.low) for share in shares)


def test_the_noise_of_a_balanced_grid_is_its_residual() -> None:
    """Two factors, three seeds with a part of their own: the analysis of variance by hand."""
    rng = np.random.default_rng(0)
    levels, values = full(2, 3), rng.normal(size=(6, 3)) + 5 * rng.normal(size=3)
    grid = effects.grid(levels, *runs(np.zeros(6), values))
    residual = values - values.mean(1, keepdims=True) - values.mean(0) + values.mean()
    assert math.isclose(grid.variance, (residual**2).sum() / 10) and grid.degrees == 10
    assert math.isclose(grid.deviation, math.sqrt(values.var(1, ddof=1).mean()))
    assert grid.means == pytest.approx(values.mean(1))
    table = values.mean(1).reshape(2, 3)
    raw = [3 * 2 * table.mean(1).var(), 2 * 3 * table.mean(0).var()]
    clean = [square - degrees * grid.variance / 3 for square, degrees in zip(raw, (1, 2), strict=True)]
    clean.append(6 * table.var() - sum(raw) - 2 * grid.variance / 3)
    if min(clean) > 0:
        assert [share.share for share in effects.shares(grid)][:3] == pytest.approx(np.array(clean) / sum(clean))
    assert [share.deviation for share in effects.shares(grid)][:2] == pytest.approx(
        [math.sqrt(max(square, 0) / 6) for square in clean[:2]]
    )


def test_missing_runs_are_compared_by_the_seeds_that_are_there() -> None:
    """A seed that is worth 10 points is missing in one cell: its mean is not 10 / 3 lower."""
    values = np.array([[0.0, 1.0, 10.0], [0.5, 1.5, 10.5], [2.0, 3.0, 12.0]])
    cells, seeds, of_runs = runs(np.zeros(3), values)
    grid = effects.grid(full(3), cells[:-1], seeds[:-1], of_runs[:-1])
    assert np.diff(grid.means) == pytest.approx([0.5, 1.5]) and grid.variance == pytest.approx(0, abs=1e-20)
    others = effects.grid(full(2), [0, 0, 1, 1], [0, 1, 2, 3], [1.0, 3.0, 5.0, 9.0])  # no seed is in both
    assert others.means.tolist() == [2, 7] and (others.variance, others.degrees) == (5, 2)
    few = effects.grid(full(2), *runs(np.zeros(2), np.array([[1.0, 3.0, 5.0], [2.0, 6.0, 7.0]])))  # two would remain
    assert (few.variance, few.degrees) == (pytest.approx(5.5), 4)


def test_rounding_is_no_effect() -> None:
    """Neither in a setting whose levels have equal means, nor in what the settings span wholly."""
    grid = effects.Grid(
        full(2, 2), np.ones((4, 1)), np.array([0.3, 0.1 + 0.2, 0.5, 0.7 - 0.2]), np.eye(4) / 2, 1e-8, 4, 1e-4
    )
    shares = {share.factors: share for share in effects.shares(grid)}
    assert shares[(0,)].share == pytest.approx(1, abs=1e-6) and shares[()].share == 0
    assert [shares[factors].low for factors in ((1,), (0, 1), ())] == [0, 0, 0] and shares[(0,)].low > 0.9


def test_settings_that_vary_together_are_named() -> None:
    levels = np.array([(0, 0, 0), (1, 1, 0), (0, 0, 1), (1, 1, 1)])
    with pytest.raises(effects.Confounded) as confounded:
        effects.shares(effects.grid(levels, range(4), [0] * 4, [1.0, 2.0, 3.0, 5.0]))
    assert confounded.value.factors == (0, 1)
    sums = np.array([(0, 0, 0), (0, 1, 1), (1, 0, 1), (1, 1, 2)])  # each two meet, and all three together do not
    with pytest.raises(effects.Confounded) as all_three:
        effects.shares(effects.grid(sums, range(4), [0] * 4, [1.0, 2.0, 3.0, 5.0]))
    assert all_three.value.factors == (0, 1, 2)


def simulated(
    n: int, noise: float, true: dict[Factors, float], holes: int, grids: int
) -> dict[str, dict[Factors, float]]:
    """Bias of the shares and coverage of their intervals over grids of 2 x 3 x 3 cells with known effects."""
    rng = np.random.default_rng(n)
    bias, held = defaultdict[Factors, list[float]](list), defaultdict[Factors, list[bool]](list)
    for _ in range(grids):
        levels = full(2, 3, 3)[np.sort(rng.permutation(18)[holes:])]
        means = np.zeros(len(levels))
        for factors, square in true.items():
            numbers = np.ravel_multi_index(levels[:, list(factors)].T, (4,) * len(factors))
            effect = rng.normal(size=numbers.max() + 1)[numbers]
            means += math.sqrt(square) * (effect - effect.mean()) / effect.std()
        squares = naive_squares(levels, means)
        values = noise * rng.normal(size=(len(levels), n)) + rng.normal(size=n)
        for share in effects.shares(effects.grid(levels, *runs(means, values)), 500):
            truth = max(squares[share.factors], 0) / sum(max(square, 0) for square in squares.values())
            bias[share.factors].append(share.share - truth)
            held[share.factors].append(share.low - 1e-6 <= truth <= share.high + 1e-6)
    return {
        "bias": {k: float(np.mean(v)) for k, v in bias.items()},
        "held": {k: float(np.mean(v)) for k, v in held.items()},
    }


@pytest.mark.parametrize(("n", "holes"), [(2, 0), (3, 2)])
def test_intervals_hold_the_true_shares(n: int, holes: int) -> None:
    """150 grids; the bound allows three errors of 95%."""
    of = simulated(n, 2.0, {(2,): 5.0, (1,): 1.0, (0,): 0.4}, holes, 150)
    assert min(of["held"].values()) > 0.95 - 3 * math.sqrt(0.05 * 0.95 / 150), of
    assert abs(of["bias"][(2,)]) < 0.05, of


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3, 5])
def test_shares_are_right_where_there_is_signal(n: int) -> None:
    of = simulated(n, 1.0, {(2,): 5.0, (1,): 1.0, (0,): 0.4, (0, 1): 1.0}, 0, 400)
    assert min(of["held"].values()) > 0.92 and max(map(abs, of["bias"].values())) < 0.012, of


def test_cells_that_do_not_differ_have_intervals_that_hold_0() -> None:
    of = simulated(3, 1.0, {(0, 1): 1e-12}, 0, 100)
    assert min(of["held"].values()) > 0.95 - 3 * math.sqrt(0.05 * 0.95 / 100)


def test_the_means_of_levels_and_their_range() -> None:
    rng = np.random.default_rng(1)
    levels, values = full(3, 2), rng.normal(size=(6, 4))
    grid = effects.grid(levels, *runs(np.arange(6.0), values))
    of_level = (np.arange(6.0)[:, None] + values).reshape(3, -1).mean(1)
    found = effects.levels(grid, 0)
    assert found.means == pytest.approx(of_level) and (found.lowest, found.highest) == (0, 2)
    half = stats.t.isf(0.05 / 6, grid.degrees) * math.sqrt(grid.variance * 2 / 8)  # three pairs, eight runs each
    assert (found.low, found.high) == pytest.approx((found.range - half, found.range + half))
    of_mean = stats.t.isf(0.025, grid.degrees) * math.sqrt(grid.variance * (1 / 8 - 1 / 24))
    assert found.halves == pytest.approx([of_mean] * 3)


def test_the_trend_is_the_slope_over_doublings() -> None:
    rng = np.random.default_rng(2)
    levels, values = full(3, 2), rng.normal(size=(6, 3))
    means = 1.5 * levels[:, 0] * 2 + levels[:, 1]  # 4, 16, 64: two doublings from level to level
    grid = effects.grid(levels, *runs(means, values))
    expected = stats.linregress([2, 4, 6], (means[:, None] + values).reshape(3, -1).mean(1))
    trend = effects.trend(grid, 0, [4, 16, 64])
    half = stats.t.isf(0.025, grid.degrees) * math.sqrt(grid.variance / (6 * 8))
    assert (trend.slope, trend.high - trend.slope) == pytest.approx((expected.slope, half))


def test_blocks_are_not_compared_and_effects_are_those_within_each() -> None:
    """Numbers of two data sets that are 40 apart: shares, levels and noise as if each had the mean 0."""
    levels, blocks = np.concatenate([full(3), full(3)]), [0, 0, 0, 1, 1, 1]
    values = np.random.default_rng(3).normal(size=(6, 4)) + np.array([0.0, 2.0, 5.0] * 2)[:, None]
    apart = effects.grid(levels, *runs(np.repeat([0.0, 40.0], 3), values), blocks)
    centred = values - np.repeat([values[:3].mean(), values[3:].mean()], 3)[:, None]
    ones = effects.grid(levels, *runs(np.zeros(6), centred), blocks)
    assert apart.variance == pytest.approx(ones.variance) and apart.degrees == ones.degrees == 12  # 18 less 2 x 3 seeds
    residual = sum(
        ((of - of.mean(0) - of.mean(1, keepdims=True) + of.mean()) ** 2).sum() for of in (values[:3], values[3:])
    )
    assert apart.variance == pytest.approx(residual / 12)
    assert [(one.share, one.high) for one in effects.shares(apart)] == [
        (pytest.approx(one.share), pytest.approx(one.high)) for one in effects.shares(ones)
    ]
    of_levels = (centred[:3] + centred[3:]).mean(1) / 2
    assert np.diff(effects.levels(apart, 0).means) == pytest.approx(np.diff(of_levels))
    with pytest.raises(effects.Confounded):  # a factor that is the block
        effects.shares(effects.grid(np.array(blocks)[:, None], *runs(np.zeros(6), values), blocks))
