"""Atomic writes, and careful reads of files that may hold anything.

Writing: the new content goes to a temporary file beside the file, is flushed to the disk, and the file is renamed. So
a file has its whole old content or its whole new content, never a part.

Reading: only regular files, up to a size, as plain data. The limits are far above what a run writes, and keep a damaged
or hostile file from filling the memory or the stack.
"""

import contextlib
import errno
import itertools
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

LARGEST = 2**26  # bytes of a file that is read at once: the record of a grid of 100,000 runs has 30 MB
LONGEST = 2**20  # bytes of a line of JSON lines: a row of metrics has below 10 kB
DEEPEST = 100  # lists and mappings inside each other: a configuration has below 10, and many functions are recursive
MOST = 10**6  # values in a YAML file, whose aliases can make a small file a huge object


def write(path: Path, fill: Callable[[BinaryIO], Any]) -> None:
    """Replace ``path`` by what ``fill`` writes into the open file that it is given."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with _with_file_name(path), open(temporary, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        with _with_file_name(path):
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_temporary(folder: Path) -> None:
    """Remove the temporary files that killed processes have left in ``folder`` and in the folders inside it."""
    for path in (*folder.glob(".*.*"), *folder.glob("*/.*.*")):
        if path.name.rpartition(".")[2].isdecimal():
            with contextlib.suppress(OSError):
                path.unlink()


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


def unused(path: Path) -> Path:
    """``<path>.damaged-<n>`` with the first n that nothing has, a name to keep a damaged file."""
    names = (path.with_name(f"{path.name}.damaged-{n}") for n in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))


def open_regular(path: str | Path) -> BinaryIO:
    """Open a file to read; unlike ``open`` never wait for a pipe.

    Raises:
        OSError: it cannot be read, or is a directory, a pipe or a device.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: str | Path, largest: int = LARGEST) -> bytes:
    """Content of a regular file.

    Raises:
        OSError: as :func:`open_regular`, or it has more than ``largest`` bytes.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > largest:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return file.read()


def parse_json(content: bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is not JSON in UTF-8, or is nested more than DEEPEST times.
    """
    try:
        value = json.loads(content.decode())
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if content.count(b"[") + content.count(b"{") > DEEPEST and not _bounded(value, len(content)):
        raise ValueError("nested too deeply")
    return value


def read_json(path: Path) -> Any:
    """Content of ``path``, or None if there is no such file or it cannot be read as JSON."""
    try:
        return parse_json(read_bytes(path))
    except (OSError, ValueError):
        return None


def read_yaml(path: Path) -> Any:
    """Content of ``path`` as plain values with texts as keys, or None if it cannot be read as YAML."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the former is in C
    try:
        content, depth = read_bytes(path), 0
        for event in yaml.parse(content, loader):  # the loader would overflow the stack, and end the process
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                return None
        value = yaml.load(content, loader)
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError, yaml.YAMLError):
        return None  # the loader lets errors of dates, numbers and keys through
    return value if _bounded(value, MOST) else None


def _bounded(value: Any, most: int) -> bool:
    """Whether a value is nested at most DEEPEST times, has at most ``most`` values, and only texts are keys."""
    level, count = [value], 0
    for _ in range(DEEPEST + 1):
        nodes = [node for node in level if isinstance(node, dict | list)]
        if not nodes:
            return True
        if not all(isinstance(key, str) for node in nodes if isinstance(node, dict) for key in node):
            return False
        inside = (node.values() if isinstance(node, dict) else node for node in nodes)
        level = list(itertools.islice(itertools.chain.from_iterable(inside), most))
        count += len(level)
        if count >= most:
            return False
    return False


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file one by one; an empty one in place of a line longer than LONGEST.

    Raises:
        OSError: as :func:`open_regular`.
    """
    with open_regular(path) as file:
        while line := file.readline(LONGEST):
            if len(line) == LONGEST:
                while line and not line.endswith(b"\n"):
                    line = file.readline(LONGEST)
                line = b""
            yield line


def read_json_lines(path: Path, start: bytes = b"") -> list[Any]:
    """The values of a file with one JSON value per line, without lines that cannot be read; none without a file.

    Args:
        start: lines that do not begin with it are left out, and not parsed.
    """
    values = []
    with contextlib.suppress(OSError):
        for line in read_lines(path):
            if not line.startswith(start):
                continue
            with contextlib.suppress(ValueError):
                values.append(parse_json(line))
    return values
