"""Slots: GPUs, or a share of the cores, for one run among others on this machine.

A slot is a set of file locks in a folder of the user. The kernel releases them when the process ends, however it ends.
"""

import contextlib
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

from ssl_bench import files
from ssl_bench.errors import ConfigError
from ssl_bench.hardware import visible_gpus


class Slot:
    """GPUs or cores that are reserved until :meth:`release`, or until this process ends.

    Attributes:
        environment: ``CUDA_VISIBLE_DEVICES`` for the process that uses it; empty without GPUs.
        cores: that this process may use; None: all.
    """

    def __init__(self, environment: dict[str, str], cores: set[int] | None, locks: Sequence[int]) -> None:
        self.environment, self.cores, self._locks = environment, cores, locks

    def release(self) -> None:
        """Give it back."""
        for lock in self._locks:
            os.close(lock)


def reserve(
    devices: int, runs_per_gpu: int, count: int, patient: Callable[[], bool] = lambda: True, device: str = "auto"
) -> Slot | None:
    """Reserve GPUs, or cores on a machine without, for one run; wait for them as long as it is ``patient``.

    Args:
        devices: GPUs that the run needs.
        runs_per_gpu: runs that may share a GPU.
        count: cores that the run needs on a machine without a GPU; of fewer ones it takes all.
        device: ``cpu``: it needs cores, even where there are GPUs.

    Raises:
        ConfigError: the folder of the locks is that of another user.
    """
    if gpus := visible_gpus(device):
        locks = _reserve("gpu", gpus, runs_per_gpu, devices, patient)
        return Slot({"CUDA_VISIBLE_DEVICES": ",".join(locks)}, None, list(locks.values())) if locks else None
    if not hasattr(os, "sched_getaffinity"):
        return Slot({}, None, [])
    cores = [str(core) for core in sorted(os.sched_getaffinity(0))]
    locks = _reserve("core", cores, 1, min(count, len(cores)), patient)
    return Slot({}, {int(core) for core in locks}, list(locks.values())) if locks else None


def _reserve(kind: str, names: Sequence[str], per_name: int, count: int, patient: Callable[[], bool]) -> dict[str, int]:
    """Lock ``count`` different names, each of which ``per_name`` runs may share; return the open files by name.

    All are locked at once or none, so that two runs never wait for each other. None are returned once the caller is no
    longer patient.
    """
    places = {name: [f"{kind}-{name}.{place}" for place in range(per_name)] for name in names}
    while True:
        if (everything := _try_lock("all")) is not None:
            locks = dict[str, int]()
            try:
                for place in range(per_name):  # the first place of every GPU before the second place of any
                    for name in names:
                        if name not in locks and len(locks) < count:
                            lock = _try_lock(places[name][place])
                            locks |= {} if lock is None else {name: lock}
                if len(locks) == count:
                    return locks
                for lock in locks.values():
                    os.close(lock)
            finally:
                os.close(everything)
            of = f"{count} {kind}{'s' * (count > 1)} of {', '.join(names)}"
            files.say_once(f"ssl-bench: waiting for {of}, which other runs have (locks in {_folder()})")
        if not patient():
            return {}
        time.sleep(0.5 if everything is not None else 0.05)


def _try_lock(name: str) -> int | None:
    """The open and locked file, with the number of this process; None if another process has locked it."""
    file = _open(name)  # it stays open as long as the slot is reserved
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    os.ftruncate(file, 0)
    os.write(file, str(os.getpid()).encode())
    return file


def _open(name: str) -> int:
    """Open a lock file. Slurm numbers the GPUs of every job from 0, and two jobs may share a machine."""
    job = os.environ.get("SLURM_JOB_ID", "machine")
    return os.open(_folder() / quote(f"{job}-{name}", safe=""), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def _folder() -> Path:
    """The folder of the locks, to which no other user can write: they could make this one wait for ever."""
    folder = Path(tempfile.gettempdir(), f"ssl-bench-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise ConfigError(f"{folder} is no folder that only you can write to: set TMPDIR to a folder of your own")
    return folder
