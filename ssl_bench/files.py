"""Files that are whole or not there: written beside their place, flushed to the disk, then renamed into it."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO


def write(path: Path, fill: Callable[[BinaryIO], Any]) -> None:
    """Lets ``fill`` write the new content of ``path``; the old one stays until the new one is safe."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with _named(path), open(temporary, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def append(path: Path, text: str) -> None:
    """Adds ``text`` to the end of ``path``."""
    with _named(path), open(path, "a") as file:
        file.write(text)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Says which file it was that could not be written; a full disk does not."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_text(path: Path, text: str) -> None:
    write(path, lambda file: file.write(text.encode()))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def read_json(path: Path) -> Any:
    """The content of ``path``, or None if there is no such file or it is no JSON."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None
