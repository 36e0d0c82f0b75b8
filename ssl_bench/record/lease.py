"""Which process carries out a run: a lease on its directory, of all machines that share it.

The lease is filelock's, the file ``lease`` in the directory: one process only can make it, and its owner touches it
every ten seconds. Another process takes it over once the owner is gone: at once if that was a process of this machine
and has ended, else if the file has not changed for 90 seconds by the clock of the one that waits.

An owner that was suspended, or could not reach the file system, may find that another process has its run. What it
still writes must not reach the files of the new one: before it writes a row, renames a checkpoint or writes results, it
compares the token in the lease with its own (:meth:`Claim.require`). A new owner first removes the temporary files of
all others, so that a renaming which comes after that finds no file to rename.
"""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from filelock import LeaseCompromise, SoftFileLease, Timeout

from ssl_bench import files
from ssl_bench.errors import RunError
from ssl_bench.signals import Interrupt

FILE = "lease"  # in the directory of a run
DURATION, BEAT = 90.0, 10.0  # seconds: longer than a minute, for which NFS may show an old state of a file
WRITTEN = ("", "checkpoints", "figures", "hits", "labels")  # folders that a run writes files to
NAMESPACE = Path("/proc/self/ns/pid")  # of Linux's PIDs; filelock writes any but the first one behind the host
FIRST = 0xEFFFFFFC


class Taken(RunError):
    """Another process has the run of this one."""

    def __init__(self, run: Path, owner: str) -> None:
        super().__init__(f"{run}: another process trains it: {owner}")


class Owner(NamedTuple):
    """The process that carries out a run, on a machine."""

    host: str
    pid: int

    def __str__(self) -> str:
        return f"{self.host} (process {self.pid})"


class Claim(NamedTuple):
    """What an owner knows of its lease, for all processes that carry out the run."""

    run: Path
    token: str

    def lost_to(self) -> str:
        """Who has the run instead of this process; empty while it is its own.

        Raises:
            FileSystemUnavailable: that cannot be known.
        """
        with contextlib.suppress(FileNotFoundError):
            if f"\ntoken={self.token}\n" in files.read_bytes(self.run / FILE).decode(errors="replace"):
                return ""
        return str(owner(self.run) or "one that has ended")

    def require(self) -> None:
        """Raise :class:`Taken` if another process has the run."""
        if other := self.lost_to():
            raise Taken(self.run, other)


@contextlib.contextmanager
def held(run: Path, wait: bool) -> Iterator[Claim | Owner]:
    """Hold the lease of a run; yield the claim, or the owner if another process has it and this one does not ``wait``.

    Raises:
        ConfigError: the directory cannot be written.
    """
    lease = SoftFileLease(run / FILE, lease_duration=DURATION, heartbeat_interval=BEAT, on_compromise=_stop)
    claim: Claim | Owner | None = None
    try:
        try:
            files.make_folder(run)
            claim = _take(lease, run, wait) or Claim(run.absolute(), lease.token or "")
        except OSError as error:
            raise files.unwritable(error) from error
        yield claim
    finally:
        try:
            lease.release()
        except OSError:  # the end of this process has the same effect, but it may be far
            with contextlib.suppress(files.FileSystemUnavailable):
                if isinstance(claim, Claim) and not claim.lost_to():
                    files.remove(run / FILE)


def _take(lease: SoftFileLease, run: Path, wait: bool) -> Owner | None:
    """Take a lease; return its owner if that is another process and this one does not wait.

    filelock itself takes over by exchanging two names, which NFS does not do, and leaves a file without an owner alone:
    there this function removes the lease of an owner that is gone.
    """
    seen, since, other = files.status(run / FILE), time.monotonic(), None
    while True:
        with contextlib.suppress(Timeout):
            files.retry(lambda: lease.acquire(timeout=0), run)
            _remove_temporary(run)
            return None
        now = files.status(run / FILE)
        if now is None or seen is None or files.mark(now) != files.mark(seen):
            seen, since = now, time.monotonic()
        unchanged = time.monotonic() - since
        former, other = other, owner(run, unchanged)
        if other is None and unchanged > BEAT:  # else filelock, of this process or another one, takes it over
            files.remove(run / FILE)
        elif other and not wait and owner(run):
            return other
        elif other and other != former:
            print(f"{run} is being trained by {other}: waiting", flush=True)
        time.sleep(0.2)


def _stop(lost: LeaseCompromise) -> None:
    """Stop the run, which another process has; its next checkpoint, or the end, raises Taken."""
    if lost.reason == "refresh-failed":  # then it is still its own, as far as one can tell
        return
    if Interrupt.listening is not None:
        Interrupt.listening.ask(signal.SIGTERM)
    elif callable(signal.getsignal(signal.SIGTERM)):  # it passes the signal on to the ranks
        os.kill(os.getpid(), signal.SIGTERM)


def owner(run: Path, unchanged: float | None = None) -> Owner | None:
    """The process that carries out a run; None if there is none, or it is gone.

    Args:
        unchanged: the seconds for which this process has seen the lease unchanged; None: since it was touched, as far
            as the clocks of the machines are equal.
    """
    there = files.status(run / FILE)
    if there is None or (time.time() - there.st_mtime if unchanged is None else unchanged) > DURATION:
        return None
    record = SoftFileLease(run / FILE, lease_duration=DURATION, heartbeat_interval=BEAT).owner
    if record is None:  # its owner has just made the file, or has ended while it did
        return Owner("unknown", 0)
    namespace = NAMESPACE.stat().st_ino if NAMESPACE.exists() else FIRST
    if record.hostname == socket.gethostname() + f"?pidns-{namespace:x}" * (namespace != FIRST):
        with contextlib.suppress(PermissionError):  # of somebody else, and alive
            try:
                os.kill(record.pid, 0)
            except ProcessLookupError:
                return None
    return Owner(record.hostname.partition("?")[0], record.pid)


def remove_left(run: Path) -> None:
    """Remove what a process has left which was killed after it had finished the run."""
    with contextlib.suppress(OSError, files.FileSystemUnavailable):
        if files.exists(run / FILE) and owner(run) is None:
            _remove_temporary(run)
            files.remove(run / FILE)


def _remove_temporary(run: Path) -> None:
    """Remove what other processes have left that were killed while they wrote a file, or took over the lease."""
    for folder in (run / name for name in WRITTEN):
        if folder == run or not os.path.islink(folder):
            files.remove_temporary(folder)
    for path in files.retry(lambda: [*run.glob(f"{FILE}.*")], run):
        files.remove(path)
