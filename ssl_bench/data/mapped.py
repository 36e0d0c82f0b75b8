"""Files that are mapped into memory: one that is cut short while it is read would end the process without a word."""

import os
from pathlib import Path

from ssl_bench import files
from ssl_bench.errors import RunError


class MappedFiles:
    """The sizes of files when they were mapped."""

    def __init__(self) -> None:
        self._sizes: dict[Path, tuple[int, int, int]] = {}  # device, inode, bytes

    def add(self, path: Path) -> None:
        """Note a file that is about to be mapped; an OSError if it is no regular one."""
        with files.open_regular(path) as file:
            status = os.fstat(file.fileno())
        self._sizes[path] = status.st_dev, status.st_ino, status.st_size

    def check(self) -> None:
        """Refuse to read files that have become shorter; one that was replaced stays whole where it is mapped.

        Raises:
            RunError: naming the file.
        """
        for path, (device, inode, size) in self._sizes.items():
            try:
                status = os.stat(path)
            except OSError:
                continue
            if (status.st_dev, status.st_ino) == (device, inode) and status.st_size < size:
                raise RunError(f"{path} was cut short while it was read: get it again, then the same command resumes")
