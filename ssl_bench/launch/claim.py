"""Who carries out a run: one process at a time, of all the machines that share its directory.

A claim is a file ``claims/<n>`` in the directory, made by an exclusive open, which is atomic on local file systems and
on NFS from version 3 on; no lock of the file system is relied on. The highest number counts. Who finds that its owner
is gone makes the next number, which of many who try only one can; numbers are never used twice while a run is
unfinished.

On the owner's machine its process tells whether it lives. Elsewhere the file does: the owner touches it every ten
seconds, and one that has not changed for a minute and a half, by the clock of who is looking, has no owner any more. An
owner that was given up in this way, having been suspended say, ends as soon as it finds the next number.
"""

import contextlib
import json
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ssl_bench import files

BEAT = 10.0  # seconds between two touches
LEASE = 90.0  # longer than a minute, for which NFS may show an old state of a file
GRACE = 1.0  # what a process that was killed may need until its ranks are gone too


@dataclass(frozen=True)
class Owner:
    """The process that has a run. ``since`` is in seconds of the epoch, ``born`` in the kernel's ticks."""

    host: str
    pid: int
    since: float
    machine: str
    born: str | None

    @classmethod
    def me(cls) -> "Owner":
        return cls(socket.gethostname(), os.getpid(), round(time.time(), 3), _machine(), _born(os.getpid()))

    def __str__(self) -> str:
        return f"{self.host} (process {self.pid}) since {time.strftime('%H:%M:%S', time.localtime(self.since))}"


class Claim:
    """The claim of this process on a run, to be taken and released.

    Args:
        folder: the run's directory.
        lease: seconds without a sign of life after which an owner on another machine is given up.
    """

    def __init__(self, folder: Path, lease: float = LEASE) -> None:
        self.folder, self.lease = folder / "claims", lease
        self.number = 0  # ours; 0: none
        self._seen: tuple[int, int, float] = (0, 0, 0.0)  # number, time of change, when that was first seen here
        self._released = threading.Event()

    def take(self) -> Owner | None:
        """None: the run is this process's now. Otherwise who has it; ask again, for an owner elsewhere may be gone."""
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
            number += 1  # somebody else was faster

    def wait(self, say: Callable[[Owner], None]) -> None:
        """Takes the run, when whoever has it is done; ``say`` is told of each owner once."""
        told = None
        while (owner := self.take()) is not None:
            if owner != told:
                say(owner)
                told = owner
            time.sleep(0.5)

    def release(self, finished: bool) -> None:
        """Gives the run back; of one that is finished no claims stay."""
        self._released.set()
        if finished:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        with contextlib.suppress(OSError):  # on a full disk the end of this process says the same
            files.write_json(self.folder / str(self.number), {"released": True})

    def _make(self, number: int) -> bool:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with open(self.folder / str(number), "x") as file:
                json.dump(asdict(Owner.me()), file)
        except FileExistsError:
            return False
        return True

    def _living(self, number: int) -> tuple[Owner | None, bool]:
        """The owner of a claim if there still is one; and whether there was one who did not give it back."""
        path = self.folder / str(number)
        data: Any = files.read_json(path)
        if isinstance(data, dict) and "released" in data:
            return None, False
        owner = Owner(**data) if isinstance(data, dict) else Owner("another process", 0, 0.0, "", None)
        if owner.machine == _machine():
            return (owner, False) if _born(owner.pid) == owner.born and owner.born != "" else (None, True)
        try:
            changed = path.stat().st_mtime_ns
        except OSError:
            return None, False  # finished meanwhile
        now = time.monotonic()
        if (number, changed) != self._seen[:2]:
            self._seen = number, changed, now
        return (owner, False) if now - self._seen[2] < self.lease else (None, True)

    def _beat(self) -> None:
        while not self._released.wait(BEAT):
            if _latest(self.folder) > self.number:
                print(f"ssl-bench: {self.folder.parent} was given to another process meanwhile", file=sys.stderr)
                os._exit(1)
            try:
                os.utime(self.folder / str(self.number))
            except OSError:
                continue  # a file system that is away for a moment


def owner(folder: Path) -> Owner | None:
    """Who seems to be carrying out the run in ``folder``: the owner of its newest claim, unless it is surely gone.

    Of an owner elsewhere the time of the last touch is compared with this machine's clock.
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


def _latest(claims: Path) -> int:
    try:
        return max((int(name) for name in os.listdir(claims) if name.isdigit()), default=0)
    except OSError:
        return 0


@cache
def _machine() -> str:
    """This machine since it was started, and where in it process numbers mean the same (containers have their own)."""
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


def _born(pid: int) -> str | None:
    """When a process was started, which tells it from a later one of the same number; "" if there is none.

    None where that is not told: not on Linux, and the process is there.
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
