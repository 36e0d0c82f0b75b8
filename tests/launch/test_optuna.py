"""Searches with Optuna: proposals, pruning at halts, and that an interruption changes nothing."""

import json
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch

from tests.conftest import SMALL
from tests.ranks import wait_for

optuna = pytest.importorskip("optuna")
Train = Callable[..., tuple[int, str]]
SHORT = ["-m", "evaluate=knn_val", "evaluate.baselines=[]", "hydra/sweeper=optuna"]
LR = "optimizer.lr=tag(log,interval(1e-6,3))"
PRUNED = [*SHORT, LR, "epochs=2", "hydra.sweeper.epochs=[1,2]", "hydra.sweeper.n_startup_trials=2"]


def trials(outputs: str = "outputs") -> list[tuple[Any, ...]]:
    """State, proposal, value and values at halts of each trial of the only study."""
    (path,) = Path(outputs).glob("default/optuna-*/optuna.journal")
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    study = optuna.load_study(study_name=None, storage=storage)
    assert study.study_name == f"default-{path.parent.name.removeprefix('optuna-')}"
    return [(trial.state.name, trial.params, trial.value, trial.intermediate_values) for trial in study.trials]


def results(outputs: str = "outputs") -> dict[str, Any]:
    """``results.json`` of all runs by run_id."""
    return {path.parent.name: json.loads(path.read_text()) for path in Path(outputs).glob("default/*/results.json")}


@pytest.mark.exhaustive
def test_pruned_runs_stop_and_the_others_are_the_ordinary_runs(train: Train) -> None:
    code, printed = train(*PRUNED, "hydra.sweeper.n_trials=6")
    found = trials()
    states = [state for state, *_ in found]
    assert code == 0 and len(found) == 6 and {*states} == {"COMPLETE", "PRUNED"}, printed
    assert states[:2] == ["COMPLETE"] * 2  # without two finished trials nothing is pruned
    count = states.count("COMPLETE")
    assert f"6 runs: {count} trained, 0 done before, 0 failed, {6 - count} halted" in printed
    best = max((trial for trial in found if trial[0] == "COMPLETE"), key=lambda trial: trial[2])
    assert f"\noptimizer.lr={best[1]['optimizer.lr']}: knn_val/top1 {best[2]:.4g}, outputs/default/" in printed
    for _, params, value, halts in found:
        assert float(f"{params['optimizer.lr']:.4g}") == params["optimizer.lr"] and next(iter(halts)) == 1
        assert value == halts[1] or halts[1] < 1
    (run_id, content) = next(iter(results().items()))
    lr = content["config"]["optimizer"]["lr"]
    assert train(*SHORT[1:3], "epochs=2", f"optimizer.lr={lr}", "paths.outputs=ordinary")[0] == 0
    ordinary = results("ordinary")
    assert ordinary[run_id]["metrics"] == content["metrics"]
    weights = [
        torch.load(f"{folder}/default/{run_id}/checkpoints/last.pt")["method"] for folder in ("outputs", "ordinary")
    ]
    assert all(torch.equal(weights[0][name], tensor) for name, tensor in weights[1].items())
    code, printed = train(*PRUNED, "hydra.sweeper.n_trials=7")
    assert code == 0 and "6 of 7 trials are done already" in printed and trials()[:6] == found and len(trials()) == 7
    assert len(results()) <= count + 1


@pytest.mark.exhaustive
def test_a_search_that_was_killed_and_interrupted_ends_as_an_undisturbed_one(train: Train) -> None:
    search = [*PRUNED, "hydra.sweeper.n_trials=7"]
    assert train(*search, "paths.outputs=whole")[0] == 0
    command = [sys.executable, "-m", "ssl_bench", "train", *SMALL, *search]
    outputs = Path("outputs/default")

    def begun(count: int) -> bool:
        return len([*outputs.glob("*/metrics.jsonl")]) >= count

    for count, number in (2, signal.SIGKILL), (4, signal.SIGINT):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as started:
            wait_for(partial(begun, count))
            started.send_signal(number)
        assert started.returncode in (-9, 130)
    interrupted = trials()
    assert interrupted[-1][0] == "RUNNING" and len(interrupted) < 7
    done = sum(state != "RUNNING" for state, *_ in interrupted)
    code, printed = train(*search)
    assert code == 0 and f"{done} of 7 trials are done already" in printed, printed
    assert trials() == trials("whole")
    whole = results("whole")
    assert {run_id: content["metrics"] for run_id, content in results().items()} == {
        run_id: content["metrics"] for run_id, content in whole.items()
    }


def test_equal_proposals_are_one_run_and_a_run_that_diverges_is_a_failed_trial(train: Train) -> None:
    search = [*SHORT, "max_steps=3", "optimizer.lr=choice(0.3,1e38)", "hydra.sweeper.n_trials=4"]
    code, printed = train(*search)
    found = trials()
    assert code == 1 and "2 runs: 1 trained, 0 done before, 1 failed" in printed, printed
    assert {(state, params["optimizer.lr"]) for state, params, *_ in found} == {("COMPLETE", "0.3"), ("FAIL", "1e+38")}
    assert len(found) == 4 and printed.count("proposed again, as trial") == 2
    code, printed = train(*search)
    assert code == 1 and "4 of 4 trials are done already" in printed and trials() == found
    assert "2 runs: 0 trained, 1 done before, 1 failed" in printed and "not finite" in printed


@pytest.mark.exhaustive
def test_each_group_has_its_trials_in_batches_of_the_width_of_the_launcher(train: Train) -> None:
    width = ["hydra/launcher=local", "hydra.launcher.n_jobs=2", "hydra.sweeper.n_trials=2"]
    groups = ["loss=infonce,dcl", "hydra.sweeper.group_by=loss", "optimizer.lr=range(0.1,0.5,0.1)"]
    code, printed = train(*SHORT, *width, *groups, "max_steps=1")
    assert code == 0 and "4 runs: 4 trained" in printed, printed
    grids = [json.loads(path.read_text()) for path in Path("outputs/.sweeps").glob("*/best.json")]
    assert [entry["group"] for entry in grids[0]] == ["loss=infonce", "loss=dcl"]
    assert all(entry["overrides"][0].startswith("optimizer.lr=0.") for entry in grids[0])


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["hydra.sweeper.n_trials=0", LR], "hydra.sweeper.n_trials=0: set hydra.sweeper.n_trials to 1 or more"),
        (["hydra.sweeper.n_trials=x", LR], "hydra.sweeper.n_trials=x: set hydra.sweeper.n_trials to an integer"),
        (["hydra.sweeper.n_trials=1.5", LR], "hydra.sweeper.n_trials=1.5: set hydra.sweeper.n_trials to an integer"),
        (["hydra.sweeper.n_jobs=0", LR], "hydra.sweeper.n_jobs=0: set hydra.sweeper.n_jobs to 1 or more"),
        (["hydra.sweeper.seed=x", LR], "hydra.sweeper.seed=x: set hydra.sweeper.seed to an integer"),
        (["hydra.sweeper.params=x", LR], "hydra.sweeper.params=x: set hydra.sweeper.params to values by key"),
        (["negatives=random_k", "negatives.k=4,127"], "negatives.k=127: set negatives.k to 126 or less"),
        (["hydra.sweeper.group_by=loss", LR], "set hydra.sweeper.group_by to a key of the grid: optimizer.lr"),
        (["seed=1"], "hydra/sweeper=optuna: set hydra/sweeper to basic, or give a key several values or an interval"),
        (["optimizer.lr=tag(log,interval(0,1))"], "optimizer.lr=tag(log,interval(0,1)): "),
        (["negatives=random_k", "negatives.k=interval(2,9)"], "negatives.k"),
        (["hydra/sweeper=basic", LR], f"{LR}: write several values, or set hydra/sweeper to optuna"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_the_first_run(train: Train, overrides: list[str], says: str) -> None:
    code, printed = train(*SHORT, *overrides)
    assert code == 2 and says in printed and not Path("outputs/default").exists(), printed


IMPOSSIBLE = [*SHORT, "max_steps=1", "negatives=random_k", "batch_size=b32,b128", "negatives.k=16,64"]


def test_a_proposal_that_cannot_be_is_a_failed_trial(train: Train) -> None:
    search = [*IMPOSSIBLE, "hydra.sweeper.n_trials=5"]  # the fifth proposal is the first of b32 with 64 negatives
    code, printed = train(*search)
    assert (
        code == 1 and "1 failed" in printed and "trial 4: cannot be: negatives.k=64: set negatives.k to 62" in printed
    )
    found = trials()
    assert [state for state, *_ in found] == ["COMPLETE"] * 4 + ["FAIL"]
    code, printed = train(*search)
    assert code == 1 and trials() == found and "failed: batch_size=b32 negatives.k=64: set negatives.k to 62" in printed
    code, printed = train(*search, "skip=impossible")
    assert code == 0 and trials() == found and "0 failed, 1 left out: impossible" in printed


def test_a_trial_that_failed_is_carried_out_again(train: Train) -> None:
    search = [*SHORT, "max_steps=1", "optimizer.lr=0.1,0.2", "seed=0,1", "hydra.sweeper.n_trials=3"]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))  # as a full disk: a checkpoint does not fit
    try:
        code, printed = train(*search)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 1 and "4 runs: 0 trained, 0 done before, 4 failed" in printed, printed
    assert "trial 0: failed, and the same command carries it out again: optimizer.lr=" in printed
    proposed = [params for _, params, *_ in trials()]
    code, printed = train(*search)
    assert code == 0 and "4 runs: 4 trained, 0 done before, 0 failed" in printed, printed
    assert [(state, params) for state, params, *_ in trials()] == [("COMPLETE", params) for params in proposed]
    of_rate: dict[str, list[float]] = {}
    for content in results().values():
        of_rate.setdefault(str(content["config"]["optimizer"]["lr"]), []).append(content["metrics"]["knn_val/top1"])
    for _, params, value, _ in trials():
        assert value == pytest.approx(mean(of_rate[params["optimizer.lr"]]))
    code, printed = train(*search)
    assert code == 0 and "3 of 3 trials are done already" in printed and "0 trained, 4 done before" in printed


def test_a_failed_trial_of_an_earlier_version_says_what_tries_it_again(train: Train) -> None:
    search = [*SHORT, "max_steps=1", "optimizer.lr=0.1,0.2", "hydra.sweeper.n_trials=1"]
    assert train(*search)[0] == 0
    (path,) = Path("outputs").glob("default/optuna-*/optuna.journal")
    complete = path.read_text()
    path.write_text(complete.replace('"state":1,', '"state":3,'))
    assert path.read_text() != complete
    (result,) = Path("outputs").glob("default/*/results.json")
    result.unlink()
    code, printed = train(*search)
    assert code == 1 and f"it failed before; to try it again, remove {path}: the same command makes it" in printed


def test_a_damaged_journal_is_refused_and_made_again_from_the_runs(train: Train) -> None:
    search = [*SHORT, "max_steps=1", "optimizer.lr=0.1,0.2", "hydra.sweeper.n_trials=2"]
    assert train(*search)[0] == 0
    (path,) = Path("outputs").glob("default/optuna-*/optuna.journal")
    whole, found = path.read_bytes(), trials()
    lines = whole.splitlines(keepends=True)
    changed = b"".join([lines[0], b"{\n", *lines[2:]])
    for cut in (whole[:-9], whole + bytes(20)):
        path.write_bytes(cut)
        code, printed = train(*search)
        assert code == 0 and f"{path}: its last line was cut short, and is left out" in printed
        assert "0 trained" in printed and trials() == found
    for damaged in (changed, whole + b'{"op_code":1}\n'):
        path.write_bytes(damaged)
        path.with_name("optuna.journal.lock").symlink_to(path)  # of a killed process
        code, printed = train(*search)
        assert code == 2 and f"{path} is damaged: remove it: the same command makes it again" in printed
        assert path.read_bytes() == damaged
    path.unlink()
    code, printed = train(*search)
    assert code == 0 and "0 trained" in printed and trials() == found


def test_without_optuna_one_sentence_says_what_to_install(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    code, printed = train(*SHORT, LR)
    assert code == 2
    assert "hydra/sweeper=optuna needs the package optuna: pip install 'ssl-bench[optuna]'" in printed
