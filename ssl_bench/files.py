"""Atomic writes, and reads of files that may be damaged.

Writing: the new content goes to a temporary file beside the file, is flushed to the disk, and the file is renamed. So
a file has its whole old content or its whole new content, never a part.

Reading: only regular files, up to a size far above what a run writes, as plain data.

Text is UTF-8 in every locale. Names of files that are no UTF-8 are in it as the bytes that they are.
"""

import contextlib
import errno
import itertools
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from ssl_bench.errors import ConfigError

LARGEST = 2**26  # bytes of a file that is read at once: the record of a grid of 100,000 runs has 30 MB


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
    """Replace ``path`` by what ``fill`` writes into the open file that it is given."""
    _write({path: fill})


def write_together(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Replace several files of a folder, by their names; none is replaced before all are on the disk."""

    def filling(content: bytes) -> Callable[[BinaryIO], Any]:
        return lambda file: file.write(content)

    _write({folder / name: filling(content) for name, content in contents.items()})


def _write(fills: Mapping[Path, Callable[[BinaryIO], Any]]) -> None:
    temporary = {path: path.with_name(f".{path.name}.{os.getpid()}") for path in fills}
    try:
        for path, fill in fills.items():
            with _with_file_name(path), open(temporary[path], "wb") as file:
                fill(file)
                file.flush()
                os.fsync(file.fileno())
        for path in fills:
            with _with_file_name(path):
                os.replace(temporary[path], path)
    finally:
        for each in temporary.values():
            each.unlink(missing_ok=True)


def remove_temporary(folder: Path) -> None:
    """Remove the temporary files that killed processes have left in ``folder`` and in the folders inside it."""
    for path in (*folder.glob(".*.*"), *folder.glob("*/.*.*")):
        if path.name.rpartition(".")[2].isdecimal():
            with contextlib.suppress(OSError):
                path.unlink()


def append(path: Path, text: str) -> None:
    """Add ``text`` to the end of ``path``."""
    with _with_file_name(path), open(path, "a", encoding="utf-8", errors="surrogateescape") as file:
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
    write(path, lambda file: file.write(text.encode(errors="surrogateescape")))


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` by ``value`` as JSON."""
    write_text(path, as_json(value))


def as_json(value: Any) -> str:
    """``value`` as :func:`write_json` writes it."""
    return json.dumps(value, indent=2) + "\n"


def unused(path: Path) -> Path:
    """``<path>.damaged-<n>`` with the first n that nothing has, a name to keep a damaged file."""
    names = (path.with_name(f"{path.name}.damaged-{n}") for n in itertools.count(1))
    return next(name for name in names if not os.path.lexists(name))


def open_regular(path: str | Path) -> BinaryIO:
    """Open a file to read; an OSError for a directory, a pipe (for which ``open`` would wait) or a device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return open(descriptor, "rb")


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


def read_bytes(path: str | Path, largest: int = LARGEST) -> bytes:
    """Content of a regular file; an OSError if it cannot be read or has more than ``largest`` bytes."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > largest:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
        return file.read()


def parse_json(content: bytes) -> Any:
    """The value of a JSON text; a ValueError for anything else."""
    try:
        return json.loads(content.decode())
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def read_json(path: str | Path) -> Any:
    """Content of ``path``, or None if there is no such file or it cannot be read as JSON."""
    try:
        return parse_json(read_bytes(path))
    except (OSError, ValueError):
        return None


def read_yaml(path: Path) -> Any:
    """Content of ``path`` as plain values, or None if it cannot be read as YAML."""
    import yaml

    try:
        content = read_bytes(path)
        odd = b"\\uDC" in content  # a name that is no UTF-8, which the loader in C refuses
        return yaml.load(content, yaml.SafeLoader if odd else getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, ValueError, TypeError, AttributeError, OverflowError, RecursionError, yaml.YAMLError):
        return None  # the loader lets errors of dates, numbers and keys through


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a regular file one by one; an OSError if it cannot be read."""
    with open_regular(path) as file:
        yield from file


def read_json_lines(path: Path, start: bytes = b"") -> list[Any]:
    """The values of a file with one JSON value per line, without lines that cannot be read; none without a file.

    Args:
        start: lines that do not begin with it are left out, and not parsed.
    """
    values = []
    with contextlib.suppress(OSError):
        for line in read_lines(path):
            if line.startswith(start):
                with contextlib.suppress(ValueError):
                    values.append(parse_json(line))
    return values
