"""W&B, for real and offline: what it is given, and that its failures are nobody's business."""

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb

from ssl_bench.config.compose import load
from ssl_bench.record.wandb import Tracker, shown_config
from tests.conftest import SMALL, only_run

Train = Callable[..., tuple[int, str]]
Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def own_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is started here must not write through this one's W&B process, which survives it."""
    monkeypatch.delenv(wandb.env.SERVICE, raising=False)


def legs(folder: Path) -> list[Path]:
    """The directories of W&B's in a run's, oldest first."""
    return sorted(folder.glob("wandb/offline-run-*"))


def records(leg: Path) -> list[Any]:
    """What an offline run would send. W&B's own process writes it, and may be a moment behind."""
    deadline = time.monotonic() + 20
    while True:
        found = [r for path in leg.glob("*.wandb") for r in _read(path.read_bytes())]
        if any(r.WhichOneof("record_type") == "exit" for r in found) or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def pick(found: list[Any], kind: str) -> list[Any]:
    return [getattr(r, kind) for r in found if r.WhichOneof("record_type") == kind]


def history(found: list[Any]) -> list[dict[str, Any]]:
    """The rows, with W&B's own step as ``_step``."""
    return [
        {i.key or i.nested_key[0]: json.loads(i.value_json) for i in row.item} | {"_step": row.step.num}
        for row in pick(found, "history")
    ]


def summary(found: list[Any]) -> dict[str, Any]:
    return {i.key or i.nested_key[0]: json.loads(i.value_json) for s in pick(found, "summary") for i in s.update}


def wandb_config(found: list[Any]) -> dict[str, Any]:
    (run,) = pick(found, "run")
    return {u.key: json.loads(u.value_json) for u in run.config.update}


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
    given = ["tracking=offline", "tracking.tags=[a,b]", "name=grid", "scale=reduced", "max_steps=3", "evaluate=knn"]
    code, printed = train(*given)
    assert code == 0 and "given up" not in printed, printed
    folder = only_run()
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found = records(legs(folder)[0])
    (run,) = pick(found, "run")
    assert run.run_id == folder.name and run.run_group == "grid" and run.job_type == "train"
    assert list(run.tags) == ["a", "b", "reduced"]
    axes = {"batch_size.size": 64, "negatives.k": 126, "loss": "infonce", "temperature.tau": 0.2}
    assert axes.items() <= wandb_config(found).items()
    shown = history(found)
    assert [(h["_step"], h["step"]) for h in shown] == [(0, 1), (1, 2), (2, 3), (3, 3)]
    assert [h["step"] for h in shown] == [row["step"] for row in rows]
    assert [h.get("loss") for h in shown] == [row.get("loss") for row in rows]
    (end,) = pick(found, "exit")
    assert end.exit_code == 0 and not pick(found, "preempting")
    results = json.loads((folder / "results.json").read_text())
    assert results["metrics"].items() <= summary(found).items()
    assert results["facts"].items() <= {k.removeprefix("facts."): v for k, v in wandb_config(found).items()}.items()


@pytest.mark.parametrize(
    ("overrides", "negatives", "shown"),
    [
        (["negatives=cross_view"], 63, {"negatives": "cross_view", "negatives.k": 63}),
        (["negatives=random_k", "negatives.k=16"], 16, {"negatives": "random_k", "negatives.k": 16}),
        (["loss=eqco", "loss.alpha=512"], 126, {"loss": "eqco", "loss.alpha": 512.0}),
        (["temperature=macl_a"], 126, {"temperature": "macl_a", "temperature.tau": 0.1, "temperature.alpha": 2.0}),
        (["batch_size=b128"], 254, {"batch_size": "b128", "batch_size.size": 128, "framework": "simclr"}),
    ],
)
def test_the_config_has_the_names_of_the_command_line(
    overrides: list[str], negatives: int, shown: dict[str, Any]
) -> None:
    config = shown_config(load(overrides), {"negatives_per_anchor": negatives})
    assert shown.items() <= config.items()
    assert not [k for k in config if "_target_" in k or k.startswith(("paths", "tracking", "choices"))]
    given = [o for o in overrides if "." not in o]  # the options, then every value by its name
    values = [f"{k}={json.dumps(v)}" for k, v in config.items() if k.count(".") == 1 and isinstance(v, int | float)]
    values = [v for v in values if not v.startswith("facts.") and ("negatives.k" not in v or "random_k" in given[0])]
    again = shown_config(load([*given, *values]), {})
    assert len(values) > 20 and again == {k: v for k, v in config.items() if k in again}


def test_a_failed_run_is_failed_there_too(train: Train) -> None:
    assert train("tracking=offline", "optimizer.lr=1e38", "max_steps=8", "log_every=1")[0] == 1
    (end,) = pick(records(legs(only_run())[0]), "exit")
    assert end.exit_code == 1


def test_wandb_failing_fails_no_run(train: Train) -> None:
    """A tag of a length that W&B refuses."""
    code, printed = train("tracking=offline", f"tracking.tags=[{'long' * 20}]", "max_steps=2")
    assert code == 0 and "W&B is given up for this run" in printed
    assert len((only_run() / "metrics.jsonl").read_text().splitlines()) == 3


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ssl_bench", "train", *SMALL, "tracking=offline", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def wait_for_rows(number: int) -> None:
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        if sum(path.read_text().count("\n") for path in Path("outputs").glob("*/*/metrics.jsonl")) >= number:
            return
        time.sleep(0.02)
    raise TimeoutError(f"no {number} rows")


def test_a_killed_run_goes_on_without_a_gap_or_a_row_twice(train: Train) -> None:
    """An epoch is 21 steps: the checkpoint is older than the kill, and W&B's file may have lost what came before."""
    run = start("checkpoint.every=1", "max_steps=84", "evaluate=knn")
    wait_for_rows(26)
    run.send_signal(signal.SIGKILL)
    run.communicate()
    folder = only_run()
    before = len((folder / "metrics.jsonl").read_text().splitlines())
    assert 26 <= before < 84 and not (folder / "results.json").exists()
    time.sleep(1)  # W&B names its directories by the second
    code, printed = train("tracking=offline", "checkpoint.every=1", "max_steps=84", "evaluate=knn")
    assert code == 0 and "resuming at step " in printed and "given up" not in printed
    first, second = legs(folder)
    assert first.name.endswith(folder.name) and second.name.endswith(folder.name)
    found = records(second)  # what scripts/sync_wandb.sh sends
    shown = history(found)
    assert [h["_step"] for h in shown] == list(range(85))
    assert [h["step"] for h in shown] == [*range(1, 85), 84]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [h.get("loss") for h in shown] == [row.get("loss") for row in rows]
    assert not pick(found, "run")[0].resume  # else `wandb sync` would number these rows after those of the first


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_stopped_run_is_preempting(number: signal.Signals) -> None:
    run = start("max_steps=2000")
    wait_for_rows(3)
    run.send_signal(number)
    run.communicate(timeout=60)
    assert run.returncode == 128 + number
    found = records(legs(only_run())[0])
    kinds = [r.WhichOneof("record_type") for r in found]
    (end,) = pick(found, "exit")
    assert end.exit_code == 128 + number
    assert kinds.index("preempting") < kinds.index("exit") and not pick(found, "resume")


KEY = "0123456789abcdef" * 2 + "01234567"


def test_an_api_key_is_written_nowhere(cli: Cli) -> None:
    """Neither by us nor by W&B, which notes the arguments, the git remote and more of where a run takes place."""
    git = ["git", "-c", "user.name=me", "-c", "user.email=me@example.org"]
    for words in ("init -q", "commit -q --allow-empty -m x", f"remote add origin https://{KEY}@example.org/x.git"):
        subprocess.run([*git, *words.split()], check=True)
    small = ["train", *SMALL, "max_steps=2", "tracking=offline"]
    done = cli(*small, WANDB_API_KEY=KEY, WANDB_SILENT="false")
    assert done.returncode == 0 and KEY not in done.stdout + done.stderr, done.stderr
    files = [path for path in Path("outputs").rglob("*") if path.is_file()]
    assert any(b"https://example.org/x.git" in path.read_bytes() for path in files if path.suffix == ".wandb")
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (f"tracking.entity={KEY}", "tracking.entity"),
        (f"'tracking.entity=https://{KEY}@api.wandb.ai'", "tracking.entity"),
        ("tracking.project=no/such", "tracking.project"),
        (f"tracking.tags=[{KEY}]", "WANDB_API_KEY"),
        ("name=no-pattern-known-here", "WANDB_API_KEY"),
    ],
)
def test_a_key_in_the_configuration_is_refused(
    train: Train, monkeypatch: pytest.MonkeyPatch, given: str, named: str
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "no-pattern-known-here")
    code, printed = train(given.strip("'").replace("=https", "='https") + ("'" if "https" in given else ""))
    assert code == 2 and f"set {named}" in printed and KEY not in printed
    assert not os.path.exists("outputs")


def test_rows_after_the_checkpoint_are_dropped_on_resume(tmp_path: Path) -> None:
    config = {"tracking": {"mode": "off"}}
    first = Tracker(tmp_path, config, "id", 0, {})
    for step in range(1, 6):
        first.row(step, {"loss": float(step)})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "lo')
    second = Tracker(tmp_path, config, "id", 3, {})
    second.row(4, {"loss": 40.0})
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(row["step"], row["loss"]) for row in rows] == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0)]
