"""One model of all runs: by least squares of others, by hand, and by simulated grids whose truth is known."""

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from scipy import stats

from ssl_bench.results import statistics
from ssl_bench.results.statistics import Confounded, Design, Estimate, Fit, Settings, Together, answers, beyond
from tests.results.simulations import simulate, simulate_by

EQUAL = 0.06  # of grids in which nothing differs, those with some verdict; 0.1 where deviations differ fivefold
GRIDS = 1000


def full(*sizes: int) -> np.ndarray:
    return np.array([*itertools.product(*map(range, sizes))])


def design(levels: np.ndarray, n: int, blocks: Any = None) -> Design:
    return Design(levels, np.repeat(np.arange(len(levels)), n), np.tile(np.arange(n), len(levels)), blocks)


def least_squares(values: np.ndarray, *columns: np.ndarray) -> tuple[np.ndarray, float, int]:
    """Coefficients, and the sum of squares and the degrees of freedom of the residuals."""
    every = np.hstack(columns)
    found, *_ = np.linalg.lstsq(every, values, rcond=None)
    return found, float(((values - every @ found) ** 2).sum()), len(values) - int(np.linalg.matrix_rank(every))


def test_a_difference_of_levels_with_unequal_seeds() -> None:
    """It is that of level + other settings + seed; the errors are those of cell + seed."""
    rng, levels = np.random.default_rng(0), full(2, 3)
    cells = np.repeat(np.arange(6), [3, 2, 3, 3, 1, 3])
    seeds = np.concatenate([np.arange(k) for k in (3, 2, 3, 3, 1, 3)])
    of, values = Design(levels, cells, seeds), rng.normal(60, 2, len(cells))
    fit = Fit(of, values, None, gap=1e-6)
    first, second, by_seed = np.eye(2)[levels[cells, 0]], np.eye(3)[levels[cells, 1]], np.eye(3)[seeds]
    _, squares, free = least_squares(values, np.eye(6)[cells], by_seed)
    assert of.by_seeds and (of.degrees, fit.variance) == (free, pytest.approx(squares / free))
    found, *_ = least_squares(values, first, second, by_seed)
    one = fit.estimate(of.settings[0][0])
    assert one.mean == pytest.approx(found[1] - found[0])
    every = np.hstack([first, second, by_seed])
    scatter = np.linalg.pinv(every.T @ every)
    assert one.seeds == pytest.approx(squares / free * (scatter[0, 0] + scatter[1, 1] - 2 * scatter[0, 1]))
    assert Fit(of, np.stack([values, values + 1]), None).estimate(of.settings[1][0]).mean.shape == (2, 3)
    slope, *_ = least_squares(values, np.log2([4, 16, 64])[levels[cells, 1], None], first, by_seed)
    assert fit.estimate(of.slope(1, [4, 16, 64])).mean == pytest.approx(slope[:1])


def test_seeds_have_a_part_where_three_degrees_remain() -> None:
    assert design(full(2, 2), 2).by_seeds and design(full(2, 2), 2).degrees == 3
    assert not design(full(2), 3).by_seeds and design(full(2), 3).degrees == 4  # two would remain
    apart = Design(full(4), np.repeat(np.arange(4), 4), np.concatenate([*[np.arange(4)] * 2, *[np.arange(4, 8)] * 2]))
    assert not apart.by_seeds  # cells that share no seed could not be compared
    assert not Design(full(2), [0, 0, 0, 1, 1, 1], range(6)).by_seeds


def test_all_pairs_of_equally_many_runs_have_the_quantile_of_tukey() -> None:
    for count, n in ((3, 2), (5, 3)):
        of = Design(full(count), np.repeat(np.arange(count), n), np.arange(count * n))
        (weights, together), degrees = of.settings[0], np.array([of.degrees])
        tukey = stats.studentized_range.ppf(0.95, count, of.degrees) / np.sqrt(2)
        assert together.beyond(0.05, degrees) == pytest.approx(tukey, rel=0.015)
        assert together.p(np.array([tukey]), degrees) == pytest.approx(0.05, rel=0.03)
        assert Together(weights[:1]).beyond(0.05, degrees) == beyond(0.025, degrees)


def test_numbers_that_agree_are_not_certain() -> None:
    """The variance is at least that of one image and a half over the degrees of freedom, or of the rounding."""
    of = design(full(2), 2)
    right = np.ones((4, 12), dtype=np.float32)
    fit = Fit(of, 100 * right.mean(1), [right], scale=100)
    assert fit.variance == pytest.approx(1.5 * (100 / 12) ** 2 / 2)
    right[:2, 3:5] -= np.eye(2, dtype=np.float32)  # of each seed of the first cell another image
    told = Settings(Fit(of, 100 * right.mean(1), [right], scale=100))
    assert not told.decided.any() and told.estimates[0].mean == pytest.approx([100 / 12]) and told.halves[0] > 100 / 12
    without = Fit(of, [1.0, 1.0, 1.1, 1.1], None, gap=0.1)
    assert without.variance == pytest.approx(0.1**2 / 12)
    far = np.zeros((4, 10000), dtype=np.float32)
    far[0, :600] = far[1, 500:1100] = far[2:] = 1.0  # the joint part of seeds and images is more than an image
    assert Fit(of, far.mean(1), [far]).variance == pytest.approx(1000 / 2 / 9999 / 10000 / 2)


def test_other_images_and_their_blocks() -> None:
    """The images' part of two data sets is a quarter of the sum of each; effects are those within each."""
    rng = np.random.default_rng(0)
    shares = rng.integers(0, 2, (2, 2, 400)).astype(np.float32)  # [data set, level, image], equal for all seeds
    of = design(full(2)[[0, 1, 0, 1]], 3, [0, 0, 1, 1])
    bits = [np.repeat(one, 3, axis=0) for one in shares]
    values = np.concatenate([one.mean(1) for one in bits])
    one = Fit(of, values, bits).estimate(of.settings[0][0])
    assert one.images == pytest.approx(sum((of[1] - of[0]).var(ddof=1) / 400 for of in shares) / 4, rel=1e-4)
    moved = values + np.repeat([0.0, 40.0], 6)
    assert Fit(of, moved, None, gap=0.1).estimate(of.settings[0][0]).mean == pytest.approx(one.mean)
    with pytest.raises(Confounded):  # a setting that is the data set
        _ = design(np.array([[0, 0], [1, 0], [0, 1], [1, 1]]), 2, [0, 0, 1, 1]).settings
    with pytest.raises(Confounded) as together:
        _ = design(np.array([[0, 0, 0], [1, 1, 0], [0, 0, 1], [1, 1, 1]]), 2).settings
    assert together.value.args[0] == [0, 1]


def test_what_is_beyond_the_sum_of_the_settings() -> None:
    of, noise = design(full(2, 3), 3), np.random.default_rng(0).normal(0, 0.5, 18)
    names, weights, together = of.beyond_sum
    assert len(names) == 3 and weights.shape == (3, 18)
    sums = 3.0 * of.levels[of.cells, 0] + 2.0 * of.levels[of.cells, 1]
    one = Fit(of, sums + noise, None, gap=1e-6).estimate(weights)
    assert together.p(one.t, one.degrees).min() > 0.05
    one = Fit(of, sums + 4.0 * (of.cells == 5) + noise, None, gap=1e-6).estimate(weights)
    assert names[int(together.p(one.t, one.degrees).argmin())][4:] in ((0, 2), (1, 2))
    assert one.mean[1:] == pytest.approx([4.0, 4.0], abs=1.5)
    assert not design(full(2, 3), 1).beyond_sum[0] and not design(full(3), 2).beyond_sum[0]


def test_cells_that_vary_unlike_each_other_and_seeds_that_move_a_level() -> None:
    rng, of = np.random.default_rng(3), design(full(2, 4), 4)
    values = rng.normal(size=32) * np.repeat([1, 1, 1, 1, 1, 1, 1, 9.0], 4)
    fit = Fit(of, values, None, gap=1e-6)
    p, least, largest = fit.uneven()
    assert p == pytest.approx(stats.bartlett(*values.reshape(8, 4)).pvalue) and p < 0.01 and largest > 3 * least
    moved = rng.normal(size=32) + 5 * np.tile([0, 1, 2, 3], 8) * of.levels[of.cells, 0]
    assert Fit(of, moved, None).moved_by_seeds(of.levels[of.cells, 0]) < 1e-4
    assert Fit(of, rng.normal(size=32), None).moved_by_seeds(of.levels[of.cells, 0]) > 0.01


def test_what_a_grid_can_show() -> None:
    assert statistics.smallest_before(450, 4, 2) == pytest.approx(2.30, abs=0.01)
    told = Settings(Fit(design(full(2, 2), 2), np.random.default_rng(0).normal(size=8), None, gap=1e-6))
    assert told.smallest(2) == pytest.approx(max(half.max() for half in told.halves), rel=1e-3)
    assert told.smallest(5) < 0.6 * told.smallest(2)


def estimates(means: np.ndarray) -> Estimate:
    """Differences with a standard error of 0.4, of 8 degrees of freedom."""
    return Estimate(means, np.full(means.shape, 0.16), np.zeros(means.shape), np.full(means.shape, 8.0))


def test_one_pass_of_holm_for_two_kinds_of_questions() -> None:
    """A step has the error over the differences of which a question is open."""
    one = np.array([[0.011, 0.001, 0.2], [0.02, 0.03, 0.012]])[..., None]
    assert statistics.decide(one)[..., 0].tolist() == [[True, True, False], [True, True, True]]
    assert not statistics.decide(one[1:], 0.03).any()
    both = np.array([[[0.001, 0.001], [0.04, 0.5]], [[0.001, 0.5], [0.04, 0.5]]])
    assert statistics.decide(both).tolist() == [[[True, True], [True, False]], [[True, False], [False, False]]]


@pytest.mark.parametrize("margin", [None, 0.8, 3.0])
def test_an_interval_agrees_with_its_verdict(margin: float | None) -> None:
    """Without a verdict it holds 0; with one on the sign it ends at 0 at most; with one on the margin, there."""
    random, verdicts = np.random.default_rng(1), Counter[tuple[bool, ...]]()
    for _ in range(300):
        means = random.choice([0, 1.5, -1.5], int(random.integers(1, 6))) + random.normal(0, 0.4)
        decided, low, high = answers(estimates(means), margin)
        for of, mean, *ends in zip(decided, means, low, high, strict=True):
            verdicts[(bool(mean > 0), *of.tolist())] += 1
            assert (ends[0] < 0 < ends[1]) == (not of[0])
            assert not of[0] or (ends[0] >= 0 if mean > 0 else ends[1] <= 0)
            assert margin is None or of[1] == (-margin <= ends[0] and ends[1] <= margin)
    assert len(verdicts) >= (4 if margin is None else 5)


def test_numbers_that_are_equal_but_for_rounding_have_no_gap() -> None:
    assert statistics.smallest_gap([70.0, 70.5, 70.1, 70.1 + 1e-12]) == pytest.approx(0.1)
    assert statistics.smallest_gap([0.7, 0.1 + 0.6]) == 0.0


SMALL = [
    pytest.param((2, 2), {}, id="2x2, 2 seeds"),
    pytest.param((2, 2), {"uneven": 5.0}, id="fivefold deviations"),
    pytest.param((3, 3), {"n": 3, "uneven": 2.0}, id="3x3, 3 seeds, twofold deviations"),
    pytest.param((3, 3, 3), {}, id="3x3x3, 2 seeds"),
    pytest.param((2, 5), {"seed": 3.0}, id="2x5, seeds move all cells"),
    pytest.param((5,), {}, id="5 levels"),
    pytest.param((3, 3), {"unequal": True}, id="1 to 5 seeds"),
    pytest.param((3, 3, 3), {"missing": 0.25}, id="a quarter is missing"),
    pytest.param((3, 3), {"n": 1}, id="one seed"),
    pytest.param((2, 2), {"images": 50}, id="50 images"),
    pytest.param((2,), {"images": 56, "accuracy": 0.98, "run": 0.0}, id="56 images, equal seeds"),
    pytest.param((2, 2), {"images": 450, "accuracy": 0.995}, id="450 images"),
]


def bound(share: float, grids: int) -> float:
    """A share with two standard errors of it."""
    return share + 2 * float(np.sqrt(share * (1 - share) / grids))


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "kind"), SMALL)
def test_grids_in_which_nothing_differs(shape: tuple[int, ...], kind: dict[str, Any]) -> None:
    """Some verdict in at most 6% (10% of fivefold deviations), and all intervals hold in 94%."""
    grids = 300 if kind.get("images", 0) > 100 or len(shape) > 2 else GRIDS
    found = simulate(shape, grids, **kind)
    error = 0.1 if kind.get("uneven") == 5 else EQUAL
    assert found.any <= bound(error, grids) and found.hold >= 1 - bound(error, grids)


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "n", "effect"), [((2, 2), 2, 3.0), ((3, 3), 3, 2.0), ((5,), 3, 3.0), ((2,), 3, 2.0)])
def test_settings_are_found_as_often_as_by_an_f_test(shape: tuple[int, ...], n: int, effect: float) -> None:
    """Within 3 points, with Holm over the settings; all intervals hold the truth."""
    found = simulate(shape, 2 * GRIDS, effect=effect, n=n)
    assert found.found[0] > 0.2 and found.found[0] >= found.by_f[0] - 0.03 - 0.01
    assert found.hold >= 1 - bound(EQUAL, 2 * GRIDS)


@pytest.mark.slow
@pytest.mark.parametrize(("cells", "n"), [(1, 2), (4, 2), (8, 3)])
@pytest.mark.parametrize("kind", [{}, {"margin": 3.0}, {"images": 50, "accuracy": 0.98}], ids=str)
def test_comparisons_in_cells(cells: int, n: int, kind: dict[str, Any]) -> None:
    """A wrong verdict in at most 6.5% of grids, both kinds of questions together."""
    wrong, held = simulate_by(cells, n, GRIDS, **kind)
    assert wrong <= bound(0.065, GRIDS) and held >= 1 - bound(EQUAL, GRIDS)
