"""Differences and what they decide together."""

from collections import Counter

import numpy as np
import pytest

from ssl_bench.results import statistics
from ssl_bench.results.statistics import Estimate


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
        decided, low, high = statistics.answers(estimates(means), margin)
        for of, mean, *ends in zip(decided, means, low, high, strict=True):
            verdicts[(bool(mean > 0), *of.tolist())] += 1
            assert (ends[0] < 0 < ends[1]) == (not of[0])
            assert not of[0] or (ends[0] >= 0 if mean > 0 else ends[1] <= 0)
            assert margin is None or of[1] == (-margin <= ends[0] and ends[1] <= margin)
    assert len(verdicts) >= (4 if margin is None else 5)


def test_seeds_that_would_decide() -> None:
    one = Estimate(1.0, 1.0, 0.0, 8.0)
    more = statistics.seeds_to_decide(one, 2, None, 0.05)
    assert more is not None and 5 < more < 12  # the standard error is to be a half
    assert statistics.seeds_to_decide(Estimate(1.0, 1.0, 1.0, 8.0), 2, None, 0.05) is None
    assert statistics.seeds_to_decide(Estimate(0.0, 1.0, 0.0, 8.0), 2, 1.0, 0.05) is not None


def test_numbers_that_are_equal_but_for_rounding_have_no_gap() -> None:
    assert statistics.smallest_gap([70.0, 70.5, 70.1, 70.1 + 1e-12]) == pytest.approx(0.1)
    assert statistics.smallest_gap([0.7, 0.1 + 0.6]) == 0.0
