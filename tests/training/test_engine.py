"""Whole runs: the files that they write, stops at any moment, and equal results on one and two ranks."""

import json
import math
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ssl_bench.record import environment
from tests.conftest import SMALL, only_run, stopped_at
from tests.ranks import start_two_ranks, train_on_two_ranks, wait_for

Train = Callable[..., tuple[int, str]]
State = dict[str, Any]


def checkpoint_tensors(outputs: Path) -> State:
    """All tensors of the networks in the last checkpoint of the only run."""
    state = torch.load(only_run(outputs) / "checkpoints" / "last.pt", weights_only=True)
    return {name: value for name, value in state["method"].items() if isinstance(value, torch.Tensor)}


def rows_of(outputs: str = "outputs") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (only_run(Path(outputs)) / "metrics.jsonl").read_text().splitlines()]


def identical(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def test_a_run_records_results_rows_and_a_log(train: Train) -> None:
    more = ["evaluate=[knn,linear]", "evaluate.linear.epochs=5", "evaluate.baselines=[init,raw]"]
    code, printed = train("max_steps=4", *more)
    folder = only_run()
    assert code == 0
    results = json.loads((folder / "results.json").read_text())
    assert results["run_id"] == folder.name and results["name"] == "default" and results["seconds"] > 0
    for name in ("knn/top1", "linear/top1", "knn_init/top1", "linear_init/top1", "knn_raw/top1", "linear_raw/top1"):
        assert 0 <= results["metrics"][name] <= 1
    assert results["metrics"]["knn_raw/top1"] == pytest.approx(0.636, abs=0.02)  # a property of the dataset
    assert results["environment"]["torch"] and results["environment"]["peak_host_mb"] > 50
    assert results["facts"]["negatives_per_anchor"] == 126 and results["facts"]["images_per_rank"] == 64
    assert results["facts"]["lr"] == pytest.approx(0.3 * 64 / 256)
    rows = rows_of()
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 4]
    assert {"loss", "lr", "tau", "epoch", "positive", "npc/mean", "images_per_second"} <= rows[0].keys()
    assert rows[0]["lr"] == pytest.approx(0.075) and rows[1]["lr"] < rows[0]["lr"]
    assert f"ssl-bench evaluate {folder}" in printed and (folder / "train.log").read_text()
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    code, printed = train("max_steps=4", *more)
    assert code == 0 and "already done" in printed
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_run_whose_negatives_grow_records_how_many_it_had(train: Train) -> None:
    grows = ["negatives=random_k", "negatives.k=3", "negatives.final=90", "negatives.schedule=cosine"]
    assert train(*grows, "max_steps=12", "epochs=2", "log_every=4")[0] == 0  # the 42 steps would be two epochs
    expected = [round(46.5 - 43.5 * math.cos(math.pi * step / 42)) for step in range(12)]
    facts = json.loads((only_run() / "results.json").read_text())["facts"]
    assert (facts["negatives_per_anchor"], facts["negatives_per_anchor_at_end"]) == (3, expected[11])
    rows = [row for row in rows_of() if "loss" in row]
    assert [row["negatives_per_anchor"] for row in rows] == [expected[row["step"] - 1] for row in rows]


def test_two_ranks_give_the_results_of_one(train: Train) -> None:
    """In double precision: views, gathered candidates, global batch statistics, averaged gradients, `watch/`."""
    exact = [*SHORT[:1], "epochs=1", "max_steps=6", "precision=fp64", "batch_size.size=256", "evaluate.watch=1"]
    assert train(*exact, "paths.outputs=one")[0] == 0
    assert train_on_two_ranks(*SMALL, *exact, "paths.outputs=two")[0] == 0
    one, two = ([row["loss"] for row in rows_of(outputs) if "loss" in row] for outputs in ("one", "two"))
    assert len(one) > 4 and one[0] != one[-1] and two == pytest.approx(one, rel=1e-12)
    vectors = [
        torch.cat([v.double().flatten() for k, v in checkpoint_tensors(Path(o)).items() if k.startswith("framework")])
        for o in ("one", "two")
    ]
    assert float((vectors[0] - vectors[1]).norm() / vectors[0].norm()) < 1e-12
    rows = [row for o in ("one", "two") for row in rows_of(o) if "watch/effective_rank" in row]
    first, second = ({k: v for k, v in row.items() if k.startswith("watch/")} for row in rows)
    assert len(first) == 3 and second == pytest.approx(first, rel=1e-5)


# A short run of some dozen steps: the images have 12 pixels instead of 20.
SHORT = ["dataset.size=12", "epochs=3", "batch_size=b128"]


@pytest.mark.slow
def test_a_signal_to_one_rank_stops_both_after_the_same_step() -> None:
    """With MoCo each rank has its own batch statistics, which are restored too."""
    run = [*SMALL, *SHORT, "framework=moco_v2", "negatives.k=100", "framework.groups=2"]
    ranks = start_two_ranks(*run, "paths.outputs=stopped")
    wait_for(lambda: any(path.read_text().count("\n") > 4 for path in Path("stopped").glob("*/*/metrics.jsonl")))
    ranks[1].send_signal(signal.SIGTERM)
    printed = [rank.wait() for rank in ranks]
    assert [rank.code for rank in ranks] == [128 + signal.SIGTERM] * 2, printed
    step = torch.load(only_run(Path("stopped")) / "checkpoints" / "last.pt", weights_only=True)["step"]
    assert 5 <= step < 30
    code, again = train_on_two_ranks(*run, "paths.outputs=stopped")
    assert code == 0 and f"step {step} of 30" in again
    assert train_on_two_ranks(*run, "paths.outputs=whole")[0] == 0
    assert identical(checkpoint_tensors(Path("whole")), checkpoint_tensors(Path("stopped")))


def test_an_unexpected_error_is_printed_once_with_its_traceback(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = "from ssl_bench.objective.losses import InfoNCE\n\n\nclass Broken(InfoNCE):\n    forward = None\n"
    Path("broken_loss.py").write_text(plugin + '__version__ = "1"\n')
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.setenv("SSL_BENCH_PLUGINS", "broken_loss")
    code, printed = train("loss._target_=broken_loss.Broken", "plugins=[broken_loss]")
    assert code == 1
    assert printed.count("Traceback") == 1 and "ssl-bench: TypeError: 'NoneType' object" in printed.splitlines()[-1]
    assert "not callable" in json.loads((only_run() / "failed.json").read_text())["reason"]


def test_a_stop_when_an_evaluation_is_due_does_not_skip_the_evaluation(train: Train) -> None:
    """An epoch is one step, with an evaluation."""
    run = ["epochs=4", "batch_size.size=200", "dataset.size=12", "dataset.share=0.2"]
    run += ["evaluate=knn", "evaluate.every=1"]
    with stopped_at(3):
        assert train(*run)[0] == 143
    assert train(*run)[0] == 0
    assert [row["epoch"] for row in rows_of() if "knn/top1" in row] == [1.0, 2.0, 3.0, 4.0]


# What breaks a run, and words of the sentence in which it ends.
BROKEN: dict[str, list[str]] = {
    "optimizer.lr=1e38 log_every=4 max_steps=20": ["not finite", "lr 2.", "tau 0.2"],
    "optimizer.lr=1e32 optimizer.warmup_epochs=0 max_steps=1": ["backbone", "not finite", "optimizer.lr"],
    "optimizer.lr=1e39 optimizer.warmup_epochs=0 max_steps=1": ["weights", "step 1", "lr 2.5e+38"],
}


@pytest.mark.parametrize("change", BROKEN)
def test_numbers_that_are_not_finite_stop_a_run(change: str, train: Train) -> None:
    """The last update of a run breaks its network after its loss was computed."""
    code, printed = train("evaluate=[knn]", *change.split())
    assert code == 1 and "Traceback" not in printed
    line = printed.splitlines()[-1]
    assert line.startswith("ssl-bench: ") and all(word in line for word in BROKEN[change]), line
    assert "not finite" in json.loads((only_run() / "failed.json").read_text())["reason"]


def test_the_commit_of_a_run_is_that_at_its_start_and_later_ones_stand_beside_it(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "ssl_bench").mkdir(parents=True)
    here = SimpleNamespace(__file__=str(checkout / "ssl_bench" / "__init__.py"), __version__="0")
    monkeypatch.setattr(environment, "ssl_bench", here)

    def commit(text: str) -> str:
        (checkout / "file").write_text(text)
        git = ["git", "-C", str(checkout), "-c", "user.name=me", "-c", "user.email=me@example.org"]
        for words in (["init", "-q"], ["add", "file"], ["commit", "-q", "-m", text]):
            subprocess.run([*git, *words], check=True)
        environment.commit.cache_clear()  # as in a new process
        return subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()

    first = commit("1")
    with stopped_at(1):
        assert train("epochs=2", "dataset.share=0.1")[0] == 143
    second = commit("2")
    (checkout / "file").write_text("changed")
    (start,) = torch.load(only_run() / "checkpoints" / "last.pt", weights_only=True)["starts"]
    assert start["git"] == first
    assert train("epochs=2", "dataset.share=0.1")[0] == 0
    results = json.loads((only_run() / "results.json").read_text())
    known = results["environment"]
    assert known["git"] == first and known["git_later"] == [f"{second}+"]
    assert known["started"] == start["at"] <= known["finished"]
    environment.commit.cache_clear()
