"""A place for a run on this machine, among others that come and go: GPUs of its own, or a share of the cores.

Places are file locks in a folder of the machine, which the kernel lifts when their process ends, however that is.
"""

import fcntl
import os
import tempfile
import time
from pathlib import Path
from typing import TextIO


class Place:
    """GPUs or cores for one run, as a context manager that waits until there are some.

    Inside it, and in processes that are started inside it, no others are seen: ``CUDA_VISIBLE_DEVICES`` is set, or on a
    machine without a GPU the affinity of the process.

    Args:
        devices: GPUs that the run needs.
        runs_per_gpu: runs that may share a GPU.
        jobs: runs that share the cores of a machine without a GPU.
    """

    def __init__(self, devices: int, runs_per_gpu: int, jobs: int) -> None:
        self.devices, self.runs_per_gpu, self.jobs = devices, runs_per_gpu, jobs
        self._locks: list[TextIO] = []

    def __enter__(self) -> "Place":
        self._visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = visible_gpus()
        self._cores = set() if gpus or not hasattr(os, "sched_getaffinity") else os.sched_getaffinity(0)
        if gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(self._take("gpu", gpus, self.runs_per_gpu, self.devices))
        elif self._cores:
            share = max(self.devices, len(self._cores) // self.jobs)
            mine = self._take("core", [str(core) for core in sorted(self._cores)], 1, share)
            os.sched_setaffinity(0, {int(core) for core in mine})
        return self

    def __exit__(self, *_: object) -> None:
        if self._cores:
            os.sched_setaffinity(0, self._cores)
        elif self._visible is None:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = self._visible
        for lock in self._locks:
            lock.close()

    def _take(self, kind: str, names: list[str], slots: int, count: int) -> list[str]:
        """``count`` different names, each with one of its ``slots``: all at once, so that nobody waits for another."""
        while True:
            with open(_folder() / "all", "w") as everything:
                fcntl.flock(everything, fcntl.LOCK_EX)
                found: dict[str, TextIO] = {}
                for slot in range(slots):  # the first slot of every GPU before the second of any
                    for name in names:
                        if name not in found and len(found) < count:
                            lock = _try(_folder() / f"{kind}-{name}.{slot}")
                            found |= {} if lock is None else {name: lock}
                if len(found) == count:
                    self._locks = list(found.values())
                    return list(found)
                for lock in found.values():
                    lock.close()
            time.sleep(0.5)


def available_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip() not in ("", "-1")]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


def jobs(devices: int, runs_per_gpu: int) -> int:
    """How many runs of so many devices this machine carries out at once."""
    gpus = len(visible_gpus())
    return max(1, (gpus * runs_per_gpu if gpus else available_cores()) // devices)


def _folder() -> Path:
    """Of this user and, where Slurm numbers the GPUs of each of its jobs from 0, of this job."""
    folder = Path(tempfile.gettempdir()) / f"ssl-bench-{os.getuid()}" / os.environ.get("SLURM_JOB_ID", "machine")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _try(path: Path) -> TextIO | None:
    """The open and locked file, or None if somebody has it."""
    file = open(path, "w")  # noqa: SIM115 - it stays open as long as the place is taken
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
