"""Runs that are killed at some moment end, after another start, as runs that were never disturbed.

``scripts/kill_runs.py`` does this at many random moments; here are a few, with a smaller run.
"""

import multiprocessing
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests import ranks

sys.path.append(str(Path(__file__).parents[2] / "scripts"))  # where the processes of a run find it too
import kill_runs
from kill_runs import CHECKPOINT, DISK, EVALUATION, INT, KILL, RESULTS, START, STOP, TERM, TRAINING, End, Hit

multiprocessing.set_forkserver_preload(ranks.PRELOADED)
TINY = ["backbone.width=4", "head.out=16", "optimizer=sgd", "tracking=off", "log_every=1", "epochs=1", "max_steps=8"]
TINY += ["batch_size.size=32", "evaluate=knn", "evaluate.baselines=[]"]


@pytest.fixture(scope="module", autouse=True)
def tiny() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kill_runs, "RUN", TINY)
        yield


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> End:
    """The end of an undisturbed run of one rank."""
    folder = tmp_path_factory.mktemp("reference")
    kill_runs.undisturbed(folder / "first", 1)  # the server imports torch, which takes long
    return kill_runs.undisturbed(folder / "second", 1)


def attempt(devices: int, reference: End, *kills: tuple[str, str]) -> list[Hit]:
    """Carry out a trial that must have no fault; return its hits."""
    trial = kill_runs.attempt(Path.cwd(), devices, reference, kills, random.Random(0))
    assert trial.lost == [] and trial.faults == []
    return trial.hits


@pytest.mark.slow
def test_a_killed_run_ends_as_one_that_was_not_disturbed(reference: End) -> None:
    assert len(reference.losses) == 8 and len(reference.rows) == 9
    assert attempt(1, reference, (KILL, TRAINING)) == [Hit(KILL, TRAINING, "first")]


def test_differences_are_found() -> None:
    state = {"weight": torch.ones(2), "rng": [1, (2.0, None)]}
    end = End(state, [{"step": 1, "loss": 0.1}], {"knn/top1": 0.5}, ["default", "default/x"])
    assert end.lost(replace(end, checkpoint={"weight": torch.ones(2), "rng": [1, (2.0, None)]})) == []
    for checkpoint in ({}, state | {"weight": torch.tensor([1, 1 + 2**-23])}, state | {"rng": [1, (2, None)]}):
        assert end.lost(replace(end, checkpoint=checkpoint)) == ["another checkpoint"]
    assert end.lost(replace(end, rows=end.rows * 2)) == ["other losses"]
    assert end.lost(replace(end, metrics={"knn/top1": 0.5 + 2**-50})) == ["other results"]
    assert end.untidy(replace(end, rows=[*end.rows, {}])) == ["2 rows of metrics, not 1"]
    names = ["default", "default/.next.pt.7"]
    assert end.untidy(replace(end, names=names)) == ["default/x is missing", "default/.next.pt.7 is left"]


def test_a_plan_has_every_kill_and_its_aims_in_the_order_of_a_run() -> None:
    trials = kill_runs.plan(100, kill_runs.KINDS, random.Random(0))
    assert sum(map(len, trials)) == 100 and {len(trial) for trial in trials} <= {1, 2, 3, 4}
    assert Counter(aim for trial in trials for _, aim in trial) == dict.fromkeys(kill_runs.AIMS, 20)
    assert {kind for trial in trials for kind, _ in trial} == set(kill_runs.KINDS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [TERM, INT, STOP])
def test_signals_while_a_run_starts_trains_and_evaluates(kind: str, reference: End) -> None:
    hits = attempt(1, reference, (kind, TRAINING), (kind, EVALUATION))
    assert hits and {hit.kind for hit in hits} == {kind}


@pytest.mark.slow
def test_kills_in_the_writing_of_files(reference: End) -> None:
    hits = attempt(1, reference, (KILL, START), (KILL, CHECKPOINT), (KILL, RESULTS))
    assert hits and {hit.kind for hit in hits} == {KILL}


@pytest.mark.slow
def test_a_full_disk_is_freed_again(reference: End) -> None:
    with kill_runs.small_disk(Path.cwd()) as possible:
        pass
    if not possible:
        pytest.skip("only root can mount a small file system")
    hits = attempt(1, reference, (DISK, TRAINING), (DISK, EVALUATION))
    assert hits and {hit.whom for hit in hits} == {"disk"}


@pytest.mark.exhaustive  # tests/training/test_run.py kills a rank too
def test_a_kill_of_one_of_two_ranks(tmp_path: Path) -> None:
    reference = kill_runs.undisturbed(tmp_path / "whole", 2)
    assert len(attempt(2, reference, (KILL, TRAINING))) == 1
