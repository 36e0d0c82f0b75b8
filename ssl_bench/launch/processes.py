"""Processes of this program: how they are started, and how they end with the one that started them.

On Linux they are forked in milliseconds from a server that has imported torch (``preloaded.py``), which ends with the
process that started it. Neither the server nor a process that is still starting reacts to the signals that stop a run;
a terminal sends them to all. The main module of the program is not imported in them: a script would start its runs
there again.
"""

import contextlib
import ctypes
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from functools import cache
from multiprocessing import forkserver
from multiprocessing.util import Finalize, get_temp_dir
from types import ModuleType
from typing import Any

from ssl_bench.record import streams
from ssl_bench.signals import unblock
from ssl_bench.surroundings import become, temporary_files_in

LAST = -101  # after multiprocessing has removed its folder
LONGEST = 30  # bytes of a folder of temporary files in which a socket can lie
METHOD = "forkserver" if sys.platform == "linux" else "spawn"  # elsewhere a process with torch cannot be forked safely


@contextlib.contextmanager
def starting() -> Iterator[Any]:
    """Start processes in this block, by the context of multiprocessing that it yields."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        if METHOD == "forkserver":
            multiprocessing.set_forkserver_preload(["ssl_bench.launch.preloaded"])
            with temporary_files_in(_folder(os.getpid())):
                forkserver.ensure_running()
        yield multiprocessing.get_context(METHOD)
    finally:
        sys.modules["__main__"] = main


@cache
def _folder(pid: int) -> str:
    """The folder of the server's socket, whose path has at most 107 bytes, and of what its imports leave.

    The server is killed, and cannot remove them.
    """
    parent, former = tempfile.gettempdir(), tempfile.tempdir
    folder = tempfile.mkdtemp(prefix="ssl-bench-", dir=parent if len(os.fsencode(parent)) <= LONGEST else "/tmp")
    Finalize(None, shutil.rmtree, (folder, True), exitpriority=LAST)
    tempfile.tempdir = folder
    try:
        get_temp_dir()
    finally:
        tempfile.tempdir = former
    return folder


def remove_folder() -> None:
    """Remove the folder of this process's server, if it has one. A process that ends by ``os._exit`` calls this."""
    if _folder.cache_info().currsize:
        shutil.rmtree(_folder(os.getpid()), ignore_errors=True)


def started(environment: Mapping[str, str], cores: set[int] | None) -> None:
    """Make this new process like the one that started it: its environment and its cores; let signals reach it."""
    become(environment)
    tempfile.tempdir = None  # of this environment, no longer of the server
    if cores:
        os.sched_setaffinity(0, cores)
    streams.outlive_reader()
    unblock()


def cores() -> set[int] | None:
    """The cores that this process may use; None where the system does not say."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None


def die_with(parent: int) -> None:
    """Make the kernel kill this process when its parent ends, however it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)  # the parent ended before the line above


def stop_after(parent: int) -> None:
    """Send this process SIGTERM when its parent has ended, so that its run saves its state.

    The kernel would send it when the thread of the parent ends that started this process.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
