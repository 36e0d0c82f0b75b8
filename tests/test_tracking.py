"""W&B, for real and offline: what it is given, and that its failures are nobody's business."""

import json
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ssl_bench.tracking import Tracker
from tests.conftest import only_run

Train = Callable[..., tuple[int, str]]


def records(folder: Path) -> list[Any]:
    """What an offline run would send. W&B's own process writes it, and may be a moment behind."""
    deadline = time.monotonic() + 20
    while True:
        found = [r for path in folder.glob("wandb/offline-run-*/*.wandb") for r in _read(path.read_bytes())]
        if any(r.WhichOneof("record_type") == "exit" for r in found) or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def _read(data: bytes) -> Iterator[Any]:
    """LevelDB's log format (blocks of 32 kB, cut into chunks) around wandb's own messages."""
    from wandb.proto import wandb_internal_pb2

    at, message = 7, b""  # after wandb's header
    while at + 7 <= len(data):
        length, kind = struct.unpack_from("<4xHB", data, at)
        if kind == 0 or 32768 - at % 32768 < 7:  # what is left of a block is padding
            at += 32768 - at % 32768
            continue
        if at + 7 + length > len(data):
            return  # not all there yet
        message += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or its last part
            record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
            record.ParseFromString(message)
            message = b""
            yield record


def test_what_wandb_is_given(train: Train) -> None:
    given = ["tracking=offline", "tracking.tags=[a,b]", "name=grid", "max_steps=3", "evaluate=knn"]
    code, printed = train(*given)
    assert code == 0 and "given up" not in printed, printed
    folder = only_run()
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found = records(folder)
    (run,) = [r.run for r in found if r.WhichOneof("record_type") == "run"]
    assert run.run_id == folder.name and run.run_group == "grid" and list(run.tags) == ["a", "b"]
    config = {u.key: json.loads(u.value_json) for u in run.config.update}
    assert config["batch_size"]["size"] == 64 and config["choices"]["loss"] == "infonce" and "paths" not in config
    history = [
        {i.key or i.nested_key[0]: json.loads(i.value_json) for i in r.history.item}
        for r in found
        if r.HasField("history")
    ]
    assert [h["step"] for h in history] == [row["step"] for row in rows] == [1, 2, 3, 3]
    assert [h.get("loss") for h in history] == [row.get("loss") for row in rows]
    (end,) = [r.exit for r in found if r.WhichOneof("record_type") == "exit"]
    assert end.exit_code == 0
    summary = {i.key or i.nested_key[0]: i.value_json for r in found if r.HasField("summary") for i in r.summary.update}
    assert json.loads(summary["knn/top1"]) == rows[-1]["knn/top1"]


def test_a_failed_run_is_failed_there_too(train: Train) -> None:
    assert train("tracking=offline", "optimizer.lr=1e38", "max_steps=8", "log_every=1")[0] == 1
    (end,) = [r.exit for r in records(only_run()) if r.WhichOneof("record_type") == "exit"]
    assert end.exit_code == 1


def test_wandb_failing_fails_no_run(train: Train) -> None:
    """A project of a name that W&B refuses."""
    code, printed = train("tracking=offline", "tracking.project=no/such", "max_steps=2")
    assert code == 0 and "W&B is given up for this run" in printed
    assert len((only_run() / "metrics.jsonl").read_text().splitlines()) == 3


def test_rows_after_the_checkpoint_are_dropped_on_resume(tmp_path: Path) -> None:
    config = {"tracking": {"mode": "off"}}
    first = Tracker(tmp_path, config, "id", 0)
    for step in range(1, 6):
        first.row(step, {"loss": float(step)})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "lo')
    second = Tracker(tmp_path, config, "id", 3)
    second.row(4, {"loss": 40.0})
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["loss"]) for row in rows] == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0)]
