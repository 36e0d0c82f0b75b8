"""Signals, kills and closed outputs: a run saves its state or goes on, whatever becomes of its terminal.

One that is killed at some moment ends, after another start, as one that was never disturbed: ``scripts/kill_runs.py``
does this at many random moments; here are a few, with a smaller run.
"""

import glob
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from ssl_bench import cli
from ssl_bench.errors import RunError
from ssl_bench.evaluate.linear import LinearProbe
from ssl_bench.signals import STOPPED, STOPS, Interrupt, Interrupted, stop_if_asked, stops
from tests import ranks
from tests.conftest import SMALL, no_pictures, only_run
from tests.ranks import Command, _command

sys.path.append(str(Path(__file__).parents[2] / "scripts"))  # where the processes of a run find it too
import kill_runs
from kill_runs import DISK, KINDS, End

multiprocessing.set_forkserver_preload(ranks.PRELOADED)

TINY = ["backbone.width=4", "head.out=16", "optimizer=sgd", "tracking=off", "log_every=1", "epochs=1", "max_steps=8"]
TINY += ["batch_size.size=32", "evaluate=knn", "evaluate.baselines=[]"]
Reference = tuple[End, float]
OFTEN, RARE = pytest.mark.slow, pytest.mark.exhaustive  # scripts/kill_runs.py has all kinds many times
LONG = [*SMALL, "epochs=400", "checkpoint.every=400"]


def lines(path: Path) -> int:
    """Number of lines of a file; 0 if there is none."""
    return len(path.read_text().splitlines()) if path.exists() else 0


def wait_for_steps(runs: int = 1, steps: int = 3) -> None:
    """Wait until so many runs have trained a few steps."""
    metrics = "outputs/*/*/metrics.jsonl"
    ranks.wait_for(lambda: sum(lines(Path(path)) >= steps for path in glob.glob(metrics)) >= runs)


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
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_all_ranks_stops_them_while_they_start_or_train(number: signal.Signals) -> None:
    command = Command("train", *LONG, "devices=2")
    ranks.wait_for(lambda: len(command.ranks()) == 2)
    if number == signal.SIGHUP:
        wait_for_steps()
    os.killpg(command.pid, number)  # to all at once, as a terminal does
    printed = command.wait()
    assert command.code == 128 + number and "Traceback" not in printed and number.name in printed, printed
    assert number != signal.SIGHUP or is_saved(only_run())


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
    ranks.wait_for(lambda: bool(glob.glob("outputs/*/grid-*.json")))
    command.send_signal(signal.SIGTERM)
    command.wait()
    assert command.code == 128 + signal.SIGTERM
    printed = command.printed()
    time.sleep(1)
    assert command.printed() == printed and "Traceback" not in printed


# ---- kills


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    """The end of an undisturbed run of one rank, and its seconds."""
    folder = tmp_path_factory.mktemp("reference")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kill_runs, "RUN", TINY)
        kill_runs.undisturbed(folder / "first", 1)  # the server imports torch, which takes long
        yield kill_runs.undisturbed(folder / "second", 1)


@pytest.mark.parametrize("kind", [pytest.param(k, marks=OFTEN if k == "SIGTERM" else RARE) for k in KINDS if k != DISK])
def test_a_killed_run_ends_as_one_that_was_not_disturbed(kind: str, reference: Reference, tmp_path: Path) -> None:
    end, seconds = reference
    assert len(end["rows"][0]) == 9
    hits, faults = kill_runs.attempt(tmp_path, 1, end, [(kind, 0.4 * seconds), (kind, 0.6 * seconds)], random.Random(0))
    assert faults == [] and kind in hits


@pytest.mark.slow
def test_a_full_disk_is_freed_again(reference: Reference, tmp_path: Path) -> None:
    end, seconds = reference
    hits = list[str]()
    for share in (0.5, 0.3, 0.15):  # a run can be faster than the undisturbed one, and over before the disk is full
        with kill_runs.small_disk(tmp_path / f"disk{share}") as possible:
            if not possible:
                pytest.skip("only root can mount a small file system")
            kills = [(DISK, share * seconds)]
            hits, faults = kill_runs.attempt(tmp_path / f"disk{share}", 1, end, kills, random.Random(0))
        assert faults == []
        if hits:
            break
    assert hits == [DISK]


# ---- a signal between two batches of an evaluation


class Dies:
    """Sends a signal where Python ignores the exceptions of handlers."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_in_a_destructor_stops_an_evaluation_after_its_batch() -> None:
    features, labels = torch.rand(8, 2), torch.arange(8) % 2
    with pytest.raises(Interrupted, match="SIGTERM") as stop, Interrupt(int) as interrupt:
        stop_if_asked()
        Dies()
        stop_if_asked()  # nothing is saved yet
        assert interrupt.agreed() == signal.SIGTERM
        interrupt.saved = True
        LinearProbe(epochs=1).fit(features, labels, [(0.1, 0.0)], 2, torch.Generator(), torch.arange(8))
    assert stop.value.exit_code == 143
    # Further signals change nothing.
    with pytest.raises(Interrupted), Interrupt(int) as interrupt:
        for _ in range(4):
            signal.raise_signal(signal.SIGTERM)
        assert interrupt.agreed() == signal.SIGTERM
    stop_if_asked()


def test_a_signal_to_which_the_block_has_not_reacted_stops_what_comes_next() -> None:
    with pytest.raises(Interrupted, match="SIGHUP") as stop, Interrupt(int):
        signal.raise_signal(signal.SIGHUP)
    assert stop.value.exit_code == 129
    with pytest.raises(Interrupted, match="SIGTERM"), Interrupt(int):
        signal.raise_signal(signal.SIGTERM)
        raise RunError("the next run of a grid would start")
    with Interrupt(int) as interrupt:
        interrupt.ask(signal.SIGTERM)  # which is no signal
