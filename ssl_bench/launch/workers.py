"""The workers of a grid: each takes the next run of the list that is neither finished nor taken, until none is left.

A run has one directory, one lease and its checkpoints, so that any number of processes can go over one list: those of a
command, the jobs of an array, or the same command started twice.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from signal import SIGTERM
from typing import Any

from ssl_bench.errors import RunError, require
from ssl_bench.hardware import available_cores, visible_gpus
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.launch.processes import started, starting
from ssl_bench.launch.run import Run, carry_out, failed_since, keep_failure
from ssl_bench.record import lease
from ssl_bench.signals import STOPPED, Interrupted, passed_on, raise_again, raised

Ends = dict[int, Outcome]  # how runs ended, by their numbers
Said = Callable[[Run, Outcome], object]
Place = tuple[dict[str, str], set[int]]  # environment variables and cores of a worker; no cores: all


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
        wait: for what other processes train, and take over what they leave.
        shared: other workers have other cores of this machine.
        begin: called before a run trains.
    """
    ends = Ends()
    for waits in (False, True) if wait else (False,):
        for run in [run for run in runs if run.number not in ends]:
            raise_again()
            outcome = failed_since(run.folder, since) or carry_out(run, waits, True, shared, partial(begin, run))
            if outcome.state is State.BUSY:
                continue
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
        return [({"CUDA_VISIBLE_DEVICES": ",".join(every[i * devices :][:devices])}, set()) for i in range(jobs)]
    mine = cores()
    jobs = jobs or max(1, available_cores() // devices)
    share = max(1, available_cores() // jobs)
    return [({}, {*(mine + mine)[i * share % max(1, len(mine)) :][:share]}) for i in range(jobs)]


def cores() -> list[int]:
    """The cores that this process may use; none where the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def local(runs: Sequence[Run], among: Sequence[Place], since: float, said: Said) -> None:
    """Carry out runs in processes of this machine, each with GPUs or cores of its own.

    One that is killed leaves the run that it trained as failed, and another one goes on with the rest. A run that is
    sent a signal saves its state; if this process is killed, too.

    Raises:
        Interrupted: a signal came.
    """
    left, workers = {run.number: run for run in runs}, dict[Connection, _Worker]()
    before = len(runs) + 1  # that were left when the last process began to wait for others

    def start(place: Place, wait: bool = False) -> None:
        taken = {worker.at for worker in workers.values()}
        if (rest := [run for run in left.values() if run.number not in taken]) and not received:
            worker = _Worker(place, rest, since, wait)
            workers[worker.reports] = worker
            for number in received:  # it came during the start
                os.kill(worker.process.pid, number)

    def end(number: int, outcome: Outcome) -> None:
        if run := left.pop(number, None):
            said(run, outcome)

    with passed_on(lambda: [worker.process.pid for worker in workers.values()]) as received:
        for place in among[: len(runs)]:
            start(place)
        while workers:
            ready = wait([*workers])
            for channel, worker in [pair for pair in workers.items() if pair[0] in ready]:
                try:
                    number, outcome = channel.recv()
                    worker.at = number if outcome is None else None
                    if outcome and all(other.at != number for other in workers.values()):  # which will say how it ends
                        end(number, outcome)
                except (EOFError, OSError):  # its process has ended
                    del workers[channel]
                    if died := worker.died():
                        end(*died)
                        start(worker.place)
            if not workers and len(left) < before:
                before = len(left)
                start(among[0], wait=True)  # for what other processes train
    if received:
        raise Interrupted(received[0])


class _Worker:
    """A process that goes over a list; ``at``: the number of the run that it trains."""

    def __init__(self, place: Place, runs: Sequence[Run], since: float, wait: bool) -> None:
        self.place, self.runs, self.at = place, {run.number: run for run in runs}, None
        with starting() as context:
            self.reports, theirs = context.Pipe(duplex=False)
            call = (theirs, {**os.environ, **place[0]}, place[1], [*runs], since, wait)
            self.process = context.Process(target=_work, args=call)
            self.process.start()
            theirs.close()

    at: int | None

    def died(self) -> tuple[int, Outcome] | None:
        """The run that the process trained when it died, and how that has ended; a failure is kept with the run."""
        self.process.join()
        if self.at is None:
            return None
        code, run = self.process.exitcode, self.runs[self.at]
        if code in STOPPED:
            return self.at, Outcome.interrupted(int(STOPPED[code]))
        outcome = Outcome.died("the process of the run", code)
        with suppress(RunError), lease.held(run.folder, wait=False) as claim:
            if isinstance(claim, lease.Claim):  # and no other process has taken it over
                keep_failure(outcome, run.folder, run.config)
        return self.at, outcome


def _work(
    reports: Connection, environment: Mapping[str, str], mine: set[int], runs: Sequence[Run], since: float, wait: bool
) -> None:
    """Be a worker."""
    os.setpgrp()  # the process of the grid passes on the signals of a terminal
    if mine:
        os.sched_setaffinity(0, mine)
    started(environment, SIGTERM)

    def report(run: Run, outcome: Outcome | None = None) -> None:
        with suppress(OSError):  # the process of the grid has ended
            reports.send((run.number, outcome))

    with suppress(Interrupted), raised():
        work(runs, since, report, wait, shared=True, begin=report)
