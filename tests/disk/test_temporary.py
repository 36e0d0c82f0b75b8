"""Temporary files name their process: those of killed ones go with the next command, those of living ones stay."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ssl_bench import files
from ssl_bench.disk import temporary
from ssl_bench.disk.liveness import alive, machine, start_time
from ssl_bench.record import lease

# Is killed, or waits, in the middle of each kind of write.
WRITER = """
import os, signal, sys
from pathlib import Path
from ssl_bench import files
from ssl_bench.disk import temporary

def stop(*file):
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    print("writing", flush=True)
    sys.stdin.read()

kind, path = sys.argv[2], Path(sys.argv[3])
if kind == "folder":
    with temporary.folder() as folder:
        (folder / "inside").mkdir()
        stop()
else:
    files.write(path, stop)
"""
KINDS = {
    "checkpoint": "outputs/name/run/checkpoints/last.pt",
    "results": "outputs/name/run/results.json",
    "hits": "outputs/name/run/hits/knn-top1.bits",
    "figure": "outputs/name/run/figures/curves.png",
    "folder": "unused",
}


def write(how: str, kind: str) -> "subprocess.Popen[str]":
    path = Path(KINDS[kind])
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", WRITER, how, kind, str(path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def left() -> set[Path]:
    temporary_folder = Path(os.environ["TMPDIR"])
    return {*Path().rglob("*.tmp"), *temporary_folder.glob("ssl-bench-*-*-*")}


def next_commands() -> None:
    """What takes the folders: the owner of a run, and whatever needs a folder in TMPDIR."""
    with lease.held(Path("outputs/name/run"), wait=False) as claim:
        assert isinstance(claim, lease.Claim)
    with temporary.folder():
        pass


def test_what_a_killed_process_was_writing_is_removed_and_what_a_living_one_writes_stays() -> None:
    living = [write("living", kind) for kind in KINDS]
    for process in living:
        assert process.stdout is not None and process.stdout.readline() == "writing\n"
    for process in [write("killed", kind) for kind in KINDS]:
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
    pids = {f"-{process.pid}-" for process in living}
    assert len(left()) == 2 * len(KINDS)
    next_commands()
    assert len(left()) == len(KINDS) and all(any(pid in path.name for pid in pids) for path in left())
    for process in living:
        process.kill()
        process.communicate()
    next_commands()
    assert left() == set()


def test_files_of_other_machines_go_only_where_nobody_else_may_write() -> None:
    name = temporary.beside(Path("x.json")).name
    other = name.replace(temporary._machine(), "0123abcd")
    of_users = {".x.json.4711", ".x.json", "x.4711", "name.tmp", ".venv-3.11", other[1:], f"{other}.2", f".link{other}"}
    for name in (other, *of_users - {".venv-3.11", f".link{other}"}):
        Path(name).write_text("")
    Path(".venv-3.11").mkdir()
    Path(".venv-3.11", other).write_text("")
    Path(f".link{other}").symlink_to(".x.json")
    Path("figures").symlink_to(".venv-3.11")
    temporary.remove_from_run(Path())
    assert len(list(Path().iterdir())) == 10
    temporary.remove_from_run(Path(), owned=True)
    assert {path.name for path in Path().iterdir()} == of_users | {"figures"} and Path(".venv-3.11", other).exists()


def test_a_failed_write_leaves_the_former_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 250)
    files.write_text(path, "former")

    def fail(file: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left on device"):
        files.write(path, fail)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["former"]


def test_processes_are_told_apart_from_later_ones_with_their_number() -> None:
    born = start_time(os.getpid())
    assert born and alive(os.getpid(), born) and not alive(os.getpid(), "1")
    assert start_time(2**22 + 1) == start_time(0) == start_time(-1) == start_time(2**40) == ""
    assert start_time(1) != "" and machine() == machine()
