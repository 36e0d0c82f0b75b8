"""Runs on this machine: one after another in this process, or each in a process with GPUs or cores of its own."""

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from ssl_bench.launch.loop import Carrier
from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.launch.run import Run, carry_out, threads
from ssl_bench.launch.slots import Slot, reserve
from ssl_bench.launch.workers import Processes, Worker


class Here:
    """This process, as a :class:`ssl_bench.launch.loop.Place`. A run handles signals itself.

    Args:
        wait: as for :func:`ssl_bench.launch.run.carry_out`.
    """

    room = 1.0

    def __init__(self, wait: bool) -> None:
        self._wait, self._received = wait, list[int]()

    def signals(self, carriers: Collection[Carrier]) -> AbstractContextManager[list[int]]:
        """The signals that stopped a run."""
        return nullcontext(self._received)

    def start(self, run: Run, patient: Callable[[], bool]) -> Carrier:
        """Carry out a run to its end."""
        outcome = carry_out(run, self._wait, quiet=True)
        if outcome.state is State.INTERRUPTED:
            self._received.append(outcome.signal)
        return _Ended(outcome)

    def wait(self, carriers: Collection[Carrier]) -> None:
        """Return at once: what was started has ended."""


class _Ended:
    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome

    def over(self) -> bool:
        return True

    def end(self) -> Outcome:
        return self._outcome

    def send(self, number: int) -> None:
        pass


def processes(jobs: int, wait: bool) -> Processes[Run]:
    """The processes of this machine, ``jobs`` at a time, each with GPUs or cores that no other run has.

    A run that is sent a signal saves its state; if this process is killed, too.

    Args:
        wait: as for :func:`ssl_bench.launch.run.carry_out`.
    """

    def start(run: Run, patient: Callable[[], bool]) -> Worker | None:
        devices = run.config["devices"]
        run = replace(run, config=run.config | {"threads": threads(run.config, run.folder, devices, jobs)})
        cores = devices * (run.config["threads"] or 1)
        slot = reserve(devices, run.config["runs_per_gpu"], cores, patient, run.config["device"])
        return _RunWorker(run, slot, wait) if slot else None

    return Processes(jobs, start)


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
