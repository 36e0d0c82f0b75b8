"""Files that are read back, and what writers leave that were killed or have failed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal, TypedDict

import pytest

from ssl_bench import files
from ssl_bench.errors import ConfigError, InvalidValue, RunError, require, shown
from ssl_bench.launch import lease


class Counts(TypedDict):
    counts: dict[str, int]


class Coloured(TypedDict):
    colour: Literal["red"]


class Named(TypedDict):
    name: str


def test_a_damaged_record_counts_as_missing_and_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    path, link = Path("a.json"), Path("b.json")
    link.symlink_to("nowhere")
    assert files.read_json(path, dict) is files.read_json(link, dict) is None and capsys.readouterr().err == ""
    for content in (b"{", b"[1]", b"\xff", b"[" * 5000):
        path.write_bytes(content)
        assert files.read_json(path, dict[str, int]) is None
    path.unlink()
    path.mkdir()
    assert files.read_json(path, dict) is None
    no_json, no_mapping = capsys.readouterr().err.splitlines()
    assert all(line.startswith("ssl-bench: a.json ") for line in (no_json, no_mapping))
    path.rmdir()
    path.write_text('{"counts": {"x": "1"}, "colour": "\\u001b[31m"}')
    for shape, says in ((Counts, "$.counts["), (Coloured, r"\x1b[31m' - at `$.colour"), (Named, "`name`")):
        assert files.read_json(path, shape) is None
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("ssl-bench: a.json ") and says in line


def test_damaged_rows_are_counted_but_not_one_that_is_still_written(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("rows.jsonl")
    path.write_text('{"x": 1}\n{"x": "1"}\n[\n{"x": 2}\n{"x"')
    assert files.read_json_lines(path, lambda row: files.misfit(row, dict[str, int])) == [{"x": 1}, {"x": 2}]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ssl-bench: rows.jsonl ") and " 2 " in line and "[...]`" in line
    path.write_text('{"x": 1}\n{"x"')
    assert files.read_json_lines(path) == [{"x": 1}] and capsys.readouterr().err == ""


# Is killed in the middle of a write.
WRITER = """
import os, signal, sys
from pathlib import Path
from ssl_bench import files
from ssl_bench.config import anchors
from ssl_bench.launch import lease
files.write(Path(sys.argv[1]), lambda file: os.kill(os.getpid(), signal.SIGKILL))
"""


def test_what_a_killed_process_was_writing_goes_with_the_next_owner_of_its_run_and_no_other_file_does() -> None:
    run, name = Path("outputs/name/run"), ".x.json.0123456789abcdef.tmp"
    places = [run / path for path in ("checkpoints/last.pt", "results.json", "hits/knn.bits", "labels/train.txt")]
    of_users = {".x.json.4711", "x.4711", "name.tmp", name[1:], f"{name}.2", ".x.json.0123456789ABCDEF.tmp"}
    for path in places:
        path.parent.mkdir(parents=True, exist_ok=True)
        assert subprocess.run([sys.executable, "-c", WRITER, str(path)]).returncode == -signal.SIGKILL
    assert len([*run.rglob("*.tmp")]) == len(places)
    (run / "figures").symlink_to(Path("elsewhere").absolute())
    Path("elsewhere").mkdir()
    for path in (*(run / name for name in of_users), Path("elsewhere", name), run / "checkpoints" / "mine" / name):
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    with lease.held(run, wait=False):
        pass
    assert {path.name for path in run.iterdir() if path.is_file()} == of_users
    assert {path.name for path in run.iterdir() if path.is_dir()} == {"checkpoints", "figures", "hits", "labels"}
    assert Path("elsewhere", name).exists() and [path.name for path in run.glob("checkpoints/*")] == ["mine"]


def test_a_young_temporary_file_stays_where_another_process_may_write() -> None:
    for name, age in (("old", 7200), ("young", 60)):
        path = Path(f".{name}.0123456789abcdef.tmp")
        path.write_text("")
        os.utime(path, times=(time.time() - age,) * 2)
    files.remove_temporary(Path(), 3600)
    assert [path.name[1:6] for path in Path().iterdir()] == ["young"]


def test_a_failed_write_leaves_the_former_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 250)
    files.write_text(path, "former")

    def fail(file: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError) as error:
        files.write(path, fail)
    assert error.value.errno == 28
    assert [path.read_text() for path in tmp_path.iterdir()] == ["former"]


# ---- refusals: the key with its group, and values as they are written on the command line


def test_an_invalid_value_has_key_value_and_remedy_and_the_exit_code_of_a_configuration() -> None:
    require(True, "tau", 0.1, "a positive number")
    with pytest.raises(InvalidValue) as caught:
        require(False, "tau", 0, "a positive number")
    error = caught.value
    assert (error.key, error.value, error.remedy) == ("tau", 0, "a positive number")
    assert isinstance(error, ConfigError) and isinstance(error, ValueError)
    assert error.exit_code == 2 and RunError.exit_code == 1
    nested = InvalidValue("k", 0, "1 or more").within("knn").within("evaluate")
    assert nested.key == "evaluate.knn.k" and str(nested).startswith("evaluate.knn.k=0: ")
    with pytest.raises(ConfigError, match=r"^/data/outputs: "), files.writing():
        raise PermissionError(13, "Permission denied", "/data/outputs")


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "null"), (True, "true"), (1e38, "1e+38"), ("a", "a"), ((0.5, None), "[0.5,null]"), ([[1], "a"], "[[1],a]")],
)
def test_values_are_shown_as_on_the_command_line(value: Any, text: str) -> None:
    assert shown(value) == text
