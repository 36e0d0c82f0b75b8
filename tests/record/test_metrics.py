"""``metrics.jsonl``: rows after the checkpoint are dropped on resume."""

import json
from pathlib import Path

from ssl_bench.record.dashboard import Tracker

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
