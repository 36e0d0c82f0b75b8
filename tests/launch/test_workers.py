"""Workers: a crash stays in one run, signals and surroundings arrive, and no process is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.launch.slots import Slot, reserve
from ssl_bench.launch.workers import Worker, call_in_workers
from ssl_bench.signals import Interrupt, Interrupted
from tests.conftest import SMALL
from tests.launch.test_grid import LOCAL, results, training_processes
from tests.ranks import wait_for

linux = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
pytestmark = [linux, pytest.mark.slow]


def in_worker(function: Callable[..., Outcome], *arguments: Any) -> Outcome:
    return call_in_workers(function, {"the process of the run": arguments})


# ---- what the workers do


def tell(name: str) -> Outcome:
    """The value of a fact about this process, as the reason of an outcome."""
    facts: dict[str, Callable[[], Any]] = {
        "surroundings": lambda: [
            sorted(os.sched_getaffinity(0)),
            os.environ.get("CUDA_VISIBLE_DEVICES"),
            os.getcwd(),
            sys.argv,
        ],
        "spoilt": lambda: torch.cuda._is_in_bad_fork(),
        "server": os.getppid,
    }
    return Outcome(State.DONE, reason=json.dumps(facts[name]()))


def fact(name: str, slot: Slot | None = None) -> Any:
    place = (slot.environment, slot.cores) if slot else ({}, None)
    worker = Worker("the process of the run", tell, (name,), *place)
    wait_for(worker.over)
    outcome = worker.end()
    assert outcome.state is State.DONE, outcome
    return json.loads(outcome.reason)


def send(number: int) -> Outcome:
    os.kill(os.getpid(), number)
    raise AssertionError("the signal has not ended the process")


def leave(code: int) -> Outcome:
    os._exit(code)


def stop_parent(pid: int, number: int) -> Outcome:
    """Send the process that waits for this one a signal, and end as a training does when that arrives here."""
    try:
        with Interrupt(int) as interrupt:
            os.kill(pid, number)
            while not interrupt.agreed():
                time.sleep(0.01)
    except Interrupted as stop:
        return Outcome.interrupted(stop.number)
    raise AssertionError("the signal is lost")


def stop_or_save(file: str) -> Outcome:
    """End as a rank that a signal has stopped; with a file, a second later, and write the signal that came there."""
    if file:
        with Interrupt(int) as interrupt:
            time.sleep(1)
        Path(file).write_text(str(interrupt.number))
    return Outcome.interrupted(signal.SIGTERM)


def test_a_rank_that_was_stopped_leaves_the_others_time_to_save(tmp_path: Path) -> None:
    file = tmp_path / "signal"
    outcome = call_in_workers(stop_or_save, {"rank 0": (str(file),), "rank 1": ("",)})
    assert outcome == Outcome.interrupted(signal.SIGTERM) and file.read_text() == "0"


# ---- one worker


def test_a_worker_can_still_use_a_gpu() -> None:
    assert fact("spoilt") is False  # torch sets it in the children of a process that has asked CUDA for GPUs


@pytest.mark.parametrize(
    ("crash", "argument", "reason"),
    [
        (send, signal.SIGKILL, "SIGKILL"),
        (leave, 7, "code 7"),
    ],
)
def test_a_crash_fails_one_run_and_the_server_goes_on(crash: Any, argument: int, reason: str) -> None:
    server = fact("server")
    outcome = in_worker(crash, argument)
    assert outcome == Outcome.failed(outcome.reason) and reason in outcome.reason
    assert fact("server") == server


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_is_passed_on_and_its_former_handler_comes_back(number: signal.Signals) -> None:
    former = signal.getsignal(number)
    assert in_worker(stop_parent, os.getpid(), number) == Outcome(State.INTERRUPTED, 128 + number)
    assert in_worker(send, number) == Outcome(State.INTERRUPTED, 128 + number)  # before a training listens to it
    assert signal.getsignal(number) == former


def test_the_slot_and_the_surroundings_of_each_run_reach_its_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = sorted(os.sched_getaffinity(0))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(sys, "argv", ["ssl-bench train", "seed=3"])
    rest = [str(tmp_path), ["ssl-bench train", "seed=3"]]
    if not torch.cuda.is_available():
        slot = reserve(1, 1, 1)
        assert slot is not None and fact("surroundings", slot) == [cores[:1], None, *rest]
        slot.release()
    assert fact("surroundings") == [cores, None, *rest]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-7a")
    monkeypatch.setattr("ssl_bench.launch.slots.visible_gpus", lambda _: ["5", "GPU-7a"])
    assert fact("surroundings", reserve(1, 1, 1)) == [cores, "5", *rest]
    assert fact("surroundings") == [cores, "5,GPU-7a", *rest]


# ---- a grid of workers


def losses(folder: Path) -> list[float]:
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [row["loss"] for row in rows if "loss" in row]


def test_runs_of_workers_have_the_bits_of_the_same_runs_one_by_one_and_leave_no_process(train: Any, mark: str) -> None:
    runs = ["max_steps=2", "seed=0,1,2", "evaluate=knn", "evaluate.baselines=[]"]
    with grid(*runs, "paths.outputs=parallel") as process:
        printed, _ = process.communicate()
    assert process.returncode == 0 and "3 runs: 3 trained, 0 done before, 0 failed" in printed, printed
    wait_for(lambda: not marked(mark), 10)
    assert train("-m", *runs, "paths.outputs=sequential")[0] == 0
    one, other = results("parallel"), results("sequential")
    assert len(one) == 3 and one.keys() == other.keys()
    for identity in one:
        assert one[identity]["metrics"] == other[identity]["metrics"] and "knn/top1" in one[identity]["metrics"]
        a, b = (next(Path(place).glob(f"*/{identity}")) for place in ("parallel", "sequential"))
        assert losses(a) == losses(b) and len(losses(a)) == 2
        states = [torch.load(folder / "checkpoints" / "last.pt")["method"] for folder in (a, b)]
        assert states[0].keys() == states[1].keys()
        assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


@pytest.mark.exhaustive
def test_no_process_is_left_after_a_grid_that_is_killed(mark: str) -> None:
    with grid("epochs=4000", "seed=range(8)") as process:
        wait_for(lambda: len(training_processes(process.pid)) == 2)
        wait_for(lambda: len(list(Path("outputs").glob("*/*/metrics.jsonl"))) == 2)
        process.kill()
        process.wait()
        wait_for(lambda: not marked(mark), 20)
    stopped = [path for path in Path("outputs/default").iterdir() if not (path / "results.json").exists()]
    assert len(stopped) == 2  # the other six did not start
    for folder in stopped:
        step = torch.load(folder / "checkpoints" / "last.pt")["step"]
        assert step == len(losses(folder)) > 0


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """A variable in the environment of all processes that this test starts."""
    name, value = "SSL_BENCH_TEST_GRID", str(os.getpid())
    monkeypatch.setenv(name, value)
    return f"{name}={value}"


def grid(*overrides: str) -> "subprocess.Popen[str]":
    """Start a grid of two workers in a new process."""
    command = [sys.executable, "-m", "ssl_bench", "train", *SMALL, "-m", *LOCAL, *overrides]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def marked(mark: str) -> list[str]:
    """Commands of the other processes that have ``mark`` in the environment that they were started with."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int(folder.name) != os.getpid() and mark in (folder / "environ").read_text().split("\0"):
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it has ended, or belongs to another user
            continue
    return found
