"""Locks: one process at a time carries out a run, of all machines that share its directory.

A lock is a claim (``record/claim.py``), a file that is created by an exclusive open. That is atomic on local file
systems and on NFS from version 3 on; locks of the file system are not used. A waiter takes over from an owner that is
gone by creating the next number, which only one of many waiters can.

An owner on this machine is gone if its process is. An owner on another machine touches its file every ten seconds; it
is gone if the file has not changed for 90 seconds, by the clock of the observer. Only a claim that is seen unchanged,
or is not there, has ended: one of which the file system says nothing has not.
"""

import contextlib
import errno
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.disk import temporary
from ssl_bench.disk.liveness import alive, machine
from ssl_bench.disk.patience import NoAnswer, make_folder, patiently, status, unwritable
from ssl_bench.record.claim import BEAT, Claim, Owner, latest
from ssl_bench.record.results import is_finished

LEASE = 90.0  # longer than a minute, for which NFS may show an old state of a file


class Lock:
    """The lock of this process on a run.

    Args:
        folder: the run's directory.
        lease: seconds without a change after which an owner on another machine is gone.
        saves: whether what this process does with the run ends by itself once another process has it
            (``Claim.watched``). Otherwise the process exits.

    Attributes:
        other: the owner that the last try has found.
        claim: of this process; None: it has no lock.
    """

    def __init__(self, folder: Path, lease: float = LEASE, saves: bool = False) -> None:
        self.folder, self.lease, self.saves = folder.absolute() / "claims", lease, saves
        self.other: Owner | None = None
        self.claim: Claim | None = None
        self._seen: tuple[int, int, float] = (0, 0, 0.0)  # number, time of change, when this process first saw that
        self._released = threading.Event()

    def take(self) -> Owner | None:
        """Try to take the run. Return None on success, else the owner; ask again later, it may be gone then.

        The temporary files that others have left in the run's directory are removed.

        Raises:
            NoAnswer: the file system does not say whether there is an owner, so there may be one.
            OSError: the folder cannot be written, or is a link, perhaps to files of somebody else.
        """
        if os.path.islink(self.folder):
            raise OSError(errno.ELOOP, "it is a link", str(self.folder))
        number = latest(self.folder)
        while not number or (owner := self.owner(number)) is None:
            number += 1
            if self._make(number):
                self.other, self.claim = None, Claim(self.folder, number)
                temporary.remove_from_run(self.folder.parent, owned=True)
                threading.Thread(target=self._beat, args=(self.claim,), daemon=True).start()
                return None
        self.other = owner
        return owner

    def holds(self) -> bool:
        """Whether the run is known to be still that of this process."""
        with contextlib.suppress(NoAnswer):
            return self.claim is not None and not self.claim.lost_to()
        return False

    def release(self, finished: bool) -> None:
        """Give the run back, unless another process has it. The locks of a finished run are removed."""
        assert self.claim is not None
        self._released.set()
        with contextlib.suppress(OSError, NoAnswer):  # on a full disk the end of this process has the same effect
            if finished and self.holds():
                _remove(self.folder)
            else:
                files.write_json(self.folder / str(self.claim.number), {"released": True})

    def owner(self, number: int) -> Owner | None:
        """The owner of a lock; None if it has released the lock or is gone.

        Raises:
            NoAnswer: that cannot be known. The time without an answer is no time without a change.
        """
        path = self.folder / str(number)
        try:
            content: Any = files.read_json(path, named=False)
            if isinstance(content, dict) and "released" in content:
                return None
            owner = Owner.read(content)
            if owner.machine == machine():
                return owner if alive(owner.pid, owner.born) else None
            if (at_path := status(path)) is None:
                return None  # the run has finished meanwhile
        except NoAnswer:
            self._seen = 0, 0, 0.0
            raise
        now = time.monotonic()
        if (number, at_path.st_mtime_ns) != self._seen[:2]:
            self._seen = number, at_path.st_mtime_ns, now
        return owner if _holds(path, owner, now - self._seen[2] < self.lease) else None

    def _make(self, number: int) -> bool:
        """Create a lock; return False if another process was faster."""
        path = self.folder / str(number)

        def create() -> None:
            file = open(path, "x")  # noqa: SIM115
            try:
                with file:
                    json.dump(asdict(Owner.this_process()), file)
            except BaseException:  # a claim without an owner, as on a full disk, would hold all others up
                files.remove(path)
                raise

        make_folder(self.folder)
        try:
            patiently(create)
        except (FileExistsError, FileNotFoundError):  # the latter: the run has finished, and its locks were removed
            return False
        return True

    def _beat(self, claim: Claim) -> None:
        """Touch the lock every ten seconds, until another process has the run."""
        while not self._released.wait(BEAT):
            with contextlib.suppress(OSError, NoAnswer):  # the file system is unreachable for a moment
                if latest(self.folder) > claim.number:
                    return None if self.saves else _exit(f"{self.folder.parent} was taken over by {claim.lost_to()}")
                os.utime(self.folder / str(claim.number))


def _exit(sentence: str) -> None:
    print(f"ssl-bench: {sentence}", file=sys.stderr, flush=True)
    os._exit(1)


@contextlib.contextmanager
def locked(folder: Path, wait: bool, saves: bool = False) -> Iterator[Lock]:
    """Hold the lock on the run in ``folder``; yield it. It has an ``other`` owner if there is one and not ``wait``.

    A process that waits also waits for a file system that does not answer.

    Args:
        saves: as of :class:`Lock`.

    Raises:
        ConfigError: the folder cannot be written.
        NoAnswer: its file system does not answer, and ``wait`` is False.
    """
    lock, announced = Lock(folder, saves=saves), ""
    try:
        while (obstacle := _obstacle(lock, folder, wait)) and wait:
            if obstacle != announced:
                print(f"{obstacle}: waiting", flush=True)
            announced = obstacle
            time.sleep(0.5)
    except OSError as error:
        raise unwritable(error) from error
    try:
        yield lock
    finally:
        if lock.claim is not None:
            lock.release(_finished(folder))


def _obstacle(lock: Lock, folder: Path, wait: bool) -> str:
    """Try to take a run; return why that is impossible, or empty."""
    try:
        return f"{folder} is being trained by {owner}" if (owner := lock.take()) else ""
    except NoAnswer as error:
        if not wait:
            raise
        return str(error)


def _finished(folder: Path) -> bool:
    try:
        return is_finished(folder)
    except NoAnswer:
        return False


def owner(folder: Path) -> Owner | None:
    """The process that carries out the run in ``folder``, as far as one look can tell.

    For an owner on another machine, the time of the last touch is compared with this machine's clock.

    Raises:
        NoAnswer: the file system does not say whether there is one.
    """
    lock = Lock(folder)
    number = latest(lock.folder)
    claimed_by = lock.owner(number) if number else None
    if claimed_by is None or claimed_by.machine == machine():
        return claimed_by
    claim = status(path := lock.folder / str(number))
    if claim is None:
        return None
    return claimed_by if _holds(path, claimed_by, time.time() - claim.st_mtime < LEASE) else None


def _holds(path: Path, claimed_by: Owner, fresh: bool) -> bool:
    """Whether a claim of another machine holds: it is fresh. One that names no owner, though it is not, is named."""
    if not fresh and not claimed_by.pid:
        files.say_damaged(path)
    return fresh


def remove_locks(folder: Path) -> None:
    """Remove the locks that a process has left which was killed after it had finished the run."""
    with contextlib.suppress(OSError, NoAnswer):
        if owner(folder) is None:
            _remove(folder / "claims")


def _remove(claims: Path) -> None:
    """Remove the claims of a run, whose names are numbers from 1 on, and their folder if nothing else is in it."""
    if not os.path.islink(claims):
        for number in range(1, latest(claims) + 1):
            files.remove(claims / str(number))
        temporary.remove(claims, owned=True)
        patiently(lambda: claims.rmdir())
