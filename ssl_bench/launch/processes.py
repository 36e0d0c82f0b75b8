"""Processes of this program: how they are started, and how they end with the one that started them.

On Linux they are forked in milliseconds from multiprocessing's server, which imports torch once. Neither the server nor
a process that is still starting reacts to the signals that stop a run; a terminal sends them to all. The main module of
the program is not imported in them: a script would start its runs there again.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from multiprocessing import forkserver, resource_tracker, util
from types import ModuleType
from typing import Any

from ssl_bench.record import streams
from ssl_bench.signals import STOPS, unblock
from ssl_bench.surroundings import become

METHOD = "forkserver" if sys.platform == "linux" else "spawn"  # elsewhere a process with torch cannot be forked safely
# What the server imports: nothing that starts a thread or asks CUDA for GPUs, after which a fork could not use them.
PRELOADED = ["ssl_bench.launch.ranks", "torch._dynamo"]  # DDP, compiled views and optimisers import the second one


@contextlib.contextmanager
def starting() -> Iterator[Any]:
    """Start processes in this block, by the context of multiprocessing that it yields."""
    resource_tracker.ensure_running()  # which would unblock signals in the block
    main, mask = sys.modules["__main__"], signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    sys.modules["__main__"], former = ModuleType("__main__"), tempfile.tempdir
    try:
        if METHOD == "forkserver":
            tempfile.tempdir = "/tmp"  # the path of the server's socket has at most 107 bytes
            util.get_temp_dir()
            multiprocessing.set_forkserver_preload(PRELOADED)
            forkserver.ensure_running()
        yield multiprocessing.get_context(METHOD)
    finally:
        sys.modules["__main__"], tempfile.tempdir = main, former
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def started(environment: Mapping[str, str], stop: signal.Signals) -> None:
    """Make this new process like the one that started it, and stop it by a signal when that one has ended."""
    become(environment)
    tempfile.tempdir = None  # of this environment, not of the server's
    streams.outlive_reader()
    end_with_parent(stop)
    unblock()


def end_with_parent(number: signal.Signals) -> None:
    """Send this process a signal when the process that started it has ended, however it ended."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os.kill(os.getpid(), number)

    threading.Thread(target=watch, daemon=True).start()
