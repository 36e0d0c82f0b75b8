"""Carry out one run in this process: from its configuration to an outcome."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from ssl_bench import files
from ssl_bench.config.from_disk import find_prepared
from ssl_bench.errors import ConfigError
from ssl_bench.hardware import available_cores, visible_gpus
from ssl_bench.launch.nodes import nodes, under_torchrun
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.record import lease, runs
from ssl_bench.record.dashboard import show_agent
from ssl_bench.record.runs import FAILURE, RESULTS, is_complete
from ssl_bench.record.terminal import print_run


@dataclass(frozen=True, eq=False)
class Run:
    """A run, alone or in a grid. It can be pickled.

    Attributes:
        overrides: of the command line, with one value each.
        config: resolved; empty if it cannot be composed.
        folder: its directory, which need not exist.
        command: the command that carries out this run alone.
        number: in its grid.
        done: it had its results before the command began.
        refusal: why it cannot be.
        label: names it in sentences, if its overrides do not.
    """

    overrides: tuple[str, ...]
    config: dict[str, Any]
    folder: Path
    command: str
    number: int = 0
    done: bool = False
    refusal: ConfigError | None = None
    label: str = ""


class Failure(TypedDict):
    """Content of ``failed.json``: ``time`` is in seconds of the epoch."""

    reason: str
    detail: NotRequired[str]
    time: NotRequired[float]


def carry_out(
    run: Run, wait: bool, quiet: bool = False, shared: bool = False, begin: Callable[[], object] = lambda: None
) -> Outcome:
    """Carry out a run and return how it ended. Failures become the outcome, so that a grid goes on.

    Args:
        wait: until another process that is training it has ended; otherwise it is ``BUSY`` then.
        quiet: print nothing, because other runs share this terminal.
        shared: the runs of a grid have equal shares of the cores.
        begin: called once the run is that of this process and before it trains.
    """
    folder = None
    try:
        config = find_prepared(run.config)
        folder = runs.find(config)
        outcome = _carry_out(run, config, folder, wait, quiet, shared, begin)
        if outcome.state is State.DONE_BEFORE:
            tidy(folder)
            show_agent(config, folder.name, folder)
        if outcome.finished and not quiet:
            print("" if outcome.state is State.DONE else f"already done: {folder}\n", end="")
            print_run(folder, config)
    except Exception as error:
        outcome = Outcome.of(error)
    if outcome.detail:
        print(outcome.detail, file=sys.stderr, flush=True)
    if not quiet:
        report(outcome, os.environ.get("RANK", "0") == "0")
    return replace(outcome, folder=str(folder) if folder else None)


def _carry_out(
    run: Run, config: dict[str, Any], folder: Path, wait: bool, quiet: bool, shared: bool, begin: Callable[[], object]
) -> Outcome:
    torchrun = under_torchrun()  # all its processes train, and rank 0 tells the others whether there is anything to do
    if not torchrun and is_complete(folder, config):
        return Outcome(State.DONE_BEFORE)
    from ssl_bench.launch import ranks  # imports torch: only if there is something to train

    config = config | {"threads": threads(config, folder, shared)}
    if torchrun and os.environ["RANK"] != "0":
        return ranks.launch(ranks.Task(config, folder, run.command, quiet))
    with lease.held(folder, wait) as claim:
        if isinstance(claim, lease.Owner):
            return Outcome(State.BUSY, 1, f"{folder} is being trained by {claim}")
        done = is_complete(folder, config)  # also since this process has waited
        if done and not torchrun:
            return Outcome(State.DONE_BEFORE)
        if not done and not any((folder / name).exists() for name in ("checkpoints", RESULTS)):
            runs.begin(folder, config, run.command)  # another one does so once it is known to go on
        if not done and not quiet:
            print(f"run {folder.name} in {folder}", flush=True)
        begin()
        outcome = ranks.launch(ranks.Task(config, folder, run.command, quiet, claim))
        if not outcome.finished and (other := claim.lost_to()):
            return Outcome(State.BUSY, 1, str(lease.Taken(folder, other)))
        if outcome.state is State.FAILED and runs.begun(folder, config):
            keep_failure(outcome, folder, config)
        return outcome


def follow(run: Run) -> Outcome:
    """Carry out this machine's ranks of a run that another machine has the lease of."""
    from ssl_bench.launch import ranks

    config = find_prepared(run.config)
    folder = runs.find(config)
    return ranks.launch(ranks.Task(config | {"threads": threads(config, folder, False)}, folder, run.command))


def ranks_here(config: dict[str, Any]) -> int:
    """How many ranks of a run this machine has."""
    return int(os.environ["LOCAL_WORLD_SIZE"]) if under_torchrun() else nodes().share(config["devices"])


def threads(config: dict[str, Any], folder: Path, shared: bool) -> int | None:
    """CPU threads of each process of a run on this machine, on which bits depend; None where GPUs compute.

    They are those that were set, or that the run began with, so that it goes on with its bits from any launcher.

    Args:
        shared: other runs have other cores of this machine.
    """
    from ssl_bench.launch.ranks import THREADS

    given: int | None = config["threads"]
    if given or visible_gpus(config["device"]):
        return given
    begun, local = runs.read(folder).config.get("threads"), ranks_here(config)
    if begun and begun > 0:
        return min(begun, available_cores())
    return max(1, available_cores() // local) if shared or local > 1 else min(THREADS, available_cores())


def keep_failure(outcome: Outcome, folder: Path, config: dict[str, Any]) -> None:
    """Keep the reason of a failed run, whose lease this process holds."""
    with contextlib.suppress(OSError, files.FileSystemUnavailable):  # which is reported anyway
        if not is_complete(folder, config):  # else an error came after the results, which stand
            content = {"reason": outcome.reason, "detail": outcome.detail, "time": time.time()}
            files.write_json(folder / FAILURE, content)


def failed_since(folder: Path, then: float) -> Outcome | None:
    """How a run has failed since a time, in seconds of the epoch; None if it has not."""
    failure = files.read_json(folder / FAILURE, Failure, named=False, of_a_run=True)
    return Outcome.failed(failure["reason"]) if failure and failure.get("time", 0.0) > then else None


def tidy(folder: Path) -> None:
    """Remove what a process has left in the folder of a finished run that ended at once after it wrote the results."""
    lease.remove_left(folder)
    with contextlib.suppress(OSError, files.FileSystemUnavailable):
        run = runs.read(folder) if (folder / FAILURE).exists() else None
        if run and run.finished and not run.lacks:  # else a longer training has failed
            (folder / FAILURE).unlink(missing_ok=True)


def report(outcome: Outcome, first: bool) -> None:
    """Print why the run did not finish, on rank 0."""
    if outcome.state is State.INTERRUPTED:
        name = signal.Signals(outcome.signal).name
        print(f"interrupted by {name}; resume with the same command", file=sys.stderr, flush=True)
    if outcome.state in (State.FAILED, State.BUSY) and first:
        print(f"ssl-bench: {outcome.reason}", file=sys.stderr, flush=True)
