"""Temporary files and folders, whose names say which process made them.

``.<name>.<machine>-<pid>-<start>-<n>.tmp``     beside the file <name> that it becomes
``ssl-bench-<machine>-<pid>-<start>-<n>``       in TMPDIR

A process removes its own. What a killed one has left is removed by the next command that takes the folder
(:func:`remove`), and what a living one is writing stays.
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

_NAME = re.compile(r"(?:\..*\.|ssl-bench-)(?P<machine>[0-9a-f]{8})-(?P<pid>\d+)-(?P<born>\d*)-\d+(?:\.tmp)?")
_FORMER = re.compile(r"\..*\.\d+")  # of version 0.3: .<name>.<pid>
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
    remove(parent)
    path = parent / f"ssl-bench-{_process()}"
    path.mkdir(mode=0o700)
    return path


def remove(folder: Path, inside: bool = False, owned: bool = False) -> None:
    """Remove the temporary files and folders in ``folder`` whose processes have ended.

    Args:
        inside: also those in the folders inside it.
        owned: nobody else may write there: remove also those of other machines, whose processes cannot be seen.
    """
    for path in _entries(folder):
        if _left_over(path.name, owned):
            with contextlib.suppress(OSError):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        elif inside:
            remove(path, owned=owned)


def _left_over(name: str, owned: bool) -> bool:
    match = _NAME.fullmatch(name)
    if match is None:
        return owned and _FORMER.fullmatch(name) is not None
    if match["machine"] != _machine():
        return owned
    return not alive(int(match["pid"]), match["born"] or None)


def _entries(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in os.listdir(folder)]
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
