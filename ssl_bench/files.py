"""Atomic writes, and reads of files that may be damaged.

Writing: the new content goes to a temporary file beside the file, is flushed to the disk, and the file is renamed. So
a file has its whole old content or its whole new content, never a part.

Both wait for a file system that is out of reach for a moment (``patience.py``).

Reading: only regular files, up to a size far above what a run writes, as plain data. A reader of a record names the
shape that it needs (:mod:`ssl_bench.disk.shapes`). A file of another shape counts as missing, and is named with what is
wrong in it. A cache, which can be made again, is read only if it holds exactly what was written.

Text is UTF-8 in every locale. A file name that is not valid UTF-8 keeps its bytes.
"""

import contextlib
import errno
import hashlib
import io
import json
import math
import os
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ssl_bench.disk import anchors, temporary
from ssl_bench.disk.patience import NoAnswer, Result, answer, patiently
from ssl_bench.disk.shapes import misfit
from ssl_bench.errors import ConfigError, printable

NO_RECORD = "or was not written by ssl-bench"  # is what is wrong in a file
Mark = tuple[int, int, int, int]  # device, inode, size, time of change in ns
LARGEST_FILE = 2**26  # bytes of a file that is read at once: the record of a grid of 100,000 runs has 30 MB


def usual_outputs() -> Path:
    """The results folder of commands that are not told another one."""
    return given_path(os.environ.get("SSL_BENCH_OUTPUTS") or "outputs")


def given_path(text: str | os.PathLike[str]) -> Path:
    """The path that a user has written: ``~`` or ``~user`` at its beginning is a home folder, as in a shell.

    Raises:
        ConfigError: there is no such home folder.
    """
    path = os.path.expanduser(text)
    if path.startswith("~"):
        raise ConfigError(f"{path}: there is no such home folder; write ./{path} for a folder of that name")
    return Path(path)


def folder_of_options(text: str) -> Path:
    """The value of ``--config-dir``; ConfigError if there is no such folder."""
    path = given_path(text)
    if not path.is_dir():
        raise ConfigError(f"config directory {path} not found: name a folder with options")
    return path


def mark(status: os.stat_result) -> Mark:
    """A mark that changes when a file is written or replaced, or a name in a folder is added or removed."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


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
    """Add ``text`` to the end of a file of a run."""
    with (
        _with_file_name(path),
        patiently(lambda: open(of_run(path), "a", encoding="utf-8", errors="surrogateescape")) as file,
    ):
        file.write(text)


@contextlib.contextmanager
def _with_file_name(path: Path) -> Iterator[None]:
    """Add the file's name to an OSError; the one of a full disk has none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


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


def of_run(path: Path | str) -> Path | str:
    """``path``, of a file or folder in the directory of a run, which may be that of somebody else.

    Raises:
        OSError: it is a link that leaves the folder that it is in.
    """
    if os.path.islink(path):
        folder = os.path.realpath(os.path.dirname(path))
        if os.path.commonpath([folder, os.path.realpath(path)]) != folder:
            raise OSError(errno.ELOOP, "it is a link to a file outside of its run", str(path))
    return path


def open_regular(path: str | Path, largest: float = math.inf) -> BinaryIO:
    """Open a file to read.

    Raises:
        OSError: it is a directory, a pipe (for which ``open`` would wait) or a device, or has more than ``largest``
            bytes.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    status, wrong = os.fstat(descriptor), None
    if not stat.S_ISREG(status.st_mode):
        wrong = OSError(errno.EINVAL, "Not a regular file", str(path))
    elif status.st_size > largest:
        wrong = OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    if wrong:
        os.close(descriptor)
        raise wrong
    return open(descriptor, "rb")


def read_with(path: str | Path, read: Callable[[BinaryIO], Result], largest: float = math.inf) -> Result:
    """Return ``read`` of a file as :func:`open_regular` opens it; again if the file system gives no answer.

    Raises:
        NoAnswer: the file system gives none.
        OSError: the file cannot be read.
    """

    def once() -> Result:
        with open_regular(path, largest) as file:
            return read(file)

    return answer(path, once)


def compare_checksums(file: BinaryIO) -> None:
    """Raise an error if a part of a file of ``torch.save``, a zip archive, differs from its checksum.

    ``torch.load`` does not compare them. A compressed part counts as damaged: torch writes none. So do parts that are
    larger together than the file, of which several may be the same bytes.
    """
    import zipfile

    size = file.seek(0, 2)
    with zipfile.ZipFile(file) as archive:
        parts = archive.infolist()
        packed = any(part.compress_type != zipfile.ZIP_STORED for part in parts)
        large = sum(part.file_size for part in parts) > size
        if packed or large or archive.testzip() is not None:
            raise ValueError("its checksums differ")
    file.seek(0)


def read_bytes(path: str | Path, largest: int = LARGEST_FILE) -> bytes:
    """Content of a regular file; an OSError if it cannot be read or has more than ``largest`` bytes."""
    return read_with(path, lambda file: file.read(), largest)


def parse_json(content: bytes | str) -> Any:
    """The value of a JSON text; a ValueError for anything else."""
    try:
        return json.loads(content.decode() if isinstance(content, bytes) else content)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def read_json(path: str | Path, shape: Any = Any, named: bool = True, of_a_run: bool = False) -> Any:
    """Content of ``path``; None if there is no such file, or it is damaged: it is no JSON of this shape.

    Args:
        named: say in a sentence that a file is damaged.
        of_a_run: as a link that leaves its folder it counts as damaged.
    """
    return _named(path, examined(path, shape, of_a_run=of_a_run), named)


def read_yaml(path: str | Path, shape: Any = Any, named: bool = True, of_a_run: bool = False) -> Any:
    """Content of a YAML file as JSON would have it; otherwise as :func:`read_json`."""
    return _named(path, examined(path, shape, parse_yaml, of_a_run), named)


def _named(path: str | Path, examined: tuple[Any, str], named: bool) -> Any:
    content, wrong = examined
    if wrong and named:
        say_damaged(path, wrong)
    return content


def examined(
    path: str | Path, shape: Any = Any, parse: Callable[[bytes], Any] = parse_json, of_a_run: bool = False
) -> tuple[Any, str]:
    """Content of a file, and what is wrong in it: one of them is None or empty, both if it cannot be read."""
    try:
        content = parse(read_bytes(of_run(path) if of_a_run else path))
    except OSError as error:  # otherwise there is no file that could be read
        no_record = error.errno in (errno.EINVAL, errno.EFBIG, errno.ELOOP)
        return None, NO_RECORD if no_record else ""
    except ValueError:
        return None, NO_RECORD
    wrong = misfit(content, shape)
    return (None, NO_RECORD if wrong[0] == "=" else wrong) if wrong else (content, "")


def parse_yaml(content: bytes) -> Any:
    """The value of a YAML text without dates and other values that JSON does not have; a ValueError for such."""
    import yaml

    try:
        return json.loads(json.dumps(anchors.parse(content)))
    except (TypeError, AttributeError, OverflowError, RecursionError, yaml.YAMLError) as error:
        raise ValueError("no YAML") from error  # the loader lets errors of dates, numbers and keys through


def say_damaged(path: str | Path, wrong: str = NO_RECORD) -> None:
    """Say that a file is damaged, and ``wrong`` is what is wrong in it."""
    say_once(printable(f"ssl-bench: {damage(path, wrong)}: it counts as missing"), f"{os.path.abspath(path)} {wrong}")


def damage(path: str | Path, wrong: str) -> str:
    """That a file is damaged, and what is wrong in it, in words."""
    return f"{path} is damaged, {wrong}" if wrong == NO_RECORD else f"{path} is damaged ({wrong})"


def say_damaged_rows(path: str | Path, rows: int, wrong: str = "") -> None:
    """Say that rows of a file are damaged, and ``wrong`` is what is wrong in the first of them."""
    what = f"{rows} damaged rows, which are left out{f' ({wrong})' if wrong else ''}"
    say_once(printable(f"ssl-bench: {path} has {what}"), f"{os.path.abspath(path)} {what}")


SAID = set[str]()  # what sentences were about


def say_once(sentence: str, about: str = "") -> None:
    """Print a sentence on rank 0, once in this process for what it is about, or for itself."""
    about = about or sentence
    if os.environ.get("RANK", "0") == "0" and about not in SAID:
        SAID.add(about)
        with contextlib.suppress(OSError):  # a closed terminal
            print(sentence, file=sys.stderr, flush=True)


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file of a run; an OSError if it cannot be read."""
    return iter(io.BytesIO(read_with(of_run(path), lambda file: file.read())))


def read_json_lines(path: Path, wrong: Callable[[Any], str] = lambda value: "") -> list[Any]:
    """The values of a file of a run with one JSON value per line; none without a file.

    Damaged lines are left out with a message, except for a last line that was cut short, which has none.

    Args:
        wrong: says what is wrong in a value; empty: nothing.
    """
    values, damaged, first = [], 0, ""
    with contextlib.suppress(OSError):
        for line in read_lines(path):
            what = ""
            with contextlib.suppress(ValueError):
                value = parse_json(line)
                what = wrong(value)
                if not what:
                    values.append(value)
                    continue
            damaged += line.endswith(b"\n")
            first = first or what
    if damaged:
        say_damaged_rows(path, damaged, first)
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
