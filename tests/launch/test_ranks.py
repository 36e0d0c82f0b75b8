"""The ranks of a run: they are DDP's, no other machine can connect to them, and one that fails ends all of them."""

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ssl_bench.check.runs import take_steps
from ssl_bench.config.build import directory
from ssl_bench.config.compose import load
from ssl_bench.errors import RunError
from ssl_bench.hardware import available_cores
from ssl_bench.launch import run
from ssl_bench.launch.processes import Outcome, State
from ssl_bench.signals import Interrupt, Interrupted
from ssl_bench.training.engine import Training
from ssl_bench.training.step import Stepper
from tests.conftest import SMALL
from tests.ranks import PRELOADED, Command, free_port, on_two_ranks, start_two_ranks, wait_for

multiprocessing.set_forkserver_preload(PRELOADED)
CONFIG = {"threads": None, "device": "auto", "devices": 2, "timeout": 60}

# ---- what the ranks are


def networks(rank: int) -> dict[str, set[type]]:
    """The types of what the loop trains with each framework, for two steps."""
    seen: set[type] = set()

    class Watched(Stepper):
        def compute(self, *arguments: Any) -> Any:
            seen.add(type(self.network))
            return super().compute(*arguments)

    found = {}
    for name in sorted(path.stem for path in (directory() / "framework").glob("[!f]*.yaml")):  # frozen trains nothing
        config = load([*SMALL, f"framework={name}", "batch_size.size=32", "dataset.size=12", "devices=2"])
        with patch("ssl_bench.training.engine.Stepper", Watched):
            take_steps(Training(config, torch.device("cpu")), 2)
        found[name], seen = seen, set()
    return found


@pytest.mark.slow
def test_every_framework_trains_under_torchs_ddp() -> None:
    for found in on_two_ranks(networks):
        assert len(found) > 12 and set(map(frozenset, found.values())) == {frozenset({DistributedDataParallel})}, found


@pytest.mark.slow
def test_no_other_machine_can_connect_to_the_ranks_and_no_file_of_them_stays(tmp_path: Path) -> None:
    # What a user sets for ranks of several machines.
    interface = next((name for name in psutil.net_if_addrs() if name != "lo"), "lo")
    (tmp_path / "t").mkdir()
    variables = {"GLOO_SOCKET_IFNAME": interface, "TMPDIR": str(tmp_path / "t")}
    command = Command("train", *SMALL, "epochs=400", "devices=2", environment=variables)
    wait_for(lambda: list(Path("outputs").glob("*/*/metrics.jsonl")))
    processes = [psutil.Process(command.pid), *psutil.Process(command.pid).children(recursive=True)]
    listening = [c for p in processes for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    command.send_signal(signal.SIGTERM)
    command.wait()
    assert {connection.laddr.ip for connection in listening} == {"127.0.0.1"}  # gloo's
    assert not [path for path in (tmp_path / "t").iterdir() if not path.name.startswith("torchinductor_")]


# ---- how runs end that lose a rank


def test_a_rank_of_torchrun_says_that_it_has_lost_the_others() -> None:
    first, second = start_two_ranks(*SMALL, "epochs=400", "timeout=20")
    wait_for(lambda: list(Path("outputs").glob("*/*/metrics.jsonl")))
    second.send_signal(signal.SIGKILL)
    printed = first.wait()
    assert first.code == 1 and "ssl-bench: rank 0 " in printed


def _fail(kind: str) -> None:
    """Train for a while; then rank 1 fails and rank 0 waits for it, as in a kernel of NCCL."""
    dist.all_reduce(torch.ones(1))
    if kind == "compiles":
        from torch._inductor import config  # reads the variables of the environment

        raise RunError(f"compiles on {config.compile_threads}")
    if dist.get_rank() == 1:
        errors = {"known": RunError("a planted reason"), "unknown": KeyError("a planted bug")}
        raise errors[kind] if kind in errors else Interrupted(signal.SIGTERM)
    while True:
        dist.all_reduce(torch.ones(1))


def _planted(kind: str, work: Callable[..., Outcome], *arguments: Any) -> Outcome:
    """Carry out a rank that must not leave the group or free its memory."""
    torch.set_num_threads(1)
    hang = lambda *_: time.sleep(600)  # noqa: E731
    with (
        patch.object(run, "train", lambda *_: _fail(kind)),
        patch.object(run, "leave", hang),
        patch.object(run, "release_memory", hang),
    ):
        return work(*arguments)


def started_here(kind: str, folder: Path, meeting: str = "") -> Outcome:
    """The outcome of two ranks, which meet as those of one machine do if no other place is given."""
    folder.mkdir()
    task = partial(run.launch, CONFIG, folder, "", True, None)
    meeting = meeting or f"file://{folder}/meeting"
    return run.in_ranks(partial(_planted, kind, run.join, task, meeting), 0, 2, 2)


def test_a_failure_or_a_stop_of_a_rank_ends_all_with_its_sentence(tmp_path: Path) -> None:
    """A stop before the others: as in an evaluation, where the ranks do not agree on the batch."""
    assert started_here("known", tmp_path / "known") == Outcome.failed("a planted reason")
    assert started_here("stopped", tmp_path / "stopped") == Outcome.interrupted(signal.SIGTERM)
    outcome = started_here("unknown", tmp_path / "unknown", f"tcp://127.0.0.1:{free_port()}")
    assert (outcome.state, outcome.code) == (State.FAILED, 1)
    assert outcome.reason.startswith("rank 1 ") and "KeyError: 'a planted bug'" in outcome.reason


@pytest.mark.slow
def test_the_ranks_divide_the_cores_to_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS", raising=False)
    cores = min(32, max(1, available_cores() // 2))
    assert started_here("compiles", tmp_path / "run").reason == f"compiles on {cores}"


# ---- the processes that ranks are


def stop_or_save(file: Path) -> Outcome:
    """End as a rank that a signal has stopped; rank 1 a second later, when it writes the signal that came there."""
    if os.environ["RANK"] == "1":
        with Interrupt(int) as interrupt:
            time.sleep(1)
        file.write_text(str(interrupt.number))
    return Outcome.interrupted(signal.SIGTERM)


def test_a_rank_that_was_stopped_leaves_the_others_time_to_save(tmp_path: Path) -> None:
    file = tmp_path / "signal"
    assert run.in_ranks(partial(stop_or_save, file), 0, 2, 2) == Outcome.interrupted(signal.SIGTERM)
    assert file.read_text() == "0"


def stop_parent(pid: int, number: int) -> Outcome:
    """Send the process that waits for this one a signal, and end as a training does when that arrives here."""
    with Interrupt(int) as interrupt:
        os.kill(pid, number)
        while not interrupt.agreed():
            time.sleep(0.01)
    raise AssertionError("the signal is lost")


def send(number: int) -> Outcome:
    os.kill(os.getpid(), number)
    raise AssertionError("the signal has not ended the process")


def leave_at_once(code: int) -> Outcome:
    os._exit(code)


def test_a_signal_is_passed_on_its_former_handler_comes_back_and_a_rank_that_dies_is_named() -> None:
    number = signal.SIGUSR2
    former = signal.getsignal(number)
    assert run.in_ranks(partial(stop_parent, os.getpid(), number), 0, 1, 1) == Outcome.interrupted(number)
    assert run.in_ranks(partial(send, number), 0, 1, 1) == Outcome.interrupted(number)  # before a training listens
    assert signal.getsignal(number) == former
    for work, how in ((partial(send, 9), "SIGKILL"), (partial(leave_at_once, 7), "code 7")):
        outcome = run.in_ranks(work, 0, 1, 1)
        assert outcome == Outcome.failed(outcome.reason) and how in outcome.reason and "rank 0" in outcome.reason


def surroundings() -> Outcome:
    """Facts about this process, as the reason of an outcome."""
    variables = [os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES")]
    facts = [*variables, sorted(os.sched_getaffinity(0)), os.getcwd(), torch.cuda._is_in_bad_fork()]
    return Outcome(State.DONE, reason=json.dumps(facts))


def test_the_surroundings_reach_the_ranks_and_they_can_still_use_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,GPU-7a")
    facts = json.loads(run.in_ranks(surroundings, 3, 1, 4).reason)
    assert facts == ["3", "0", "4", "5,GPU-7a", sorted(os.sched_getaffinity(0)), os.getcwd(), False]


def test_a_computation_without_enough_memory_has_one_sentence(tmp_path: Path) -> None:
    with patch.object(run, "train", lambda *_: torch.empty(2**52)):
        outcome = run.launch(CONFIG, tmp_path, "", True, None, torch.device("cpu"))
    assert outcome.code == 1 and "memory" in outcome.reason
    assert all(key in outcome.reason for key in ("batch_size.chunk", "batch_size.size", "devices"))
