"""Atomic writes: a file has its whole old content or its whole new content, never a part.

The new content goes to a temporary file beside it, is flushed to the disk, and the file is renamed.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO


def write(path: Path, fill: Callable[[BinaryIO], Any]) -> None:
    """Replace ``path`` by what ``fill`` writes into the open file that it is given."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with _with_file_name(path), open(temporary, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def append(path: Path, text: str) -> None:
    """Add ``text`` to the end of ``path``."""
    with _with_file_name(path), open(path, "a") as file:
        file.write(text)


@contextlib.contextmanager
def _with_file_name(path: Path) -> Iterator[None]:
    """Add the file's name to an OSError; the one of a full disk has none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text``."""
    write(path, lambda file: file.write(text.encode()))


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` by ``value`` as JSON."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """Content of ``path``, or None if there is no such file or it is not JSON."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def read_json_lines(path: Path) -> list[Any]:
    """The values of a file with one JSON value per line, without lines that were cut short; none without a file."""
    values = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            values.append(json.loads(line))
        except ValueError:
            continue
    return values
