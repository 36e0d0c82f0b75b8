"""Tie a process to its parent: those of a run, of a grid, and the ranks of torchrun."""

import ctypes
import os
import signal
import sys
import threading
import time
from functools import cache

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

    The kernel would send it when the thread of the parent ends that started this process.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
