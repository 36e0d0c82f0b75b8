"""Differences over seeds and images: simulated tables in which nothing differs, or by a known amount."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from ssl_bench.results import statistics

SEED, OWN, NOISE = 0.1, 0.3, 0.6  # deviations of what decides whether an image is right, which of the images is 1
IMAGES = 100


def simulated(tables: int, rows: int, n: int, shift: float = 0.0, reference: int = 0) -> statistics.Estimate:
    """Differences of rows to a first one [tables, rows]; which images a seed has right depends on both.

    Args:
        n: seeds of each row.
        shift: of all rows but the first.
        reference: seeds of the first one, if it has others.
    """
    random = np.random.default_rng(rows + 100 * n)
    count = np.array([reference or n] + rows * [n])
    mean, variance, shares = np.empty((tables, rows + 1)), np.empty((tables, rows + 1)), []
    image = random.normal(0, 1, (tables, 1, IMAGES))
    for row, seeds in enumerate(count):
        own = random.normal(0, OWN, (tables, 1, IMAGES)) + random.normal(0, SEED, (tables, seeds, 1))
        right = image + own + random.normal(0, NOISE, (tables, seeds, IMAGES)) + shift * (row > 0) > 0
        mean[:, row], variance[:, row] = right.mean((1, 2)), right.mean(2).var(1, ddof=1)
        shares.append(right.mean(1))
    degrees = (count - 1).sum()
    weights = np.eye(rows + 1)[1:] - np.eye(rows + 1)[0]
    right, of_each = np.stack(shares, axis=1)[:, None], variance[:, None]
    seeds_part = (variance @ (count - 1) / degrees)[:, None] * (1 / n + 1 / count[0]) * np.ones(rows)
    images = statistics.images(weights, right, count, of_each)
    return statistics.difference(mean @ weights.T, seeds_part, degrees, images, IMAGES)


def true(shift: float) -> float:
    return float(stats.norm.cdf(shift / np.sqrt(1 + OWN**2 + SEED**2 + NOISE**2)) - 0.5)


CASES = [(3, 1), (3, 6), (5, 3), (5, 24), (10, 1), (10, 6)]
EVERY = [pytest.param(*case, marks=pytest.mark.exhaustive) for case in itertools.product((3, 5, 10), (1, 2, 6, 12, 24))]


@pytest.mark.parametrize(("n", "rows"), [*CASES, *EVERY])
def test_intervals_and_errors_of_tables_without_differences(n: int, rows: int) -> None:
    """At most 5% of the tables have a verdict that is false, and 95% of the intervals the true difference.

    The bounds have two standard errors of 1,000 tables.
    """
    found = simulated(4000 if rows == 1 else 1000, rows, n)
    low, high = found.interval()
    assert ((low < 0) & (high > 0)).mean() == pytest.approx(0.95, abs=0.015)
    false = statistics.holm(found.differs(), rows)[0].any(-1).mean()
    assert false < 0.05 + 2 * np.sqrt(0.05 * 0.95 / len(found.mean))
    assert (found.error**2).mean() == pytest.approx(found.mean.var(), rel=0.1)  # without bias


@pytest.mark.parametrize(("n", "rows", "reference"), [(5, 3, 5), (8, 6, 24)])
def test_a_known_difference(n: int, rows: int, reference: int) -> None:
    """Intervals hold it; a difference as large as the margin is called smaller in at most 5% of tables."""
    found, difference = simulated(1000, rows, n, 0.2, reference), true(0.2)
    low, high = found.interval()
    assert ((low < difference) & (difference < high)).mean() == pytest.approx(0.95, abs=0.015)
    assert statistics.holm(found.exceeds(difference), rows)[0].any(-1).mean() < 0.065
    assert statistics.holm(found.differs(), rows)[0].mean() > 0.2  # and it is found at times


def test_parts_with_degrees_of_their_own() -> None:
    """As in Welch's test."""
    random = np.random.default_rng(0)
    one, other = random.normal(0, 1, 6), random.normal(0, 3, 9)
    of_one, of_other = one.var(ddof=1) / 6, other.var(ddof=1) / 9
    found = statistics.difference(one.mean() - other.mean(), of_one, 5, of_other, 9)
    expected = stats.ttest_ind(one, other, equal_var=False)
    assert found.differs() == pytest.approx(expected.pvalue)
    assert found.interval() == pytest.approx(tuple(expected.confidence_interval(0.95)))


def test_the_step_down_of_holm() -> None:
    """Of planned comparisons of which some have no p-value; a larger p-value stops it."""
    p = np.array([[0.011, 0.001, 0.2], [0.02, 0.03, 0.012]])
    assert statistics.holm(p, 3)[0].tolist() == [[True, True, False], [True, True, True]]
    assert statistics.holm(p, 5)[0].tolist() == [[True, True, False], [False, False, False]]
    assert statistics.holm(p, 3, 0.03)[0].tolist() == [[True, True, False], [False, False, False]]


def test_equal_numbers_decide() -> None:
    found = statistics.difference(np.array([0.5, 0.0]), np.zeros(2), 8, np.zeros(2), 1)
    assert found.differs()[0] < 1e-9 and found.exceeds(0.1)[1] < 1e-9
    assert found.interval()[1][0] == pytest.approx(0.5)


@pytest.mark.parametrize("n", [3, 5, 10])
@pytest.mark.parametrize("cells", [1, 4, 24])
def test_pairs_that_differ_in_nothing_are_called_different_in_at_most_five_percent(n: int, cells: int) -> None:
    """1,000 grids of cells; the bound allows three errors of a share of 5%. A known difference lies in its interval."""
    random, grids, count = np.random.default_rng(n + 100 * cells), 1000, 60
    image = random.normal(0, 1, (grids, 1, 1, count))

    def right(shift: float) -> np.ndarray:
        noise = random.normal(0, SEED, (grids, cells, n, 1)) + random.normal(0, NOISE, (grids, cells, n, count))
        return (image + noise + shift > 0).astype(np.int8)

    bits = right(0.0) - right(0.0)
    same = statistics.paired(bits.mean(-1), bits)
    wrong = statistics.holm(same.differs(), cells)[0].any(-1)
    assert wrong.mean() < 0.05 + 3 * math.sqrt(0.05 * 0.95 / grids)
    low, high = same.interval()
    assert 0.935 < ((low <= 0) & (high >= 0)).mean() < 0.975


@pytest.mark.parametrize("n", [3, 5, 10])
def test_the_interval_of_pairs_holds_the_images_too(n: int) -> None:
    """Each of two settings has images of its own that it is good at: other images would give another difference."""
    random, grids, count = np.random.default_rng(n), 2000, 100
    own = random.normal(0, OWN, (2, grids, 1, count))
    noise = random.normal(0, SEED, (2, grids, n, 1)) + random.normal(0, NOISE, (2, grids, n, count))
    right = (random.normal(0, 1, (grids, 1, count)) + own + noise > 0).astype(np.int8)
    bits = right[0] - right[1]
    found = statistics.paired(bits.mean(-1), bits)
    low, high = found.interval()
    covered = ((low <= 0) & (high >= 0)).mean()
    seeds_only = np.abs(found.mean) <= stats.t.isf(0.025, n - 1) * np.sqrt(found.seeds)
    assert 0.935 < covered < 0.985 and seeds_only.mean() < covered


@pytest.mark.parametrize("margin", [None, 0.8, 3.0])
def test_an_interval_agrees_with_its_verdict(margin: float | None) -> None:
    """Without a verdict it holds 0; with one on the sign it does not; with one on the margin it lies within it."""
    random, verdicts = np.random.default_rng(1), Counter[str]()
    for _ in range(300):
        cells = int(random.integers(1, 6))
        together = statistics.stacked(
            [statistics.paired(random.normal(random.choice([0, 2, -2]), 0.7, 5)) for _ in range(cells)]
        )
        for answer in statistics.answers(together, margin, cells):
            verdicts[answer.verdict] += 1
            sign = answer.verdict.split(",")[0]
            held = answer.low <= 0 <= answer.high
            assert held == (sign not in ("better", "worse")), answer
            assert sign != "better" or answer.low > 0
            assert sign != "worse" or answer.high < 0
            if margin is not None and "no difference" in answer.verdict:
                assert -margin < answer.low and answer.high < margin
    assert len(verdicts) >= (3 if margin is None else 5)


def test_intervals_hold_together() -> None:
    """In at least 95% of 1,000 tables all six intervals hold the true differences, of which half are 0."""
    random, true, held = np.random.default_rng(2), np.array([0, 0, 0, 1, 2, 4]), 0
    for _ in range(1000):
        together = statistics.stacked([statistics.paired(random.normal(mean, 1, 4)) for mean in true])
        answers = statistics.answers(together, None, len(true))
        held += all(a.low <= mean <= a.high for a, mean in zip(answers, true, strict=True))
    assert held / 1000 > 0.95 - 3 * math.sqrt(0.05 * 0.95 / 1000)


@pytest.mark.parametrize("interaction", [0.0, 3.0])
def test_the_mean_over_cells_errs_in_five_percent(interaction: float) -> None:
    random, tables, cells = np.random.default_rng(3), 1000, 6
    wrong = several = 0
    for _ in range(tables):
        of_cells = interaction * random.normal(size=cells)
        values = (of_cells - of_cells.mean())[:, None] + random.normal(size=(cells, 3))
        over = statistics.over_cells([dict(enumerate(of_cell)) for of_cell in values.tolist()])
        assert over is not None and float(over.estimate.mean) == pytest.approx(values.mean())
        wrong += bool(over.estimate.differs() < 0.05)
        several += over.vary
    assert wrong / tables < 0.05 + 3 * math.sqrt(0.05 * 0.95 / tables)
    assert several / tables > 0.95 if interaction else several / tables < 0.08


def test_the_mean_over_cells_by_hand() -> None:
    """Cells of two and three pairs, with the images' part; and seeds that have a part of their own in all cells."""
    first, second = {0: 1.0, 1: 3.0}, {0: 4.0, 1: 6.0, 5: 8.0}
    over = statistics.over_cells([first, second])
    assert over is not None
    variance = (2 + 8) / 3  # one and two degrees of freedom
    assert float(over.estimate.mean) == 4 and float(over.estimate.degrees) == 3
    assert float(over.estimate.seeds) == pytest.approx(variance * (1 / 2 + 1 / 3) / 4) and not over.by_seed
    seeds = [{0: 0.0, 1: 10.0, 2: 20.0, 3: 5.0}, {0: 0.1, 1: 10.0, 2: 19.9, 3: 5.0}]
    by_seed = statistics.over_cells(seeds)
    assert by_seed is not None and by_seed.by_seed and float(by_seed.estimate.degrees) == 6
    pooled = np.mean([np.var(list(of_cell.values()), ddof=1) for of_cell in seeds])
    assert float(by_seed.estimate.seeds) == pytest.approx(pooled / 8) and not by_seed.vary
    two = statistics.over_cells([{0: 0.0, 1: 10.0}, {0: 0.1, 1: 10.0}])  # leaves one degree of freedom
    assert two is not None and not two.by_seed
    assert statistics.over_cells([{0: 1.0}, {0: 2.0}]) is None


def test_seeds_that_agree_by_chance_are_not_certain() -> None:
    """The variance is at least that of one image and a half over the degrees of freedom, or of the rounding."""
    assert statistics.smallest_gap([70.0, 70.5, 70.1, 70.1 + 1e-12]) == pytest.approx(0.1)
    assert statistics.smallest_gap([0.7, 0.1 + 0.6]) == 0.0
    bits = np.zeros((2, 12))
    bits[0, 3] = bits[1, 4] = 100.0  # in each of two seeds another image
    found = statistics.paired(bits.mean(-1), bits, 100 / 12)
    assert float(found.seeds) == pytest.approx(2 * 1.5 * (100 / 12) ** 2 / 2) and found.differs() > 0.05
    same = statistics.paired(np.zeros(2), np.zeros((2, 2)), 50.0)
    assert same.exceeds(0.5) > 0.05
    shift = np.zeros((2, 10000))
    shift[0, :600] = shift[1, 500:1100] = 100.0  # the joint part of seeds and images is more than an image
    far = statistics.paired(shift.mean(-1), shift, 100 / 10000)
    assert float(far.seeds) == pytest.approx(100**2 * (1000 / 4 * 2) / 9999 / 10000 / 2)
    without = statistics.paired(np.array([1.0, 1.0]), step=0.1)
    assert float(without.seeds) == pytest.approx(2 * 0.1**2 / 12 / 2)
    cells = [{0: 2.0, 1: 2.0, 2: 2.0}, {0: 2.5, 1: 2.5, 2: 2.5}]
    over = statistics.over_cells(cells, step=0.5)
    assert over is not None and float(over.estimate.seeds) == pytest.approx(2 * 0.5**2 / 12 / 6) and not over.by_seed
    large = statistics.paired(np.array([3.0, 5.0]), step=0.1)  # an ordinary variance stays
    assert float(large.seeds) == pytest.approx(1.0)


def test_cells_of_other_test_images_have_no_image_in_common() -> None:
    """The part of the images in the mean of two cells: a quarter of the sum of those of each, not that of sums."""
    rng = np.random.default_rng(0)
    bits = [np.repeat(rng.integers(-1, 2, size=(1, 400)), 3, axis=0).astype(float) for _ in range(2)]
    cells = [dict(enumerate(of_cell.mean(1).tolist())) for of_cell in bits]
    over = statistics.over_cells(cells, bits, 1 / 400, ["one", "other"])
    assert over is not None
    assert float(over.estimate.images) == pytest.approx(sum(of_cell[0].var(ddof=1) / 400 for of_cell in bits) / 4)
    twice = statistics.over_cells(cells, [bits[0], bits[0]], 1 / 400)
    assert twice is not None and float(twice.estimate.images) == pytest.approx(bits[0][0].var(ddof=1) / 400)
