"""The processes of a run: this one, ranks started here, or the ranks of an outer torchrun. All return an Outcome."""

import atexit
import contextlib
import datetime
import gc
import logging
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ssl_bench import files
from ssl_bench.distributed import broadcast_object, leave, rank, world
from ssl_bench.errors import ConfigError, RunError
from ssl_bench.hardware import available_cores, local_device, release_memory
from ssl_bench.launch.local_exchange import exchange_locally
from ssl_bench.launch.nodes import nodes
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.launch.processes import die_with
from ssl_bench.launch.workers import in_worker
from ssl_bench.record import streams
from ssl_bench.record.environment import environment
from ssl_bench.record.log import logging_to
from ssl_bench.record.results import finished
from ssl_bench.training.engine import train
from ssl_bench.training.signals import STOPPED, STOPS, Interrupted, held_in_children, release, stops

REPORTED = "ssl-bench: "  # before the reason of a failed rank, in the file that torch's elastic agent reads
LOST = "has lost the others"


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
        return join(config, run_id, folder)
    if config["devices"] == 1 and not separate:
        return _train(config, run_id, folder, local_device(0))
    if config["devices"] == 1 and sys.platform == "linux":  # elsewhere a process with torch cannot be forked safely
        return in_worker(_alone, config, run_id, folder)
    return _elastic(config, run_id, folder, separate)


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


def join(config: dict[str, Any], run_id: str, folder: Path, quiet: bool = False) -> Outcome:
    """Carry out a run as one of its ranks. Rank 0 tells the others if it is done already."""
    die_with(os.getppid())
    device = _enter(config, int(os.environ["LOCAL_RANK"]), int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    try:
        done = broadcast_object(finished(folder) if rank() == 0 else None)
        outcome = Outcome(State.DONE_BEFORE) if done else _train(config, run_id, folder, device, quiet)
    except BaseException:
        _leave_after(1, device)
        raise
    if outcome.state is State.FAILED:
        _tell_agent(outcome)
    _leave_after(outcome.code if outcome.state is State.FAILED else 0, device)
    return outcome


def _tell_agent(outcome: Outcome) -> None:
    """Write why this rank failed into the file that the elastic agent that started it reads."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    later = 3600 if LOST in outcome.reason else 0  # the agent takes the earliest report: of the rank that was lost
    if path:
        with contextlib.suppress(OSError):
            report = {"message": REPORTED + outcome.reason, "timestamp": int(time.time()) + later}
            files.write_json(Path(path), report)


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


def _enter(config: dict[str, Any], local_rank: int, local_world: int) -> torch.device:
    """Join the process group as a rank of this machine."""
    device = local_device(local_rank)
    torch.set_num_threads(max(1, available_cores() // local_world))
    if config["devices"] == 1:
        return device
    timeout = datetime.timedelta(seconds=config["timeout"])
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timeout, device_id=device if device.type == "cuda" else None)
    if device.type == "cpu" and local_world == world():
        exchange_locally(config["timeout"])
    return device


# ---- ranks that are started here


def _elastic(config: dict[str, Any], run_id: str, folder: Path, quiet: bool) -> Outcome:
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in logging.root.manager.loggerDict:  # each has a level of its own
        if name.startswith(("torch.distributed.elastic", "torch.multiprocessing")):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # the outcome reports a failure once
    multiprocessing.set_start_method("spawn", force=True)  # joblib's workers set a method that the ranks do not know
    team = nodes()
    handled: dict[str, Any] = {}
    if any(field.name == "signals_to_handle" for field in fields(LaunchConfig)):  # torch 2.9 and later
        handled["signals_to_handle"] = ",".join(number.name for number in (*stops(), signal.SIGQUIT))
    settings = LaunchConfig(
        min_nodes=team.count,
        max_nodes=team.count,
        nproc_per_node=team.share(config["devices"]),
        run_id=run_id,
        rdzv_backend="c10d" if team.count == 1 else "static",  # static keeps the order of the nodes
        rdzv_endpoint=team.rendezvous,
        rdzv_configs={"rank": team.index, "timeout": config["timeout"]},
        max_restarts=0,
        monitor_interval=0.1,
        start_method="spawn",
        **handled,
    )
    former = {number: signal.getsignal(number) for number in (*STOPS, signal.SIGQUIT)}
    signal.signal(signal.SIGUSR2, _raise_signal)
    try:
        with held_in_children():
            outcomes = elastic_launch(settings, _rank)(config, run_id, folder, quiet, os.getpid())
        return next(iter(outcomes.values()))  # type: ignore[no-any-return]  # the keys are ranks of all machines
    except SignalException as stop:
        return Outcome.interrupted(int(stop.sigval))
    except ChildFailedError as error:
        number, failure = error.get_first_failure()
        if failure.exitcode in STOPPED:  # another process stopped the ranks, not this one
            return Outcome.interrupted(int(STOPPED[failure.exitcode]))
        report: Any = failure.message  # a sentence, or a dict with a traceback
        if isinstance(report, str) and report.startswith(REPORTED):
            return Outcome.failed(report.removeprefix(REPORTED), failure.exitcode)
        message = str(report["extraInfo"]["py_callstack"] if isinstance(report, dict) else report).strip()
        return Outcome.failed(f"rank {number} failed: {message.splitlines()[-1]}", detail=message)
    finally:
        gc.collect()  # or a timer of elastic, part of a cycle, is freed by its own thread, which it cannot join
        for known, handler in former.items():  # elastic leaves its own
            if handler is not None:
                signal.signal(known, handler)


def _raise_signal(number: int, frame: Any) -> None:
    """Do for SIGUSR2 what elastic does for the other signals: the ranks receive it too and have time to save."""
    from torch.distributed.elastic.multiprocessing.api import SignalException

    raise SignalException(signal.Signals(number).name, signal.Signals(number))


def _rank(config: dict[str, Any], run_id: str, folder: Path, quiet: bool, parent: int) -> Outcome:
    """Entry point of a rank that is started here."""
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    release()
    die_with(parent)
    streams.outlive_reader()
    try:
        outcome = join(config, run_id, folder, quiet)
    except Exception as error:
        get_error_handler().record_exception(error)  # with its traceback, where elastic looks for it
        _end_at_once(1)
    # A rank that returned would wait until its result is fetched, which an interrupted parent never does. Nor may one
    # that failed return: the others may wait for it in a collective, and on a CPU do not notice that it has ended.
    if not outcome.finished:
        _end_at_once(outcome.code)
    return outcome
