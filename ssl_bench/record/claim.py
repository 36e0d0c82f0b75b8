"""Claims: which process carries out a run, of all machines that share its directory.

A claim is a file ``claims/<n>`` in the directory, which names its owner. The highest number is the valid one, and
numbers are never used twice while a run is unfinished. ``launch/lock.py`` makes claims and takes over those of owners
that are gone.

An owner that was suspended, or could not reach the file system, may find that another process has its run. What it
still writes must not reach the files of the new one:

* It looks at the claims before each row of metrics, and when a new checkpoint is on the disk, right before it renames
  it (``checkpoint.py``). If the run is no longer its own, it writes nothing and ends.
* A new owner first makes its claim and then removes all temporary files, before it reads any file. A renaming that
  comes after that finds no file to rename; what one before it has written, the new owner reads.
"""

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from ssl_bench import files
from ssl_bench.disk.liveness import machine, start_time
from ssl_bench.disk.patience import NoAnswer, answer
from ssl_bench.disk.shapes import Bounds, fits
from ssl_bench.errors import RunError
from ssl_bench.signals import Interrupt, Interrupted

BEAT = 10.0  # seconds between two looks of an owner


class Taken(RunError):
    """Another process has the run of this one."""

    def __init__(self, run: Path, owner: str) -> None:
        super().__init__(f"{run} was taken over by {owner}")


@dataclass(frozen=True)
class Owner:
    """The process that carries out a run. ``since`` is in seconds of the epoch, ``born`` in the kernel's ticks."""

    host: str
    pid: int
    since: Annotated[float, Bounds(0, 2**35)]
    machine: str
    born: str | None

    @classmethod
    def this_process(cls) -> "Owner":
        return cls(socket.gethostname(), os.getpid(), round(time.time(), 3), machine(), start_time(os.getpid()))

    @classmethod
    def read(cls, content: Any) -> "Owner":
        """The owner that a claim names; an unknown one, on another machine, while the claim is being written."""
        if not fits(content, cls):
            return cls("another process", 0, 0.0, "", None)
        return cls(**{field.name: content[field.name] for field in fields(cls)})

    def __str__(self) -> str:
        if not self.pid:
            return self.host
        return f"{self.host} (process {self.pid}) since {time.strftime('%H:%M:%S', time.localtime(self.since))}"


@dataclass(frozen=True)
class Claim:
    """The claim of a process on a run, for all processes that carry it out.

    Attributes:
        folder: of the claims.
        number: of this one.
    """

    folder: Path
    number: int

    def lost_to(self) -> str:
        """Who has the run instead of this process; empty while it is its own.

        Raises:
            NoAnswer: that cannot be known.
        """
        valid = latest(self.folder)
        if valid == self.number:
            return ""
        if valid < self.number:
            return "another process, which has ended it"
        return str(Owner.read(files.read_json(self.folder / str(valid), named=False)))

    def require(self) -> None:
        """Raise :class:`Taken` if another process has the run."""
        if owner := self.lost_to():
            raise Taken(self.folder.parent, owner)

    @contextlib.contextmanager
    def watched(self, interrupt: Interrupt) -> Iterator[None]:
        """Stop the run in the block once another process has it; its next checkpoint, or the end, raises Taken."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(BEAT):
                with contextlib.suppress(NoAnswer):  # then it is still its own, as far as one can tell
                    if self.lost_to():
                        return interrupt.ask(signal.SIGTERM)

        threading.Thread(target=watch, daemon=True).start()
        try:
            yield
        except Interrupted:
            with contextlib.suppress(NoAnswer):
                self.require()
            raise
        finally:
            ended.set()


def latest(folder: Path) -> int:
    """The highest number of a claim in ``folder``; 0 if there is none.

    Raises:
        NoAnswer: that cannot be known.
    """
    try:
        names = answer(folder, lambda: os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return 0
    return max((int(name) for name in names if name.isdecimal()), default=0)
