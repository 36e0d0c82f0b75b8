"""Slots: GPUs, or a share of the cores, for one run among others on this machine.

A slot is a set of file locks in a folder of the machine. The kernel releases them when the process ends, however it
ends.
"""

import fcntl
import os
import tempfile
import time
from pathlib import Path
from typing import TextIO

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
        self._locks: list[TextIO] = []

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
            lock.close()

    def _reserve(self, kind: str, names: list[str], per_name: int, count: int) -> list[str]:
        """Lock ``count`` different names, each of which ``per_name`` runs may share.

        All are locked at once or none, so that two runs never wait for each other.
        """
        while True:
            with open(_folder() / "all", "w") as everything:
                fcntl.flock(everything, fcntl.LOCK_EX)
                locks: dict[str, TextIO] = {}
                for place in range(per_name):  # the first place of every GPU before the second place of any
                    for name in names:
                        if name not in locks and len(locks) < count:
                            lock = _try_lock(_folder() / f"{kind}-{name}.{place}")
                            locks |= {} if lock is None else {name: lock}
                if len(locks) == count:
                    self._locks = list(locks.values())
                    return list(locks)
                for lock in locks.values():
                    lock.close()
            time.sleep(0.5)


def _folder() -> Path:
    """Folder of the locks: one per user and, because Slurm numbers the GPUs of every job from 0, per Slurm job."""
    folder = Path(tempfile.gettempdir()) / f"ssl-bench-{os.getuid()}" / os.environ.get("SLURM_JOB_ID", "machine")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _try_lock(path: Path) -> TextIO | None:
    """The open and locked file; None if another process has locked it."""
    file = open(path, "w")  # noqa: SIM115 - it stays open as long as the slot is reserved
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
