"""A run that another process has taken over: nothing damages the files of the new owner."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ssl_bench import files
from ssl_bench.launch.lock import Lock
from ssl_bench.record import checkpoint
from ssl_bench.record.claim import Claim, Owner, Taken
from ssl_bench.record.metrics import Tracker
from tests.conftest import SMALL, only_run

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
import kill_runs

ELSEWHERE: dict[str, Any] = {"host": "node7", "pid": 4711, "machine": "node7/boot/pid"}
STATE: dict[str, Any] = {"run_id": "id", "method": {"weight": torch.arange(200.0)}}


def take_over(folder: Path, number: int) -> None:
    """Write the claim of a process on another machine."""
    owner = asdict(replace(Owner.this_process(), **ELSEWHERE))
    files.write_json(folder / "claims" / str(number), owner)


@pytest.mark.slow
def test_a_run_that_is_taken_over_ends_and_goes_on_from_its_last_checkpoint(train: Callable[..., Any]) -> None:
    long = [*SMALL, "epochs=20", "batch_size.size=512", "evaluate=knn"]
    assert train(*long, "paths.outputs=whole", small=False)[0] == 0

    def wait_and_take_over() -> None:
        while not (saved := list(Path("outputs").rglob("last.pt"))):
            time.sleep(0.001)
        take_over(saved[0].parents[1], 2)

    other = threading.Thread(target=wait_and_take_over)
    other.start()
    code, printed = train(*long, "checkpoint.every=1", small=False)
    other.join()
    run = only_run()
    last = checkpoint.read(run / checkpoint.FILE)
    assert code == 1 and "was taken over by node7 (process 4711) since" in printed
    assert not (run / "results.json").exists()
    assert not (run / "failed.json").exists()  # the run has not failed: another process trains it
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["last.pt"]
    assert files.read_json(run / "claims" / "2", dict)["host"] == "node7"

    files.write_json(run / "claims" / "2", {"released": True})
    code, printed = train(*long, small=False)
    assert code == 0 and f"resuming at step {last['step']} of" in printed
    assert kill_runs.differences(*(kill_runs.left_by(Path(folder)) for folder in ("whole", "outputs"))) == []


# Takes the run over as a process of another machine, and saves a state.
NEW_OWNER = """
import torch
from pathlib import Path
from ssl_bench.disk import temporary
temporary._machine = lambda: "0123abcd"
from ssl_bench.launch.lock import Lock
from ssl_bench.record import checkpoint
assert Lock(Path("run")).take() is None
checkpoint.save(Path("run"), {"run_id": "id", "method": {"weight": torch.arange(200.0)}, "step": 4})
"""


class SlowClaim(Claim):
    """The claim of a process that is suspended right after its look, while another one takes over and saves."""

    def require(self) -> None:
        super().require()
        files.write_json(self.folder / str(self.number), {"released": True})
        subprocess.run([sys.executable, "-c", NEW_OWNER], check=True)


def test_a_process_that_was_suspended_before_its_renaming_does_not_replace_the_new_owners_checkpoint() -> None:
    lock = Lock(Path("run"), saves=True)
    assert lock.take() is None and lock.claim is not None
    run = Path("run").absolute()
    checkpoint.save(run, STATE | {"step": 3}, lock.claim)
    with pytest.raises(Taken, match=r"run was taken over by \S+ \(process \d+\) since "):
        checkpoint.save(run, STATE | {"step": 5}, SlowClaim(lock.claim.folder, lock.claim.number))
    assert {path.name: checkpoint.read(path)["step"] for path in (run / "checkpoints").iterdir()} == {"last.pt": 4}


def test_a_process_without_its_claim_writes_no_row_and_removes_no_lock() -> None:
    lock = Lock(Path("run"), saves=True)
    assert lock.take() is None and lock.claim is not None
    tracker = Tracker(Path("run"), {"tracking": {"mode": "off"}}, "id", 0, {}, claim=lock.claim)
    tracker.row(1, {"loss": 1.0})
    take_over(Path("run"), 2)
    tracker.row(2, {"loss": 2.0})
    assert files.read_json_lines(tracker.path) == [{"step": 1, "loss": 1.0}]
    lock.release(finished=True)
    assert lock.claim.lost_to().startswith("node7 (process 4711)") and Path("run/claims/2").exists()
