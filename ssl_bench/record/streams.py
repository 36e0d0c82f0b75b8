"""Standard output and error outlive their reader: a closed terminal or pipe ends no run, and no grid between runs."""

import io
import os
import sys


class LastingStream(io.TextIOWrapper):
    """A standard stream whose text goes nowhere once it cannot be written: a closed pipe or terminal, a full disk."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            drop(self.fileno())
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            drop(self.fileno())
            super().flush()


def outlive_reader() -> None:
    """Make standard output and error of this process lasting streams, unless a program has redirected them."""
    for name, descriptor in {"stdout": 1, "stderr": 2}.items():
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream is getattr(sys, f"__{name}__"):
            binary = io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False))
            lines = descriptor == 2 or stream.isatty()
            setattr(sys, name, LastingStream(binary, stream.encoding, "backslashreplace", line_buffering=lines))


def drop(descriptor: int = 1) -> None:
    """Let a descriptor write to nowhere: also for libraries and child processes."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
