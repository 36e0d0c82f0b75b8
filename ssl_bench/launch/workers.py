"""Workers: a process of its own for each run of a grid, forked in milliseconds from a server that has imported torch.

Every process that carries out runs, one at a time, has its own server. The server ends with that process and a worker
with the server, so that nothing is left behind however a grid ends. The server never uses a GPU and has no thread that
a worker would miss. It does not react to the signals that stop a run: a terminal sends them to all processes.
"""

import atexit
import contextlib
import gc
import importlib
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from typing import Any, BinaryIO, NoReturn

from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.launch.processes import die_with
from ssl_bench.record import streams
from ssl_bench.training.signals import STOPPED, STOPS, stops

# What a run imports, imported by the server once for all runs. Nothing here may start a thread or ask CUDA for GPUs,
# after which a fork could not use them.
PRELOADED = (
    "ssl_bench.launch.ranks",
    *(["torch._dynamo"] if os.path.exists("/dev/nvidiactl") else []),  # runs on GPUs compile their views
    "wandb",
    "wandb.sdk.launch",  # wandb.init imports it
    "matplotlib.style",  # and the next two for the learning curves
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
)


@dataclass(frozen=True)
class Task:
    """A call of a function, with the surroundings that its process needs.

    Attributes:
        cores: CPU affinity.
        folder: working directory.
        command: ``sys.argv``.
    """

    function: Callable[..., Outcome]
    arguments: Sequence[Any]
    environment: dict[str, str]
    cores: set[int]
    folder: str
    command: list[str]

    def carry_out(self) -> Outcome:
        os.environ.clear()
        os.environ.update(self.environment)
        os.sched_setaffinity(0, self.cores)
        os.chdir(self.folder)
        sys.argv = self.command
        return self.function(*self.arguments)


# ---- in the process that carries out runs


def in_worker(function: Callable[..., Outcome], *arguments: Any) -> Outcome:
    """Call ``function`` in a process of its own and wait for it. Linux only.

    The process has the environment, CPU affinity and working directory of this one, and is passed its signals.

    Args:
        function: importable by its name.
        arguments: anything that can be pickled.

    Returns:
        What the function returned; ``FAILED`` if it raised an exception or its process crashed; ``INTERRUPTED`` if a
        signal that stops a run ended the process.
    """
    surroundings = dict(os.environ), os.sched_getaffinity(0), os.getcwd(), sys.argv
    task = pickle.dumps(Task(function, arguments, *surroundings))
    with _signals_to() as (pass_to, received):
        outcome = _outcome(task, pass_to)
    if received and outcome.state is not State.INTERRUPTED:
        signal.raise_signal(received[0])  # it came when the run had ended, and is meant for this process too
    return outcome


def _outcome(task: bytes, started: Callable[[int], None]) -> Outcome:
    """Have the server carry out a task; ``started`` is called with the PID of the worker."""
    try:
        server = _server()
        server.send_bytes(task)
        started(server.recv())
        code, report = server.recv()
    except (EOFError, ConnectionError):
        _server.cache_clear()
        return Outcome.failed("the process that starts the runs was killed; the same command resumes")
    if report:
        outcome: Outcome = pickle.loads(report)
        return outcome
    if code in STOPPED:
        return Outcome.interrupted(int(STOPPED[code]))
    how = f"exited with code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
    why = " (is the memory full?)" if code == -signal.SIGKILL else ""
    return Outcome.failed(f"the process of the run {how}{why}; the same command resumes")


@contextlib.contextmanager
def _signals_to() -> Iterator[tuple[Callable[[int], None], list[int]]]:
    """Receive the signals that stop a run, and pass them on to a process once it is known.

    Yields:
        A function to call with the PID of the process, and the list of all signals received.
    """
    received: list[int] = []
    kept: list[int] = []
    process: list[int] = []

    def pass_on() -> None:
        while process and kept:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process[0], kept.pop(0))

    def handle(number: int, frame: Any) -> None:
        received.append(number)
        kept.append(number)
        pass_on()

    def pass_to(pid: int) -> None:
        process.append(pid)
        pass_on()

    former = {number: signal.signal(number, handle) for number in stops()}
    try:
        yield pass_to, received
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@cache
def _server() -> Connection:
    """Connection to the server of this process, which is started by the first call."""
    ours, theirs = multiprocessing.Pipe()
    code = f"import sys; sys.path[:] = {sys.path!r}; from ssl_bench.launch.workers import serve; "
    code += f"serve({theirs.fileno()}, {os.getpid()})"
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    os.set_inheritable(theirs.fileno(), True)
    os.posix_spawn(sys.executable, [sys.executable, *flags, "-c", code], os.environ, setsigmask=STOPS)
    theirs.close()
    return ours


# ---- in the server


def serve(descriptor: int, parent: int) -> NoReturn:
    """Fork a worker for each task that arrives, one at a time, until the parent ends.

    Args:
        descriptor: of the connection to the parent.
        parent: its PID.
    """
    die_with(parent)
    streams.outlive_reader()
    os.set_inheritable(descriptor, False)
    for module in PRELOADED:
        with contextlib.suppress(Exception):  # the run that needs the module reports it
            importlib.import_module(module)
    gc.freeze()  # the workers' garbage collection passes over the imported modules, whose pages stay shared
    with Connection(descriptor) as connection:
        while True:
            try:
                task = connection.recv_bytes()
            except EOFError:
                os._exit(0)  # without the destructors of all modules
            with open(os.memfd_create("report"), "w+b") as report:
                server, pid = os.getpid(), os.fork()
                if pid == 0:
                    connection.close()
                    _work(task, report, server)
                connection.send(pid)
                _, status = os.waitpid(pid, 0)
                report.seek(0)
                connection.send((os.waitstatus_to_exitcode(status), report.read()))


def _work(task: bytes, report: BinaryIO, server: int) -> NoReturn:
    """Carry out a task in a process that was just forked, and exit."""
    code = 1
    try:
        die_with(server)
        for number in stops():
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        try:
            outcome = pickle.loads(task).carry_out()
        except Exception as error:
            outcome = Outcome.failed(f"{type(error).__name__}: {error}", detail=traceback.format_exc())
        report.write(pickle.dumps(outcome))
        report.flush()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        code = outcome.code
    finally:
        os._exit(code)
