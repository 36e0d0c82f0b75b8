"""Carry out runs: one in this process or in its ranks, or a list of runs, here or in other processes.

A run has one directory, one lease and its checkpoints, so that any number of processes can work on one list: those of a
command, the jobs of an array, or the same command started twice. Each process takes the next run that is not finished
and whose lease is free, until there is none. Of the ranks of a run, rank 0 has the lease.
"""

import atexit
import contextlib
import math
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessContext, ProcessException

from ssl_bench import files
from ssl_bench.config.from_disk import find_prepared
from ssl_bench.distributed import broadcast, join_group, leave, rank, without_room, world
from ssl_bench.errors import ConfigError, RunError, require
from ssl_bench.hardware import available_cores, cores_per_process, local_device, release_memory, visible_gpus
from ssl_bench.launch import lease
from ssl_bench.launch.processes import LOST, OnEnd, Outcome, Process, Run, State, nodes, ranks_here, under_torchrun
from ssl_bench.record import runs
from ssl_bench.record.runs import CONFIG, FAILURE, RESULTS, is_complete
from ssl_bench.record.terminal import logging_to
from ssl_bench.signals import Interrupted, passed_on, raise_again, raised
from ssl_bench.surroundings import stay_on_this_machine
from ssl_bench.training.engine import train

Config = dict[str, Any]
# Parts of gloo's error messages, which have no class, in a collective whose other ranks have ended.
LOSING = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out waiting")
LESS_MEMORY = "Set batch_size.chunk, a smaller batch_size.size or more devices"
THREADS = torch.get_num_threads()  # of a process in which nothing has set them
Begin = Callable[[Run], object]
Place = tuple[dict[str, str], set[int]]  # environment variables and cores of a process; no cores: all


# ---- one run


class Ending(contextlib.AbstractContextManager["Ending"]):
    """Context manager that turns an error or a signal in its block into the outcome of a run, so that other runs go on.

    Args:
        device: the device that computes in the block.
        remedy: what to set if the memory of the device is too small.

    Attributes:
        outcome: ``DONE``, unless the block sets another one.
    """

    def __init__(self, device: torch.device | str = "this machine", remedy: str = "") -> None:
        self.outcome, self._device, self._remedy = Outcome(State.DONE), device, remedy

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception | Interrupted):
            return False
        first, expected = str(error).partition("\n")[0], isinstance(error, ConfigError | RunError | OSError)
        lost = isinstance(error, dist.DistError) or any(sign in str(error) for sign in LOSING)
        if isinstance(error, lease.Taken):
            self.outcome = Outcome(State.BUSY, 1, str(error))
        elif out_of_memory(error):
            self.outcome = Outcome.failed(f"out of memory on {self._device}: {first} {self._remedy}")
        elif reason := without_room(error):
            self.outcome = Outcome.failed(reason)
        elif world() > 1 and lost and not expected:
            self.outcome = Outcome.failed(f"rank {rank()} {LOST} ({first}); the same command resumes")
        else:
            self.outcome = Outcome.of(error, f"rank {rank()} failed: " * (world() > 1))
        return True


def out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed. On a CPU torch has no error class for that."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


def carry_out(
    run: Run, wait: bool, quiet: bool = False, since: float = math.inf, begin: Begin = lambda run: None
) -> Outcome:
    """Carry out a run with its lease, and return its outcome, also after a failure or a signal.

    Args:
        wait: wait for another process that is training the run; otherwise the outcome is ``BUSY`` then.
        quiet: print nothing, because other runs share this terminal.
        since: a run that has failed after this time, in seconds since 1970, is not tried again.
        begin: called when this process has the lease, before the training.
    """
    folder = None
    with Ending() as end, raised():
        config = find_prepared(run.config)
        folder = runs.find(config)
        config |= {"threads": threads(config, folder)}
        follows = nodes()[1] > 0 or (under_torchrun() and os.environ["RANK"] != "0")
        with contextlib.nullcontext() if follows else lease.held(folder, wait) as claim:
            if failed := failed_since(folder, since):
                end.outcome = failed
            elif claim and is_complete(folder, config) and not under_torchrun():  # whose rank 0 tells the others so
                end.outcome = Outcome(State.DONE_BEFORE)
            else:
                if claim:
                    if not any((folder / name).exists() for name in ("checkpoints", RESULTS)):
                        runs.begin(folder, config, run.command)  # another one does so once it is known to go on
                    if not quiet:
                        print(f"run {folder.name} in {folder}, tracking={config['tracking'].get('mode')}", flush=True)
                    begin(run)
                end.outcome = launch(config, folder, run.command, quiet, claim)
                if claim and not end.outcome.finished:
                    claim.require()
                if claim and end.outcome.state is State.FAILED and runs.begun(folder, config):
                    keep_failure(end.outcome, folder, config)
    return replace(end.outcome, folder=str(folder) if folder else None)


def threads(config: Mapping[str, Any], folder: Path) -> int | None:
    """CPU threads of each process of a run on this machine, on which rounding depends; None where GPUs compute.

    A run uses the key ``threads`` or the number it was started with, also when it is resumed by another launcher.
    """
    given: int | None = config["threads"]
    if given or visible_gpus(config["device"]):
        return given
    begun, local = runs.read(folder).config.get("threads"), ranks_here(config)
    if begun and begun > 0:
        return min(begun, available_cores())
    return max(1, available_cores() // local) if local > 1 else min(THREADS, available_cores())


def keep_failure(outcome: Outcome, folder: Path, config: Config) -> None:
    """Write ``failed.json`` of a run whose lease this process has: the reason, and the time in seconds since 1970."""
    with contextlib.suppress(OSError, files.FileSystemUnavailable):  # which is reported anyway
        if not is_complete(folder, config):  # else an error came after the results, which stand
            files.write_json(folder / FAILURE, {"reason": outcome.reason, "time": time.time()})


def failed_since(folder: Path, then: float) -> Outcome | None:
    """The outcome of a run that has failed after ``then``, in seconds since 1970; None if it has not."""
    status = files.status(folder / FAILURE)
    return Outcome.failed(runs.read(folder).failure) if status and status.st_mtime > then else None


# ---- its ranks


def launch(
    config: Config,
    folder: Path,
    command: str | None,
    quiet: bool = False,
    claim: lease.Claim | None = None,
    device: torch.device | None = None,
) -> Outcome:
    """Carry out a validated run whose lease this process has, and wait for its end.

    Args:
        folder: the directory of the run, whose name is its run_id.
        command: as for :func:`ssl_bench.training.engine.train`.
        quiet: print nothing.
        claim: the lease of the run; None: rank 0, another process, has it.
        device: the device of this rank; None: no ranks are started yet.
    """
    if device is None and under_torchrun():
        return join(partial(launch, config, folder, command, quiet, claim))
    if device is None and config["devices"] > 1:
        (count, index, rendezvous), beside = nodes(), ranks_here(config)
        with tempfile.TemporaryDirectory(prefix="ssl-bench-") as private:
            meeting = f"file://{private}/meeting" if count == 1 else f"tcp://{rendezvous}"
            task = partial(join, partial(launch, config, folder, command, quiet, claim), meeting)
            return in_ranks(task, index * beside, beside, config["devices"])
    device = device or local_device(0, config["device"])
    if config["threads"]:
        torch.set_num_threads(config["threads"])
    writes = files.guarded(folder, claim.require) if claim and rank() == 0 else contextlib.nullcontext()
    with writes, logging_to(folder if rank() == 0 else None, quiet), Ending(device, LESS_MEMORY) as end:
        train(config, folder, device, command)
    if world() == 1:  # several ranks end with the run, and one that has failed may wait for the others in its GPU
        release_memory(device)
    return end.outcome


def join(task: "partial[Outcome]", meeting: str = "env://") -> Outcome:
    """Carry out a run as the rank that ``RANK`` and ``WORLD_SIZE`` name. Rank 0 tells the others if it is done already.

    Args:
        task: a call of :func:`launch`, without the device.
        meeting: the URL by which ranks find each other: a file on one machine, the address of rank 0 on several, or
            ``env://`` under torchrun.
    """
    config, folder, *_ = task.args
    number, local, beside = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    device = local_device(local, config["device"])
    torch.set_num_threads(cores_per_process())
    if "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ:  # else each rank starts a process for each core to compile
        from torch._inductor import config as inductor

        inductor.compile_threads = min(32, cores_per_process())

    with Ending(device) as end:
        if beside == config["devices"]:
            stay_on_this_machine()
        if config["devices"] > 1:
            join_group(device, config["timeout"], init_method=meeting, rank=number, world_size=config["devices"])
        done = broadcast(rank() == 0 and is_complete(folder, config))
        end.outcome = Outcome(State.DONE_BEFORE) if done else task(device)
    if config["devices"] > 1 and not end.outcome.finished:
        # Kernels of NCCL and the clean-up of CUDA would wait for ranks that have failed, or that are a batch ahead.
        atexit.register(os._exit, end.outcome.code)
    else:
        leave()
    return end.outcome


def in_ranks(work: Callable[[], Outcome], first: int, beside: int, count: int) -> Outcome:
    """Call ``work`` in a process for each rank of this machine, wait for all, and pass signals on to them.

    Once a rank has failed, the others have 30 seconds to end and are killed then. The outcome is that of the rank that
    failed first, not of a rank that only lost its connection.

    Args:
        first, beside: the first rank of this machine, and how many of the ``count`` ranks it has.
    """
    shared = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(beside)}
    team = list[Process]()
    with passed_on(lambda: [one.process.pid for one in team]) as received, contextlib.suppress(ProcessException):
        for local in range(beside):
            ids = {"RANK": str(first + local), "LOCAL_RANK": str(local)}
            team.append(Process(f"rank {first + local}", work, signal.SIGKILL, shared | ids))
        if received:  # during the start: again, to all
            signal.raise_signal(received[0])
        processes = ProcessContext([one.process for one in team], [""] * beside)
        while not processes.join():
            pass
    ends, order = [one.end() for one in team], {State.INTERRUPTED: 1, State.FAILED: 2}
    cause = min(ends, key=lambda end: 0 if end.failed_by_itself else order.get(end.state, 3))
    return Outcome.interrupted(received[0]) if received else cause


# ---- a list of runs


def here(runs: Sequence[Run], since: float, on_end: OnEnd, waits: bool = True, begin: Begin = lambda run: None) -> None:
    """Carry out the runs of a list in this process until a signal comes; runs that other processes train come last.

    Args:
        since: when the command began, in seconds since 1970: a run that has failed since is not tried again.
        on_end: called with each outcome.
        waits: wait for runs that other processes train, and take over those that they do not finish.
        begin: called before a run trains.
    """
    remaining = [(run, False) for run in runs]
    while remaining:
        raise_again()
        run, last = remaining.pop(0)
        outcome = carry_out(run, last, True, since, begin)
        if outcome.state is not State.BUSY:
            on_end(run, outcome)
        elif waits and not last:
            remaining.append((run, True))
        if outcome.state is State.INTERRUPTED:
            break


def places(runs: Sequence[Run], settings: Mapping[str, Any]) -> list[Place]:
    """The GPUs of each process that carries out runs, or without GPUs its share of the cores.

    Args:
        settings: ``launcher``.

    Raises:
        ConfigError: there are fewer GPUs than they need.
    """
    jobs, runs_per_gpu = settings["jobs"], settings["runs_per_gpu"]
    devices, device = max(run.config["devices"] for run in runs), runs[0].config["device"]
    if gpus := visible_gpus(device):
        most = len(gpus) * runs_per_gpu // devices
        jobs = jobs or most
        why = f"{most} or less: {len(gpus)} GPUs, {devices} for a run, launcher.runs_per_gpu={runs_per_gpu}"
        require(jobs <= most, "launcher.jobs", jobs, why)
        every = gpus * runs_per_gpu  # a second run comes to a GPU after each has one
        return [({"CUDA_VISIBLE_DEVICES": ",".join(every[i * devices :][:devices])}, set()) for i in range(jobs)]
    mine = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    jobs = jobs or max(1, available_cores() // devices)
    share = max(1, available_cores() // jobs)
    return [({}, {*(mine + mine)[i * share % max(1, len(mine)) :][:share]}) for i in range(jobs)]


def at_once(among: Sequence[Place], runs: Sequence[Run], since: float, on_end: OnEnd) -> None:
    """Carry out runs in processes of this machine, one at each of the places, which are GPUs or cores.

    If a process is killed, its run has failed, and the other runs go on. After a signal to this process, or its death,
    every run saves its state. A run that another command trains comes last, when the others are done.

    Raises:
        Interrupted: a signal came.
    """
    remaining, free, at = [(run, False) for run in runs], [*among], dict[Any, tuple[Process, Run, Place]]()
    with passed_on(lambda: [process.process.pid for process, _, _ in at.values()]) as received:
        while at or (remaining and not received):
            while remaining and free and not received:
                (run, waits), place = remaining.pop(0), free.pop(0)
                task = partial(carry_out, run, waits, True, since)
                process = Process("the process of the run", task, signal.SIGTERM, *place)
                at[process.process.sentinel] = process, run, place
                for number in received:  # it came during the start
                    os.kill(process.process.pid, number)
            for sentinel in wait([*at]):
                process, run, place = at.pop(sentinel)
                free.insert(0, place)
                outcome = process.end()
                if outcome.state is State.BUSY:
                    remaining.append((run, True))
                    continue
                if outcome.state is State.FAILED and not outcome.folder and (run.folder / CONFIG).exists():  # it died
                    keep_failure(outcome, run.folder, run.config)
                on_end(run, outcome)
    if received:
        raise Interrupted(received[0])
