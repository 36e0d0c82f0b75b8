"""Workers: the processes in which a run is carried out, one for each rank.

On Linux they are forked in milliseconds from a server that has imported torch (``preloaded.py``). The server ends with
the process that started it, and its workers end with the server: nothing is left behind however a run ends. The
workers of a grid save the state of their runs before. Neither the server nor a worker that is still starting reacts to
the signals that stop a run; a terminal sends them to all.

The main module of the program is not imported in a worker: a script would start its runs there again.
"""

import contextlib
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.util import Finalize, get_temp_dir
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TypeVar

from ssl_bench.disk import temporary
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.launch.processes import METHOD, die_with, stop_after
from ssl_bench.record import streams
from ssl_bench.signals import STOPPED, stops, unblock
from ssl_bench.surroundings import become, temporary_files_in

Task = TypeVar("Task")
PATIENCE = 30.0  # seconds that the other workers have to end, or to save their state, once one has failed
PAUSE = 0.5  # seconds between two looks for a free slot
LONGEST_FOLDER = 30  # bytes of TMPDIR for the server's socket, whose path has at most 107
LAST = -101  # after multiprocessing has removed its folder
RESUMES = "; the same command resumes"  # the end of the reason of one that has died
LOST = "has lost the others"  # in the reason of a worker that failed because another one did


# ---- in the process that waits for a run


def call_in_workers(
    function: Callable[..., Outcome],
    calls: Mapping[str, Sequence[Any]],
    environments: Mapping[str, Mapping[str, str]] = {},
) -> Outcome:
    """Call ``function`` in several processes at once, and wait for all.

    They have the environment, CPU affinity and working directory of this one, and are passed its signals.

    Args:
        function: importable by its name.
        calls: the arguments of each call, which can be pickled, by the name of its process in sentences.
        environments: variables of a process beside those of this one, by its name.

    Returns:
        What the first call returned if all succeed, otherwise why the first process failed or which signal stopped it.
        A signal that came when the calls had succeeded has stopped what this process does next.
    """
    workers: list[Worker] = []
    with signals_passed_on(workers) as received:
        for name, arguments in calls.items():
            workers.append(Worker(name, function, arguments, environments.get(name, {})))
        for number in list(received):  # that came while the workers started
            for worker in workers:
                worker.send(number)
        outcome = _joint(_ended(workers))
    return Outcome.interrupted(received[0]) if received else outcome


@contextlib.contextmanager
def signals_passed_on(workers: "Collection[Worker]") -> Iterator[list[int]]:
    """Pass the signals that stop runs on to the workers; yield them."""
    received: list[int] = []

    def pass_on(number: int, frame: Any) -> None:
        received.append(number)
        for worker in list(workers):
            worker.send(number)

    former = {number: signal.signal(number, pass_on) for number in stops()}
    try:
        yield received
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hide the main module of this program, which multiprocessing would import in its processes."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def start_server() -> None:
    """Start the server, unless it runs already. Its socket needs a short path, which TMPDIR on a cluster may not be."""
    if METHOD != "forkserver":
        return
    multiprocessing.set_forkserver_preload(["ssl_bench.launch.preloaded"])
    with temporary_files_in(_server_folder(os.getpid())), _without_main():
        forkserver.ensure_running()


@cache
def _server_folder(pid: int) -> str:
    """The folder of the server's socket and of what its imports leave, which this process removes at its end."""
    former = tempfile.tempdir
    parent = tempfile.gettempdir()
    folder = temporary.make_folder(Path(parent if len(os.fsencode(parent)) <= LONGEST_FOLDER else "/tmp"))
    Finalize(None, shutil.rmtree, (folder, True), exitpriority=LAST)
    tempfile.tempdir = str(folder)
    try:
        return get_temp_dir()
    finally:
        tempfile.tempdir = former


class Worker:
    """A process that carries out a call.

    Args:
        name: of the process in sentences.
        function, arguments: the call.
        environment: variables beside those of this process.
        cores: that it may use; None: those of this process.
        saves: it outlives this process, to save the state of its run.

    Attributes:
        outcome: what it has reported; None if it ended without.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Outcome],
        arguments: Sequence[Any],
        environment: Mapping[str, str] = {},
        cores: set[int] | None = None,
        saves: bool = False,
    ) -> None:
        start_server()
        context: Any = multiprocessing.get_context(METHOD)
        self.name, self.outcome = name, None
        self._report, theirs = context.Pipe(duplex=False)
        cores = cores or (os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None)
        call = (theirs, {**os.environ, **environment}, cores, saves, name, function, arguments)
        self.process = context.Process(target=_work, args=call)
        with _without_main():
            self.process.start()
        theirs.close()

    def channels(self) -> list[Any]:
        """Return what becomes ready when the process reports, and when it ends."""
        return [self.process.sentinel, *([] if self._report.closed else [self._report])]

    def over(self) -> bool:
        """Whether the process has ended; its report is read."""
        ended = bool(wait([self.process.sentinel], 0))
        if not self._report.closed and self._report.poll():
            with contextlib.suppress(EOFError), self._report:
                self.outcome = self._report.recv()
        return ended

    def send(self, number: int) -> None:
        """Send the process a signal, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def end(self) -> Outcome:
        """How the process, which has ended, carried out its call."""
        code = self.process.exitcode
        if self.outcome is not None:
            return self.outcome
        if code in STOPPED:
            return Outcome.interrupted(int(STOPPED[code]))
        how = f"exited with code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
        why = " (is the memory full?)" if code == -signal.SIGKILL else ""
        return Outcome.failed(f"{self.name} {how}{why}{RESUMES}")


def side_by_side(
    tasks: Sequence[Task], room: int, start: Callable[[Task, Callable[[], bool]], Worker | None]
) -> Iterator[tuple[Task, Outcome]]:
    """Carry out tasks in processes, and yield each with its outcome as it ends. After a signal no other one starts.

    Args:
        room: tasks at once.
        start: the worker of a task; None if there is no slot for it while nobody is ``patient`` enough to wait for one.
    """
    left, running = deque(tasks), dict[Worker, Task]()
    with signals_passed_on(running) as received:
        while running or (left and not received):
            while left and len(running) < room and not received:
                worker = start(left[0], lambda: not running and not received)
                if worker is None:
                    break
                running[worker] = left.popleft()
                for number in received:  # it came during the start
                    worker.send(number)
            wait([channel for worker in running for channel in worker.channels()], PAUSE)
            for worker in [worker for worker in running if worker.over()]:
                yield running.pop(worker), worker.end()
    yield from ((task, Outcome.interrupted(received[0])) for task in left if received)


def _ended(workers: Sequence[Worker]) -> list[Outcome]:
    """Wait for all workers; return how they ended, in that order. Once one has failed, the others are stopped.

    Once one was stopped, the others get no signal: they were stopped with it, and one of them may be saving the state.
    """
    running, verdicts, end = list(workers), list[Outcome](), None
    while running:
        left = None if end is None else max(0.0, end - time.monotonic())
        if not wait([channel for worker in running for channel in worker.channels()], left):
            for worker in running:
                worker.process.kill()
                worker.process.join()
            break
        for worker in [worker for worker in running if worker.over()]:
            running.remove(worker)
            verdicts.append(worker.end())
            if end is None and not verdicts[-1].finished:
                end = time.monotonic() + PATIENCE
                for other in running if verdicts[-1].state is State.FAILED else ():
                    other.send(signal.SIGTERM)
    return verdicts


def _joint(verdicts: Sequence[Outcome]) -> Outcome:
    """How a run ended whose workers ended so: the first to fail tells why, unless it only lost another one."""
    first = next((verdict for verdict in verdicts if not verdict.finished), verdicts[0])
    causes = [verdict for verdict in verdicts if verdict.state is State.FAILED and LOST not in verdict.reason]
    return causes[0] if LOST in first.reason and causes else first


# ---- in a worker


def _work(
    report: Connection,
    environment: Mapping[str, str],
    cores: set[int] | None,
    saves: bool,
    name: str,
    function: Callable[..., Outcome],
    arguments: Sequence[Any],
) -> NoReturn:
    """Carry out a call, report its outcome and exit."""
    if saves:
        os.setpgrp()  # the process of the grid passes on the signals of a terminal
        stop_after(os.getppid())
    else:
        die_with(os.getppid())
    become(environment)
    tempfile.tempdir = None  # of this environment, no longer of the server
    if cores is not None:
        os.sched_setaffinity(0, cores)
    streams.outlive_reader()
    unblock()
    code = 1
    try:
        try:
            outcome = function(*arguments)
        except Exception as error:
            reason = f"{name} failed: {type(error).__name__}: {error}"
            outcome = Outcome.failed(reason, detail=traceback.format_exc())
        report.send(outcome)
        sys.stdout.flush()
        sys.stderr.flush()
        code = outcome.code
    finally:
        os._exit(code)  # at once: other ranks may wait for this one in a collective
