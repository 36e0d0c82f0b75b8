"""Caches: files of JSON lines, which spare reading many small files again.

A cache may be deleted at any time. A damaged line counts as missing, like a file that is too large or cannot be read.
"""

import contextlib
import gc
import json
import os
import socket
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ssl_bench import files

LARGEST = 2**28  # bytes: the cache of 50,000 runs has a tenth
FEW, SHARE = 64, 0.01  # a cache is not written for fewer changes, nor for a smaller share of its lines


def load(path: Path) -> Iterator[Any]:
    """The values in a cache."""
    with contextlib.suppress(OSError):
        if path.stat().st_size <= LARGEST:
            for line in files.read_lines(path):
                with contextlib.suppress(ValueError):
                    yield files.parse_json(line)


def save(path: Path, values: Iterable[Any], changes: int, count: int) -> bool:
    """Replace a cache, if enough of its ``count`` lines changed to make that worth it, and return whether they did.

    A folder that cannot be written gets no cache.
    """
    if changes <= max(FEW, SHARE * count):
        return False
    # Unlike in files.write the name is unique among processes of several machines, too.
    temporary = Path(f"{path}.{socket.gethostname()}.{os.getpid()}.{time.time_ns()}")
    with contextlib.suppress(OSError):
        try:
            with open(temporary, "x") as file:
                file.writelines(as_json(value) + "\n" for value in values)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    return True


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Stop the garbage collector, which would look at all new objects several times, and find nothing to free."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def as_json(value: Any) -> str:
    """A value as JSON in one line."""
    return json.dumps(value, separators=(",", ":"), default=str)
