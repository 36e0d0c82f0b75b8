"""Atomic writes, and reads of files that may be damaged.

Writing: the new content goes to a temporary file beside the file, is flushed to the disk, and the file is renamed. So
a file has its whole old content or its whole new content, never a part.

Reading: only regular files, up to a size far above what a run writes, as plain data. A reader of a record names the
type that it needs (:func:`misfit`). A file of another type counts as missing, and is named with what is wrong in it.

Both wait for a file system that is out of reach for a moment, as those of a network are (:func:`retry`). A file whose
state stays unknown never counts as missing.

Text is UTF-8 in every locale. A file name that is not valid UTF-8 keeps its bytes.
"""

import contextlib
import errno
import json
import math
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from ssl_bench.errors import ConfigError, RunError, in_one_line, printable, require

Mark = tuple[int, int, int, int]  # device, inode, size, time of change in ns
Result = TypeVar("Result")

OUT_OF_REACH = {errno.EIO, errno.ESTALE, errno.EINTR, errno.ETIMEDOUT}
PAUSES = (0.05, 0.2, 1.0, 4.0, 0.0)  # seconds after each try
NO_RECORD = "or was not written by ssl-bench"  # is what is wrong in a file
LARGEST_RECORD_BYTES = 2**26  # of a file that is read at once: the record of a grid of 100,000 runs has 30 MB
TEMPORARY = re.compile(r"\..{1,40}\.[0-9a-f]{16}\.tmp", re.DOTALL)


class FileSystemUnavailable(RunError):
    """A file system has not said, in several tries, what is in a file or whether there is one."""


def retry(call: Callable[[], Result], path: str | Path) -> Result:
    """Return the result of ``call``, which works on ``path``; call again after a pause while that is out of reach.

    Raises:
        FileSystemUnavailable: it stays out of reach.
        OSError: any other error of the call.
    """
    for pause in PAUSES:
        try:
            return call()
        except OSError as error:
            if error.errno not in OUT_OF_REACH:
                raise
            last = error
        time.sleep(pause)
    remedy = "its file system does not answer; the same command goes on when it does"
    raise FileSystemUnavailable(printable(f"{path}: {last.strerror}: {remedy}")) from last


def status(path: str | Path) -> os.stat_result | None:
    """The status of a file, a folder or a link itself; None if there is none."""
    try:
        return retry(lambda: os.lstat(path), path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def exists(path: str | Path) -> bool:
    """Whether there is a file, a folder or a link."""
    return status(path) is not None


def make_folder(path: Path) -> None:
    """Make a folder, and those that it is in, unless there is one."""
    retry(lambda: path.mkdir(parents=True, exist_ok=True), path)


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """A block that writes to a results folder: ConfigError if that cannot be written."""
    try:
        yield
    except OSError as error:
        path = error.filename or "paths.outputs"
        raise ConfigError(f"{path}: {error.strerror}; set paths.outputs to a folder that can be written") from error


def usual_outputs() -> Path:
    """The results folder of commands without ``paths.outputs``: ``SSL_BENCH_OUTPUTS``, or ``outputs``."""
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


def parted(overrides: Sequence[str]) -> tuple[list[str], Path | None]:
    """The overrides of a call, and the folder with further options that ``--config-dir=FOLDER`` among them names.

    Raises:
        InvalidValue: they are no list of texts, or one is another flag.
    """
    flags = [word for word in overrides if not isinstance(word, str) or word.startswith("-")]
    others = [flag for flag in flags if not isinstance(flag, str) or not flag.startswith("--config-dir=")]
    remedy = "a list of texts key=value, such as ['seed=0,1']; of the command's flags there is --config-dir=FOLDER"
    require(not isinstance(overrides, str) and not others, "overrides", overrides, remedy)
    folder = folder_of_options(flags[-1].partition("=")[2]) if flags else None
    return [word for word in overrides if word not in flags], folder


def folder_of_options(text: str) -> Path:
    """The value of ``--config-dir``; ConfigError if there is no such folder."""
    path = given_path(text)
    if not path.is_dir():
        raise ConfigError(f"config directory {path} not found: name a folder with options")
    return path


def mark(status: os.stat_result) -> Mark:
    """A mark that changes when a file is written or replaced, or a name in a folder is added or removed."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


# ---- writing


_guards = dict[Path, Callable[[], None]]()  # by the absolute path of a folder


@contextlib.contextmanager
def guarded(folder: Path, check: Callable[[], None]) -> Iterator[None]:
    """Call ``check``, which raises an error where this process may not write any more, before each write in a folder.

    It is called when the content of a file is on the disk, right before the renaming.
    """
    folder = folder.absolute()
    former = _guards.get(folder, _allowed)
    _guards[folder] = check
    try:
        yield
    finally:
        _guards[folder] = former


def _allowed() -> None:
    """The check of a folder that any process may write to."""


def _check(path: Path) -> None:
    for folder in path.absolute().parents if _guards else ():
        _guards.get(folder, _allowed)()


def write(path: Path, fill: Callable[[BinaryIO], Any]) -> None:
    """Replace ``path`` by what ``fill`` writes into the open file that it is given. After an error it is as before."""
    temporary = path.with_name(f".{path.name[:40]}.{secrets.token_hex(8)}.tmp")
    try:
        with _with_file_name(path):
            with open(temporary, "wb") as file:
                fill(file)
                file.flush()
                os.fsync(file.fileno())
            _check(path)
            retry(lambda: os.replace(temporary, path), path)
    except BaseException as error:
        remove(temporary)
        if isinstance(error, FileNotFoundError):  # who may write here now has removed the temporary file
            _check(path)
        raise


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Replace ``path`` by ``content``, in several tries if its file system is out of reach; else as :func:`write`."""
    retry(lambda: write(path, lambda file: file.write(content)), path)


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text``."""
    write_bytes(path, text.encode(errors="surrogateescape"))


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` by ``value`` as JSON."""
    write_text(path, as_json(value))


def as_json(value: Any) -> str:
    """``value`` as :func:`write_json` writes it."""
    return json.dumps(value, indent=2) + "\n"


def append(path: Path, text: str) -> None:
    """Add ``text`` to the end of a file of a run."""
    _check(path)
    with (
        _with_file_name(path),
        retry(lambda: open(of_run(path), "a", encoding="utf-8", errors="surrogateescape"), path) as file,
    ):
        file.write(text)


@contextlib.contextmanager
def _with_file_name(path: Path) -> Iterator[None]:
    """Add the file's name to an OSError; the one of a full disk has none."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def remove(path: Path) -> None:
    """Remove a file if possible: an error of the file system is ignored, and the file then remains."""
    with contextlib.suppress(OSError, FileSystemUnavailable):
        retry(lambda: path.unlink(missing_ok=True), path)


def remove_temporary(folder: Path, unchanged: float = 0.0) -> None:
    """Remove the temporary files that killed processes have left in a folder, but not in those inside it.

    Args:
        unchanged: seconds for which a file must not have changed: 0 where no other process may write.
    """
    with contextlib.suppress(OSError, FileSystemUnavailable):  # there is no folder
        for name in filter(TEMPORARY.fullmatch, retry(lambda: os.listdir(folder), folder)):
            if time.time() - os.lstat(folder / name).st_mtime >= unchanged:
                remove(folder / name)


# ---- reading


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
    """Return ``read`` of a file as :func:`open_regular` opens it.

    Raises:
        FileSystemUnavailable: its file system does not answer.
        OSError: the file cannot be read.
    """

    def once() -> Result:
        with open_regular(path, largest) as file:
            return read(file)

    return retry(once, path)


def read_bytes(path: str | Path, largest: float = LARGEST_RECORD_BYTES) -> bytes:
    """Content of a regular file; an OSError if it cannot be read or has more than ``largest`` bytes."""
    return read_with(path, lambda file: file.read(), largest)


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


def parse_json(content: bytes | str) -> Any:
    """The value of a JSON text, also with the NaN and infinity of Python; a ValueError for anything else."""
    import msgspec

    try:
        with contextlib.suppress(ValueError):
            return msgspec.json.decode(content)
        return json.loads(content.decode() if isinstance(content, bytes) else content)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def misfit(value: Any, kind: Any) -> str:
    """The reason why a value that was read from a file is not of a type, with its key; empty if it is.

    The mapping of a TypedDict or a dataclass may have more keys. NaN is a float, and within no bounds.
    """
    import msgspec

    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        return printable(in_one_line(error))
    return ""


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a type, as :func:`misfit` says."""
    return not misfit(value, kind)


def read_json(
    path: str | Path,
    kind: Any = Any,
    named: bool = True,
    of_a_run: bool = False,
    parse: Callable[[bytes], Any] = parse_json,
) -> Any:
    """Content of ``path``; None if there is no such file, or it is damaged: it is no JSON of this type.

    Args:
        named: say in a sentence that a file is damaged.
        of_a_run: it is a file of a run, and counts as damaged if it is a link that leaves the run's folder.
        parse: the value of another kind of text, or a ValueError.
    """
    content, wrong = examined(path, kind, parse, of_a_run)
    if wrong and named:
        say_damaged(path, wrong)
    return content


def examined(
    path: str | Path, kind: Any = Any, parse: Callable[[bytes], Any] = parse_json, of_a_run: bool = False
) -> tuple[Any, str]:
    """The content of a file, and why it is damaged.

    The content of a damaged file is None, and so is that of a file that cannot be read; only the first has a reason.
    """
    try:
        content = parse(read_bytes(of_run(path) if of_a_run else path))
    except OSError as error:  # otherwise there is no file that could be read
        no_record = error.errno in (errno.EINVAL, errno.EFBIG, errno.ELOOP)
        return None, NO_RECORD if no_record else ""
    except ValueError:
        return None, NO_RECORD
    wrong = misfit(content, kind)
    return (None, wrong) if wrong else (content, "")


def read_json_lines(path: Path, wrong: Callable[[Any], str] = lambda value: "") -> list[Any]:
    """The values of a file of a run with one JSON value per line; none without a file.

    Damaged lines are left out with a message, except for a last line that was cut short, which has none.

    Args:
        wrong: says what is wrong in a value; empty: nothing.
    """
    values, damaged = [], list[str]()
    with contextlib.suppress(OSError):
        for line in read_bytes(of_run(path), math.inf).splitlines(keepends=True):
            what = NO_RECORD
            with contextlib.suppress(ValueError):
                value = parse_json(line)
                what = wrong(value)
                if not what:
                    values.append(value)
            if what and line.endswith(b"\n"):
                damaged.append(what)
    if damaged:
        first = f" ({damaged[0]})" if damaged[0] != NO_RECORD else ""
        what = f"{len(damaged)} damaged rows, which are left out{first}"
        say_once(printable(f"ssl-bench: {path} has {what}"), f"{os.path.abspath(path)} {what}")
    return values


def say_damaged(path: str | Path, wrong: str = NO_RECORD) -> None:
    """Print that a file is damaged, why (``wrong``), and that it counts as missing."""
    say_once(printable(f"ssl-bench: {damage(path, wrong)}: it counts as missing"), f"{os.path.abspath(path)} {wrong}")


def damage(path: str | Path, wrong: str) -> str:
    """The sentence that a file is damaged, and why."""
    return f"{path} is damaged, {wrong}" if wrong == NO_RECORD else f"{path} is damaged ({wrong})"


SAID = set[str]()  # what sentences were about


def say_once(sentence: str, about: str = "") -> None:
    """Print a sentence on rank 0, once in this process for what it is about, or for itself."""
    about = about or sentence
    if os.environ.get("RANK", "0") == "0" and about not in SAID:
        SAID.add(about)
        with contextlib.suppress(OSError):  # a closed terminal
            print(sentence, file=sys.stderr, flush=True)
