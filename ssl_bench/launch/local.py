"""Runs at the same time on this machine, each in a process of its own with GPUs or cores that no other run has."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import wait as wait_for

from ssl_bench.launch.outcome import Outcome, State
from ssl_bench.launch.run import Run, carry_out, threads
from ssl_bench.launch.slots import Slot, reserve
from ssl_bench.launch.workers import Worker, signals_passed_on

PAUSE = 0.5  # seconds between two looks for a free slot


def at_once(runs: Sequence[Run], jobs: int, wait: bool) -> Iterator[tuple[Run, Outcome]]:
    """Carry out runs, ``jobs`` at a time; yield each as it ends.

    A signal is passed on to all, which save their state; no other run starts then. If this process is killed, they save
    it, too.

    Args:
        wait: as for :func:`ssl_bench.launch.run.carry_out`.
    """
    left, running = deque(runs), dict[Worker, tuple[Run, Slot]]()
    with signals_passed_on(running.keys()) as received:
        while running or (left and not received):
            while left and len(running) < jobs and not received:
                run = left[0]
                devices, gpu_runs = run.config["devices"], run.config["runs_per_gpu"]
                run = replace(run, config=run.config | {"threads": threads(run.config, run.folder, devices, jobs)})
                cores = devices * (run.config["threads"] or 1)
                slot = reserve(devices, gpu_runs, cores, lambda: not running and not received, run.config["device"])
                if slot is None:
                    break
                place = slot.environment, slot.cores
                worker = Worker("the process of the run", carry_out, (run, wait, True), *place, saves=True)
                running[worker] = left.popleft(), slot
                for number in received:  # it came while the process started
                    worker.send(number)
            wait_for([channel for worker in running for channel in worker.channels()], PAUSE)
            for worker in [each for each in running if each.over()]:
                run, slot = running.pop(worker)
                slot.release()
                if worker.outcome is None:  # it was killed
                    run.record(worker.verdict)
                yield run, worker.verdict
    yield from ((run, Outcome.interrupted(received[0])) for run in left if received)


def here(runs: Sequence[Run], wait: bool, quiet: bool) -> Iterator[tuple[Run, Outcome]]:
    """Carry out runs one after another in this process, until one is interrupted; yield each as it ends."""
    for run in runs:
        outcome = carry_out(run, wait, quiet)
        yield run, outcome
        if outcome.state is State.INTERRUPTED:
            return
