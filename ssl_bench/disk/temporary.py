"""Temporary files and folders, whose names say which process made them.

``.<name>.<machine>-<pid>-<start>-<n>.tmp``     beside the file <name> that it becomes
``ssl-bench-<machine>-<pid>-<start>-<n>``       in TMPDIR

A process removes its own. What a killed one has left goes with the next process that takes the run whose file it would
have become, or that needs a folder in TMPDIR; what a living one is writing stays. Nothing else is ever removed: a name
must be one of these to the letter.
"""

import contextlib
import hashlib
import itertools
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ssl_bench.disk.liveness import alive, machine, start_time
from ssl_bench.disk.patience import patiently

_PROCESS = r"(?P<machine>[0-9a-f]{8})-(?P<pid>\d+)-(?P<born>\d*)-\d+"
_FILE, _FOLDER = re.compile(rf"\..+\.{_PROCESS}\.tmp", re.DOTALL), re.compile(f"ssl-bench-{_PROCESS}")
OF_A_RUN = ("", "checkpoints", "figures", "hits", "labels")  # folders that a run writes files to
LONGEST = 40  # characters of <name>, so that any name has a temporary one
_numbers = itertools.count()


def beside(path: Path) -> Path:
    """A new name for a temporary file in the folder of ``path``."""
    return path.with_name(f".{path.name[:LONGEST]}.{_process()}.tmp")


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """An empty folder in TMPDIR for this user alone, which is removed at the end of the block."""
    path = make_folder(Path(tempfile.gettempdir()))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def make_folder(parent: Path) -> Path:
    """Make an empty folder in ``parent`` for this user alone, and remove those of processes that have ended."""
    for name in _names(parent):
        if (match := _FOLDER.fullmatch(name)) and _has_ended(match, owned=False):
            shutil.rmtree(parent / name, ignore_errors=True)
    path = parent / f"ssl-bench-{_process()}"
    path.mkdir(mode=0o700)
    return path


def remove_from_run(run: Path, owned: bool = False) -> None:
    """Remove the temporary files of processes that have ended from the directory of a run; no link is followed.

    Args:
        owned: nobody else may write there: remove also those of other machines, whose processes cannot be seen.
    """
    for folder in (run / name for name in OF_A_RUN):
        if folder == run or not os.path.islink(folder):
            remove(folder, owned)


def remove(folder: Path, owned: bool = False) -> None:
    """Remove the temporary files in a folder of the package, but not in those inside it, whose processes have ended."""
    for name in _names(folder):
        path = folder / name
        if (match := _FILE.fullmatch(name)) and _has_ended(match, owned) and not os.path.islink(path):
            with contextlib.suppress(OSError):  # such as of a folder
                patiently(path.unlink)


def _has_ended(match: re.Match[str], owned: bool) -> bool:
    if match["machine"] != _machine():
        return owned
    return not alive(int(match["pid"]), match["born"] or None)


def _names(folder: Path) -> list[str]:
    try:
        return patiently(lambda: os.listdir(folder))
    except OSError:  # no folder, or one that cannot be read
        return []


def _process() -> str:
    """A name that only this process has, with a number that it uses once."""
    return f"{_machine()}-{os.getpid()}-{_born(os.getpid()) or ''}-{next(_numbers)}"


@cache
def _machine() -> str:
    return hashlib.sha256(machine().encode()).hexdigest()[:8]


@cache
def _born(pid: int) -> str | None:
    return start_time(pid)
