"""Signals between a process and its parent: Hydra's launchers, an elastic agent, Slurm."""

import ctypes
import os
import signal
import sys


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Make the kernel send this process a signal when its parent ends, however it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, number)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)  # the parent ended before the line above


def prepare(launcher: str) -> None:
    """Set up a process in which a launcher carries out a run."""
    if launcher == "local":
        die_with(os.getppid(), signal.SIGTERM)  # the ranks are stopped and save their state


def pass_on(number: int) -> None:
    """Pass on the signal that stopped a run which has saved its state.

    Slurm's warning before the time limit goes to submitit, which requeues the job and ends it.
    """
    if number == signal.SIGUSR2 and os.environ.get("SUBMITIT_EXECUTOR") == "slurm":
        signal.raise_signal(signal.SIGUSR2)
