"""Rows of a run: those after the checkpoint are dropped on resume; the time left, mostly from the last rows."""

import json
import re
from pathlib import Path

import pytest

from ssl_bench.record.dashboard import Tracker
from ssl_bench.record.terminal import Progress

CONFIG = {"tracking": {"mode": "off"}}


def test_rows_after_the_checkpoint_are_dropped_on_resume(tmp_path: Path) -> None:
    first = Tracker(tmp_path, CONFIG, "id", 0, {})
    for step in range(1, 6):
        first.row(step, {"loss": float(step)})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "lo')
    second = Tracker(tmp_path, CONFIG, "id", 3, {})
    second.row(4, {"loss": 40.0})
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["loss"]) for row in rows] == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0)]


def test_rows_of_an_evaluation_stay_up_to_the_last_step_that_was_evaluated(tmp_path: Path) -> None:
    """The evaluation after the checkpoint is made again, and so is its row."""
    first = Tracker(tmp_path, CONFIG, "id", 0, {})
    for step in (1, 2, 3):
        first.row(step, {"loss": float(step)})
        first.row(step, {"knn/top1": step / 10})
    Tracker(tmp_path, CONFIG, "id", 3, {}, 2)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "loss" in row] == [1, 2, 3]
    assert [row["knn/top1"] for row in rows if "knn/top1" in row] == [0.1, 0.2]


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
    lines = [line.partition("64 images/s")[2] for line in caplog.messages]
    assert lines and all(re.findall(r"[\d.]+", line) == ["57.1", "19.9"] for line in lines)
