"""Signals and closed outputs: a run saves its state or goes on, whatever becomes of its terminal."""

import glob
import io
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from ssl_bench import cli
from ssl_bench.record.streams import LastingStream
from ssl_bench.signals import STOPPED, STOPS, stops
from tests import ranks
from tests.conftest import SMALL, no_pictures, only_run
from tests.ranks import Command, _command

HANGUP = 128 + signal.SIGHUP
LONG = [*SMALL, "epochs=400", "checkpoint.every=400"]
LOCAL_GRID = ["-m", "seed=0,1", "launcher=local"]


def lines(path: Path) -> int:
    """Number of lines of a file; 0 if there is none."""
    return len(path.read_text().splitlines()) if path.exists() else 0


def wait_for_steps(runs: int = 1, steps: int = 3) -> None:
    """Wait until so many runs have trained a few steps."""
    end = time.monotonic() + 60
    while sum(lines(Path(path)) >= steps for path in glob.glob("outputs/*/*/metrics.jsonl")) < runs:
        assert time.monotonic() < end, [*Path("outputs").rglob("*")]
        time.sleep(0.05)


def is_saved(folder: Path) -> bool:
    """Whether a run was stopped with its state on disk."""
    return (folder / "checkpoints" / "last.pt").exists() and not (folder / "results.json").exists()


def test_a_hangup_is_a_stop_unless_it_is_ignored() -> None:
    assert set(STOPS) == {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2}
    assert STOPPED[129] == STOPPED[-1] == signal.SIGHUP and len(STOPPED) == 8
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert stops() == [number for number in STOPS if number != signal.SIGHUP]
    finally:
        signal.signal(signal.SIGHUP, former)
    assert stops() == list(STOPS)


# ---- streams


@pytest.fixture
def stream() -> Iterator[LastingStream]:
    """A lasting stream into a pipe without a reader."""
    read, write = os.pipe()
    os.close(read)
    with LastingStream(io.BufferedWriter(io.FileIO(write, "w")), "utf-8", line_buffering=True) as stream:
        yield stream


def test_a_stream_drops_its_text_once_its_reader_is_gone(stream: LastingStream) -> None:
    for _ in range(2):
        assert stream.write("a line\n") == 7
        stream.flush()
    os.write(stream.fileno(), b"libraries write there too")


# ---- whole runs


def start_with(before: str, *arguments: str) -> Command:
    """Start a command in whose process a function of this module, ``before``, is called first."""
    with patch.object(ranks, "_command", globals()[before]):
        return Command(*arguments)


def hangup_ignored(*call: Any) -> None:
    """Run a command as ``nohup`` does."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _command(*call)


def without_reader(arguments: tuple[str, ...], environment: dict[str, str], *_: object) -> None:
    """Run a command whose outputs are pipes that nothing reads."""
    read, write = os.pipe()
    os.close(read)
    for descriptor in (1, 2):
        os.dup2(write, descriptor)
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # type: ignore[misc]  # noqa: SIM115  # until the end
    sys.stderr = sys.__stderr__ = open(2, "w", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    run(arguments, environment)


def without_outputs(arguments: tuple[str, ...], environment: dict[str, str], *_: object) -> None:
    """Run a command that was started with closed outputs."""
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    sys.stdout = sys.stderr = None  # type: ignore[assignment]  # as Python has it then
    run(arguments, environment)


def run(arguments: tuple[str, ...], environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["ssl-bench", *arguments]
    with no_pictures():
        cli.main()


@pytest.mark.slow
def test_a_run_goes_on_without_readers_and_its_log_has_everything() -> None:
    for seed, start in enumerate(("without_reader", "without_outputs")):
        command = start_with(start, "train", *SMALL, "max_steps=3", f"name={start}", f"seed={seed}")
        printed = command.wait()
        (folder,) = Path("outputs", start).iterdir()
        assert (command.code, printed) == (0, "")
        assert lines(folder / "metrics.jsonl") >= 3 and "step 3/" in (folder / "train.log").read_text()
        assert "Error" not in (folder / "train.log").read_text()


@pytest.mark.slow
def test_a_run_goes_on_where_hangups_are_ignored() -> None:
    command = start_with("hangup_ignored", "train", *SMALL, "max_steps=60")
    wait_for_steps()
    os.killpg(command.pid, signal.SIGHUP)
    printed = command.wait()
    assert command.code == 0 and "interrupted" not in printed, printed
    assert len(glob.glob("outputs/*/*/results.json")) == 1


@pytest.mark.slow
def test_a_hangup_stops_all_ranks() -> None:
    command = Command("train", *LONG, "devices=2")
    wait_for_steps()
    os.killpg(command.pid, signal.SIGHUP)
    printed = command.wait()
    assert command.code == HANGUP and "SIGHUP" in printed and is_saved(only_run()), printed


@pytest.mark.slow
def test_a_signal_while_the_ranks_start_prints_no_traceback() -> None:
    command = Command("train", *LONG, "devices=2")
    ranks.wait_for(lambda: len(command.ranks()) == 2)
    os.killpg(command.pid, signal.SIGINT)  # to all at once, as a terminal does
    printed = command.wait()
    assert command.code == 130 and "Traceback" not in printed, printed
    assert "SIGINT" in printed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hits", "results.json"])
def test_a_signal_while_a_run_is_evaluated_or_written_stops_its_grid(name: str) -> None:
    words = [*SMALL, "max_steps=3", "evaluate=knn", "-m", "seed=0,1,2"]
    command = Command("train", *words)
    ranks.wait_for(lambda: bool(glob.glob(f"outputs/*/*/{name}")))
    command.send_signal(signal.SIGTERM)
    printed = command.wait()
    assert command.code in (128 + signal.SIGTERM, -signal.SIGTERM) and "Traceback" not in printed, printed
    assert len(glob.glob("outputs/*/*/results.json")) < 3
    again = Command("train", *words)
    assert (again.wait(), again.code)[1] == 0 and len(glob.glob("outputs/*/*/results.json")) == 3


@pytest.mark.exhaustive
def test_a_terminal_that_goes_away_stops_and_saves_the_runs_of_a_grid() -> None:
    """The command itself waits until they have."""
    pid, descriptor = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm", "PYTHONPATH": str(Path(ranks.__file__).parents[1])}
        os.execv(sys.executable, [sys.executable, "-m", "ssl_bench", "train", *LONG, *LOCAL_GRID])
    end = time.monotonic() + 90
    while sum(lines(Path(path)) >= 3 for path in glob.glob("outputs/*/*/metrics.jsonl")) < 2:
        assert time.monotonic() < end
        if select.select([descriptor], [], [], 0.1)[0]:
            os.read(descriptor, 65536)
    os.close(descriptor)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == HANGUP
    folders = [Path(path).parent for path in glob.glob("outputs/*/*/config.yaml")]
    assert len(folders) == 2
    ranks.wait_for(lambda: all(map(is_saved, folders)), 30)


@pytest.mark.exhaustive
def test_a_grid_goes_on_without_readers() -> None:
    words = shlex.join([sys.executable, "-m", "ssl_bench", "train", *SMALL, "max_steps=3", *LOCAL_GRID])
    path = {"PYTHONPATH": str(Path(ranks.__file__).parents[1])}
    done = subprocess.run(["bash", "-c", f"{words} 2>&1 | true; exit ${{PIPESTATUS[0]}}"], env=os.environ | path)
    assert done.returncode == 0 and len(glob.glob("outputs/*/*/results.json")) == 2


def test_status_ends_quietly_with_its_reader() -> None:
    for number in range(3):
        folder = Path(f"outputs/{number}/0123456789")
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("{}")
    for start, command in (("without_reader", "status"), ("without_reader", "--help"), ("without_outputs", "status")):
        started = start_with(start, command)
        assert (started.wait(), started.code) == ("", 0), (start, command)


@pytest.mark.slow
def test_a_signal_to_reproduce_stops_the_commands_that_it_has_started() -> None:
    command = Command("reproduce", "eqco/table9", "row=MI 2 *", "launcher=local")
    end = time.monotonic() + 60
    while not glob.glob("outputs/*/grid-*.json"):
        assert time.monotonic() < end, command.printed()
        time.sleep(0.05)
    command.send_signal(signal.SIGTERM)
    command.wait()
    assert command.code == 128 + signal.SIGTERM
    printed = command.printed()
    time.sleep(1)
    assert command.printed() == printed and "Traceback" not in printed
