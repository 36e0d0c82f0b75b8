"""Command lines with what they must answer."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest

from ssl_bench import cli


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


def refuses(command: str, says: str, capfd: pytest.CaptureFixture[str], code: int = 2) -> None:
    """Assert that a command is refused in one line that contains ``says``, and that it writes nothing.

    Args:
        says: words that stand in the line in this order, such as ``epochs=0 set 1``.
        code: 2 for a wrong configuration, 1 for a failed run.
    """
    before = files()
    answer = enter(command, capfd)
    assert answer.code == code, answer
    assert "Traceback" not in answer.out + answer.err, answer
    (line,) = answer.err.splitlines()
    place = 0
    for word in says.split():
        place = line.find(word, place)
        assert place >= 0, f"{word!r} of {says!r} is not in: {line}"
        place += len(word)
    assert files() == before


def files() -> dict[Path, int]:
    """All files below the working directory with the time of their last change."""
    return {path: path.stat().st_mtime_ns for path in Path().rglob("*") if path.is_file()}
