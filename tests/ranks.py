"""Processes forked from a server that has imported torch once for all tests of a process: ranks, and whole commands.

A command in a new Python process takes five seconds longer, for its imports. Only tests of those do that.
"""

import contextlib
import gc
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
import torch
import torch.multiprocessing as mp

from ssl_bench import cli
from ssl_bench.distributed import join_local, leave
from ssl_bench.hardware import available_cores
from ssl_bench.signals import unblock
from tests.conftest import no_pictures

T = TypeVar("T")
# Modules that the server imports before it forks; scipy is for some tests. None of them may start a thread.
PRELOADED = ["tests.preloaded", "ssl_bench.launch.run", "ssl_bench.networks.backbones", "scipy.stats"]
PRELOADED += ["torch._dynamo", "ssl_bench.train", "sklearn.datasets", "matplotlib.figure"]
multiprocessing.set_forkserver_preload(PRELOADED)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def on_two_ranks(function: Callable[[int], T]) -> list[T]:
    """As :func:`on_ranks`, on two."""
    return on_ranks(function, 2)


def on_ranks(function: Callable[[int], T], ranks: int) -> list[T]:
    """Results of ``function(rank)`` on some ranks, connected by gloo; the function must be importable."""
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_enter, (function, ranks, folder), nprocs=ranks, start_method="forkserver")
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(ranks)]


def _enter(rank: int, function: Callable[[int], T], ranks: int, folder: str) -> None:
    torch.set_num_threads(1)
    gc.freeze()
    join_local(Path(folder) / "store", rank, ranks, torch.device("cpu"), 1800)
    torch.save(function(rank), Path(folder) / f"{rank}.pt")
    leave()


def wait_for(condition: Callable[[], object], seconds: float = 90) -> None:
    """Wait until ``condition()`` is true; fail after ``seconds``."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


class Command:
    """``ssl-bench`` in a process and session of its own, in the working directory.

    Args:
        arguments: words of the command line.
        environment: variables in addition to those of this process.
        pictures: draw the plots of runs.
    """

    def __init__(self, *arguments: str, environment: Mapping[str, str] = {}, pictures: bool = False) -> None:
        descriptor, self._output = tempfile.mkstemp(".txt", dir=os.getcwd())
        os.close(descriptor)
        context = multiprocessing.get_context("forkserver")
        call = (arguments, {**os.environ, **environment}, self._output, pictures)
        self._process = context.Process(target=_command, args=call)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code, -n after signal n, or None while the process runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float = 60) -> str:
        """Wait for the end; return what the command and its children printed to both outputs."""
        self._process.join(timeout)
        if self.code is None:
            self.send_signal(signal.SIGKILL)
            raise TimeoutError(f"no end after {timeout} s:\n{self.printed()}")
        return self.printed()

    def ranks(self) -> list[psutil.Process]:
        """The ranks that the command has started: the children of the server that it forks them from."""
        mine = psutil.Process(self.pid)
        return [process for process in mine.children(recursive=True) if process.ppid() != self.pid]

    def printed(self) -> str:
        return Path(self._output).read_text()


def _command(arguments: tuple[str, ...], environment: dict[str, str], output: str, pictures: bool) -> None:
    os.setsid()
    unblock()  # the server may be that of runs, which holds the signals back
    with open(output, "w") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["ssl-bench", *arguments]
    gc.freeze()  # the memory of the imported modules stays shared
    with contextlib.nullcontext() if pictures else no_pictures():
        cli.main()


def start_two_ranks(*arguments: str) -> list[Command]:
    """Start ``ssl-bench train`` on two ranks with torchrun's variables; skip the test on a machine with one core."""
    if available_cores() < 2:
        pytest.skip("two ranks need two cores")
    shared = {"TORCHELASTIC_RUN_ID": "test", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    return [Command("train", *arguments, environment={**shared, "RANK": rank, "LOCAL_RANK": rank}) for rank in "01"]


def train_on_two_ranks(*arguments: str) -> tuple[int, str]:
    """Carry out :func:`start_two_ranks`; return the exit code, which both have, and the output of rank 0."""
    ranks = start_two_ranks(*arguments)
    printed = [rank.wait(120) for rank in ranks]
    assert ranks[0].code is not None and ranks[0].code == ranks[1].code, printed
    return ranks[0].code, printed[0]
