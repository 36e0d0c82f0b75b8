"""The processes of a run: this one, ranks started here, or the ranks of an outer torchrun. All return an Outcome."""

import atexit
import contextlib
import os
import pickle
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessException, start_processes

from ssl_bench.distributed import broadcast, join_group, join_local, leave, rank, without_room, world
from ssl_bench.errors import ConfigError, RunError
from ssl_bench.hardware import cores_per_process, local_device, release_memory
from ssl_bench.launch.nodes import nodes, under_torchrun
from ssl_bench.launch.outcome import RESUMES, Outcome, State
from ssl_bench.launch.processes import METHOD, started, starting
from ssl_bench.record import runs
from ssl_bench.record.lease import Claim
from ssl_bench.record.terminal import logging_to
from ssl_bench.signals import STOPPED, Interrupted, passed_on
from ssl_bench.surroundings import stay_on_this_machine
from ssl_bench.training.engine import train

LOST = "has lost the others"  # in the reason of a rank that failed because another one did
THREADS = torch.get_num_threads()  # of a process in which nothing has set them


@dataclass(frozen=True)
class Task:
    """A validated run, as each of its processes gets it.

    Attributes:
        folder: of the run, with its run_id as the name.
        command, claim: as for :func:`ssl_bench.training.engine.train`.
        quiet: print nothing.
    """

    config: dict[str, Any]
    folder: Path
    command: str | None
    quiet: bool = False
    claim: Claim | None = None


def launch(task: Task) -> Outcome:
    """Carry out a run and wait for it."""
    if under_torchrun():
        return join(task)
    return train_here(task) if task.config["devices"] == 1 else _start(task)


def join(task: Task, meeting: Path | str | None = None) -> Outcome:
    """Carry out a run as the rank that ``RANK`` and ``WORLD_SIZE`` name. Rank 0 tells the others if it is done already.

    Args:
        meeting: where the ranks meet: the file for ranks of one machine, or the address of rank 0; None: as torchrun
            has told this process.
    """
    outcome = None
    try:
        device = _enter(task.config, meeting)
        done = broadcast(rank() == 0 and runs.is_complete(task.folder, task.config))
        outcome = Outcome(State.DONE_BEFORE) if done else train_here(task, device)
    except dist.DistBackendError as error:
        reason = without_room(error)
        if not reason:
            raise
        outcome = Outcome.failed(reason)
    finally:
        _leave(outcome)
    number = os.environ["RANK"]
    if meeting is None and number != "0" and outcome.state is State.FAILED and LOST not in outcome.reason:
        print(f"ssl-bench: rank {number}: {outcome.reason}", file=sys.stderr, flush=True)  # rank 0 does not know it
    return outcome


def _leave(outcome: Outcome | None) -> None:
    """Leave the process group. One of several ranks that failed or was stopped ends at its exit without any clean-up.

    Kernels of NCCL and the clean-up of CUDA would wait for ranks that have failed, or that are a batch ahead.
    """
    if int(os.environ["WORLD_SIZE"]) > 1 and (outcome is None or outcome.state in (State.FAILED, State.INTERRUPTED)):
        atexit.register(os._exit, 1 if outcome is None else outcome.code)
    else:
        leave()


def train_here(task: Task, device: torch.device | None = None) -> Outcome:
    """Train on this rank; ``device`` None: the first one of this machine."""
    config, folder = task.config, task.folder
    device = device or local_device(0, config["device"])
    if config["threads"]:
        torch.set_num_threads(config["threads"])
    with logging_to(folder if rank() == 0 else None, task.quiet):
        work = partial(train, config, folder.name, folder, device, task.command, task.claim)
        outcome = outcome_of(work, device, "Set batch_size.chunk, a smaller batch_size.size or more devices")
    if world() == 1:  # several ranks end with the run, and one that has failed may wait for the others in its GPU
        release_memory(device)
    return outcome


def outcome_of(work: Callable[[], None], device: torch.device, remedy: str) -> Outcome:
    """Do this rank's work. Known errors become the outcome; others of several ranks are raised.

    Args:
        remedy: what to set if the memory of the device is too small.
    """
    try:
        work()
    except Interrupted as stop:
        return Outcome.interrupted(stop.number)
    except Exception as error:
        if out_of_memory(error):
            reason = f"out of memory on {device}: {str(error).splitlines()[0]}"
            return Outcome.failed(f"{reason} {remedy}")
        if reason := without_room(error):
            return Outcome.failed(reason)
        if world() == 1 or isinstance(error, ConfigError | RunError | OSError):
            return Outcome.of(error)
        if _lost_a_rank(error):
            return Outcome.failed(f"rank {rank()} {LOST} ({str(error).splitlines()[0]}){RESUMES}")
        raise
    return Outcome(State.DONE)


def out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed. On a CPU torch has no error class for that."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


def _lost_a_rank(error: Exception) -> bool:
    """Whether a collective failed because another rank is gone. Gloo has no error class for that."""
    signs = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out waiting")
    return isinstance(error, dist.DistError) or any(sign in str(error) for sign in signs)


def _enter(config: dict[str, Any], meeting: Path | str | None) -> torch.device:
    number, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = local_device(int(os.environ["LOCAL_RANK"]), config["device"])
    beside = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    torch.set_num_threads(cores_per_process())
    if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:  # else each rank starts a process for each core to compile
        from torch._inductor import config as inductor  # takes seconds, which the optimiser's imports would

        inductor.compile_threads = min(32, cores_per_process())
    timeout = config["timeout"]
    if config["devices"] == 1:
        return device
    if isinstance(meeting, Path):
        join_local(meeting, number, count, device, timeout)
    elif meeting is not None:
        join_group(device, timeout, init_method=f"tcp://{meeting}", rank=number, world_size=count)
    else:
        if beside == count:
            stay_on_this_machine()
        join_group(device, timeout)
    return device


# ---- ranks that are started here


def _start(task: Task) -> Outcome:
    """Carry out this machine's ranks in processes of their own."""
    team, count = nodes(), task.config["devices"]
    beside = team.share(count)
    with tempfile.TemporaryDirectory(prefix="ssl-bench-") as private:
        meeting = Path(private, "meeting") if team.count == 1 else team.rendezvous
        return in_ranks(partial(join, task, meeting), team.index * beside, beside, count)


def in_ranks(work: Callable[[], Outcome], first: int, beside: int, count: int) -> Outcome:
    """Call ``work`` in a process for each rank of this machine, and wait for all; this process passes on its signals.

    Once one has failed, the others have 30 seconds to end, and are killed then.

    Args:
        first, beside: the ranks of this machine, of ``count``.
    """
    environment = {**os.environ, "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(beside)}
    with tempfile.TemporaryDirectory(prefix="ssl-bench-") as private:
        with starting():
            ranks = start_processes(
                _rank, (work, Path(private), first, environment), beside, False, start_method=METHOD
            )
        assert ranks is not None
        with passed_on(ranks.pids) as received, contextlib.suppress(ProcessException):
            while not ranks.join():
                pass
        ends = [_end(Path(private), first + local, ranks.processes[local].exitcode) for local in range(beside)]
    return Outcome.interrupted(received[0]) if received else _joint(ends)


def _rank(local: int, work: Callable[[], Outcome], private: Path, first: int, environment: dict[str, str]) -> None:
    """Be a rank: keep its outcome in a file, and end at once, as other ranks may wait for this one in a collective."""
    number, outcome = first + local, None
    started(environment | {"RANK": str(number), "LOCAL_RANK": str(local)}, signal.SIGKILL)
    try:
        outcome = work()
    except Exception as error:
        reason = f"rank {number} failed: {type(error).__name__}: {error}"
        outcome = Outcome.failed(reason, detail=traceback.format_exc())
    finally:
        if outcome is not None:
            (private / f"rank{number}").write_bytes(pickle.dumps(outcome))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1 if outcome is None or outcome.state is State.FAILED else 0)


def _end(private: Path, number: int, code: int) -> Outcome:
    """How a rank has ended."""
    if (file := private / f"rank{number}").exists():
        outcome: Outcome = pickle.loads(file.read_bytes())
        return outcome
    return Outcome.interrupted(int(STOPPED[code])) if code in STOPPED else Outcome.died(f"rank {number}", code)


def _joint(ends: Sequence[Outcome]) -> Outcome:
    """How a run ended whose ranks ended so: one that failed by itself tells why, not one that only lost another."""
    failed = [end for end in ends if end.state is State.FAILED]
    causes = [end for end in failed if LOST not in end.reason]
    stopped = [end for end in ends if end.state is State.INTERRUPTED]
    return [*causes, *stopped, *failed, *ends][0]
