"""The workers of a grid: each takes the next run of the list that is neither finished nor taken, until none is left.

A run has one directory, one lease and its checkpoints, so that any number of processes can go over one list: those of a
command, the jobs of an array, or the same command started twice.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

from ssl_bench.errors import RunError, require
from ssl_bench.hardware import available_cores, visible_gpus
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.launch.processes import cores, remove_folder, started, starting, stop_after
from ssl_bench.launch.run import Run, carry_out, failed_since, keep_failure
from ssl_bench.record import lease
from ssl_bench.signals import STOPPED, Interrupted, passed_on, raised

Ends = dict[int, Outcome]  # how runs ended, by their numbers
Said = Callable[[Run, Outcome], object]
Place = tuple[dict[str, str], set[int] | None]  # environment variables and cores of a worker


def work(
    runs: Sequence[Run],
    since: float,
    said: Said,
    wait: bool = True,
    shared: bool = False,
    begin: Callable[[Run], object] = lambda run: None,
) -> Ends:
    """Carry out the runs of a list, last those that other processes train; return how they ended.

    Args:
        since: when the command began, in seconds of the epoch: a run that has failed since is not tried again.
        said: called with each outcome.
        wait: for what other processes train, and take over what they leave; otherwise it stays ``BUSY``.
        shared: other workers have other cores of this machine.
        begin: called before a run trains.
    """
    ends = Ends()
    for waits in (False, True) if wait else (False,):
        for run in runs:
            if run.number not in ends or ends[run.number].state is State.BUSY:
                outcome = failed_since(run.folder, since) or carry_out(run, waits, True, shared, partial(begin, run))
                ends[run.number] = outcome
                said(run, outcome)
                if outcome.state is State.INTERRUPTED:
                    return ends
    return ends


def places(runs: Sequence[Run], settings: Mapping[str, Any]) -> list[Place]:
    """The GPUs of each worker, or its share of the cores where there are none.

    Args:
        settings: ``launcher``.

    Raises:
        ConfigError: there are fewer GPUs than the workers need.
    """
    jobs, runs_per_gpu = settings["jobs"], settings["runs_per_gpu"]
    devices, device = max(run.config["devices"] for run in runs), runs[0].config["device"]
    if gpus := visible_gpus(device):
        room = len(gpus) * runs_per_gpu // devices
        jobs = jobs or room
        why = f"{room} or less: {len(gpus)} GPUs, {devices} for a run, launcher.runs_per_gpu={runs_per_gpu}"
        require(jobs <= room, "launcher.jobs", jobs, why)
        every = gpus * runs_per_gpu  # a second run comes to a GPU after each has one
        return [({"CUDA_VISIBLE_DEVICES": ",".join(every[i * devices :][:devices])}, None) for i in range(jobs)]
    mine = sorted(cores() or ())
    jobs = jobs or max(1, available_cores() // devices)
    share = max(1, available_cores() // jobs)
    return [({}, {*(mine + mine)[i * share % max(1, len(mine)) :][:share]} or None) for i in range(jobs)]


def local(runs: Sequence[Run], among: Sequence[Place], since: float, said: Said) -> None:
    """Carry out runs in processes of this machine, each with GPUs or cores of its own.

    One that is killed leaves the run that it trained as failed, and another one goes on with the rest. A run that is
    sent a signal saves its state; if this process is killed, too.

    Raises:
        Interrupted: a signal came.
    """
    ends, workers = Ends(), list[_Worker]()

    def start(place: Place, left: Iterable[Run], wait: bool = False) -> None:
        taken = {worker.at for worker in workers}
        left = [run for run in left if run.number not in ends and run.number not in taken]
        if left and not received:
            workers.append(_Worker(place, left, since, wait))
            for number in received:  # it came during the start
                os.kill(workers[-1].process.pid, number)

    def end(run: Run, outcome: Outcome) -> None:
        ends[run.number] = outcome
        said(run, outcome)

    with passed_on(lambda: [worker.process.pid for worker in workers]) as received:
        for place in among[: len(runs)]:
            start(place, runs)
        while workers:
            wait([channel for worker in workers for channel in worker.channels()])
            for worker in [*workers]:
                ended = worker.over()
                for number, outcome in worker.messages():
                    worker.at = number if outcome is None else None
                    beside = any(other.at == number for other in workers)  # which will say how it ends
                    if outcome and not beside and (number not in ends or ends[number].state is State.BUSY):
                        end(worker.runs[number], outcome)
                if ended:
                    workers.remove(worker)
                    if worker.at is not None and (died := worker.died()):
                        end(worker.runs[worker.at], died)
                        start(worker.place, runs)
            if not workers and not received:
                busy = [run for run in runs if run.number in ends and ends[run.number].state is State.BUSY]
                for run in busy:
                    del ends[run.number]
                start(among[0], busy, wait=True)
    if received:
        raise Interrupted(received[0])


class _Worker:
    """A process that goes over a list; ``at``: the number of the run that it trains."""

    def __init__(self, place: Place, runs: Sequence[Run], since: float, wait: bool) -> None:
        self.place, self.runs, self.at = place, {run.number: run for run in runs}, None
        environment, mine = place
        with starting() as context:
            self._reports, theirs = context.Pipe(duplex=False)
            call = (theirs, {**os.environ, **environment}, mine or cores(), [*runs], since, wait)
            self.process = context.Process(target=_work, args=call)
            self.process.start()
            theirs.close()

    at: int | None

    def channels(self) -> list[Any]:
        """Return what becomes ready when the process reports, and when it ends."""
        return [self.process.sentinel, *([] if self._reports.closed else [self._reports])]

    def over(self) -> bool:
        """Whether the process has ended."""
        return bool(wait([self.process.sentinel], 0))

    def messages(self) -> Iterable[tuple[int, Outcome | None]]:
        """The runs that it has begun, each with None, and that have ended, each with its outcome."""
        try:
            while not self._reports.closed and self._reports.poll():
                yield self._reports.recv()
        except EOFError:
            self._reports.close()

    def died(self) -> Outcome:
        """How the run ended whose process has died; a failure is kept with the run."""
        code, run = self.process.exitcode, self.runs[self.at or 0]
        if code in STOPPED:
            return Outcome.interrupted(int(STOPPED[code]))
        outcome = Outcome.died("the process of the run", code)
        with suppress(RunError), lease.held(run.folder, wait=False) as claim:
            if isinstance(claim, lease.Claim):  # and no other process has taken it over
                keep_failure(outcome, run.folder, run.config)
        return outcome


def _work(
    reports: Connection,
    environment: Mapping[str, str],
    mine: set[int] | None,
    runs: Sequence[Run],
    since: float,
    wait: bool,
) -> NoReturn:
    """Be a worker."""
    os.setpgrp()  # the process of the grid passes on the signals of a terminal
    stop_after(os.getppid())
    started(environment, mine)
    with suppress(Interrupted), raised():
        work(
            runs,
            since,
            lambda run, outcome: reports.send((run.number, outcome)),
            wait,
            shared=True,
            begin=lambda run: reports.send((run.number, None)),
        )
    reports.close()
    remove_folder()
    os._exit(0)
