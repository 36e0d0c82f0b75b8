"""Two processes connected by gloo, for tests of collectives and of methods on several ranks."""

import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from ssl_bench.distributed import leave

T = TypeVar("T")


def on_two_ranks(function: Callable[[int], T]) -> list[T]:
    """Results of ``function(rank)`` on two ranks; the function must be importable."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(_enter, (function, folder, port), nprocs=2, start_method="spawn")
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(2)]


def _enter(rank: int, function: Callable[[int], T], folder: str, port: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.save(function(rank), Path(folder) / f"{rank}.pt")
    leave()
