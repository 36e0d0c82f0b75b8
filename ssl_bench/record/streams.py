"""Standard output and error outlive their reader: a closed terminal or pipe ends no run, and no grid between runs."""

import io
import os
import sys
from typing import Any


class LastingFile(io.FileIO):
    """A standard stream whose text goes nowhere once it cannot be written: a closed pipe or terminal, a full disk."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            drop(self.fileno())
            return len(data)


def outlive_reader() -> None:
    """Make standard output and error of this process lasting streams, unless a program has redirected them."""
    for name, descriptor in {"stdout": 1, "stderr": 2}.items():
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream is getattr(sys, f"__{name}__"):
            binary = io.BufferedWriter(LastingFile(descriptor, "w", closefd=False))
            lines = descriptor == 2 or stream.isatty()
            setattr(sys, name, io.TextIOWrapper(binary, stream.encoding, "backslashreplace", line_buffering=lines))


def drop(descriptor: int = 1) -> None:
    """Let a descriptor write to nowhere: also for libraries and child processes."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
