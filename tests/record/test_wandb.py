"""W&B with its own client, offline: the content of its files, and runs that go on if W&B fails."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import wandb

from ssl_bench.config.compose import load
from ssl_bench.errors import RunError
from ssl_bench.record.dashboard import Tracker, flat_config
from ssl_bench.signals import Interrupted
from tests.conftest import SMALL, only_run
from tests.ranks import Command
from tests.record.wandb_files import history, of_kind, records, summary, wandb_config, wandb_directories

Train = Callable[..., tuple[int, str]]


@pytest.fixture(autouse=True)
def separate_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes that a test starts use their own W&B service process, not the one of this process."""
    monkeypatch.delenv(wandb.env.SERVICE, raising=False)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_wandb_has_the_rows_results_and_facts_of_a_run(train: Train) -> None:
    overrides = ["tracking=offline", "tracking.tags=[a,b]", "name=grid", "scale=reduced", "max_steps=3", "evaluate=knn"]
    code, printed = train(*overrides, pictures=True)
    assert code == 0 and "W&B failed" not in printed, printed
    folder = only_run()
    entries = records(wandb_directories(folder)[0])
    (run,) = of_kind(entries, "run")
    assert run.run_id == folder.name and run.run_group == "grid" and run.job_type == "train"
    assert run.display_name == f"scattered_digits-simclr-infonce-b64-k126-t0.2-s0-{folder.name}"
    assert list(run.tags) == ["a", "b", "reduced"]
    axes = {"batch_size.size": 64, "negatives.k": 126, "loss": "infonce", "temperature.tau": 0.2}
    assert axes.items() <= wandb_config(entries).items()
    shown = history(entries)
    assert [(h["_step"], h["step"]) for h in shown] == [(0, 1), (1, 2), (2, 3), (3, 3)]
    assert [(h["step"], h.get("loss")) for h in shown] == [(row["step"], row.get("loss")) for row in rows(folder)]
    (end,) = of_kind(entries, "exit")
    assert end.exit_code == 0 and not of_kind(entries, "preempting")
    results = json.loads((folder / "results.json").read_text())
    assert results["metrics"].items() <= summary(entries).items()
    assert results["facts"].items() <= {k.removeprefix("facts."): v for k, v in wandb_config(entries).items()}.items()
    time.sleep(1)  # W&B names its directories by the second
    assert train(*overrides, "evaluate.knn.k=3", pictures=True)[0] == 0  # a second evaluation
    entries = records(wandb_directories(folder)[1])
    metrics = json.loads((folder / "results.json").read_text())["metrics"]
    assert [h["step"] for h in history(entries)] == [1, 2, 3, 3, 3] and "knn[k=3]/top1" in metrics
    assert metrics.items() <= history(entries)[-1].items()
    top1 = {name: number for name, number in summary(entries).items() if name.endswith("/top1")}
    first = f"knn[k={load(overrides)['evaluate']['knn']['k']}]"
    assert top1["knn/top1"] == top1["knn[k=3]/top1"] == metrics["knn[k=3]/top1"]  # which was asked for last
    assert top1[f"{first}/top1"] == metrics["knn/top1"]


@pytest.mark.parametrize(
    ("overrides", "negatives", "expected"),
    [
        (["negatives=random_k", "negatives.k=16"], 16, {"negatives": "random_k", "negatives.k": 16}),
        (["batch_size=b128"], 254, {"batch_size": 128, "batch_size.size": 128, "framework": "simclr"}),
    ],
)
def test_the_config_in_wandb_has_the_names_of_the_command_line(
    overrides: list[str], negatives: int, expected: dict[str, Any]
) -> None:
    config = flat_config(load(overrides), {"negatives_per_anchor": negatives})
    assert expected.items() <= config.items()
    assert not [k for k in config if "_target_" in k or k.startswith(("paths", "tracking", "choices"))]
    options = [o for o in overrides if "." not in o]  # then every value by its name
    values = [f"{k}={json.dumps(v)}" for k, v in config.items() if k.count(".") == 1 and isinstance(v, int | float)]
    values = [v for v in values if not v.startswith("facts.") and ("negatives.k" not in v or "random_k" in options[0])]
    again = flat_config(load([*options, *values]), {})
    assert len(values) > 20 and again == {k: v for k, v in config.items() if k in again}


@pytest.mark.slow
def test_variables_of_wandb_name_a_run(monkeypatch: pytest.MonkeyPatch, train: Train) -> None:
    """They come after what is set on the command line, as the mode does."""
    variables = {"NAME": "mine", "RUN_GROUP": "ours", "PROJECT": "theirs", "TAGS": "a,b", "MODE": "online"}
    for name, value in variables.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    assert train("tracking=offline", "tracking.tags=[c]", "max_steps=1")[0] == 0
    (run,) = of_kind(records(wandb_directories(only_run())[0]), "run")
    assert (run.display_name, run.run_group, run.project, list(run.tags)) == ("mine", "ours", "theirs", ["c"])


@pytest.mark.slow
def test_a_failure_of_wandb_does_not_fail_the_run(train: Train) -> None:
    """W&B refuses a tag of this length."""
    code, printed = train("tracking=offline", f"tracking.tags=[{'long' * 20}]", "max_steps=2")
    assert code == 0 and "W&B failed" in printed
    assert len(rows(only_run())) == 3


@pytest.mark.slow
def test_a_killed_run_resumes_without_missing_or_repeated_rows_in_wandb(train: Train) -> None:
    """An epoch has 21 steps: the checkpoint is older than the kill, and W&B's file may lack the last rows before it."""
    overrides = ["tracking=offline", "checkpoint.every=1", "max_steps=42", "evaluate=knn"]
    run = Command("train", *SMALL, *overrides, pictures=True)
    deadline = time.monotonic() + 100
    while sum(path.read_text().count("\n") for path in Path("outputs").glob("*/*/metrics.jsonl")) < 23:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    run.send_signal(signal.SIGKILL)
    run.wait()
    folder = only_run()
    assert 23 <= len(rows(folder)) < 42 and not (folder / "results.json").exists()
    time.sleep(1)  # W&B names its directories by the second
    code, printed = train(*overrides, pictures=True)
    assert code == 0 and "W&B failed" not in printed
    first, second = wandb_directories(folder)
    assert first.name.endswith(folder.name) and second.name.endswith(folder.name)
    entries = records(second)  # scripts/sync_wandb.sh sends this one
    shown = history(entries)
    assert [(h["_step"], h["step"]) for h in shown] == list(enumerate([*range(1, 43), 42]))
    assert [h.get("loss") for h in shown] == [row.get("loss") for row in rows(folder)]
    assert not of_kind(entries, "run")[0].resume  # or `wandb sync` would append these rows to those of the first


INTERRUPTED = pytest.param(Interrupted(signal.SIGUSR2), 140, marks=pytest.mark.slow)


@pytest.mark.parametrize(("error", "code"), [(RunError("no"), 1), INTERRUPTED])
def test_a_failed_run_is_failed_and_a_stopped_one_preempting(error: BaseException, code: int, tmp_path: Path) -> None:
    config = load(["tracking=offline"])
    with pytest.raises(type(error)), Tracker(tmp_path, config, "id", 0, {}) as tracker:
        tracker.row(1, {"loss": 1.0})
        raise error
    entries = records(wandb_directories(tmp_path)[0])
    kinds = [r.WhichOneof("record_type") for r in entries]
    assert of_kind(entries, "exit")[0].exit_code == code
    assert kinds[: kinds.index("exit")].count("preempting") == (code > 128)


KEY = "0123456789abcdef" * 2 + "01234567"


def test_an_api_key_is_not_written_to_any_file(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B records the command line, the git remote and other facts about the environment of a run."""
    git = ["git", "-c", "user.name=me", "-c", "user.email=me@example.org"]
    for words in ("init -q", "commit -q --allow-empty -m x", f"remote add origin https://{KEY}@example.org/x.git"):
        subprocess.run([*git, *words.split()], check=True)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_SILENT", "false")
    code, printed = train("max_steps=2", "tracking=offline")
    assert code == 0 and KEY not in printed, printed
    files = [path for path in Path("outputs").rglob("*") if path.is_file()]
    assert any(b"https://example.org/x.git" in path.read_bytes() for path in files if path.suffix == ".wandb")
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []


def test_an_address_in_place_of_a_project_is_refused(train: Train) -> None:
    code, printed = train("tracking.project=no/such")
    assert code == 2 and printed.startswith("ssl-bench: tracking.project") and not os.path.exists("outputs")
