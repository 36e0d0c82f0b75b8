"""``ssl-bench prune``: what it frees, what a pruned run is still good for, and what it leaves alone."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import ssl_bench
from ssl_bench.commands import evaluate, prune, status
from ssl_bench.launch.lock import Lock
from ssl_bench.record import checkpoint
from tests.conftest import only_run

Output = pytest.CaptureFixture[str]
Train = Callable[..., tuple[int, str]]


def size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def told(capfd: Output, *arguments: str, code: int = 0) -> str:
    capfd.readouterr()
    assert prune.main(arguments) == code
    out, err = capfd.readouterr()
    return out + err


def test_a_pruned_run_is_smaller_and_as_good_as_before(train: Train, capfd: Output) -> None:
    asked = ("max_steps=12", "evaluate=knn", "optimizer=adam", "optimizer.lr=0.01", "diagnostics.gradient_snr=0.9")
    assert train(*asked)[0] == 0
    run = only_run()
    state, before = checkpoint.read(run / "checkpoints" / "last.pt"), size(run)
    weights = ssl_bench.load(run).state_dict()
    dry = told(capfd, "--dry-run")
    assert size(run) == before and dry.startswith("would free")
    done = told(capfd, "loss=infonce")
    freed = f"{(before - size(run)) / 1e6:,.2f} MB"
    assert done == f"freed {freed} of optimisers and earlier states in 1 of 1 finished runs\n" and freed in dry
    moments = sum(v.nbytes for each in state["optimizer"]["state"].values() for v in each.values())
    assert before - size(run) > 2 * moments  # of both checkpoints, beside the networks of the earlier one
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["last.pt"] and not (run / "claims").exists()
    assert told(capfd).startswith("freed 0.00 MB of optimisers and earlier states in 0 of 1")

    after = ssl_bench.load(run).state_dict()
    assert all(value.equal(weights[name]) for name, value in after.items())
    numbers = json.loads((run / "results.json").read_text())["metrics"]
    assert evaluate.main([str(run), "evaluate=[knn,geometry]", "evaluate.knn.k=5"]) == 0
    again = json.loads((run / "results.json").read_text())
    assert {entry["settings"].get("k") for entry in again["evaluations"]} == {20, 5, None}
    assert again["config"]["evaluate"]["knn"]["k"] == 20  # that of the training
    assert capfd.readouterr() and status.main(["--json"]) == 0
    assert json.loads(capfd.readouterr().out)[0]["state"] == "done"
    assert "already done" in train(*asked)[1]
    (run / "results.json").unlink()  # what was trained is still there to be evaluated
    assert train(*asked)[0] == 0 and json.loads((run / "results.json").read_text())["metrics"] == numbers
    assert train(*asked, f"init={run}", "name=next")[0] == 0


def test_a_run_that_can_be_trained_further_keeps_its_state(train: Train, capfd: Output) -> None:
    assert train("optimizer.schedule=constant", "epochs=1", "evaluate=knn")[0] == 0
    run = only_run()
    before = (run / "checkpoints" / "last.pt").read_bytes()
    assert "1 of them can go on to more epochs, and keep their state" in told(capfd)
    assert (run / "checkpoints" / "last.pt").read_bytes() == before
    checkpoint.prune(run, dry=False)  # a run of a version that did not know that it can
    left = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.suffix != ".log"}
    code, text = train("optimizer.schedule=constant", "epochs=2", "evaluate=knn")
    words = "cannot go on from epoch 1: ssl-bench prune has removed its optimiser's state; remove it to train it from"
    assert code == 1 and f"{run} {words} the start" in text
    assert {path: path.read_bytes() for path in left} == left


def test_what_is_not_finished_or_in_use_or_damaged_is_left_alone(train: Train, capfd: Output) -> None:
    assert train("max_steps=3", "evaluate=knn")[0] == 0
    run = only_run()
    for name in ("unfinished", "damaged", "started again"):
        shutil.copytree(run, Path("outputs", name, run.name))
    (Path("outputs/unfinished") / run.name / "results.json").unlink()
    last = Path("outputs/damaged", run.name, "checkpoints", "last.pt")
    last.write_bytes(last.read_bytes()[:-100])
    gone = Path("outputs/without checkpoints", run.name)
    shutil.copytree(run, gone)
    shutil.rmtree(gone / "checkpoints")
    lock = Lock(run)
    assert lock.take() is None
    other = Path("outputs/started again", run.name)
    before = {path: path.read_bytes() for path in Path("outputs").rglob("*.pt") if other not in path.parents}
    text = told(capfd, code=1)
    lock.release(True)
    assert "in 1 of 3 finished runs" in text and f"{gone}" not in text
    assert f"{last.parents[1]} is left as it is: {last} cannot be read" in text
    assert "remove" not in text
    assert {path: path.read_bytes() for path in before} == before
    assert "pruned" in checkpoint.read(other / "checkpoints" / "last.pt")
    assert "nowhere: no run below outputs has this name" in told(capfd, "nowhere", code=2)
