"""Which process carries out a run: a lease on its directory, of all machines that share it.

The lease is the file ``lease`` in the directory, which one process only can make, and which its owner touches every ten
seconds. Another process takes it over once the owner is gone: at once if that was a process of this machine and has
ended, else if the file has not changed for 90 seconds by the clock of the one that waits.

An owner that was suspended, or could not reach the file system, may find that another process has its run. What it
still writes must not reach the files of the new one: before it writes a row, renames a checkpoint or writes results, it
compares the token in the lease with its own (:meth:`Claim.require`). A new owner first removes the temporary files of
all others, so that a renaming which comes after that finds no file to rename.
"""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import SoftFileLease, Timeout

from ssl_bench import files
from ssl_bench.errors import RunError
from ssl_bench.files import FileSystemUnavailable, status
from ssl_bench.signals import Interrupt, Interrupted

FILE = "lease"  # in the directory of a run
DURATION, BEAT = 90.0, 10.0  # seconds: longer than a minute, for which NFS may show an old state of a file
WRITTEN = ("", "checkpoints", "figures", "hits", "labels")  # folders that a run writes files to
INITIAL = 0xEFFFFFFC  # Linux's first namespace of PIDs; filelock writes another one, of a container, behind the host


class Taken(RunError):
    """Another process has the run of this one."""

    def __init__(self, run: Path, owner: str) -> None:
        super().__init__(f"{run}: another process trains it: {owner}")


@dataclass(frozen=True)
class Owner:
    """The process that carries out a run, on a machine."""

    host: str
    pid: int

    def __str__(self) -> str:
        return f"{self.host} (process {self.pid})"


@dataclass(frozen=True)
class Claim:
    """What an owner knows of its lease, for all processes that carry out the run."""

    run: Path
    token: str

    def lost_to(self) -> str:
        """Who has the run instead of this process; empty while it is its own.

        Raises:
            FileSystemUnavailable: that cannot be known.
        """
        for _ in range(3):  # a lease that is taken over may be missing for a moment
            with contextlib.suppress(FileNotFoundError):
                text = files.read_bytes(self.run / FILE).decode(errors="replace")
                return "" if f"\ntoken={self.token}\n" in text else str(owner(self.run) or "one that has ended")
            time.sleep(0.1)
        return "one that has ended"

    def require(self) -> None:
        """Raise :class:`Taken` if another process has the run."""
        if other := self.lost_to():
            raise Taken(self.run, other)

    @contextlib.contextmanager
    def watched(self, interrupt: Interrupt) -> Iterator[None]:
        """Stop the run in the block once another process has it; its next checkpoint, or the end, raises Taken."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(BEAT):
                with contextlib.suppress(FileSystemUnavailable):  # then it is still its own, as far as one can tell
                    if self.lost_to():
                        return interrupt.ask(signal.SIGTERM)

        threading.Thread(target=watch, daemon=True).start()
        try:
            yield
        except Interrupted:
            with contextlib.suppress(FileSystemUnavailable):
                self.require()
            raise
        finally:
            ended.set()


@contextlib.contextmanager
def held(run: Path, wait: bool) -> Iterator[Claim | Owner]:
    """Hold the lease of a run; yield the claim, or the owner if another process has it and this one does not ``wait``.

    filelock itself takes over by exchanging two names, which NFS does not do: there this function removes the file of
    an owner that is gone.

    Raises:
        ConfigError: the directory cannot be written.
    """
    lease, other = SoftFileLease(run / FILE, lease_duration=DURATION, heartbeat_interval=BEAT, thread_local=False), None
    try:
        files.make_folder(run)
        seen, since, changes = _mark(run), time.monotonic(), False
        while not files.retry(lambda: _take(lease), run):
            if (now := _mark(run)) != seen:
                seen, since, changes = now, time.monotonic(), True
            former, other = other, owner(run, time.monotonic() - since)
            if other is None and seen is not None:
                _break(run, seen)
            elif other and not wait and (changes or owner(run)):
                break
            elif other and other != former:
                print(f"{run} is being trained by {other}: waiting", flush=True)
            time.sleep(0.2)
        if lease.is_locked:
            _remove_temporary(run)
    except OSError as error:
        raise files.unwritable(error) from error
    claim = Claim(run.absolute(), lease.token) if lease.token else None
    try:
        yield claim or other or Owner("unknown", 0)
    finally:
        try:
            lease.release()
        except OSError:  # the end of this process has the same effect, but it may be far
            with contextlib.suppress(FileSystemUnavailable):
                if claim and not claim.lost_to():
                    files.remove(run / FILE)


def _take(lease: SoftFileLease) -> bool:
    with contextlib.suppress(Timeout):
        lease.acquire(timeout=0)
    return lease.is_locked


def _break(run: Path, seen: files.Mark) -> None:
    """Remove the lease of an owner that is gone. One that another process has taken since it was seen stays."""
    aside = run / f"{FILE}.break.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.rename(run / FILE, aside)
        if files.mark(os.lstat(aside)) != seen:
            with contextlib.suppress(FileExistsError):  # and a third one was faster: the token ends the second
                os.link(aside, run / FILE)
        os.unlink(aside)


def _mark(run: Path) -> files.Mark | None:
    there = status(run / FILE)
    return there and files.mark(there)


def owner(run: Path, unchanged: float | None = None) -> Owner | None:
    """The process that carries out a run; None if there is none, or it is gone.

    Args:
        unchanged: the seconds for which this process has seen the lease unchanged; None: since it was touched, as far
            as the clocks of the machines are equal.
    """
    if (there := status(run / FILE)) is None:
        return None
    if (time.time() - there.st_mtime if unchanged is None else unchanged) > DURATION:
        return None
    record = SoftFileLease(run / FILE, lease_duration=DURATION, heartbeat_interval=BEAT).owner
    if record is None:  # its owner has just made the file, or has ended while it did
        return Owner("unknown", 0)
    host, _, namespace = record.hostname.partition("?pidns-")
    here = os.stat("/proc/self/ns/pid").st_ino if os.path.exists("/proc/self/ns/pid") else INITIAL
    if (host, int(namespace, 16) if namespace else INITIAL) == (socket.gethostname(), here):
        with contextlib.suppress(PermissionError):  # of somebody else, and alive
            try:
                os.kill(record.pid, 0)
            except ProcessLookupError:
                return None
    return Owner(host, record.pid)


def remove_left(run: Path) -> None:
    """Remove what a process has left which was killed after it had finished the run."""
    with contextlib.suppress(OSError, FileSystemUnavailable):
        if files.exists(run / FILE) and owner(run) is None:
            _remove_temporary(run)
            files.remove(run / FILE)


def _remove_temporary(run: Path) -> None:
    for folder in (run / name for name in WRITTEN):
        if folder == run or not os.path.islink(folder):
            files.remove_temporary(folder)
