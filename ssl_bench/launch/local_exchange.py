"""All-gather of small tensors between the processes of one machine, through Unix sockets.

Gloo hands every message to threads, and waking these up can take longer than a small network needs for a layer. Batch
statistics over all ranks need two messages a layer. Here a rank asks its sockets again and again until the tensors of
the others are there. That takes some microseconds while the ranks keep pace, and the rank sleeps if it takes long.
"""

import contextlib
import select
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from ssl_bench.distributed import gather_by
from ssl_bench.hardware import available_cores

LARGEST = 1 << 15  # bytes of a tensor. Two fit in a socket's buffer, so that no rank waits for another one to read.
SPIN = 0.002  # seconds to ask before sleeping: more than what one rank needs longer for a layer than another
LONGEST_FOLDER = 90  # bytes. The name of a Unix socket has at most 103 on macOS, 107 on Linux.


def exchange_locally(timeout: float) -> None:
    """Exchange the small tensors of all ranks, which run on this machine's CPUs, directly until they leave the group.

    Args:
        timeout: seconds to wait for another rank.
    """
    gather_by(LocalExchange(timeout, SPIN if available_cores() >= dist.get_world_size() else 0))


class LocalExchange:
    """Connections of this rank with all others, which run on this machine and have joined a process group of gloo.

    All ranks make one at the same time, and call :meth:`gather` equally often, each time with tensors of equal shapes.

    Args:
        timeout: seconds to wait for another rank.
        spin: seconds to ask before sleeping; 0 where ranks have to share a core.

    Raises:
        torch.distributed.DistNetworkError: in time, no connection with another rank came about.
    """

    largest = LARGEST

    def __init__(self, timeout: float, spin: float = SPIN) -> None:
        self._rank, self._world = dist.get_rank(), dist.get_world_size()
        self._timeout, self._spin = timeout, spin
        self._peers: dict[int, socket.socket] = {}
        box = [_folder() if self._rank == 0 else None]
        dist.broadcast_object_list(box, src=0)
        folder = Path(str(box[0]))
        try:
            with _lost_ranks():
                self._connect(folder)
        finally:
            if self._rank == 0:
                shutil.rmtree(folder, ignore_errors=True)

    def _connect(self, folder: Path) -> None:
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(str(folder / str(self._rank)))
            door.listen(self._world)
            door.settimeout(self._timeout)
            dist.barrier()  # every door is open
            for rank in range(self._rank):
                self._peers[rank] = peer = socket.socket(socket.AF_UNIX)
                peer.connect(str(folder / str(rank)))
                peer.sendall(self._rank.to_bytes(4, "little"))
            for _ in range(self._rank + 1, self._world):
                peer, _ = door.accept()
                peer.settimeout(self._timeout)
                self._peers[int.from_bytes(peer.recv(4, socket.MSG_WAITALL), "little")] = peer
        for peer in self._peers.values():
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                peer.setsockopt(socket.SOL_SOCKET, option, 8 * LARGEST)
            peer.setblocking(False)
        dist.barrier()  # every rank has its connections, and the doors can go

    def gather(self, x: Tensor) -> Tensor:
        """The ranks' ``x`` [...], of at most ``LARGEST`` bytes on a CPU, as [W, ...] in rank order.

        Raises:
            torch.distributed.DistNetworkError: another rank is gone, or has sent nothing for ``timeout`` seconds.
        """
        joined = x.new_empty(self._world, *x.shape)
        joined[self._rank] = x
        rows = joined.view(-1).view(torch.uint8).numpy().data
        size = len(rows) // self._world
        with _lost_ranks():
            for peer in self._peers.values():
                self._send(peer, rows[self._rank * size : (self._rank + 1) * size])
            for rank, peer in self._peers.items():
                self._receive(peer, rows[rank * size : (rank + 1) * size])
        return joined

    def close(self) -> None:
        """End the connections."""
        for peer in self._peers.values():
            peer.close()

    def _send(self, peer: socket.socket, data: memoryview) -> None:
        while data:
            try:
                data = data[peer.send(data) :]
            except BlockingIOError:
                self._wait(peer, select.POLLOUT)

    def _receive(self, peer: socket.socket, data: memoryview) -> None:
        asking = time.monotonic() + self._spin
        while data:
            try:
                received = peer.recv_into(data)
            except BlockingIOError:
                if time.monotonic() > asking:
                    self._wait(peer, select.POLLIN)
                continue
            if not received:
                raise ConnectionResetError("Connection closed by peer")
            data = data[received:]

    def _wait(self, peer: socket.socket, event: int) -> None:
        waiting = select.poll()
        waiting.register(peer, event)
        if not waiting.poll(1000 * self._timeout):
            raise TimeoutError(f"Timed out waiting for another rank for {self._timeout:g} s")


@contextlib.contextmanager
def _lost_ranks() -> Iterator[None]:
    """Raise what the block finds out about another rank as an error of torch.distributed."""
    try:
        yield
    except OSError as error:
        raise dist.DistNetworkError(str(error)) from error


def _folder() -> str:
    """A new folder that only this user can enter, with a name that is short enough for sockets."""
    short = len(tempfile.gettempdir().encode()) <= LONGEST_FOLDER - len("/ssl-bench-12345678")
    return tempfile.mkdtemp(prefix="ssl-bench-", dir=None if short else "/tmp")
