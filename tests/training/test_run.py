"""A whole run: what it writes, that it can be stopped anywhere, and that the number of processes does not matter."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tests.conftest import SMALL, only_run

Train = Callable[..., tuple[int, str]]
State = dict[str, Any]


def parameters(outputs: Path) -> State:
    """Everything that the last checkpoint says of the networks and the optimiser."""
    state = torch.load(only_run(outputs) / "checkpoints" / "last.pt", weights_only=True)
    moments = {f"optimizer.{i}": s["momentum_buffer"] for i, s in state["optimizer"]["state"].items()}
    tensors = {name: value for name, value in state["method"].items() if isinstance(value, torch.Tensor)}
    return {**tensors, **moments}


def losses(outputs: Path) -> list[float]:
    rows = map(json.loads, (only_run(outputs) / "metrics.jsonl").read_text().splitlines())
    return [row["loss"] for row in rows if "loss" in row]


def identical(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def apart(a: State, b: State) -> float:
    """The relative difference of all parameters and statistics of the networks as one vector."""
    one, two = (torch.cat([v.double().flatten() for k, v in s.items() if k.startswith("framework")]) for s in (a, b))
    return float((one - two).norm() / one.norm())


def test_the_record(train: Train) -> None:
    code, printed = train("max_steps=4", "evaluate=[knn,linear]", "evaluate.baselines=[init,raw]")
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
    assert "negatives per anchor: 126 (in_batch, 64 images over 1 ranks, 64 on each)" in log
    assert "random initialisation" in printed and f"ssl-bench evaluate {folder}" in printed


def test_a_finished_run_is_not_trained_again(train: Train) -> None:
    assert train("max_steps=2")[0] == 0
    before = {path: path.stat().st_mtime_ns for path in only_run().rglob("*")}
    code, printed = train("max_steps=2")
    assert code == 0 and "already done" in printed
    assert {path: path.stat().st_mtime_ns for path in only_run().rglob("*")} == before


def test_two_ranks_compute_what_one_does(train: Train) -> None:
    """Views, gathering, global batch statistics and averaging, through the whole product in double precision."""
    exact = ["max_steps=6", "precision=fp64", "batch_size=b32"]
    assert train(*exact, "paths.outputs=one")[0] == 0
    assert train(*exact, "paths.outputs=two", "devices=2")[0] == 0
    one, two = losses(Path("one")), losses(Path("two"))
    assert len(one) == 6 and one[0] != one[5]
    assert max(abs(a - b) / a for a, b in zip(one, two, strict=True)) < 1e-12
    assert apart(parameters(Path("one")), parameters(Path("two"))) < 1e-12


def test_a_momentum_network_is_the_same_on_two_ranks(train: Train) -> None:
    exact = ["max_steps=6", "precision=fp64", "batch_size=b32", "framework.momentum=0.9"]
    assert train(*exact, "paths.outputs=one")[0] == 0
    assert train(*exact, "paths.outputs=two", "devices=2")[0] == 0
    one, two = parameters(Path("one")), parameters(Path("two"))
    assert apart(one, two) < 1e-12
    followed = [k for k in one if k.startswith("framework.target") and k.endswith("weight")]
    assert followed and not any(torch.equal(one[k], one[k.replace("target", "encoder")]) for k in followed)


def start(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "ssl_bench", "train", *SMALL, *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def when_at(process: "subprocess.Popen[str]", outputs: Path, step: int) -> list[psutil.Process]:
    """Waits until a run has done some steps; gives its processes."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        for path in outputs.glob("*/*/metrics.jsonl"):
            if path.read_text().count("\n") >= step:
                return [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        time.sleep(0.01)
    raise AssertionError(process.communicate()[0] if process.poll() is not None else "the run does not get on")


def gone(processes: list[psutil.Process]) -> bool:
    def ended(process: psutil.Process) -> bool:
        try:
            return process.status() == psutil.STATUS_ZOMBIE  # dead, though nobody has asked for its exit code
        except psutil.NoSuchProcess:
            return True

    deadline = time.monotonic() + 15
    while not all(map(ended, processes)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("devices", [1, 2])
def test_kill_minus_9_and_start_again_gives_the_same_bits(train: Train, devices: int) -> None:
    run = ["epochs=4", "batch_size=b128", "checkpoint.every=1", f"devices={devices}"]
    assert train(*run, "paths.outputs=whole")[0] == 0
    process = start(*run, "paths.outputs=killed")
    family = when_at(process, Path("killed"), random.Random(devices).randint(12, 35))
    process.kill()
    process.communicate()
    assert gone(family), "orphans"
    assert not (only_run(Path("killed")) / "results.json").exists()
    code, printed = train(*run, "paths.outputs=killed")
    assert code == 0 and "resuming at step" in printed
    assert identical(parameters(Path("whole")), parameters(Path("killed")))
    assert losses(Path("whole")) == losses(Path("killed"))


@pytest.mark.parametrize(
    ("devices", "number", "framework"),
    [(1, signal.SIGINT, "simclr"), (1, signal.SIGTERM, "simclr"), (2, signal.SIGTERM, "moco_v2")],
)
def test_a_signal_saves_the_step_and_says_how_to_go_on(
    train: Train, devices: int, number: signal.Signals, framework: str
) -> None:
    """Of MoCo each rank has batch statistics of its own, which go on as they were."""
    run = ["epochs=4", "batch_size=b128", f"devices={devices}", f"framework={framework}"]
    run += ["negatives.k=100"] if framework == "moco_v2" else []
    process = start(*run, "paths.outputs=stopped")
    family = when_at(process, Path("stopped"), 5)
    process.send_signal(number)
    printed = process.communicate(timeout=60)[0]
    assert process.returncode == 128 + number, printed
    assert f"interrupted by {number.name}; resume with the same command" in printed and "Traceback" not in printed
    assert gone(family)
    step = torch.load(only_run(Path("stopped")) / "checkpoints" / "last.pt", weights_only=True)["step"]
    assert 5 <= step < 40 and step % 10  # in the middle of an epoch
    assert train(*run, "paths.outputs=stopped")[0] == 0
    assert train(*run, "paths.outputs=whole")[0] == 0
    assert identical(parameters(Path("whole")), parameters(Path("stopped")))


def test_a_signal_where_an_evaluation_is_due_loses_no_point_of_the_curve(train: Train) -> None:
    run = ["epochs=20", "batch_size.size=1200", "evaluate=knn", "evaluate.every=1"]  # a step, an epoch, an evaluation
    process = start(*run)
    when_at(process, Path("outputs"), 6)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert train(*run)[0] == 0
    rows = map(json.loads, (only_run() / "metrics.jsonl").read_text().splitlines())
    assert [row["epoch"] for row in rows if "knn/top1" in row] == [float(epoch) for epoch in range(1, 21)]


def test_a_rank_that_dies_ends_the_run(cli: Callable[..., Any]) -> None:
    process = start("epochs=40", "devices=2", "timeout=20")
    family = when_at(process, Path("outputs"), 3)
    ranks = [p for p in family if "spawn_main" in " ".join(p.cmdline())]
    assert len(ranks) == 2
    ranks[1].kill()
    printed = process.communicate(timeout=60)[0]
    assert process.returncode == 1
    assert "rank 1 failed: " in printed and "SIGKILL" in printed
    assert gone(family)
    status = cli("status").stdout
    assert "failed" in status and "rank 1" in status


@pytest.mark.parametrize("devices", [1, 2])
def test_what_nobody_foresaw_is_shown_once_with_its_traceback(cli: Callable[..., Any], devices: int) -> None:
    """A network that halves images five times, given 20 pixels."""
    unfit = ["backbone=timm", "backbone.name=vgg11", f"devices={devices}"]
    done = cli("train", *SMALL[1:], *unfit)
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1 and "RuntimeError" in done.stderr.splitlines()[-1]
    assert "Output size is too small" in json.loads((only_run() / "failed.json").read_text())["reason"]


def test_a_loss_that_is_not_finite_stops_the_run(train: Train) -> None:
    code, printed = train("optimizer.lr=1e38", "log_every=4", "max_steps=20")
    assert code == 1
    assert "the loss is not finite at step" in printed
    assert re.search(r"not finite at step [12] \(lr 2\.[45]\d*e\+37, tau 0\.2\)", printed)
    assert not list(Path("outputs").glob("*/*/checkpoints/*"))
    assert "not finite" in json.loads((only_run() / "failed.json").read_text())["reason"]


def test_a_damaged_checkpoint_is_replaced_by_the_one_before(train: Train) -> None:
    run = ["epochs=3", "batch_size=b256", "checkpoint.every=1"]
    assert train(*run)[0] == 0
    whole = parameters(Path("outputs"))
    folder = only_run()
    (folder / "results.json").unlink()
    last = folder / "checkpoints" / "last.pt"
    last.write_bytes(last.read_bytes()[:2000])
    code, printed = train(*run)
    assert code == 0
    assert "last.pt cannot be read" in printed and "resuming from" in printed and "resuming at step 10 of 15" in printed
    assert identical(whole, parameters(Path("outputs")))


def test_a_foreign_checkpoint_is_refused_by_name(train: Train) -> None:
    assert train("max_steps=2", "paths.outputs=a")[0] == 0
    assert train("max_steps=2", "seed=1", "paths.outputs=b")[0] == 0
    a, b = only_run(Path("a")), only_run(Path("b"))
    (b / "results.json").unlink()
    os.replace(a / "checkpoints" / "last.pt", b / "checkpoints" / "last.pt")
    code, printed = train("max_steps=2", "seed=1", "paths.outputs=b")
    assert code == 1
    assert f"last.pt belongs to run {a.name}, not to {b.name}" in printed


def test_torchrun_starts_the_same_run(train: Train) -> None:
    exact = ["max_steps=3", "precision=fp64", "batch_size=b32"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", "-m", "ssl_bench"]
    command = [*launcher, "train", *SMALL, *exact, "paths.outputs=outer"]
    for attempt in ("trained", "skipped"):
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, (attempt, done.stdout + done.stderr)
        assert ("already done" in done.stdout) == (attempt == "skipped")
    assert train(*exact, "paths.outputs=own", "devices=2")[0] == 0
    assert identical(parameters(Path("outer")), parameters(Path("own")))


def test_evaluation_in_between_changes_nothing(train: Train) -> None:
    assert train("epochs=2", "batch_size=b256", "paths.outputs=plain")[0] == 0
    watched = ["epochs=2", "batch_size=b256", "evaluate=knn", "evaluate.every=1", "paths.outputs=watched"]
    assert train(*watched)[0] == 0
    assert identical(parameters(Path("plain")), parameters(Path("watched")))
    rows = map(json.loads, (only_run(Path("watched")) / "metrics.jsonl").read_text().splitlines())
    assert [row["epoch"] for row in rows if "knn/top1" in row] == [1.0, 2.0]
