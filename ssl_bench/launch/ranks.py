"""Where a run's processes come from: this one, ranks that are started here, or the ranks of an outer torchrun.

All three end in :func:`_cell`, which gives an outcome as plain data: ``{"state": "done", "metrics": ...}``,
``{"state": "interrupted", "signal": ...}`` or ``{"state": "failed", "reason": ..., "code": ..., "detail": ...}``.
"""

import datetime
import logging
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ssl_bench import files
from ssl_bench.distributed import broadcast_object, leave, rank, world
from ssl_bench.errors import ConfigError, RunError
from ssl_bench.hardware import local_device, release_memory
from ssl_bench.launch.nodes import nodes
from ssl_bench.launch.processes import die_with
from ssl_bench.launch.slots import available_cores
from ssl_bench.record.environment import environment
from ssl_bench.record.log import journal
from ssl_bench.training.engine import Run
from ssl_bench.training.interrupt import Interrupted

Outcome = dict[str, Any]
# How ranks end that were told to stop: by themselves, or because they were not listening yet.
STOPPED = {code: n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2) for code in (128 + n, -n)}


def launch(config: dict[str, Any], run_id: str, folder: Path, apart: bool = False) -> Outcome:
    """Carries out one validated run on ``devices`` processes and waits for it.

    Args:
        apart: never in this process, whose memory and environment other runs share, and without a word on the terminal,
            which they share too.
    """
    if config["devices"] == 1 and not apart:
        return _cell(config, run_id, folder, local_device(0))
    return _elastic(config, run_id, folder, apart)


def alone(work: Callable[[dict[str, Any]], Any], config: dict[str, Any], run_id: str, folder: Path) -> Outcome:
    """Carries out something else than a training, in this process, and writes ``results.json``."""

    def keep() -> dict[str, float]:
        started = time.monotonic()
        metrics: dict[str, float] = work(config)
        results = {"run_id": run_id, "name": config["name"], "config": config, "metrics": metrics}
        results |= {"environment": environment(device), "seconds": round(time.monotonic() - started, 3)}
        files.write_json(folder / "results.json", results)
        return metrics

    device = torch.device("cpu")
    return _attempt(keep, folder, device)


def join(config: dict[str, Any], run_id: str, folder: Path, quiet: bool = False) -> Outcome:
    """Carries out a run as one of its ranks; rank 0 decides for all whether it is done already."""
    die_with(os.getppid())
    device = _enter(config, int(os.environ["LOCAL_RANK"]), int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    try:
        done = broadcast_object((folder / "results.json").exists() if rank() == 0 else None)
        outcome: Outcome = {"state": "done before"} if done else _cell(config, run_id, folder, device, quiet)
    except BaseException:
        if device.type == "cpu":  # NCCL would wait there for the other ranks, which may never come
            leave()
        raise
    leave()
    return outcome


def _cell(config: dict[str, Any], run_id: str, folder: Path, device: torch.device, quiet: bool = False) -> Outcome:
    """One rank's part."""
    try:
        return _attempt(lambda: Run(config, run_id, folder, device)(), folder, device, quiet)
    finally:
        release_memory(device)


def _attempt(work: Callable[[], Any], folder: Path, device: torch.device, quiet: bool = False) -> Outcome:
    """What was foreseen becomes an outcome; anything else is a defect and keeps its traceback."""
    # Where gloo tells the others at once that a rank has left, NCCL does not: there only a rank's death does.
    unheard = world() > 1 and device.type == "cuda"
    with journal(folder if rank() == 0 else None, quiet):
        try:
            return {"state": "done", "metrics": work()}
        except Interrupted as stop:
            return {"state": "interrupted", "signal": stop.number}
        except (ConfigError, RunError) as error:
            if (world() > 1 and isinstance(error.__cause__, torch.OutOfMemoryError)) or unheard:
                raise  # this rank's alone: the others wait, and it must end visibly
            return _failed(str(error), 2 if isinstance(error, ConfigError) else 1)
        except OSError as error:
            if unheard:
                raise
            where = f"{error.filename}: " if error.filename else ""
            return _failed(f"{where}{error.strerror or error}; once that is put right, the same command resumes", 1)
        except torch.OutOfMemoryError as error:
            if world() > 1:
                raise
            reason = f"out of memory on {device}: {str(error).splitlines()[0]}"
            return _failed(f"{reason} Set a smaller batch_size.size or more devices", 1)
        except Exception as error:
            if world() > 1 and _lost(error):
                why = str(error).splitlines()[0]
                return _failed(f"rank {rank()} has lost the others ({why}); the same command resumes", 1)
            if world() > 1:
                raise
            return _failed(f"{type(error).__name__}: {error}", 1, traceback.format_exc())


def _lost(error: Exception) -> bool:
    """Whether a collective failed because another rank is gone. Gloo has no class of error for that."""
    signs = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out waiting")
    return isinstance(error, dist.DistError) or any(sign in str(error) for sign in signs)


def _failed(reason: str, code: int, detail: str = "") -> Outcome:
    return {"state": "failed", "reason": reason, "code": code, "detail": detail}


def _enter(config: dict[str, Any], local_rank: int, local_world: int) -> torch.device:
    """Joins the process group as a rank of this machine."""
    device = local_device(local_rank)
    torch.set_num_threads(max(1, available_cores() // local_world))
    if config["devices"] == 1:
        return device
    timeout = datetime.timedelta(seconds=config["timeout"])
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timeout, device_id=device if device.type == "cuda" else None)
    return device


# ---- ranks that are started here


def _elastic(config: dict[str, Any], run_id: str, folder: Path, quiet: bool) -> Outcome:
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in logging.root.manager.loggerDict:  # each has a level of its own
        if name.startswith(("torch.distributed.elastic", "torch.multiprocessing")):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # what failed is said once, below
    multiprocessing.set_start_method("spawn", force=True)  # joblib's workers have one that ranks would not know
    team = nodes()
    settings = LaunchConfig(
        min_nodes=team.count,
        max_nodes=team.count,
        nproc_per_node=team.share(config["devices"]),
        run_id=run_id,
        rdzv_backend="c10d" if team.count == 1 else "static",  # which takes the nodes in their order
        rdzv_endpoint=team.meeting,
        rdzv_configs={"rank": team.mine, "timeout": config["timeout"]},
        max_restarts=0,
        monitor_interval=0.1,
        start_method="spawn",
    )
    former = signal.signal(signal.SIGUSR2, _stop)
    try:
        outcomes = elastic_launch(settings, _rank)(config, run_id, folder, quiet, os.getpid())
        return outcomes[0]  # type: ignore[no-any-return]
    except SignalException as stop:
        return {"state": "interrupted", "signal": int(stop.sigval)}
    except ChildFailedError as error:
        number, failure = error.get_first_failure()
        if failure.exitcode in STOPPED:  # somebody stopped the ranks, not us
            return {"state": "interrupted", "signal": int(STOPPED[failure.exitcode])}
        told: Any = failure.message  # a sentence, or what an exception left behind
        message = str(told["extraInfo"]["py_callstack"] if isinstance(told, dict) else told).strip()
        return _failed(f"rank {number} failed: {message.splitlines()[-1]}", 1, message)
    finally:
        signal.signal(signal.SIGUSR2, former)


def _stop(number: int, frame: Any) -> None:
    """Elastic's own handlers do the same for the signals that it knows: the ranks get it too and have time to save."""
    from torch.distributed.elastic.multiprocessing.api import SignalException

    raise SignalException(signal.Signals(number).name, signal.Signals(number))


def _rank(config: dict[str, Any], run_id: str, folder: Path, quiet: bool, parent: int) -> Outcome:
    """The entry of a rank that was started here."""
    die_with(parent)
    outcome = join(config, run_id, folder, quiet)
    if outcome["state"] == "interrupted":
        # A rank that returns waits until its result is fetched; one that was told to stop has nobody to fetch it.
        sys.stdout.flush()
        os._exit(128 + outcome["signal"])
    return outcome
