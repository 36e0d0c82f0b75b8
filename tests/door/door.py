"""Run command lines in this process, and check that a refusal names the key and the remedy and writes nothing."""

import contextlib
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest

from ssl_bench import cli
from ssl_bench.errors import ConfigError

OWN_IMAGES = re.compile(r"dataset[=:] ?(folder|arrays|hf)\b")


@dataclass(frozen=True)
class Answer:
    """The end of a command: its exit code and what it printed."""

    code: int
    out: str
    err: str


def enter(command: str, capfd: pytest.CaptureFixture[str]) -> Answer:
    """Run ``ssl-bench <command>`` in this process; the command is written as in a shell."""
    capfd.readouterr()
    with patch.object(sys, "argv", ["ssl-bench", *shlex.split(command)]), pytest.raises(SystemExit) as end:
        cli.main()
    out, err = capfd.readouterr()
    code = end.value.code
    assert code is None or isinstance(code, int), code
    return Answer(code or 0, out, err)


def refuses(command: str, names: str, capfd: pytest.CaptureFixture[str], code: int = 2) -> None:
    """Assert that a command is refused in one line that names the key and the remedy, and that it writes nothing.

    Other lines may precede that line only where a run fails (code 1), which has a log, and with the user's own images,
    of which number and size are printed.

    Args:
        names: the key, then the options and numbers of the remedy, such as ``epochs 1``; in any order.
        code: 2 for a wrong configuration, 1 for a failed run.
    """
    before = picture()
    answer = enter(command, capfd)
    assert answer.code == code, answer
    assert "Traceback" not in answer.out + answer.err, answer
    *log, line = answer.err.splitlines()
    assert line.startswith("ssl-bench: ") and (not log or code == 1 or OWN_IMAGES.search(command)), answer
    key, *remedies = names.split()
    assert occurs(key, line), f"{key} is not named: {line}"
    for word in shlex.split(command):  # the value that was typed is no remedy
        line = line.replace(word, "", 1) if word.startswith(f"{key}=") else line
    for remedy in remedies:
        assert occurs(remedy, line), f"{remedy} is not named: {line}"
    assert picture() == before
    torch = sys.modules.get("torch")
    assert torch is None or not torch.distributed.is_initialized()


@contextlib.contextmanager
def refused(names: str, kind: type[Exception] = ConfigError) -> Iterator[None]:
    """Assert that the block raises ``kind`` with one line in which all of these words occur."""
    with pytest.raises(kind) as refusal:
        yield
    line = str(refusal.value)
    assert "\n" not in line
    assert [word for word in names.split() if not occurs(word, line)] == [], line


def occurs(word: str, line: str) -> bool:
    """Whether a word occurs in a line, and not only as a part of a longer key or number."""
    before, after = r"(?<![\w.-])" if word[0].isalnum() else "", r"(?!\w|\.\w)" if word[-1].isalnum() else ""
    return re.search(before + re.escape(word) + after, line) is not None


def picture() -> dict[Path, tuple[int, int] | None]:
    """All paths below the working directory; of files and links the time of their last change and their size.

    The time of a folder changes with a lease that was taken in it and given back.
    """
    stats = {path: path.lstat() for path in Path().rglob("*")}
    times = {path: (stat.st_mtime_ns, stat.st_size) for path, stat in stats.items()}
    return {path: None if path.is_dir() and not path.is_symlink() else times[path] for path in stats}
