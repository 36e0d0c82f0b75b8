"""What a process owes to the one that started it: Hydra's launchers, an elastic agent, Slurm."""

import ctypes
import os
import signal
import sys


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Makes the kernel send this process a signal when its parent is gone, however that ended (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, number)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)  # it ended before the line above


def enter(launcher: str) -> None:
    """Called in the process in which a launcher carries out a cell, before it does."""
    if launcher == "local":
        die_with(os.getppid(), signal.SIGTERM)  # so that ranks are stopped and save what they have


def interrupted(number: int) -> None:
    """Called after a cell was stopped by a signal and has saved itself.

    Slurm's warning that the time is up goes on to submitit, which puts the job back into the queue and ends it.
    """
    if number == signal.SIGUSR2 and os.environ.get("SUBMITIT_EXECUTOR") == "slurm":
        signal.raise_signal(signal.SIGUSR2)
