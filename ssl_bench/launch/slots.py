"""Slots: GPUs, or a share of the cores, for one run among others on this machine.

A slot is a set of file locks in a folder of the user. The kernel releases them when the process ends, however it ends.
"""

import contextlib
import fcntl
import itertools
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from ssl_bench.errors import ConfigError
from ssl_bench.hardware import visible_gpus
from ssl_bench.record.streams import waiting


@contextlib.contextmanager
def slot(devices: int, runs_per_gpu: int, count: int) -> Iterator[None]:
    """Wait for GPUs or cores and reserve them for one run.

    In the block this process and its children see no others: ``CUDA_VISIBLE_DEVICES`` is set or, on a machine without a
    GPU, the CPU affinity of the process.

    Args:
        devices: GPUs that the run needs.
        runs_per_gpu: runs that may share a GPU.
        count: cores that the run needs on a machine without a GPU; of fewer ones it takes all.

    Raises:
        ConfigError: the folder of the locks is that of another user.
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


def _reserve(kind: str, names: Sequence[str], per_name: int, count: int) -> dict[str, int]:
    """Lock ``count`` different names, each of which ``per_name`` runs may share; return the open files by name.

    All are locked at once or none, so that two runs never wait for each other.
    """
    files = {name: [f"{kind}-{name}.{place}" for place in range(per_name)] for name in names}

    def sentence() -> str:
        holders = sorted({_holder(file) for file in ("all", *itertools.chain(*files.values()))} - {""})
        of = f"{count} {kind}{'s' * (count > 1)} of {', '.join(names)}"
        return f"waiting for {of}: processes {', '.join(holders)} have them (locks in {_folder()})"

    with waiting(sentence):
        while True:
            everything, locks = _try_lock("all"), dict[str, int]()
            if everything is None:
                time.sleep(0.05)
                continue
            try:
                for place in range(per_name):  # the first place of every GPU before the second place of any
                    for name in names:
                        if name not in locks and len(locks) < count:
                            lock = _try_lock(files[name][place])
                            locks |= {} if lock is None else {name: lock}
                if len(locks) == count:
                    return locks
                for lock in locks.values():
                    os.close(lock)
            finally:
                os.close(everything)
            time.sleep(0.5)


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


def _holder(name: str) -> str:
    """The number of the process that has locked a file; empty if none has."""
    file = _open(name)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(file, 20, 0).decode()
    finally:
        os.close(file)
    return ""


def _open(name: str) -> int:
    """Open a lock file. Slurm numbers the GPUs of every job from 0, and two jobs may share a machine."""
    job = os.environ.get("SLURM_JOB_ID", "machine")
    return os.open(_folder() / quote(f"{job}-{name}", safe=""), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def _folder() -> Path:
    """The folder of the locks, to which no other user can write: they could make this one wait for ever.

    Raises:
        ConfigError: something of another user, or no folder, has its name.
    """
    folder = Path(tempfile.gettempdir(), f"ssl-bench-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ConfigError(f"{folder} is no folder that only you can write to: set TMPDIR to a folder of your own")
    return folder
