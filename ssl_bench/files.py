"""Atomic writes, and reads of files that may be damaged.

Writing: the new content goes to a temporary file beside the file, is flushed to the disk, and the file is renamed. So
a file has its whole old content or its whole new content, never a part.

Both wait for a file system that is out of reach for a moment (``patience.py``).

Reading: only regular files, up to a size far above what a run writes, as plain data. A reader of a record names the
shape that it needs, as a type: a TypedDict, ``dict[str, float]``, ``list[int | None]``. A file of another shape counts
as missing, and is named. A cache, which can be made again, is read only if it holds exactly what was written.

Text is UTF-8 in every locale. A file name that is not valid UTF-8 keeps its bytes.
"""

import contextlib
import errno
import functools
import hashlib
import inspect
import io
import itertools
import json
import os
import stat
import sys
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO

from ssl_bench.disk import temporary
from ssl_bench.disk.patience import NoAnswer, Result, answer, patiently
from ssl_bench.errors import ConfigError, printable

# Errors that say nothing about a file: of a file system that is out of reach, or of a process without memory.
LARGEST_INTEGER = 2**63  # larger ones do not fit into a float or a database
LARGEST_FILE = 2**26  # bytes of a file that is read at once: the record of a grid of 100,000 runs has 30 MB


def given_path(text: str | os.PathLike[str]) -> Path:
    """The path that a user has written: ``~`` or ``~user`` at its beginning is a home folder, as in a shell.

    Raises:
        ConfigError: there is no such home folder.
    """
    path = os.path.expanduser(text)
    if path.startswith("~"):
        raise ConfigError(f"{path}: there is no such home folder; write ./{path} for a folder of that name")
    return Path(path)


def write(path: Path, fill: Callable[[BinaryIO], Any]) -> None:
    """Replace ``path`` by what ``fill`` writes into the open file that it is given. After an error it is as before."""
    _replace(path, fill, lambda: None, lambda attempt: attempt())


def _replace(
    path: Path, fill: Callable[[BinaryIO], Any], before: Callable[[], None], tries: Callable[[Callable[[], None]], None]
) -> None:
    fresh = temporary.beside(path)

    def attempt() -> None:
        with open(fresh, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        before()
        patiently(lambda: os.replace(fresh, path))

    try:
        with _with_file_name(path):
            tries(attempt)
    except BaseException:
        remove(fresh)
        raise


def remove(path: Path) -> None:
    """Remove a temporary file; where that is impossible, the next command that takes its folder does so."""
    with contextlib.suppress(OSError):
        patiently(lambda: path.unlink(missing_ok=True))


def append(path: Path, text: str) -> None:
    """Add ``text`` to the end of ``path``."""
    with (
        _with_file_name(path),
        patiently(lambda: open(path, "a", encoding="utf-8", errors="surrogateescape")) as file,
    ):
        file.write(text)


@contextlib.contextmanager
def _with_file_name(path: Path) -> Iterator[None]:
    """Add the file's name to an OSError; the one of a full disk has none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_bytes(path: Path, content: bytes | memoryview, before: Callable[[], None] = lambda: None) -> None:
    """Replace ``path`` by ``content``, in several tries if the file system gives no answer.

    After an error it is as before.

    Args:
        before: called in each try when the content is on the disk, right before the renaming.
    """
    _replace(path, lambda file: file.write(content), before, patiently)


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text``."""
    write_bytes(path, text.encode(errors="surrogateescape"))


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` by ``value`` as JSON."""
    write_text(path, as_json(value))


def as_json(value: Any) -> str:
    """``value`` as :func:`write_json` writes it."""
    return json.dumps(value, indent=2) + "\n"


def unused(path: Path) -> Path:
    """The first of ``<path>.damaged-1``, ``<path>.damaged-2`` ... that does not exist, to keep a damaged file there."""
    names = (path.with_name(f"{path.name}.damaged-{n}") for n in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))


def open_regular(path: str | Path) -> BinaryIO:
    """Open a file to read; an OSError for a directory, a pipe (for which ``open`` would wait) or a device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return open(descriptor, "rb")


def read_with(path: str | Path, read: Callable[[BinaryIO], Result]) -> Result:
    """What ``read`` returns for an open regular file; it is called again if the file system gives no answer.

    Raises:
        NoAnswer: the file system gives none.
        OSError: the file cannot be read.
    """

    def once() -> Result:
        with open_regular(path) as file:
            return read(file)

    return answer(path, once)


def compare_checksums(file: BinaryIO) -> None:
    """Raise an error if a part of a file of ``torch.save``, a zip archive, differs from its checksum.

    ``torch.load`` does not compare them. A compressed part counts as damaged: torch writes none.
    """
    import zipfile

    with zipfile.ZipFile(file) as archive:
        packed = any(part.compress_type != zipfile.ZIP_STORED for part in archive.infolist())
        if packed or archive.testzip() is not None:
            raise ValueError("its checksums differ")
    file.seek(0)


def read_bytes(path: str | Path, largest: int = LARGEST_FILE) -> bytes:
    """Content of a regular file; an OSError if it cannot be read or has more than ``largest`` bytes."""

    def read(file: BinaryIO) -> bytes:
        if os.fstat(file.fileno()).st_size > largest:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return file.read()

    return read_with(path, read)


def parse_json(content: bytes | str) -> Any:
    """The value of a JSON text; a ValueError for anything else."""
    try:
        return json.loads(content.decode() if isinstance(content, bytes) else content)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def read_json(path: str | Path, shape: Any = Any, named: bool = True) -> Any:
    """Content of ``path``; None if there is no such file, or it is damaged: it is no JSON of this shape.

    Args:
        named: say in a sentence that a file is damaged.
    """
    return _read(path, parse_json, shape, named)


def read_yaml(path: str | Path, shape: Any = Any, named: bool = True) -> Any:
    """Content of a YAML file as JSON would have it; otherwise as :func:`read_json`."""
    return _read(path, _parse_yaml, shape, named)


def _read(path: str | Path, parse: Callable[[bytes], Any], shape: Any, named: bool) -> Any:
    with contextlib.suppress(ValueError):
        try:
            if fits(content := parse(read_bytes(path)), shape):
                return content
        except OSError as error:
            named &= error.errno in (errno.EINVAL, errno.EFBIG)  # otherwise there is no file that could be read
    if named:
        say_damaged(path)
    return None


def _parse_yaml(content: bytes) -> Any:
    """The value of a YAML text without dates and other values that JSON does not have; a ValueError for such."""
    import yaml

    odd = b"\\uDC" in content  # a name that is no UTF-8, which the loader in C refuses
    loader = yaml.SafeLoader if odd else getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return json.loads(json.dumps(yaml.load(content, loader)))
    except (TypeError, AttributeError, OverflowError, RecursionError, yaml.YAMLError) as error:
        raise ValueError("no YAML") from error  # the loader lets errors of dates, numbers and keys through


def fits(value: Any, shape: Any) -> bool:
    """Whether a value that was read from JSON has the type ``shape``.

    An integer below 2^63 counts as a float too; NaN and infinity are floats. A TypedDict or a dataclass stands for a
    mapping that may have more keys, a tuple for a list with one value of each of its types.
    """
    origin, inner = typing.get_origin(shape), typing.get_args(shape)
    if shape is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, option) for option in inner)
    if origin is typing.Literal or (inspect.isclass(shape) and issubclass(shape, Enum)):
        return isinstance(value, str) and value in (inner or list(shape))
    if origin is dict:
        return isinstance(value, dict) and all(fits(item, inner[1]) for item in value.values())
    if origin is list:
        return isinstance(value, list) and all(fits(item, inner[0]) for item in value)
    if origin is tuple:
        return isinstance(value, list) and len(value) == len(inner) and all(map(fits, value, inner))
    if typing.is_typeddict(shape) or is_dataclass(shape):
        optional = getattr(shape, "__optional_keys__", ())
        return isinstance(value, dict) and all(
            fits(value[name], hint) if name in value else name in optional for name, hint in _hints(shape).items()
        )
    if shape in (int, float):
        return type(value) is float is shape or (type(value) is int and abs(value) < LARGEST_INTEGER)
    return type(value) is shape or (value is None and shape is types.NoneType)


@functools.cache
def _hints(shape: Any) -> dict[str, Any]:
    return typing.get_type_hints(shape)


def say_damaged(path: str | Path, rows: int = 0) -> None:
    """Say that a file is damaged, or that ``rows`` of its rows are."""
    what = f"has {rows} damaged rows, which are left out" if rows else "is damaged, or was not written by ssl-bench"
    sentence = f"ssl-bench: {path} {what}{'' if rows else ': it counts as missing'}"
    say_once(printable(sentence), os.path.abspath(path))


@functools.cache
def say_once(sentence: str, path: str = "") -> None:
    """Print a sentence on rank 0, once in this process for each ``path`` that it is about."""
    if os.environ.get("RANK", "0") == "0":
        with contextlib.suppress(OSError):  # a closed terminal
            print(sentence, file=sys.stderr, flush=True)


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a regular file; an OSError if it cannot be read."""
    return iter(io.BytesIO(read_with(path, lambda file: file.read())))


def read_json_lines(path: Path, shape: Any = Any) -> list[Any]:
    """The values of a file with one JSON value of a shape per line; none without a file.

    Other lines are left out with a message, except for a last line that was cut short, which has none.
    """
    values, damaged = [], 0
    with contextlib.suppress(OSError):
        for line in read_lines(path):
            with contextlib.suppress(ValueError):
                if fits(value := parse_json(line), shape):
                    values.append(value)
                    continue
            damaged += line.endswith(b"\n")
    if damaged:
        say_damaged(path, damaged)
    return values


def write_cache(path: Path, content: Any) -> None:
    """Replace ``path`` by ``content`` with a hash of it; :func:`read_cache` reads it."""
    text = json.dumps(content, separators=(",", ":"), default=str)
    write_text(path, f"{_seal(path, text.encode())}{text}}}\n")


def read_cache(path: Path) -> Any:
    """The content that :func:`write_cache` wrote to this name; None for anything else."""
    try:
        content = read_bytes(path)
        text = content[len(_seal(path, b"")) : -2]
        return parse_json(text) if content == f"{_seal(path, text)}".encode() + text + b"}\n" else None
    except (OSError, ValueError, NoAnswer):
        return None


def _seal(path: Path, text: bytes) -> str:
    """The start of a cache, which has the same length for any text."""
    return f'{{"sha256":"{hashlib.sha256(path.name.encode(errors="surrogateescape") + text).hexdigest()}","content":'
