"""The time left: from the second row on, mostly from the last rows; nothing is left at the end."""

import pytest

from ssl_bench.record.terminal import Progress


def test_the_time_left(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ssl_bench.record.terminal.PAUSE", 0.0)
    row = {"loss": 1.0, "lr": 0.1, "images_per_second": 64.0}
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with caplog.at_level("INFO", "ssl_bench"), Progress(50, 0, 10, 5, True) as progress:
        for step, seconds in zip(range(10, 51, 10), (99.0, 10.0, 20.0, 20.0, 20.0), strict=True):
            now[0] += seconds
            assert progress.rate(step) == 10 / seconds
            progress.show(step, row)
            now[0] += 1000.0  # an evaluation
            progress.restart(step)
    start = [f"epoch {n}/5  step {n}0/50  loss 1.0000  lr 0.1  64 images/s" for n in range(1, 6)]
    # 30 steps of 1 s; 20 of 0.8 x 1 s + 0.2 x 2 s; 10 of 0.8 x 1.2 s + 0.2 x 2 s
    assert caplog.messages == [
        a + b for a, b in zip(start, ["", "  0m30s left", "  0m24s left", "  0m14s left", ""], strict=True)
    ]


def test_the_last_look_stands_in_every_line(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ssl_bench.record.terminal.PAUSE", 0.0)
    row = {"loss": 1.0, "lr": 0.1, "images_per_second": 64.0}
    with caplog.at_level("INFO", "ssl_bench"), Progress(20, 0, 10, 2, True) as progress:
        progress.show(10, row | {"watch/knn_top1": 0.5712, "watch/effective_rank": 19.93})
        progress.show(20, row)
    assert all(line.endswith("64 images/s  kNN 57.1%  rank 19.9") for line in caplog.messages) and caplog.messages
