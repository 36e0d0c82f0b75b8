"""A hash of the files that a dataset reads: its images are part of a run's identity, the path of its folder is not."""

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

    At most 1,024 files are read, equally spaced in the list, with the first and the last. Hashed are the size of each
    and pieces of it, equally spaced from its start to its end: two, or if the files are few, 1,024 in all files
    together. A file that is no longer than its pieces is read wholly.

    Args:
        paths: of the files, in a fixed order.
        root: the folder that their names do not depend on.
        whole: read all bytes of all files instead.

    Raises:
        OSError: a file cannot be read.
    """
    digest = hashlib.sha256("\0".join(os.path.relpath(path, root) for path in paths).encode(errors="surrogateescape"))
    chosen = [paths[i] for i in _equally_spaced(len(paths), len(paths) if whole else PIECES)]
    for path in chosen:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(b"\0%d\0" % size)
            count = max(2, PIECES // len(chosen))
            if whole or size <= count * PIECE:
                digest.update(hashlib.file_digest(file, "sha256").digest())  # type: ignore[arg-type]
                continue
            for start in _equally_spaced(size - PIECE + 1, count):
                digest.update(os.pread(file.fileno(), PIECE, start))
    return digest.hexdigest()[:DIGITS]


def _equally_spaced(length: int, count: int) -> list[int]:
    """At most ``count`` of the numbers from 0 to ``length`` - 1, equally spaced, with the first and the last."""
    if length <= count:
        return list(range(length))
    return [i * (length - 1) // (count - 1) for i in range(count)]
