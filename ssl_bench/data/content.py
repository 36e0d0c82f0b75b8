"""A hash of the files that a dataset reads: its images are part of the identity of a run, wherever they lie."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from ssl_bench.files import open_regular

PIECE = 4096  # bytes that are read at once
PIECES = 1024  # of all files together
DIGITS = 10


def content_of(paths: Sequence[Path], root: Path, whole: bool) -> str:
    """Hash the names of all files, and the bytes of some: it takes tens of milliseconds.

    Read are at most 1,024 files at equal distances, the first and the last among them, and of each its size, both of
    its ends and pieces at equal distances between them. A few files, as of prepared arrays, have 1,024 pieces in all; a
    file that is no longer than its pieces is read wholly.

    Args:
        paths: of the files, in a fixed order.
        root: the folder that their names do not depend on.
        whole: read all bytes of all files instead.

    Raises:
        OSError: a file cannot be read.
    """
    found = hashlib.sha256("\0".join(os.path.relpath(path, root) for path in paths).encode(errors="surrogateescape"))
    chosen = [paths[i] for i in _spread(len(paths), len(paths) if whole else PIECES)]
    for path in chosen:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            found.update(b"\0%d\0" % size)
            count = max(2, PIECES // len(chosen))
            if whole or size <= count * PIECE:
                found.update(hashlib.file_digest(file, "sha256").digest())  # type: ignore[arg-type]
                continue
            for start in _spread(size - PIECE + 1, count):
                found.update(os.pread(file.fileno(), PIECE, start))
    return found.hexdigest()[:DIGITS]


def _spread(length: int, count: int) -> list[int]:
    """At most ``count`` of the numbers from 0 to below ``length``, at equal distances, the first and the last too."""
    if length <= count:
        return list(range(length))
    return [i * (length - 1) // (count - 1) for i in range(count)]
