"""TensorBoard by its own reader: rows once each, also after a stop."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ssl_bench.record.dashboard import Tracker
from tests.conftest import only_run

Train = Callable[..., tuple[int, str]]
CONFIG = {
    "tracking": {"mode": "tensorboard"},
    "seed": 3,
    "loss": {"_target_": "x.DCL", "tau": 0.5, "form": None},
    "tf32": True,
}
CONFIG |= {"choices": {"loss": "dcl", "tracking": "tensorboard"}}


def read(folder: Path) -> EventAccumulator:
    """All that TensorBoard shows of the run in ``folder``, with every value."""
    everything = {"scalars": 0}
    shown = EventAccumulator(str(folder / "tensorboard"), size_guidance=everything)
    shown.Reload()
    return shown


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def assert_shown_once(folder: Path) -> None:
    """TensorBoard shows every number of ``metrics.jsonl`` once, and nothing else."""
    expected: dict[str, list[tuple[int, float]]] = {}
    for row in rows(folder):
        for name, value in row.items():
            if name not in ("step", "epoch") and isinstance(value, int | float):
                expected.setdefault(name, []).append((row["step"], float(np.float32(value))))
    shown = read(folder)
    assert {tag: [(e.step, e.value) for e in shown.Scalars(tag)] for tag in shown.Tags()["scalars"]} == expected


def test_rows_of_a_resumed_run_are_shown_once(tmp_path: Path) -> None:
    first = Tracker(tmp_path, CONFIG, "id", 0, {})
    for step in range(1, 6):
        first.row(step, {"epoch": step / 4, "loss": float(step), "seconds": 10.0 * step})
    assert [event.step for event in read(tmp_path).Scalars("loss")] == [1, 2, 3, 4, 5]  # also of a killed run
    second = Tracker(tmp_path, CONFIG, "id", 3, {"negatives_per_anchor": 62})
    second.row(4, {"epoch": 1.0, "loss": 40.0, "seconds": 41.0})
    second.row(4, {"epoch": 1.0, "knn/top1": 0.5})
    second.finish({"knn/top1": 0.5}, 0)
    assert_shown_once(tmp_path)
    assert [event.value for event in read(tmp_path).Scalars("loss")] == [1.0, 2.0, 3.0, 40.0]


def test_a_training_is_shown(train: Train) -> None:
    code, printed = train("tracking=tensorboard", "max_steps=2")
    assert code == 0 and "TensorBoard failed" not in printed
    folder = only_run()
    assert_shown_once(folder)
    assert train("tracking=tensorboard", "max_steps=2", "evaluate=knn", "evaluate.knn.k=3")[0] == 0
    assert_shown_once(folder)
    (value,) = read(folder).Scalars("knn/top1")
    assert (value.step, value.value) == (2, np.float32(rows(folder)[-1]["knn/top1"]))
