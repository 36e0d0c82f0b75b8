"""Whole runs: the files that they write, stops at any moment, and equal results on one and two ranks."""

import json
import math
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from ssl_bench.config.compose import load
from ssl_bench.record import environment
from ssl_bench.training.engine import Training
from ssl_bench.training.step import Stepper
from tests.conftest import SMALL, TRAINED, only_run, stopped_at
from tests.ranks import Command, start_two_ranks, train_on_two_ranks, wait_for

Train = Callable[..., tuple[int, str]]
State = dict[str, Any]


def checkpoint_tensors(outputs: Path) -> State:
    """All tensors of the networks in the last checkpoint of the only run."""
    state = torch.load(only_run(outputs) / "checkpoints" / "last.pt", weights_only=True)
    return {name: value for name, value in state["method"].items() if isinstance(value, torch.Tensor)}


def losses(outputs: Path) -> list[float]:
    rows = map(json.loads, (only_run(outputs) / "metrics.jsonl").read_text().splitlines())
    return [row["loss"] for row in rows if "loss" in row]


def identical(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def relative_difference(one: State, other: State) -> float:
    """|x - y| / |x|, where x and y are all parameters and statistics of the networks as one vector."""
    x, y = (
        torch.cat([v.double().flatten() for k, v in state.items() if k.startswith("framework")])
        for state in (one, other)
    )
    return float((x - y).norm() / x.norm())


def test_a_run_records_results_rows_and_a_log(train: Train) -> None:
    code, printed = train(
        "max_steps=4", "evaluate=[knn,linear]", "evaluate.linear.epochs=5", "evaluate.baselines=[init,raw]"
    )
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
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 4]
    assert {"loss", "lr", "tau", "epoch", "positive", "npc/mean", "images_per_second"} <= rows[0].keys()
    assert rows[0]["lr"] == pytest.approx(0.075) and rows[1]["lr"] < rows[0]["lr"]
    log = (folder / "train.log").read_text()
    assert any(re.findall(r"\d+", line)[-4:] == ["126", "64", "1", "64"] for line in log.splitlines())
    assert f"ssl-bench evaluate {folder}" in printed


def test_a_run_whose_negatives_grow_records_how_many_it_had_and_resumes_with_the_same_bits(train: Train) -> None:
    grows = ["negatives=random_k", "negatives.k=3", "negatives.final=90", "negatives.schedule=cosine"]
    grows += ["max_steps=30", "epochs=2", "evaluate=[]", "evaluate.baselines=[]", "log_every=4"]
    assert train(*grows, "paths.outputs=whole")[0] == 0
    whole = only_run(Path("whole"))
    facts = json.loads((whole / "results.json").read_text())["facts"]
    assert (facts["negatives_per_anchor"], facts["negatives_per_anchor_at_end"]) == (3, k_of(29))
    rows = losses_of(whole)
    assert [row["negatives_per_anchor"] for row in rows] == [k_of(row["step"] - 1) for row in rows]
    sentence = f"negatives per anchor: 3 at the start, {k_of(29)} at the end (random_k, 64 images over 1 ranks"
    assert sentence in (whole / "train.log").read_text()
    with stopped_at(21):
        assert train(*grows)[0] == 143
    assert train(*grows)[0] == 0
    assert losses_of(only_run(), 24) == losses_of(whole, 24) and len(losses_of(whole, 24)) == 2


def k_of(step: int) -> int:
    """K of the run above, whose 42 steps would be two epochs."""
    return round(46.5 - 43.5 * math.cos(math.pi * step / 42))


def losses_of(run: Path, after: int = 0) -> list[dict[str, Any]]:
    """The rows of the steps after a number of them, without what depends on the machine."""
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    timed = ("seconds", "images_per_second")
    return [{k: v for k, v in row.items() if k not in timed} for row in rows if "loss" in row and row["step"] > after]


def test_a_finished_run_is_not_trained_again(trained: Path, train: Train) -> None:
    before = {path: path.stat().st_mtime_ns for path in only_run().rglob("*")}
    code, printed = train(*TRAINED)
    assert code == 0 and "already done" in printed
    assert {path: path.stat().st_mtime_ns for path in only_run().rglob("*")} == before


def test_two_ranks_give_the_results_of_one(train: Train) -> None:
    """In double precision, with views, gathered candidates, global batch statistics and averaged gradients."""
    exact = ["max_steps=6", "precision=fp64", "batch_size=b32"]
    assert train(*exact, "paths.outputs=one")[0] == 0
    assert train_on_two_ranks(*SMALL, *exact, "paths.outputs=two")[0] == 0
    one, two = losses(Path("one")), losses(Path("two"))
    assert len(one) == 6 and one[0] != one[5]
    assert max(abs(a - b) / a for a, b in zip(one, two, strict=True)) < 1e-12
    assert relative_difference(checkpoint_tensors(Path("one")), checkpoint_tensors(Path("two"))) < 1e-12


# A short run of some dozen steps: the images have 12 pixels instead of 20.
SHORT = ["dataset.size=12", "epochs=3", "batch_size=b128"]


def start(*arguments: str) -> Command:
    return Command("train", *SMALL, *arguments)


def wait_for_step(command: Command, outputs: Path, step: int) -> list[psutil.Process]:
    """Wait until a run has done ``step`` steps; return all its processes."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and command.code is None:
        for path in outputs.glob("*/*/metrics.jsonl"):
            if path.read_text().count("\n") >= step:
                return [psutil.Process(command.pid), *psutil.Process(command.pid).children(recursive=True)]
        time.sleep(0.01)
    raise AssertionError(f"no step {step}; exit code {command.code}:\n{command.printed()}")


def all_ended(processes: list[psutil.Process]) -> bool:
    """Whether all processes end within 15 seconds."""

    def ended(process: psutil.Process) -> bool:
        try:
            return process.status() == psutil.STATUS_ZOMBIE  # it has ended, and its exit code was not read yet
        except psutil.NoSuchProcess:
            return True

    deadline = time.monotonic() + 15
    while not all(map(ended, processes)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.slow
def test_a_killed_run_resumes_and_ends_with_the_same_bits(train: Train) -> None:
    run = [*SHORT, "checkpoint.every=1"]
    assert train(*run, "paths.outputs=whole")[0] == 0
    command = start(*run, "paths.outputs=killed")
    processes = wait_for_step(command, Path("killed"), 15)
    command.send_signal(signal.SIGKILL)
    command.wait()
    assert all_ended(processes)
    assert not (only_run(Path("killed")) / "results.json").exists()
    code, printed = train(*run, "paths.outputs=killed")
    assert code == 0, printed
    assert identical(checkpoint_tensors(Path("whole")), checkpoint_tensors(Path("killed")))
    assert losses(Path("whole")) == losses(Path("killed"))


def test_a_signal_saves_the_step_and_prints_how_to_resume(train: Train) -> None:
    command = start(*SHORT, "paths.outputs=stopped")
    processes = wait_for_step(command, Path("stopped"), 5)
    command.send_signal(signal.SIGTERM)
    printed = command.wait()
    assert command.code == 128 + signal.SIGTERM, printed
    assert "SIGTERM" in printed and "Traceback" not in printed
    assert all_ended(processes)
    step = torch.load(only_run(Path("stopped")) / "checkpoints" / "last.pt", weights_only=True)["step"]
    assert 5 <= step < 30 and step % 10  # in the middle of an epoch
    for outputs in ("stopped", "whole"):
        assert train(*SHORT, f"paths.outputs={outputs}")[0] == 0
    assert identical(checkpoint_tensors(Path("whole")), checkpoint_tensors(Path("stopped")))


@pytest.mark.slow
def test_a_signal_to_one_rank_stops_both_after_the_same_step() -> None:
    """With MoCo each rank has its own batch statistics, which are restored too."""
    run = [*SMALL, *SHORT, "framework=moco_v2", "negatives.k=100", "framework.groups=2"]
    ranks = start_two_ranks(*run, "paths.outputs=stopped")
    wait_for_step(ranks[0], Path("stopped"), 5)
    ranks[1].send_signal(signal.SIGTERM)
    printed = [rank.wait() for rank in ranks]
    assert [rank.code for rank in ranks] == [128 + signal.SIGTERM] * 2, printed
    step = torch.load(only_run(Path("stopped")) / "checkpoints" / "last.pt", weights_only=True)["step"]
    assert 5 <= step < 30
    code, again = train_on_two_ranks(*run, "paths.outputs=stopped")
    assert code == 0 and f"step {step} of 30" in again
    assert train_on_two_ranks(*run, "paths.outputs=whole")[0] == 0
    assert identical(checkpoint_tensors(Path("whole")), checkpoint_tensors(Path("stopped")))


@pytest.mark.slow
@pytest.mark.parametrize(("stopped", "evaluator"), [([1], "finetune"), ([0, 1], "linear")])
def test_a_signal_in_an_evaluation_ends_both_ranks_and_loses_nothing(stopped: list[int], evaluator: str) -> None:
    """They do not agree on a batch: where they exchange something, one waits for the other, which is gone."""
    run = [*SMALL, "max_steps=2", f"evaluate=[knn,{evaluator}]"]
    ranks = start_two_ranks(*run, f"evaluate.{evaluator}.epochs=1000000", "paths.outputs=stopped")
    wait_for(lambda: list(Path("stopped").glob("*/*/checkpoints/last.pt")))
    time.sleep(1)
    for number in stopped:
        ranks[number].send_signal(signal.SIGTERM)
    printed = [rank.wait(10) for rank in ranks]
    assert [rank.code for rank in ranks] == [143 if number in stopped else 1 for number in range(2)], printed
    assert "Traceback" not in "".join(printed) and ("ssl-bench: rank 0 " in printed[0]) == (stopped == [1])
    assert (only_run(Path("stopped")) / "failed.json").exists() == (stopped == [1])
    metrics = []
    for outputs in ("stopped", "whole"):
        code, again = train_on_two_ranks(*run, f"evaluate.{evaluator}.epochs=2", f"paths.outputs={outputs}")
        assert code == 0 and ("step 2/2" in again) == (outputs == "whole")
        metrics.append(json.loads((only_run(Path(outputs)) / "results.json").read_text())["metrics"])
    assert metrics[0] == metrics[1] and len(metrics[0]) > 4


@pytest.mark.slow
def test_a_signal_when_an_evaluation_is_due_does_not_skip_the_evaluation(train: Train) -> None:
    """An epoch is one step, with an evaluation."""
    run = ["epochs=9", "batch_size.size=680", "dataset.size=12", "evaluate=knn", "evaluate.every=1"]
    command = start(*run)
    wait_for_step(command, Path("outputs"), 6)
    command.send_signal(signal.SIGTERM)
    command.wait()
    assert command.code == 128 + signal.SIGTERM
    assert train(*run)[0] == 0
    rows = map(json.loads, (only_run() / "metrics.jsonl").read_text().splitlines())
    assert [row["epoch"] for row in rows if "knn/top1" in row] == [float(epoch) for epoch in range(1, 10)]


@pytest.mark.slow
def test_a_killed_rank_ends_the_run() -> None:
    command = start("epochs=40", "devices=2", "timeout=20")
    processes = wait_for_step(command, Path("outputs"), 3)
    _, second = sorted(command.ranks(), key=lambda process: process.pid)
    second.kill()
    printed = command.wait()
    assert command.code == 1
    assert any(line.startswith("ssl-bench: rank 1 ") and "SIGKILL" in line for line in printed.splitlines())
    assert all_ended(processes)
    assert "rank 1" in json.loads((only_run() / "failed.json").read_text())["reason"]


def test_an_unexpected_error_is_printed_once_with_its_traceback(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = "from ssl_bench.objective.losses import InfoNCE\n\n\nclass Broken(InfoNCE):\n    forward = None\n"
    Path("broken_loss.py").write_text(plugin + '__version__ = "1"\n')
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.setenv("SSL_BENCH_PLUGINS", "broken_loss")
    code, printed = train("loss._target_=broken_loss.Broken", "plugins=[broken_loss]")
    assert code == 1
    assert printed.count("Traceback") == 1 and "ssl-bench: TypeError: 'NoneType' object" in printed.splitlines()[-1]
    assert "not callable" in json.loads((only_run() / "failed.json").read_text())["reason"]


@pytest.mark.parametrize(
    ("overrides", "says"), [(["framework=moco_v2", "negatives.k=2000"], True), (["batch_size.size=700"], False)]
)
def test_only_of_a_queue_it_is_said_that_it_has_images_twice(train: Train, overrides: list[str], says: bool) -> None:
    code, printed = train("max_steps=1", "dataset.size=12", *overrides)
    assert code == 0 and (" in the queue " in printed) == says


def test_a_run_that_compiles_its_networks_says_so_before_its_first_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ssl_bench")
    Training(load([*SMALL, "compile=true"]), "0123456789", tmp_path, torch.device("cpu")).stepper()
    assert sum("compil" in record.message for record in caplog.records) == 1


def test_a_loss_that_is_not_finite_stops_the_run(train: Train) -> None:
    code, printed = train("optimizer.lr=1e38", "log_every=4", "max_steps=20")
    assert code == 1
    assert re.search(r"step [12] \(lr 2\.[45]\d*e\+37, tau 0\.2\)", printed)
    assert not list(Path("outputs").glob("*/*/checkpoints/*"))
    assert "not finite" in json.loads((only_run() / "failed.json").read_text())["reason"]


# What the last update of a run breaks, after its loss was computed.
BROKEN = {
    "optimizer.lr=1e32": "outputs of the network (backbone) are not finite: a smaller optimizer.lr may help",
    "optimizer.lr=1e39": "the weights are not finite after step 1 (lr 2.5e+38): a smaller optimizer.lr or",
}


@pytest.mark.parametrize("change", BROKEN)
def test_a_network_that_the_last_step_breaks_is_named(change: str, train: Train) -> None:
    code, printed = train("max_steps=1", "optimizer.warmup_epochs=0", "evaluate=[knn]", change)
    assert code == 1 and "Traceback" not in printed
    assert printed.splitlines()[-1].startswith(f"ssl-bench: {BROKEN[change]}"), printed


def test_a_run_resumed_under_other_conditions_says_so(train: Train) -> None:
    run = [*SHORT, "epochs=2"]
    with stopped_at(10):
        assert train(*run)[0] == 143
    before = torch.load(only_run() / "checkpoints" / "last.pt")["ranks"][0]["conditions"]["threads"]
    command = start(*run, f"threads={3 - before}", "cosines=tiled")  # 1 or 2
    printed = command.wait()
    assert command.code == 0 and "step 10 of 20" in printed, printed
    changes = f"threads {3 - before} (before: {before})", "cosines tiled (before: auto)"
    assert sum(all(change in line for change in changes) for line in printed.splitlines()) == 1


@pytest.mark.slow
def test_an_evaluation_during_training_changes_no_weight(train: Train) -> None:
    run = ["dataset.size=12", "epochs=2", "batch_size=b256"]
    assert train(*run, "paths.outputs=plain")[0] == 0
    assert train(*run, "evaluate=knn", "evaluate.every=1", "paths.outputs=evaluated")[0] == 0
    assert identical(checkpoint_tensors(Path("plain")), checkpoint_tensors(Path("evaluated")))
    rows = map(json.loads, (only_run(Path("evaluated")) / "metrics.jsonl").read_text().splitlines())
    assert [row["epoch"] for row in rows if "knn/top1" in row] == [1.0, 2.0]


def test_the_commit_of_a_run_is_that_at_its_start_and_later_ones_stand_beside_it(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "checkout"
    (checkout / "ssl_bench").mkdir(parents=True)
    here = SimpleNamespace(__file__=str(checkout / "ssl_bench" / "__init__.py"), __version__="0")
    monkeypatch.setattr(environment, "ssl_bench", here)

    def git(*words: str) -> str:
        command = ["git", "-C", str(checkout), "-c", "user.name=me", "-c", "user.email=me@example.org", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def commit(text: str) -> str:
        (checkout / "file").write_text(text)
        git("add", "file")
        git("commit", "-q", "-m", text)
        environment.commit.cache_clear()  # as in a new process
        return git("rev-parse", "HEAD")

    git("init", "-q")
    first = commit("1")
    with stopped_at(1):
        assert train("epochs=2")[0] == 143
    second = commit("2")
    (checkout / "file").write_text("changed")
    state = torch.load(only_run() / "checkpoints" / "last.pt", weights_only=True)
    assert [each["git"] for each in state["starts"]] == [first]
    saved = Stepper.__call__

    def stepped(*arguments: Any) -> Any:
        if not (checkout / "later").exists():  # a commit while the run trains
            (checkout / "later").touch()
            git("commit", "-q", "--allow-empty", "-m", "3")
        return saved(*arguments)

    monkeypatch.setattr(Stepper, "__call__", stepped)
    assert train("epochs=2")[0] == 0
    results = json.loads((only_run() / "results.json").read_text())
    known = results["environment"]
    assert known["git"] == first and known["git_later"] == [f"{second}+"]
    assert known["started"] == state["starts"][0]["at"] <= known["finished"]
    commit("4")
    assert train("epochs=2", "evaluate=[knn]")[0] == 0  # evaluated by a later process
    later = json.loads((only_run() / "results.json").read_text())
    assert "knn/top1" in later["metrics"]
    assert later["environment"] == known and later["seconds"] == results["seconds"]
    environment.commit.cache_clear()
