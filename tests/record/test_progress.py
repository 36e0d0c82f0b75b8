"""The time left: known once enough steps were timed, and from the recent ones; nothing is left at the end."""

import pytest

from ssl_bench.record.progress import Pace, Progress


def first_guess(every: int, step_seconds: float, total: int) -> tuple[int, float | None]:
    """(step, seconds left) of the first guess of a training whose first ten steps are ten times as slow."""
    pace = Pace()
    for step in range(every, total + 1, every):
        pace.add(every, every * step_seconds * (10 if step <= 10 else 1))
        if (left := pace.seconds(total - step)) is not None:
            return step, left
    return total, None


@pytest.mark.parametrize(
    ("every", "step_seconds", "step"),
    [(1, 0.2, 30), (10, 0.2, 30), (7, 0.2, 35), (50, 0.2, 100), (10, 0.025, 130), (1, 40.0, 30)],
)
def test_the_first_guess_is_made_from_20_steps_and_3_seconds(every: int, step_seconds: float, step: int) -> None:
    assert first_guess(every, step_seconds, 600) == (step, pytest.approx((600 - step) * step_seconds))


def test_a_training_of_three_seconds_has_no_guess() -> None:
    assert first_guess(10, 0.01, 300) == (300, None)


def test_older_steps_are_forgotten_after_30_seconds() -> None:
    pace = Pace()
    for seconds in [1.0] * 60 + [2.0] * 15:
        pace.add(1, seconds)
    assert pace.seconds(10) == pytest.approx(2.0 * 15 / 20 * 10 + 1.0 * 5 / 20 * 10)
    pace.add(5, 10.0)
    assert pace.seconds(10) == pytest.approx(20.0)


def test_the_guess_is_logged_once_and_not_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    row = {"loss": 1.0, "lr": 0.1, "images_per_second": 64.0}
    with caplog.at_level("INFO", "ssl_bench"), Progress(50, 0, 10, 5, True) as progress:
        for step in range(10, 51, 10):
            progress.show(step, row, 10, 10.0)
    end = "epoch 5/5  step 50/50  loss 1.0000  lr 0.1  64 images/s"
    assert caplog.messages == ["about 20s of training to go", end]
