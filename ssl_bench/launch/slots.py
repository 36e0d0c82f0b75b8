"""Slots: GPUs, or a share of the cores, for one run among others on this machine.

A slot is a set of file locks in a folder of the user. The kernel releases them when the process ends, however it ends.
"""

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from ssl_bench.hardware import visible_gpus


@contextlib.contextmanager
def slot(devices: int, runs_per_gpu: int, count: int) -> Iterator[None]:
    """Wait for GPUs or cores and reserve them for one run.

    In the block this process and its children see no others: ``CUDA_VISIBLE_DEVICES`` is set or, on a machine without a
    GPU, the CPU affinity of the process.

    Args:
        devices: GPUs that the run needs.
        runs_per_gpu: runs that may share a GPU.
        count: cores that the run needs on a machine without a GPU; of fewer ones it takes all.
    """
    gpus, former = visible_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES")
    cores = set() if gpus or not hasattr(os, "sched_getaffinity") else os.sched_getaffinity(0)
    locks: dict[str, int] = {}
    try:
        if gpus:
            locks = _reserve("gpu", gpus, runs_per_gpu, devices)
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(locks)
        elif cores:
            locks = _reserve("core", [str(core) for core in sorted(cores)], 1, min(count, len(cores)))
            os.sched_setaffinity(0, {int(core) for core in locks})
        yield
    finally:
        if cores:
            os.sched_setaffinity(0, cores)
        elif former is None:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = former
        for lock in locks.values():
            os.close(lock)


def _reserve(kind: str, names: list[str], per_name: int, count: int) -> dict[str, int]:
    """Lock ``count`` different names, each of which ``per_name`` runs may share; return the open files by name.

    All are locked at once or none, so that two runs never wait for each other.
    """
    while True:
        everything = _open("all")
        try:
            fcntl.flock(everything, fcntl.LOCK_EX)
            locks: dict[str, int] = {}
            for place in range(per_name):  # the first place of every GPU before the second place of any
                for name in names:
                    if name not in locks and len(locks) < count:
                        lock = _try_lock(f"{kind}-{name}.{place}")
                        locks |= {} if lock is None else {name: lock}
            if len(locks) == count:
                return locks
            for lock in locks.values():
                os.close(lock)
        finally:
            os.close(everything)
        time.sleep(0.5)


def _try_lock(name: str) -> int | None:
    """The open and locked file; None if another process has locked it."""
    file = _open(name)  # it stays open as long as the slot is reserved
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def _open(name: str) -> int:
    """Open a lock file, in a folder that no other user can write to.

    Slurm numbers the GPUs of every job from 0, and two jobs may share a machine.
    """
    folder = Path(tempfile.gettempdir(), f"ssl-bench-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    job = os.environ.get("SLURM_JOB_ID", "machine")
    return os.open(folder / quote(f"{job}-{name}", safe=""), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
