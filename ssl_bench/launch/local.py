"""Runs on this machine: one after another in this process, or each in a process with GPUs or cores of its own."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.launch.run import Run, carry_out, threads
from ssl_bench.launch.slots import Slot, reserve
from ssl_bench.launch.workers import Worker, side_by_side


def one_by_one(runs: Sequence[Run], wait: bool) -> Iterator[tuple[Run, Outcome]]:
    """Carry out runs in this process; after a signal, which stops a run, no other one starts."""
    stopped: Outcome | None = None
    for run in runs:
        outcome = stopped or carry_out(run, wait, quiet=True)
        yield run, outcome
        if outcome.state is State.INTERRUPTED:
            stopped = Outcome.interrupted(outcome.signal)


def in_processes(runs: Sequence[Run], jobs: int, runs_per_gpu: int, wait: bool) -> Iterator[tuple[Run, Outcome]]:
    """Carry out runs, ``jobs`` at a time, each in a process with GPUs or cores that no other run has.

    A run that is sent a signal saves its state; if this process is killed, too.
    """

    def start(run: Run, patient: Callable[[], bool]) -> Worker | None:
        devices = run.config["devices"]
        run = replace(run, config=run.config | {"threads": threads(run.config, run.folder, devices, jobs)})
        cores = devices * (run.config["threads"] or 1)
        slot = reserve(devices, runs_per_gpu, cores, patient, run.config["device"])
        return _RunWorker(run, slot, wait) if slot else None

    return side_by_side(runs, jobs, start)


class _RunWorker(Worker):
    """The process of a run, which has a slot."""

    def __init__(self, run: Run, slot: Slot, wait: bool) -> None:
        call = carry_out, (run, wait, True)
        super().__init__("the process of the run", *call, slot.environment, slot.cores, saves=True)
        self._run, self._slot = run, slot

    def end(self) -> Outcome:
        self._slot.release()
        outcome = super().end()
        if self.outcome is None:  # it was killed
            self._run.record(outcome)
        return outcome
