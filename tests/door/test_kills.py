"""Runs that are killed at some moment end, after another start, as runs that were never disturbed.

``scripts/kill_runs.py`` does this at many random moments; here are a few, with a smaller run.
"""

import multiprocessing
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ranks

sys.path.append(str(Path(__file__).parents[2] / "scripts"))  # where the processes of a run find it too
import kill_runs
from kill_runs import DISK, KINDS, End

multiprocessing.set_forkserver_preload(ranks.PRELOADED)
TINY = ["backbone.width=4", "head.out=16", "optimizer=sgd", "tracking=off", "log_every=1", "epochs=1", "max_steps=8"]
TINY += ["batch_size.size=32", "evaluate=knn", "evaluate.baselines=[]"]
Reference = tuple[End, float]
OFTEN, RARE = pytest.mark.slow, pytest.mark.exhaustive  # scripts/kill_runs.py has all kinds many times


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    """The end of an undisturbed run of one rank, and its seconds."""
    folder = tmp_path_factory.mktemp("reference")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kill_runs, "RUN", TINY)
        kill_runs.undisturbed(folder / "first", 1)  # the server imports torch, which takes long
        yield kill_runs.undisturbed(folder / "second", 1)


@pytest.mark.parametrize("kind", [pytest.param(k, marks=OFTEN if k == "SIGTERM" else RARE) for k in KINDS if k != DISK])
def test_a_killed_run_ends_as_one_that_was_not_disturbed(kind: str, reference: Reference, tmp_path: Path) -> None:
    end, seconds = reference
    assert len(end["rows"][0]) == 9
    hits, faults = kill_runs.attempt(tmp_path, 1, end, [(kind, 0.4 * seconds), (kind, 0.6 * seconds)], random.Random(0))
    assert faults == [] and kind in hits


@pytest.mark.slow
def test_a_full_disk_is_freed_again(reference: Reference, tmp_path: Path) -> None:
    end, seconds = reference
    hits = list[str]()
    for share in (0.5, 0.3, 0.15):  # a run can be faster than the undisturbed one, and over before the disk is full
        with kill_runs.small_disk(tmp_path / f"disk{share}") as possible:
            if not possible:
                pytest.skip("only root can mount a small file system")
            kills = [(DISK, share * seconds)]
            hits, faults = kill_runs.attempt(tmp_path / f"disk{share}", 1, end, kills, random.Random(0))
        assert faults == []
        if hits:
            break
    assert hits == [DISK]
