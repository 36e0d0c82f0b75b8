"""Collectives between the processes of one machine without GPUs, in memory that they share.

Gloo hands every message to threads and copies it through a socket; waking the threads can take longer than a small
network needs for a layer. Batch statistics over all ranks need two messages a layer. Here a rank writes its tensor into
memory that all ranks see, and sends one byte through a Unix socket when it is there. Then it asks its own sockets again
and again until the others have done so. That takes some microseconds while the ranks keep pace, and the rank sleeps if
it takes long.

The memory has two halves, which the operations use in turn: a rank that writes into a half has met the others in the
operation before, and these have then read all that they need of the operation before that one.
"""

import contextlib
import itertools
import mmap
import os
import select
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from ssl_bench.distributed import gather_by
from ssl_bench.hardware import available_cores

CAPACITY = 1 << 20  # bytes of a rank in each half of the memory. Sums of larger tensors take several turns.
SMALL = 1 << 15  # bytes up to which every rank sums all of a tensor: one meeting instead of two
SPIN = 0.002  # seconds to ask before sleeping: more than what one rank needs longer for a layer than another
LONGEST_FOLDER = 90  # bytes. The name of a Unix socket has at most 103 on macOS, 107 on Linux.


def exchange_locally(timeout: float) -> None:
    """Exchange tensors on CPUs in shared memory until the ranks, which all run on this machine, leave their group.

    Args:
        timeout: seconds to wait for another rank.
    """
    gather_by(LocalExchange(timeout, SPIN if available_cores() >= dist.get_world_size() else 0))


class LocalExchange:
    """Memory and connections that this rank shares with all others of its machine, which have joined a group of gloo.

    All ranks make one at the same time, and call the same methods, each time with tensors of equal shapes and layouts.

    Args:
        timeout: seconds to wait for another rank.
        spin: seconds to ask before sleeping; 0 where ranks have to share a core.

    Raises:
        torch.distributed.DistNetworkError: in time, no connection with another rank came about. The methods raise it
            if another rank is gone, or has sent nothing for ``timeout`` seconds.
    """

    largest = CAPACITY

    def __init__(self, timeout: float, spin: float = SPIN) -> None:
        self._rank, self._world = dist.get_rank(), dist.get_world_size()
        self._timeout, self._spin = timeout, spin
        self._peers: dict[int, socket.socket] = {}
        self._half = 0
        self._seen: dict[tuple[int, int, torch.dtype], Tensor] = {}
        box = [_folder() if self._rank == 0 else None]
        dist.broadcast_object_list(box, src=0)
        folder = Path(str(box[0]))
        try:
            with _lost_ranks():
                self._connect(folder)
                self._memory = self._share_memory()
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
                peer.settimeout(self._timeout)
                peer.connect(str(folder / str(rank)))
                peer.sendall(self._rank.to_bytes(4, "little"))
            for _ in range(self._rank + 1, self._world):
                peer, _ = door.accept()
                peer.settimeout(self._timeout)
                self._peers[int.from_bytes(peer.recv(4, socket.MSG_WAITALL), "little")] = peer

    def _share_memory(self) -> Tensor:
        """Bytes [2, W, CAPACITY] that all ranks see."""
        size = 2 * self._world * CAPACITY
        if self._rank == 0:
            file = _anonymous_file()
            os.ftruncate(file, size)
            for peer in self._peers.values():
                socket.send_fds(peer, [b"m"], [file])
        else:
            _, files, _, _ = socket.recv_fds(self._peers[0], 1, 1)
            if not files:
                raise ConnectionResetError("Connection closed by peer")
            file = files[0]
        memory = mmap.mmap(file, size)
        os.close(file)
        for peer in self._peers.values():
            peer.setblocking(False)
        dist.barrier()  # every rank has its connections and the memory, and the doors can go
        return torch.frombuffer(memory, dtype=torch.uint8).view(2, self._world, CAPACITY)

    def gather(self, x: Tensor) -> Tensor:
        """The ranks' ``x`` [...], of at most ``CAPACITY`` bytes, as [W, ...] in rank order."""
        return self._shown(x).clone().view(self._world, *x.shape)

    def scatter_sums(self, x: Tensor) -> Tensor:
        """This rank's B / W rows of the sum of the ranks' ``x`` [B, ...], which has at most ``CAPACITY`` bytes."""
        shares = self._shown(x).view(self._world, self._world, -1)[:, self._rank]
        return shares.sum(0, dtype=x.dtype).view(-1, *x.shape[1:])

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace ``tensors``, of one type and any size and dense in memory, by their sums over the ranks."""
        for parts in _packs([_in_memory_order(x) for x in tensors]):
            whole = parts[0] if len(parts) == 1 else torch.cat(parts)
            sums = self._small_sum(whole) if whole.nbytes <= SMALL else self._large_sum(whole)
            torch._foreach_copy_(parts, sums.split([len(part) for part in parts]))

    def _small_sum(self, x: Tensor) -> Tensor:
        """Sum of the ranks' ``x`` [n]: each rank sums all of it."""
        return self._shown(x).sum(0, dtype=x.dtype)

    def _large_sum(self, x: Tensor) -> Tensor:
        """Sum of the ranks' ``x`` [n]: each rank sums a share for all."""
        shown = self._shown(x)
        bounds = [len(x) * rank // self._world for rank in range(self._world + 1)]
        own = slice(bounds[self._rank], bounds[self._rank + 1])
        shown[self._rank, own] = shown[:, own].sum(0, dtype=x.dtype)
        self._meet()
        shares = enumerate(itertools.pairwise(bounds))
        return torch.cat([shown[rank, start:end] for rank, (start, end) in shares])

    def close(self) -> None:
        """End the connections."""
        for peer in self._peers.values():
            peer.close()

    def _shown(self, x: Tensor) -> Tensor:
        """The ranks' ``x``, flat, in the memory [W, n]; it stays until the second operation after this one."""
        self._half = 1 - self._half
        key = self._half, x.numel(), x.dtype
        shown = self._seen.get(key)
        if shown is None:
            shown = self._seen[key] = self._memory[self._half, :, : x.nbytes].view(x.dtype)
        shown[self._rank].view(x.shape).copy_(x)
        self._meet()
        return shown

    def _meet(self) -> None:
        """Wait until every rank has come here."""
        with _lost_ranks():
            for peer in self._peers.values():
                peer.send(b"m")  # always fits into the socket: at most two of its bytes have not been read
            for peer in self._peers.values():
                self._receive(peer)

    def _receive(self, peer: socket.socket) -> None:
        asking = time.monotonic() + self._spin
        while True:
            try:
                if not peer.recv(1):
                    raise ConnectionResetError("Connection closed by peer")
                return
            except BlockingIOError:
                if time.monotonic() > asking:
                    self._sleep(peer)

    def _sleep(self, peer: socket.socket) -> None:
        """Wait for a byte of ``peer`` without taking the core."""
        waiting = select.poll()
        waiting.register(peer, select.POLLIN)
        if not waiting.poll(1000 * self._timeout):
            raise TimeoutError(f"Timed out waiting for another rank for {self._timeout:g} s")


def _in_memory_order(x: Tensor) -> Tensor:
    """The values of ``x`` [n] as they stand in memory: a view."""
    if x.is_contiguous():
        return x.view(-1)
    return x.permute(sorted(range(x.ndim), key=x.stride, reverse=True)).view(-1)


def _packs(flat: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """``flat``, in parts of tensors, in lists of at most ``CAPACITY`` bytes."""
    pack, room = list[Tensor](), CAPACITY
    for tensor in flat:
        rest = tensor
        while rest.nbytes > room:
            fits = room // rest.itemsize
            yield [*pack, rest[:fits]]
            pack, room, rest = [], CAPACITY, rest[fits:]
        pack.append(rest)
        room -= rest.nbytes
    if pack:
        yield pack


def _anonymous_file() -> int:
    """A descriptor of an empty file without a name: in memory where the system has such files."""
    with contextlib.suppress(AttributeError, OSError):  # macOS has none, and a sandbox may refuse them
        return os.memfd_create("ssl-bench")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


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
