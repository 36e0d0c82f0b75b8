"""Runs and the processes of this program: how both end, how processes start, and which machines share a run.

On Linux processes are forked in milliseconds from multiprocessing's server, which imports torch once. A terminal sends
its signals to the server and to starting processes too, which ignore them. The main module of the program is not
imported in the new processes: a script would start its runs there again.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

from ssl_bench.errors import ConfigError, RunError, one_line, require, shortened
from ssl_bench.record import streams
from ssl_bench.signals import STOPPED, STOPS, Interrupted, unblock
from ssl_bench.surroundings import become

METHOD = "forkserver" if sys.platform == "linux" else "spawn"  # elsewhere a process with torch cannot be forked safely
# Modules that the server imports because runs do: torch._dynamo for DDP, compiled views and optimisers, the last two
# for pictures. None starts a thread or initialises CUDA, after which a forked process could not use GPUs.
PRELOADED = ["ssl_bench.launch.run", "torch._dynamo", "sklearn.metrics", "matplotlib.figure"]
LOST = "has lost the others"  # in the reason of a rank that failed because another one did


class State(StrEnum):
    """The state of a run at the end of a command.

    ``DONE_BEFORE``: the run was finished already. ``BUSY``: another process is training it.
    """

    DONE = "trained"
    DONE_BEFORE = "done before"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    BUSY = "busy"


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        code: exit code: 0 done, 1 failed, 2 configuration error, 128 + n stopped by signal n.
        reason: why it failed, in one sentence.
        folder: the run's directory, once it is known.
    """

    state: State
    code: int = 0
    reason: str = ""
    folder: str | None = None

    @classmethod
    def failed(cls, reason: str, code: int = 1) -> "Outcome":
        return cls(State.FAILED, code, shortened(one_line(reason)))

    @classmethod
    def interrupted(cls, number: int) -> "Outcome":
        return cls(State.INTERRUPTED, 128 + number)

    @classmethod
    def of(cls, error: Exception | Interrupted, where: str = "") -> "Outcome":
        """The outcome of a run that raised this error; the reason of an unexpected error begins with ``where``."""
        if isinstance(error, Interrupted):
            return cls.interrupted(error.number)
        if isinstance(error, ConfigError | RunError):
            return cls.failed(str(error), error.exit_code)
        if isinstance(error, OSError):  # of a file system, or of what the ranks share
            place = error.filename or "what the processes share in /dev/shm or TMPDIR"
            return cls.failed(f"{place}: {error.strerror or error}; after fixing that, the same command resumes")
        traceback.print_exception(error)
        return cls.failed(f"{where}{type(error).__name__}: {error}")

    @classmethod
    def ended(cls, name: str, code: int) -> "Outcome":
        """The outcome of a process that ended without reporting one, from its exit code in ``multiprocessing``."""
        if code in STOPPED:
            return cls.interrupted(STOPPED[code])
        how = f"exited with code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
        return cls.failed(f"{name} {how}{' (is the memory full?)' * (code == -9)}; the same command resumes")

    @property
    def finished(self) -> bool:
        """Whether the run has its results."""
        return self.state in (State.DONE, State.DONE_BEFORE)

    @property
    def failed_by_itself(self) -> bool:
        """Whether the run failed for another reason than the failure of another rank."""
        return self.state is State.FAILED and LOST not in self.reason

    def report(self) -> None:
        """Print why the run did not finish, on rank 0, and under torchrun on a rank that failed by itself."""
        name = signal.Signals(self.code - 128).name if self.state is State.INTERRUPTED else ""
        text = f"interrupted by {name}; the same command goes on" if name else f"ssl-bench: {self.reason}"
        if name or self.failed_by_itself or (self.reason and os.environ.get("RANK", "0") == "0"):
            print(text, file=sys.stderr, flush=True)


@dataclass(frozen=True, eq=False)
class Run:
    """A run, alone or in a grid. It can be pickled.

    Attributes:
        overrides: of the command line, with one value each.
        config: resolved; empty if it cannot be composed.
        folder: its directory, which need not exist.
        command: the command that carries out this run alone.
        label: its name in the sentences of a grid.
        number: in its grid.
        done: it had its results before the command began.
        refusal: why it cannot be.
    """

    overrides: tuple[str, ...]
    config: dict[str, Any]
    folder: Path
    command: str
    label: str = ""
    number: int = 0
    done: bool = False
    refusal: ConfigError | None = None


OnEnd = Callable[[Run, Outcome], object]
Work = Callable[[], Outcome]


class Process:
    """A process that calls a function, sends the outcome that it returns, and ends.

    Args:
        name: name of the process in sentences.
        work: the function, which can be pickled.
        stop: the signal that the process gets when this process has ended for any reason.
        env: environment variables in addition to those of this process.
        cores: the cores that the process may use; none: all cores of this process.
    """

    def __init__(self, name: str, work: Work, stop: int, env: dict[str, str], cores: Collection[int] = ()) -> None:
        resource_tracker.ensure_running()  # which would unblock the signals
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        main, former = sys.modules["__main__"], tempfile.tempdir
        sys.modules["__main__"], tempfile.tempdir = ModuleType("__main__"), "/tmp"  # of a socket with a short path
        try:
            context = multiprocessing.get_context(METHOD)
            context.set_forkserver_preload([*PRELOADED, *sys.modules.keys() & {"timm", "torchvision"}])
            self._outcome, theirs = context.Pipe(duplex=False)
            call = (theirs, work, stop, {**os.environ, **env}, cores)
            self.process: Any = context.Process(target=_work, args=call, name=name)  # type: ignore[attr-defined]
            self.process.start()
            theirs.close()
        finally:
            sys.modules["__main__"], tempfile.tempdir = main, former
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def end(self) -> Outcome:
        """Wait for the end of the process; return its outcome."""
        outcome: Outcome | None = None
        with contextlib.suppress(EOFError):
            outcome = self._outcome.recv()
        self.process.join()
        return outcome or Outcome.ended(self.process.name, self.process.exitcode)


def _work(result: Connection, work: Work, stop: int, env: dict[str, str], cores: Collection[int]) -> None:
    """The main function of a :class:`Process`."""
    os.setpgrp()  # the process that started it passes on the signals of a terminal
    if cores:
        os.sched_setaffinity(0, cores)
    become(env)
    tempfile.tempdir = None  # of this environment, not of the server's
    streams.outlive_reader()
    end_with_parent(stop)
    unblock()
    try:
        outcome = work()
    except (Exception, Interrupted) as error:
        outcome = Outcome.of(error)
    with contextlib.suppress(OSError):  # the process that started it has ended
        result.send(outcome)
    sys.exit(int(outcome.state is State.FAILED))


def end_with_parent(number: int) -> None:
    """Send this process a signal when the process that started it has ended, however it ended."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os.kill(os.getpid(), number)

    threading.Thread(target=watch, daemon=True).start()


def nodes() -> tuple[int, int, str]:
    """The number of nodes of this Slurm job, the index of this node, and the address of the ranks' rendezvous.

    (1, 0, "") outside Slurm or on a single node.
    """
    if os.environ.get("SUBMITIT_EXECUTOR") != "slurm" or os.environ.get("SLURM_JOB_NUM_NODES", "1") == "1":
        return 1, 0, ""
    from submitit import JobEnvironment

    job = JobEnvironment()
    # Jobs that share a machine need different ports.
    return job.num_nodes, job.node, f"{job.hostnames[0]}:{20_000 + int(os.environ['SLURM_JOB_ID']) % 20_000}"


def under_torchrun() -> bool:
    """Whether torchrun has started this process as one of its ranks."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def ranks_here(config: Mapping[str, Any]) -> int:
    """How many ranks of a run this machine has.

    Raises:
        ConfigError: ``devices`` is no multiple of the machines.
    """
    if under_torchrun():
        return int(os.environ["LOCAL_WORLD_SIZE"])
    devices, count = config["devices"], nodes()[0]
    require(devices % count == 0, "devices", devices, f"the GPUs of all nodes, a multiple of launcher.nodes={count}")
    return int(devices // count)
