"""Signals between a process and its parent: Hydra's launchers, torchrun, Slurm."""

import ctypes
import multiprocessing
import os
import signal
import sys

from ssl_bench.record import streams


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Make the kernel send this process a signal when its parent ends, however it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, number)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)  # the parent ended before the line above


def prepare(launcher: str) -> None:
    """Set up a process in which a launcher carries out a run."""
    streams.outlive_reader()
    launching = multiprocessing.parent_process()
    if launcher == "local" and launching is not None:  # with n_jobs=1 there is only one process
        die_with(launching.pid or 0, signal.SIGTERM)  # the run is stopped and saves its state


def pass_on(number: int) -> None:
    """Pass on the signal that stopped a run which has saved its state.

    Slurm's warning before the time limit goes to submitit, which requeues the job and ends it. A process whose grid was
    killed exits: the grid's other runs must not start.
    """
    if number == signal.SIGUSR2 and os.environ.get("SUBMITIT_EXECUTOR") == "slurm":
        signal.raise_signal(signal.SIGUSR2)
    launching = multiprocessing.parent_process()
    if launching is not None and launching.pid != os.getppid():
        os._exit(128 + number)
