"""One process at a time carries out a run, and one that has lost it writes nothing more."""

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ssl_bench import files
from ssl_bench.launch import lease
from ssl_bench.launch.lease import Taken
from ssl_bench.record import checkpoint, runs
from ssl_bench.record.dashboard import Tracker
from ssl_bench.record.runs import LEASE
from tests import ranks
from tests.conftest import SMALL, only_run

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
import kill_runs

multiprocessing.set_forkserver_preload(ranks.PRELOADED)
RUN = Path("run")
STATE: dict[str, Any] = {"run_id": "id", "method": {"weight": torch.arange(200.0)}}
# Tries to take fifty runs, each at the same moment as all other racers, and prints which it has taken.
RACER = """
import contextlib, sys, time
from pathlib import Path
from ssl_bench.launch import lease
begin, taken, kept = float(sys.argv[1]), [], contextlib.ExitStack()
for number in range(50):
    while time.time() < begin + 0.02 * number: pass
    with contextlib.suppress(lease.Taken):
        kept.enter_context(lease.held(Path(f"run{number}"), wait=False))
        taken.append(number)
print("taken", *taken, flush=True)
sys.stdin.read()
"""
# Takes the run, says so, and then does what it is told.
HOLDER = """
import sys, time
from pathlib import Path
from ssl_bench.launch import lease
from ssl_bench.record import runs
runs.LEASE_SECONDS, lease.BEAT = 2.0, 0.2
with lease.held(Path("run"), wait=False) as claim:
    print("taken", flush=True)
    exec(sys.argv[1])
"""


@contextlib.contextmanager
def holder(code: str) -> Iterator["subprocess.Popen[str]"]:
    """A process that has the run, whose lease lasts two seconds."""
    with subprocess.Popen([sys.executable, "-c", HOLDER, code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "taken\n"
        yield process
        process.kill()


@pytest.fixture(autouse=True)
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "LEASE_SECONDS", 2.0)
    monkeypatch.setattr(lease, "BEAT", 0.2)


def take_over(run: Path) -> None:
    """Put the lease of a process on another machine in place of the one that is there."""
    text = f"filelock/2\npid=4711\nhost=node7\nmode=lease\ntoken=0123\nduration={runs.LEASE_SECONDS}\nstart=1\n"
    files.write_text(run / LEASE, text)


@pytest.mark.slow
def test_each_run_is_taken_by_exactly_one_of_four_processes() -> None:
    begin = str(time.time() + 3)  # when all have been started
    options: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    racers = [subprocess.Popen([sys.executable, "-c", RACER, begin], **options) for _ in range(4)]
    lines = [next(line for line in racer.stdout or () if line.startswith("taken")) for racer in racers]
    for racer in racers:
        racer.communicate()
    assert sorted(int(number) for line in lines for number in line.split()[1:]) == list(range(50))


def test_the_run_of_a_killed_process_is_free_at_once() -> None:
    with holder("time.sleep(60)") as process:
        with pytest.raises(Taken, match=f"process {process.pid}"), lease.held(RUN, wait=False):
            pass
        assert (found := runs.owner(RUN)) is not None and found.pid == process.pid
        process.kill()
        process.wait()
        began = time.monotonic()
        with lease.held(RUN, wait=False):
            assert time.monotonic() - began < 1
            assert (found := runs.owner(RUN)) is not None and found.pid == os.getpid()
    assert runs.owner(RUN) is None and not (RUN / LEASE).exists()


# C code that holds the interpreter stops the heartbeat as well.
STILL = "import ctypes; ctypes.PyDLL(None).sleep({})\n"
WRITE = "from ssl_bench import files; files.write_text(Path('run/row'), 'written')"


@pytest.mark.parametrize("how", ["stopped", pytest.param("interpreter held", marks=pytest.mark.slow)])
def test_a_process_that_stood_still_longer_than_its_lease_ends_without_having_written(how: str) -> None:
    stopped = how == "stopped"
    with holder("time.sleep(1)\n" + WRITE if stopped else STILL.format(5) + WRITE) as process:
        process.send_signal(signal.SIGSTOP if stopped else 0)
        with lease.held(RUN, wait=True) as claim:
            assert process.poll() is None
            process.send_signal(signal.SIGCONT)
            assert process.wait(20) == 1 and claim.lost_to() == ""
    assert not (RUN / "row").exists()


def test_a_lease_without_an_owner_is_taken_over_once_it_has_expired() -> None:
    """Its process, or its machine, has ended before the file was written."""
    RUN.mkdir()
    (RUN / LEASE).write_text("half a rec")
    with pytest.raises(Taken), lease.held(RUN, wait=False):
        pass
    with lease.held(RUN, wait=True) as claim:
        assert claim.lost_to() == ""


@pytest.mark.slow
def test_a_run_that_is_taken_over_ends_and_goes_on_from_its_last_checkpoint(train: Callable[..., Any]) -> None:
    long = [*SMALL, "epochs=20", "batch_size.size=512", "evaluate=knn"]
    assert train(*long, "paths.outputs=whole", small=False)[0] == 0

    def wait_and_take_over() -> None:
        while not (saved := list(Path("outputs").rglob("last.pt"))):
            time.sleep(0.001)
        take_over(saved[0].parents[1])

    other = threading.Thread(target=wait_and_take_over)
    other.start()
    code, printed = train(*long, "checkpoint.every=1", small=False)
    other.join()
    run = only_run()
    last = checkpoint.final(run)
    assert code == 1 and "another process trains it: node7 (process 4711)" in printed
    assert not (run / "results.json").exists()
    assert not (run / "failed.json").exists()  # the run has not failed: another process trains it
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["last.pt"]
    assert "token=0123" in (run / LEASE).read_text()

    (run / LEASE).unlink()
    code, printed = train(*long, small=False)
    assert code == 0 and f"resuming at step {last['step']} of" in printed
    assert kill_runs.differences(*(kill_runs.left_by(Path(folder)) for folder in ("whole", "outputs"))) == []


def take_over_and_save() -> None:
    with lease.held(RUN, wait=False):
        checkpoint.save(RUN, STATE | {"step": 4})


def test_a_suspended_process_replaces_no_checkpoint_of_the_next_owner() -> None:
    def stand_still() -> None:
        """Right after it has read the lease, this process is suspended, while another one takes over and saves."""
        claim.require()
        (RUN / LEASE).unlink(missing_ok=True)
        other = multiprocessing.get_context("forkserver").Process(target=take_over_and_save)
        other.start()
        other.join()
        assert other.exitcode == 0

    with lease.held(RUN, wait=False) as claim:
        checkpoint.save(RUN, STATE | {"step": 3})
        with pytest.raises(Taken), files.guarded(RUN, stand_still):
            checkpoint.save(RUN, STATE | {"step": 5})
        assert {path.name: torch.load(path)["step"] for path in (RUN / "checkpoints").iterdir()} == {"last.pt": 4}


def test_a_process_that_has_lost_its_run_writes_no_row_and_removes_no_lease() -> None:
    with lease.held(RUN, wait=False) as claim:
        tracker = Tracker(RUN, {"tracking": {"mode": "off"}}, "id", 0, {})
        tracker.row(1, {"loss": 1.0})
        take_over(RUN)
        with pytest.raises(Taken):
            tracker.row(2, {"loss": 2.0})
        assert [json.loads(line) for line in tracker.path.read_text().splitlines()] == [{"step": 1, "loss": 1.0}]
    assert "token=0123" in (RUN / LEASE).read_text() and claim.lost_to() == "node7 (process 4711)"
