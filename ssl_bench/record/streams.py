"""Standard output and error of a process: they outlive their reader, so that a closed terminal ends no run."""

import contextlib
import io
import os
import sys


class LastingStream(io.TextIOWrapper):
    """A standard stream that drops its text once it cannot be written: a closed pipe, terminal or full disk."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            self._drop()

    def _drop(self) -> None:
        """Let the descriptor write to nowhere: also for libraries and child processes."""
        _write_nowhere(self.fileno())
        super().flush()


def open_missing() -> None:
    """Open the standard streams with which this process was not started, such as after ``>&-``.

    Otherwise the first file that is opened gets descriptor 1, and what is printed goes into it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor: this one
            os.set_inheritable(null, True)
    sys.stdout = sys.stdout or _standard(1)
    sys.stderr = sys.stderr or _standard(2)


def outlive_reader() -> None:
    """Replace standard output and error of this process by lasting streams, unless a program has redirected them."""
    output = sys.stdout
    if output is sys.__stdout__ and output is not None:
        with contextlib.suppress(OSError):
            output.flush()
        sys.stdout = _standard(1)
    if sys.stderr is not None and sys.stderr is sys.__stderr__:
        sys.stderr = _standard(2)


def drop_output() -> None:
    """Drop what is still to be written to standard output, whose reader is gone."""
    _write_nowhere(1)
    if sys.stdout is not None:
        sys.stdout.flush()


def _standard(descriptor: int) -> LastingStream:
    binary = io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False))
    former = sys.__stdout__
    lines = descriptor == 2 or binary.raw.isatty()
    return LastingStream(binary, former.encoding if former else "utf-8", "backslashreplace", line_buffering=lines)


def _write_nowhere(descriptor: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
