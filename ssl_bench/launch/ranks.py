"""The processes of a run: this one, ranks started here, or the ranks of an outer torchrun. All return an Outcome."""

import atexit
import contextlib
import datetime
import os
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ssl_bench import distributed, files
from ssl_bench.distributed import broadcast, join_local, leave, rank, world
from ssl_bench.errors import ConfigError, RunError
from ssl_bench.hardware import available_cores, local_device, release_memory
from ssl_bench.launch.nodes import nodes
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.launch.processes import die_with
from ssl_bench.launch.workers import LOST, carry_out
from ssl_bench.record.environment import environment
from ssl_bench.record.log import logging_to
from ssl_bench.record.results import finished
from ssl_bench.signals import Interrupted
from ssl_bench.training.engine import train


def launch(
    config: dict[str, Any],
    run_id: str,
    folder: Path,
    work: Callable[[dict[str, Any]], dict[str, float]] | None = None,
    torchrun: bool = False,
    separate: bool = False,
) -> Outcome:
    """Carry out a validated run and wait for it.

    Args:
        work: computes the metrics in this process, without training; None: pre-train and evaluate on ``devices``.
        torchrun: this process is one of the ranks already.
        separate: use a process of its own even for one device, and print nothing, because other runs share this
            process and its terminal.
    """
    if work is not None:
        return compute(work, config, run_id, folder)
    if torchrun:
        die_with(os.getppid())
        return join(config, run_id, folder)
    if config["devices"] == 1 and not separate:
        return _train(config, run_id, folder, local_device(0))
    if config["devices"] == 1:
        return carry_out(_alone, {"the process of the run": (config, run_id, folder)})
    return _start(config, run_id, folder, separate)


def compute(
    work: Callable[[dict[str, Any]], dict[str, float]], config: dict[str, Any], run_id: str, folder: Path
) -> Outcome:
    """Carry out a computation that is no training, in this process, and write ``results.json``."""
    device, started = torch.device("cpu"), time.monotonic()
    with _attempt(folder, device) as attempt:
        metrics = work(config)
        results = {"run_id": run_id, "name": config["name"], "config": config, "metrics": metrics}
        results |= {"environment": environment(device), "seconds": round(time.monotonic() - started, 3)}
        files.write_json(folder / "results.json", results)
    return attempt.outcome


def join(
    config: dict[str, Any], run_id: str, folder: Path, quiet: bool = False, meeting: Path | str | None = None
) -> Outcome:
    """Carry out a run as the rank that ``RANK`` and ``WORLD_SIZE`` name. Rank 0 tells the others if it is done already.

    Args:
        meeting: where the ranks meet: the file for ranks of one machine, or the address of rank 0; None: as torchrun
            has told this process.
    """
    device = _enter(config, meeting)
    try:
        done = broadcast(rank() == 0 and finished(folder))
        outcome = Outcome(State.DONE_BEFORE) if done else _train(config, run_id, folder, device, quiet)
    except BaseException:
        _leave_after(1, device)
        raise
    if meeting is None and rank() > 0 and outcome.state is State.FAILED and LOST not in outcome.reason:
        print(f"ssl-bench: rank {rank()}: {outcome.reason}", file=sys.stderr, flush=True)  # rank 0 does not know it
    _leave_after(outcome.code if outcome.state is State.FAILED else 0, device)
    return outcome


def _leave_after(code: int, device: torch.device) -> None:
    """Leave the process group; after a failure with NCCL, end this process without waiting for its GPU instead."""
    if code and _may_hang(device):
        atexit.register(_end_at_once, code)
    else:
        leave()


def _may_hang(device: torch.device) -> bool:
    """Whether work of this rank's GPU may never end once a rank has failed: NCCL's kernels wait for all ranks."""
    return world() > 1 and device.type == "cuda"


def _end_at_once(code: int) -> None:
    """End the process without Python's and CUDA's clean-up, which would wait for the GPU or for other ranks."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _alone(config: dict[str, Any], run_id: str, folder: Path) -> Outcome:
    """Train on one device in a process of its own, beside other runs."""
    torch.set_num_threads(available_cores())
    return _train(config, run_id, folder, local_device(0), quiet=True)


def _train(config: dict[str, Any], run_id: str, folder: Path, device: torch.device, quiet: bool = False) -> Outcome:
    """Train on this rank."""
    with _attempt(folder, device, quiet) as attempt:
        train(config, run_id, folder, device)
    if attempt.outcome.state is not State.FAILED or not _may_hang(device):
        release_memory(device)
    return attempt.outcome


@dataclass
class Attempt:
    """A run in progress and, after it, its outcome."""

    outcome: Outcome


@contextlib.contextmanager
def _attempt(folder: Path, device: torch.device, quiet: bool = False) -> Iterator[Attempt]:
    """Convert known errors of the block to its outcome; other errors of several ranks keep their traceback."""
    attempt = Attempt(Outcome(State.DONE))
    with logging_to(folder if rank() == 0 else None, quiet):
        try:
            yield attempt
        except Interrupted as stop:
            attempt.outcome = Outcome.interrupted(stop.number)
        except (ConfigError, RunError) as error:
            attempt.outcome = Outcome.failed(str(error), error.exit_code)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            reason = f"{where}{error.strerror or error}; after fixing that, the same command resumes"
            attempt.outcome = Outcome.failed(reason)
        except Exception as error:
            if out_of_memory(error):
                reason = f"out of memory on {device}: {str(error).splitlines()[0]}"
                attempt.outcome = Outcome.failed(f"{reason} Set a smaller batch_size.size or more devices")
            elif world() == 1:
                attempt.outcome = Outcome.failed(f"{type(error).__name__}: {error}", detail=traceback.format_exc())
            elif _lost_a_rank(error):
                reason = f"rank {rank()} {LOST} ({str(error).splitlines()[0]})"
                attempt.outcome = Outcome.failed(f"{reason}; the same command resumes")
            else:
                raise


def out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed. On a CPU torch has no error class for that."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


def _lost_a_rank(error: Exception) -> bool:
    """Whether a collective failed because another rank is gone. Gloo has no error class for that."""
    signs = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out waiting")
    return isinstance(error, dist.DistError) or any(sign in str(error) for sign in signs)


def _enter(config: dict[str, Any], meeting: Path | str | None) -> torch.device:
    """Join the process group as the rank that the environment names."""
    number, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device, beside = local_device(int(os.environ["LOCAL_RANK"])), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    torch.set_num_threads(max(1, available_cores() // beside))
    timeout = config["timeout"]
    if config["devices"] == 1:
        return device
    if isinstance(meeting, Path):
        join_local(meeting, number, count, device, timeout)
    elif meeting is not None:
        store = _store(meeting, number, count, timeout)
        distributed.join(device, timeout, store=store, rank=number, world_size=count)
    else:
        if beside == count:
            distributed.stay_on_this_machine()
        distributed.join(device, timeout)
    return device


def _store(address: str, rank: int, ranks: int, timeout: float) -> dist.Store:
    """The store at ``address``, which rank 0 keeps and which only that address's network can reach."""
    host, _, port = address.rpartition(":")
    listening = None
    if rank == 0:
        found = socket.gethostbyname(host)
        # A machine whose own name leads to its loopback address cannot tell by which one the others reach it.
        listening = socket.create_server(("" if found.startswith("127.") else found, int(port))).detach()
    limit = datetime.timedelta(seconds=timeout)
    # The other kind of store, libuv, takes no open socket in torch 2.6.
    return dist.TCPStore(host, int(port), ranks, rank == 0, limit, master_listen_fd=listening, use_libuv=False)


# ---- ranks that are started here


def _start(config: dict[str, Any], run_id: str, folder: Path, quiet: bool) -> Outcome:
    """Start the ranks of this machine and wait for them."""
    team = nodes()
    beside = team.share(config["devices"])
    with tempfile.TemporaryDirectory(prefix="ssl-bench-", ignore_cleanup_errors=True) as private:  # of this user only
        meeting = Path(private) / "store" if team.count == 1 else team.rendezvous
        calls = {}
        for local in range(beside):
            place = {"RANK": team.index * beside + local, "WORLD_SIZE": config["devices"]}
            place |= {"LOCAL_RANK": local, "LOCAL_WORLD_SIZE": beside}
            calls[f"rank {place['RANK']}"] = place, config, run_id, folder, quiet, meeting
        return carry_out(_rank, calls)


def _rank(place: dict[str, int], *arguments: Any) -> Outcome:
    """Entry point of a rank that is started here."""
    os.environ |= {name: str(number) for name, number in place.items()}
    return join(*arguments)
