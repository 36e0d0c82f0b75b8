"""Carry out one run in this process: from its configuration to an outcome."""

import contextlib
import os
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.config.from_disk import find_prepared
from ssl_bench.disk import temporary
from ssl_bench.disk.patience import NoAnswer, exists, patiently
from ssl_bench.errors import ConfigError, RunError
from ssl_bench.hardware import available_cores, visible_gpus
from ssl_bench.launch import grid
from ssl_bench.launch.nodes import forget_result, nodes, restarted, under_torchrun
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.record import folders, lease, runs
from ssl_bench.record.metrics import show_agent
from ssl_bench.record.results import is_complete
from ssl_bench.record.runs import FAILURE, RESULTS
from ssl_bench.record.summary import print_run


@dataclass(frozen=True, eq=False)
class Run:
    """A run, alone or in a grid. It can be pickled.

    Attributes:
        overrides: of the command line, with one value each.
        config: resolved; empty if it cannot be composed.
        folder: its directory, which need not exist.
        command: the command that carries out this run alone.
        done: it has its results.
        refusal: why it cannot be.
        grid: the folder of its grid; None: it is alone.
        number: in its grid.
        label: names it in sentences, if its overrides do not.
    """

    overrides: tuple[str, ...]
    config: dict[str, Any]
    folder: Path
    command: str
    done: bool = False
    refusal: ConfigError | None = None
    grid: Path | None = None
    number: int = 0
    label: str = ""

    def record(self, outcome: Outcome) -> None:
        """Write the outcome to the folder of the grid, if it is in one."""
        if self.grid is not None and nodes().index == 0:
            grid.record(self.grid, self.number, self.overrides, outcome)


def carry_out(run: Run, wait: bool, quiet: bool = False) -> Outcome:
    """Carry out a run and return how it ended. Failures become the outcome, so that a grid goes on.

    Args:
        wait: until another process that is training it has ended; otherwise it is ``HELD`` then.
        quiet: print nothing, because other runs share this terminal.
    """
    torchrun, folder = under_torchrun(), None
    forget_result()
    try:
        config = find_prepared(run.config)
        folder = folders.find(config)
        run.record(Outcome(State.RUNNING, folder=str(folder)))
        outcome = _carry_out(run, config, folder, wait, quiet, torchrun)
    except (ConfigError, RunError) as error:
        outcome = Outcome.failed(str(error), error.exit_code)
    except OSError as error:  # of a file system, or of what the ranks share
        where = error.filename or "what the processes share in /dev/shm or TMPDIR"
        outcome = Outcome.failed(f"{where}: {error.strerror or error}; after fixing that, the same command resumes")
    outcome = replace(outcome, folder=str(folder) if folder else None)
    if not quiet:
        report(outcome, not torchrun or os.environ.get("RANK", "0") == "0")
    run.record(outcome)
    return outcome


def _carry_out(run: Run, config: dict[str, Any], folder: Path, wait: bool, quiet: bool, torchrun: bool) -> Outcome:
    # Where the ranks have several parents, all start, and rank 0 tells them whether there is anything to do.
    several_parents = torchrun or nodes().count > 1
    first = os.environ["RANK"] == "0" if torchrun else nodes().index == 0
    done = is_complete(folder, config)
    outcome = Outcome(State.DONE_BEFORE)
    if not done or several_parents:
        from ssl_bench.launch import ranks  # imports torch: only if there is something to train
        from ssl_bench.training.checked import CheckedParts

        local = ranks_here(config)
        if run.grid is not None:  # since its grid was checked the data may have gone
            CheckedParts(config).validate(local)
        config = config | {"threads": threads(config, folder, local)}
    waits = wait or restarted()
    with lease.held(folder, waits) if first and not done else contextlib.nullcontext() as held:
        claim = held if isinstance(held, lease.Claim) else None
        if isinstance(held, lease.Owner):
            outcome = Outcome(State.HELD, 1, f"{folder} is being trained by {held}")
        elif first and not done and is_complete(folder, config):  # while this process waited
            pass
        elif not done or several_parents:
            begun = exists(folder / "checkpoints") or exists(folder / RESULTS)
            if first and not done and not begun:  # else it does so once it is known to go on
                folders.begin(folder, config, run.command)
            if first and not done and not quiet:
                print(f"run {folder.name} in {folder}", flush=True)
            outcome = ranks.launch(config, folder, run.command, torchrun, quiet=quiet, claim=claim)
        if first:
            _conclude(outcome, config, folder, quiet, claim)
    return outcome


def ranks_here(config: dict[str, Any]) -> int:
    """How many ranks of a run this machine has."""
    return int(os.environ["LOCAL_WORLD_SIZE"]) if under_torchrun() else nodes().share(config["devices"])


def threads(config: dict[str, Any], folder: Path, local: int, concurrent: int | None = None) -> int | None:
    """CPU threads of each of the ``local`` processes, on which bits depend; None where GPUs compute.

    They are those that were set, or that the run began with, so that it goes on with its bits from any launcher.
    Else the runs of a grid have equal shares of the cores, whatever else runs.

    Args:
        concurrent: runs that share the cores; None: it has them alone.
    """
    from ssl_bench.launch.ranks import THREADS

    given: int | None = config["threads"]
    if given or visible_gpus(config["device"]):
        return given
    begun = runs.read(folder).config.get("threads")
    if begun and begun > 0:
        return min(begun, available_cores())
    shared = concurrent is not None or local > 1
    return max(1, available_cores() // (concurrent or 1) // local) if shared else THREADS


def _conclude(outcome: Outcome, config: dict[str, Any], folder: Path, quiet: bool, claim: lease.Claim | None) -> None:
    """Show the results of a finished run; keep the reason of a failed one, unless it stands as it did before."""
    if outcome.state is State.DONE_BEFORE:
        tidy(folder)
        show_agent(config, folder.name, folder)
    if outcome.finished and not quiet:
        print("" if outcome.state is State.DONE else f"already done: {folder}\n", end="")
        print_run(folder, config)
    if outcome.state is State.FAILED and outcome.detail:
        print(outcome.detail, file=sys.stderr, flush=True)
    if outcome.state is State.FAILED and claim and folders.begun(folder, config):
        with contextlib.suppress(OSError, NoAnswer):  # a full disk may be the reason, which is reported anyway
            # else an error came after the results, which stand, or another process has the run
            if not is_complete(folder, config) and not claim.lost_to():
                files.write_json(folder / FAILURE, {"reason": outcome.reason, "detail": outcome.detail})


def tidy(folder: Path) -> None:
    """Remove what a process has left in the folder of a finished run that ended at once after it wrote the results."""
    lease.remove_left(folder)
    temporary.remove_from_run(folder)
    with contextlib.suppress(OSError, NoAnswer):
        run = runs.read(folder) if exists(folder / FAILURE) else None
        if run and run.finished and not run.lacks:  # else a longer training has failed
            patiently(lambda: (folder / FAILURE).unlink(missing_ok=True))


def report(outcome: Outcome, first: bool) -> None:
    """Print why the run did not finish, on rank 0."""
    if outcome.state is State.INTERRUPTED:
        name = signal.Signals(outcome.signal).name
        print(f"interrupted by {name}; resume with the same command", file=sys.stderr, flush=True)
    if outcome.state in (State.FAILED, State.HELD) and first:
        print(f"ssl-bench: {outcome.reason}", file=sys.stderr, flush=True)
