"""Tie a process to its parent and its children: those of Hydra's launchers, torchrun and Slurm."""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from functools import cache

from ssl_bench.record import streams

METHOD = "forkserver" if sys.platform == "linux" else "spawn"  # elsewhere a process with torch cannot be forked safely


def die_with(parent: int) -> None:
    """Make the kernel kill this process when its parent ends, however it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)  # the parent ended before the line above


@cache
def stop_after(parent: int) -> None:
    """Send this process SIGTERM when its parent has ended.

    The kernel would send it once for each thread of the parent, and the third signal kills a run before it is saved.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def prepare(launcher: str) -> None:
    """Set up a process in which a launcher carries out a run."""
    streams.outlive_reader()
    launching = multiprocessing.parent_process()
    if launcher == "local" and launching is not None:  # with n_jobs=1 there is only one process
        multiprocessing.set_start_method(METHOD, force=True)  # workers do not know the one that joblib has set
        stop_after(launching.pid or 0)  # the run saves its state


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
