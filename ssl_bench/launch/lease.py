"""Which process carries out a run: a lease on its directory, of all machines that share it.

The lease is filelock's, the file ``lease`` in the directory: one process only can make it, and its owner touches it
every ten seconds. Another process takes it over once the owner is gone: at once if that was a process of this machine
and has ended, else if the file has not changed for 90 seconds by the clock of the one that waits.

An owner that was suspended, or could not reach the file system, may find that another process has its run. What it
still writes must not reach the files of the new one: before a file in the directory is replaced or a row is added, the
token in the lease is compared with its own (:meth:`Claim.require`, by :func:`ssl_bench.files.guarded`). A new owner
first removes the temporary files of all others, so that a renaming which comes after that finds no file to rename.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from filelock import LeaseCompromise, SoftFileLease, Timeout

from ssl_bench import files
from ssl_bench.errors import ConfigError, RunError
from ssl_bench.record import runs
from ssl_bench.record.runs import LEASE, owner
from ssl_bench.signals import Interrupted

BEAT = 10.0  # seconds between two touches of a lease
WRITTEN = ("", "checkpoints", "figures", "hits", "labels")  # folders that a run writes files to


class Taken(RunError):
    """Another process has the run of this one."""


class Claim(NamedTuple):
    """The lease of a run as its owner sees it, handed to all processes that carry out the run."""

    run: Path
    token: str

    def lost_to(self) -> str:
        """The process that has the run instead of this one; empty while this one has it.

        Raises:
            FileSystemUnavailable: that cannot be known.
        """
        with contextlib.suppress(FileNotFoundError):
            if f"\ntoken={self.token}\n" in files.read_bytes(self.run / LEASE).decode(errors="replace"):
                return ""
        return str(owner(self.run) or "one that has ended")

    def require(self) -> None:
        """Raise :class:`Taken` if another process has the run."""
        if other := self.lost_to():
            raise Taken(f"{self.run}: another process trains it: {other}")


@contextlib.contextmanager
def held(run: Path, wait: bool) -> Iterator[Claim]:
    """Hold the lease of a run, and compare it before each write to its directory.

    Args:
        wait: until another process that has it has ended.

    Raises:
        Taken: another process has it.
        ConfigError: the directory cannot be written.
    """
    claim, is_over = Claim(run.absolute(), ""), threading.Event()

    def stop(lost: LeaseCompromise) -> None:
        """Stop the run, which another process has; its next write raises Taken."""
        listens = callable(signal.getsignal(signal.SIGTERM))  # the run, or what passes the signal on to its ranks
        # After a refresh that failed it is still its own, as far as one can tell.
        if listens and lost.reason != "refresh-failed" and not is_over.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    lease = SoftFileLease(run / LEASE, lease_duration=runs.LEASE_SECONDS, heartbeat_interval=BEAT, on_compromise=stop)
    try:
        with files.writing():
            files.make_folder(run)
            _take(lease, run, wait)
        claim = Claim(run.absolute(), lease.token or "")
        with files.guarded(run, claim.require):
            yield claim
    except Interrupted:  # by a signal from outside, or from the function above
        if claim.token:
            claim.require()
        raise
    finally:
        is_over.set()
        with contextlib.suppress(OSError, files.FileSystemUnavailable):
            lease.release()
        with contextlib.suppress(OSError, files.FileSystemUnavailable):
            if claim.token and not claim.lost_to():  # the end of this process gives it back, too
                files.remove(run / LEASE)


def _take(lease: SoftFileLease, run: Path, wait: bool) -> None:
    """Take a lease; raise Taken if another process has it and this one does not wait.

    filelock itself takes over by exchanging two names, which NFS does not do, and leaves a file without an owner alone:
    such a lease is removed once it has expired.
    """
    seen, since = None, 0.0
    while True:
        with contextlib.suppress(Timeout):
            files.retry(lambda: lease.acquire(timeout=0), run)
            _remove_temporary(run)
            return
        other, there = owner(run), files.status(run / LEASE)
        if other and not wait:
            raise Taken(f"{run}: another process trains it: {other}")
        if other and seen is None:
            print(f"{run} is being trained by {other}: waiting", flush=True)
        if there and files.mark(there) != seen:
            seen, since = files.mark(there), time.monotonic()
        elif there and time.monotonic() - since > runs.LEASE_SECONDS + BEAT:
            files.remove(run / LEASE)
        time.sleep(0.2)


def remove_left(run: Path) -> None:
    """Remove what a process has left which was killed after it had finished the run."""
    with contextlib.suppress(OSError, ConfigError, RunError):
        if files.exists(run / LEASE):
            with held(run, wait=False):
                pass


def _remove_temporary(run: Path) -> None:
    """Remove what other processes have left that were killed while they wrote a file, or took over the lease."""
    for name in WRITTEN:
        if not name or not os.path.islink(run / name):
            files.remove_temporary(run / name)
    for path in files.retry(lambda: [*run.glob(f"{LEASE}.*")], run):
        files.remove(path)
