"""Locks: one process at a time carries out a run, of all machines that share its directory.

A lock is a file ``claims/<n>`` in the directory, created by an exclusive open. That is atomic on local file systems
and on NFS from version 3 on; locks of the file system are not used. The highest number is the valid lock. A waiter
takes over from an owner that is gone by creating the next number, which only one of many waiters can. Numbers are never
used twice while a run is unfinished.

An owner on this machine is gone if its process is. An owner on another machine touches its file every ten seconds; it
is gone if the file has not changed for 90 seconds, by the clock of the observer. An owner that was only suspended
exits as soon as it finds a higher number.
"""

import contextlib
import json
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.errors import unwritable
from ssl_bench.record.results import is_finished
from ssl_bench.shapes import fits

BEAT = 10.0  # seconds between two touches
LEASE = 90.0  # longer than a minute, for which NFS may show an old state of a file


@dataclass(frozen=True)
class Owner:
    """The process that carries out a run. ``since`` is in seconds of the epoch, ``born`` in the kernel's ticks."""

    host: str
    pid: int
    since: float
    machine: str
    born: str | None

    @classmethod
    def this_process(cls) -> "Owner":
        return cls(socket.gethostname(), os.getpid(), round(time.time(), 3), _machine(), start_time(os.getpid()))

    @classmethod
    def read(cls, content: Any) -> "Owner":
        """The owner that a lock names; an unknown one, on another machine, while the lock is being written."""
        if not fits(content, cls) or not 0 <= content["since"] < 2**35:
            return cls("another process", 0, 0.0, "", None)
        return cls(**{field.name: content[field.name] for field in fields(cls)})

    def __str__(self) -> str:
        return f"{self.host} (process {self.pid}) since {time.strftime('%H:%M:%S', time.localtime(self.since))}"


class Lock:
    """The lock of this process on a run.

    Args:
        folder: the run's directory.
        lease: seconds without a change after which an owner on another machine is gone.
    """

    def __init__(self, folder: Path, lease: float = LEASE) -> None:
        self.folder, self.lease = folder / "claims", lease
        self.number = 0  # of this process; 0: it has no lock
        self._seen: tuple[int, int, float] = (0, 0, 0.0)  # number, time of change, when this process first saw that
        self._released = threading.Event()

    def take(self) -> Owner | None:
        """Try to take the run. Return None on success, else the owner; ask again later, it may be gone then."""
        number = _latest(self.folder)
        while True:
            if number and (owner := self.owner(number)) is not None:
                return owner
            number += 1
            if self._make(number):
                self.number = number
                threading.Thread(target=self._beat, daemon=True).start()
                return None

    def release(self, finished: bool) -> None:
        """Give the run back. The locks of a finished run are removed."""
        self._released.set()
        if finished:
            remove_locks(self.folder.parent)
            return
        with contextlib.suppress(OSError):  # on a full disk the end of this process has the same effect
            files.write_json(self.folder / str(self.number), {"released": True})

    def owner(self, number: int) -> Owner | None:
        """The owner of a lock; None if it has released the lock or is gone."""
        path = self.folder / str(number)
        content: Any = files.read_json(path, named=False)
        if isinstance(content, dict) and "released" in content:
            return None
        owner = Owner.read(content)
        if owner.machine == _machine():
            return owner if start_time(owner.pid) == owner.born else None
        try:
            changed = path.stat().st_mtime_ns
        except OSError:
            return None  # the run has finished meanwhile
        now = time.monotonic()
        if (number, changed) != self._seen[:2]:
            self._seen = number, changed, now
        return owner if now - self._seen[2] < self.lease else None

    def _make(self, number: int) -> bool:
        """Create a lock; return False if another process was faster."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with open(self.folder / str(number), "x") as file:
                json.dump(asdict(Owner.this_process()), file)
        except (FileExistsError, FileNotFoundError):  # the latter: the run has finished, and its locks were removed
            return False
        return True

    def _beat(self) -> None:
        """Touch the lock every ten seconds; exit if another process has taken over."""
        while not self._released.wait(BEAT):
            if _latest(self.folder) > self.number:
                print(f"ssl-bench: {self.folder.parent} was taken over by another process", file=sys.stderr)
                os._exit(1)
            with contextlib.suppress(OSError):  # the file system is unreachable for a moment
                os.utime(self.folder / str(self.number))


@contextlib.contextmanager
def locked(folder: Path, wait: bool) -> Iterator[Owner | None]:
    """Hold the lock on the run in ``folder``; yield None, or the owner if there is one and ``wait`` is False.

    Raises:
        ConfigError: the folder cannot be written.
    """
    lock, announced = Lock(folder), None
    try:
        while (other := lock.take()) is not None and wait:
            if other != announced:
                print(f"{folder} is being trained by {other}: waiting", flush=True)
            announced = other
            time.sleep(0.5)
    except OSError as error:
        raise unwritable(error) from error
    try:
        yield other
    finally:
        if other is None:
            lock.release(is_finished(folder))


def owner(folder: Path) -> Owner | None:
    """The process that carries out the run in ``folder``, as far as one look can tell.

    For an owner on another machine, the time of the last touch is compared with this machine's clock.
    """
    lock = Lock(folder)
    number = _latest(lock.folder)
    claimed_by = lock.owner(number) if number else None
    if claimed_by is None or claimed_by.machine == _machine():
        return claimed_by
    try:
        silent = time.time() - (lock.folder / str(number)).stat().st_mtime
    except OSError:
        return None
    return claimed_by if silent < LEASE else None


def remove_locks(folder: Path) -> None:
    """Remove the locks of a finished run."""
    shutil.rmtree(folder / "claims", ignore_errors=True)


def _latest(folder: Path) -> int:
    """The highest number of a lock in ``folder``; 0 if there is none."""
    try:
        return max((int(name) for name in os.listdir(folder) if name.isdecimal()), default=0)
    except OSError:
        return 0


@cache
def _machine() -> str:
    """Identity of this machine since its start, and of the PID namespace, which containers have of their own."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):  # only Linux has these
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
    return "/".join(parts)


def start_time(pid: int) -> str | None:
    """Start time of a process, which distinguishes it from a later one with the same PID; "" if there is none.

    None if the process exists and the system does not tell its start time (not Linux).
    """
    if not sys.platform.startswith("linux"):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return ""
        except PermissionError:
            pass
        return None
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]  # a zombie has ended
