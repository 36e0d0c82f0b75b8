"""Claims: one process at a time carries out a run, of all machines that share its directory.

A claim is a file ``claims/<n>`` in the directory, created by an exclusive open. That is atomic on local file systems
and on NFS from version 3 on; locks of the file system are not used. The highest number is the valid claim. A waiter
takes over from an owner that is gone by creating the next number, which only one of many waiters can. Numbers are never
used twice while a run is unfinished.

An owner on this machine is gone if its process is. An owner on another machine touches its file every ten seconds; it
is gone if the file has not changed for 90 seconds, by the clock of the observer. An owner that was only suspended
exits as soon as it finds a higher number.
"""

import contextlib
import json
import os
import re
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.errors import ConfigError, unwritable
from ssl_bench.record.results import finished

NUMBER = re.compile("[1-9][0-9]{0,17}").fullmatch
BEAT = 10.0  # seconds between two touches
LEASE = 90.0  # longer than a minute, for which NFS may show an old state of a file
GRACE = 1.0  # seconds until the ranks of a killed process are gone too


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
        """The owner that a claim names; an unknown one, on another machine, while the claim is being written."""
        try:
            return cls(**content)
        except TypeError:
            return cls("another process", 0, 0.0, "", None)

    def __str__(self) -> str:
        return f"{self.host} (process {self.pid}) since {time.strftime('%H:%M:%S', time.localtime(self.since))}"


class Claim:
    """The claim of this process on a run.

    Args:
        folder: the run's directory.
        lease: seconds without a change after which an owner on another machine is gone.
    """

    def __init__(self, folder: Path, lease: float = LEASE) -> None:
        self.folder, self.lease = folder / "claims", lease
        self.number = 0  # of this process; 0: it has no claim
        self._seen: tuple[int, int, float] = (0, 0, 0.0)  # number, time of change, when this process first saw that
        self._released = threading.Event()

    def take(self) -> Owner | None:
        """Try to take the run. Return None on success, else the owner; ask again later, it may be gone then."""
        number = _latest(self.folder)
        while True:
            owner, gone = self._living(number) if number else (None, False)
            if owner is not None:
                return owner
            if self._make(number + 1):
                self.number = number + 1
                if gone:
                    time.sleep(GRACE)
                threading.Thread(target=self._beat, daemon=True).start()
                return None
            number += 1  # another process was faster

    def wait(self, announce: Callable[[Owner], None]) -> None:
        """Take the run as soon as its owner is done; ``announce`` is called once for each owner."""
        announced = None
        while (owner := self.take()) is not None:
            if owner != announced:
                announce(owner)
                announced = owner
            time.sleep(0.5)

    def release(self, finished: bool) -> None:
        """Give the run back. The claims of a finished run are removed."""
        self._released.set()
        if finished:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        with contextlib.suppress(OSError):  # on a full disk the end of this process has the same effect
            files.write_json(self.folder / str(self.number), {"released": True})

    def _make(self, number: int) -> bool:
        while True:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                with open(self.folder / str(number), "x") as file:
                    json.dump(asdict(Owner.this_process()), file)
            except FileExistsError:
                return False
            except FileNotFoundError:
                continue  # the run finished after the line above, and its claims were removed
            return True

    def _living(self, number: int) -> tuple[Owner | None, bool]:
        """The owner of a claim, None if it has none any more; and whether the last owner ended without releasing it."""
        path = self.folder / str(number)
        data: Any = files.read_json(path)
        if isinstance(data, dict) and "released" in data:
            return None, False
        owner = Owner.read(data)
        if owner.machine == _machine():
            return (owner, False) if start_time(owner.pid) == owner.born and owner.born != "" else (None, True)
        try:
            changed = path.stat().st_mtime_ns
        except OSError:
            return None, False  # the run has finished meanwhile
        now = time.monotonic()
        if (number, changed) != self._seen[:2]:
            self._seen = number, changed, now
        return (owner, False) if now - self._seen[2] < self.lease else (None, True)

    def _beat(self) -> None:
        """Touch the claim every ten seconds; exit if another process has taken over."""
        while not self._released.wait(BEAT):
            if _latest(self.folder) > self.number:
                print(f"ssl-bench: {self.folder.parent} was taken over by another process", file=sys.stderr)
                os._exit(1)
            try:
                os.utime(self.folder / str(self.number))
            except OSError:
                continue  # the file system is unreachable for a moment


@contextlib.contextmanager
def claimed(folder: Path, wait: bool) -> Iterator[Owner | None]:
    """Hold the claim on the run in ``folder``; yield None, or the owner if there is one and ``wait`` is False.

    Raises:
        ConfigError: the folder cannot be written.
    """
    claim = Claim(folder)
    if os.path.lexists(claim.folder) and not claim.folder.is_dir():
        raise ConfigError(f"{claim.folder} is not a folder: remove it")
    try:
        owner = claim.take()
        if owner is not None and not wait:
            yield owner
            return
        if owner is not None:
            claim.wait(lambda owner: print(f"{folder} is being trained by {owner}: waiting", flush=True))
    except OSError as error:
        raise unwritable(error) from error
    try:
        yield None
    finally:
        claim.release(finished(folder))


def owner(folder: Path) -> Owner | None:
    """The process that carries out the run in ``folder``, as far as one look can tell.

    For an owner on another machine, the time of the last touch is compared with this machine's clock.
    """
    claims = folder / "claims"
    number = _latest(claims)
    if not number:
        return None
    found, _ = Claim(folder)._living(number)
    try:
        silent = time.time() - (claims / str(number)).stat().st_mtime
    except OSError:
        return None
    return found if found is not None and (found.machine == _machine() or silent < LEASE) else None


def remove_claims(folder: Path) -> None:
    """Remove the claims of a finished run whose process was killed before it did."""
    if _latest(folder / "claims") and owner(folder) is None:
        shutil.rmtree(folder / "claims", ignore_errors=True)


def _latest(claims: Path) -> int:
    try:
        return max((int(name) for name in os.listdir(claims) if NUMBER(name)), default=0)
    except OSError:
        return 0


@cache
def _machine() -> str:
    """Identity of this machine since its start, and of the PID namespace, which containers have of their own."""
    parts = [socket.gethostname()]
    for read in (
        lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        lambda: os.readlink("/proc/self/ns/pid"),
    ):
        try:
            parts.append(read())
        except OSError:
            continue
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
