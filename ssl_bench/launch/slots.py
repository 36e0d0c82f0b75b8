"""Slots: GPUs, or a share of the cores, for one run among others on this machine.

A slot is a set of file locks in a folder of the user. The kernel releases them when the process ends, however it ends.
"""

import fcntl
import os
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

from ssl_bench.hardware import visible_gpus


class Slot:
    """Context manager that waits for GPUs or cores and reserves them for one run.

    Inside it this process and its children see no others: ``CUDA_VISIBLE_DEVICES`` is set or, on a machine without a
    GPU, the CPU affinity of the process.

    Args:
        devices: GPUs that the run needs.
        runs_per_gpu: runs that may share a GPU.
        concurrent: runs that share the cores of a machine without a GPU.
    """

    def __init__(self, devices: int, runs_per_gpu: int, concurrent: int) -> None:
        self.devices, self.runs_per_gpu, self.concurrent = devices, runs_per_gpu, concurrent
        self._locks: list[int] = []

    def __enter__(self) -> "Slot":
        self._former_gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = visible_gpus()
        self._former_cores = set() if gpus or not hasattr(os, "sched_getaffinity") else os.sched_getaffinity(0)
        if gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(self._reserve("gpu", gpus, self.runs_per_gpu, self.devices))
        elif self._former_cores:
            share = max(self.devices, len(self._former_cores) // self.concurrent)
            reserved = self._reserve("core", [str(core) for core in sorted(self._former_cores)], 1, share)
            os.sched_setaffinity(0, {int(core) for core in reserved})
        return self

    def __exit__(self, *_: object) -> None:
        if self._former_cores:
            os.sched_setaffinity(0, self._former_cores)
        elif self._former_gpus is None:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = self._former_gpus
        for lock in self._locks:
            os.close(lock)

    def _reserve(self, kind: str, names: list[str], per_name: int, count: int) -> list[str]:
        """Lock ``count`` different names, each of which ``per_name`` runs may share.

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
                    self._locks = list(locks.values())
                    return list(locks)
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
