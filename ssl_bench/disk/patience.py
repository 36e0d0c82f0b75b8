"""File systems that fail for a moment, as those of a network do.

Only a few errors say that there is no file. Others say nothing about it: reading and writing are then tried again, and
a file whose state stays unknown never counts as missing (:class:`NoAnswer`).
"""

import errno
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ssl_bench.errors import ConfigError, RunError, printable

Result = TypeVar("Result")

# Errors of a file system that is out of reach, of a file that another machine has replaced, or of a process that may
# open no further file.
_NAMES = "EIO ESTALE EINTR EAGAIN ETIMEDOUT ENOTCONN ECONNRESET EREMOTEIO EHOSTDOWN EHOSTUNREACH EMFILE ENFILE ENOMEM"
NO_ANSWER = {getattr(errno, name) for name in _NAMES.split() if hasattr(errno, name)}  # not every system has each
NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
PAUSES = (0.05, 0.2, 1.0, 4.0)  # seconds before each further try


class NoAnswer(RunError):
    """A file system has not said, in several tries, what is in a file or whether there is one."""


def patiently(call: Callable[[], Result]) -> Result:
    """Call, and call again after each of ``PAUSES`` while the file system gives no answer; the last error is raised."""
    for pause in PAUSES:
        try:
            return call()
        except OSError as error:
            if error.errno not in NO_ANSWER:
                raise
        time.sleep(pause)
    return call()


def answer(path: str | Path, call: Callable[[], Result]) -> Result:
    """Return the result of ``call``, which asks a file system about ``path``, or raise its OSError.

    Raises:
        NoAnswer: it says nothing.
    """
    try:
        return patiently(call)
    except OSError as error:
        if error.errno not in NO_ANSWER:
            raise
        remedy = "its file system does not answer; try again when it does"
        raise NoAnswer(printable(f"{path}: {error.strerror}: {remedy}")) from error


def status(path: str | Path, follow: bool = True) -> os.stat_result | None:
    """The status of a file or folder, of a link itself if not ``follow``; None if there is none.

    Raises:
        NoAnswer: that cannot be known.
        OSError: this user may not know it.
    """
    try:
        return answer(path, lambda: os.stat(path, follow_symlinks=follow))
    except OSError as error:
        if error.errno in NOT_THERE:
            return None
        raise


def exists(path: str | Path) -> bool:
    """Whether there is a file, a folder or a link; errors as those of :func:`status`."""
    return status(path, follow=False) is not None


def is_file(path: str | Path) -> bool:
    """Whether there is a regular file, or a link to one; errors as those of :func:`status`."""
    at_path = status(path)
    return at_path is not None and stat.S_ISREG(at_path.st_mode)


def make_folder(path: Path) -> None:
    """Make a folder, and those that it is in, unless there is one."""
    patiently(lambda: path.mkdir(parents=True, exist_ok=True))


def unwritable(error: OSError) -> ConfigError | RunError:
    """The refusal of a results folder that cannot be written."""
    path = error.filename or "paths.outputs"
    if error.errno in NO_ANSWER:
        return RunError(f"{path}: {error.strerror}; after fixing that, the same command resumes")
    return ConfigError(f"{path}: {error.strerror}; set paths.outputs to a folder that can be written")
