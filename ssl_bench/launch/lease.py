"""A lease on the directory of a run: of all processes, also of other machines, one carries out the run.

The lease is filelock's, the file ``lease`` in the directory: only one process can create it, and this owner touches the
file every ten seconds. Another process takes the lease over when the owner is gone: at once if the owner was a process
of this machine and has ended, else when the file has not changed for 90 seconds by the clock of the waiting process.

An owner that was suspended, or could not reach the file system, may have lost its lease to another process. It must not
write into the new owner's files: before a file in the directory is replaced or a row is added, the token in the lease
is compared with the process's own token (:meth:`Claim.require`, by :func:`ssl_bench.files.guarded`). A new owner first
removes the temporary files of former owners, so that these cannot rename them any more.
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
    """Another process has the lease of the run."""


class Claim(NamedTuple):
    """The lease of a run as its owner sees it, handed to all processes that carry out the run."""

    run: Path
    token: str

    def lost_to(self) -> str:
        """The process that has the lease instead of this one; empty while this process has it.

        Raises:
            FileSystemUnavailable: the lease cannot be read.
        """
        with contextlib.suppress(FileNotFoundError):
            if f"\ntoken={self.token}\n" in files.read_bytes(self.run / LEASE).decode(errors="replace"):
                return ""
        return str(owner(self.run) or "one that has ended")

    def require(self) -> None:
        """Raise :class:`Taken` if another process has the lease."""
        if other := self.lost_to():
            raise Taken(f"{self.run}: another process trains it: {other}")


@contextlib.contextmanager
def held(run: Path, wait: bool) -> Iterator[Claim]:
    """Hold the lease of a run, and compare its token before each write to the directory.

    Args:
        wait: wait for the end of another process that has the lease.

    Raises:
        Taken: another process has the lease.
        ConfigError: the directory cannot be written.
    """
    claim, is_over = Claim(run.absolute(), ""), threading.Event()

    def stop(lost: LeaseCompromise) -> None:
        """Stop the run, whose lease another process has; its next write raises Taken."""
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
    last_mark, since = None, 0.0
    while True:
        with contextlib.suppress(Timeout):
            files.retry(lambda: lease.acquire(timeout=0), run)
            _remove_temporary(run)
            return
        other, status = owner(run), files.status(run / LEASE)
        if other and not wait:
            raise Taken(f"{run}: another process trains it: {other}")
        if other and last_mark is None:
            print(f"{run} is being trained by {other}: waiting", flush=True)
        if status and files.mark(status) != last_mark:
            last_mark, since = files.mark(status), time.monotonic()
        elif status and time.monotonic() - since > runs.LEASE_SECONDS + BEAT:
            files.remove(run / LEASE)
        time.sleep(0.2)


def remove_stale(run: Path) -> None:
    """Remove the lease of a process that was killed after it had finished the run."""
    with contextlib.suppress(OSError, ConfigError, RunError):
        if files.exists(run / LEASE):
            with held(run, wait=False):
                pass


def _remove_temporary(run: Path) -> None:
    """Remove the temporary files of processes that were killed while they wrote a file or took over the lease."""
    for name in WRITTEN:
        if not name or not os.path.islink(run / name):
            files.remove_temporary(run / name)
    for path in files.retry(lambda: [*run.glob(f"{LEASE}.*")], run):
        files.remove(path)
