"""The exchange of small tensors between the ranks of a machine: equal to gloo's, and no rank waits for ever."""

import os
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from ssl_bench.distributed import all_sum, gather, gather_by, global_mean
from ssl_bench.launch.local_exchange import LARGEST, LocalExchange
from ssl_bench.launch.ranks import _lost_a_rank
from tests.ranks import on_ranks, on_two_ranks

FULL = torch.arange(LARGEST // 4, dtype=torch.float32)


def part(rank: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)


def gathered(rank: int) -> list[Tensor]:
    exchange = LocalExchange(20)
    tensors = [part(rank, 5), part(rank, 2, 3, 4).float(), part(rank, 6).bfloat16(), part(rank, 4, 6).T, FULL + rank]
    tensors += [torch.tensor(rank), torch.tensor([rank > 0, True]), part(rank, 0)]
    found = [exchange.gather(x) for x in tensors]
    for _ in range(200):  # a message is not taken for the next one, however far a rank is ahead
        assert torch.equal(exchange.gather(torch.tensor(rank)), torch.arange(3))
        time.sleep(0.0001 * rank)
    exchange.close()
    for x, joined in zip(tensors, found, strict=True):
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(3)]
        dist.all_gather(parts, x.contiguous())
        assert torch.equal(joined, torch.stack(parts)) and joined.dtype == x.dtype
    return found


def test_all_ranks_have_the_tensors_of_all() -> None:
    one, *others = on_ranks(gathered, 3)
    assert all(torch.equal(x, y) for other in others for x, y in zip(one, other, strict=True))
    assert torch.equal(one[5], torch.arange(3))


def collectives(rank: int) -> list[list[Tensor]]:
    """Values and gradients of the collectives, by gloo and directly."""
    found = []
    for direct in (False, True):
        if direct:
            gather_by(LocalExchange(20))
        x = part(rank, 3, 4).requires_grad_()
        y = part(rank + 2, 4, 6).requires_grad_()
        large = part(rank, LARGEST // 8 + 1).requires_grad_()
        values = [gather(x), gather(y, 1), global_mean(x, 1), all_sum(x.detach().clone()), gather(large)]
        sum(((rank + 2) * value**3).sum() for value in values).backward()  # type: ignore[union-attr]
        gradients = [each.grad for each in (x, y, large) if each.grad is not None]
        found.append([value.detach() for value in values] + gradients)
    return found


def test_collectives_and_their_gradients_have_the_bits_of_gloo() -> None:
    for by_gloo, directly in on_two_ranks(collectives):
        assert len(by_gloo) == 8
        assert all(torch.equal(one, other) for one, other in zip(by_gloo, directly, strict=True))


def counted(rank: int) -> tuple[int, int]:
    """Number of direct exchanges of a small and of a large tensor."""
    gather_by(LocalExchange(20, spin=0))
    calls = list[int]()

    def record(_: LocalExchange, x: Tensor) -> Tensor:
        calls.append(x.nbytes)
        return torch.stack([x, x])

    with patch.object(LocalExchange, "gather", record):
        all_sum(FULL.clone())
        small = len(calls)
        all_sum(torch.ones(LARGEST + 1))
    return small, len(calls) - small


def test_only_small_tensors_are_exchanged_directly() -> None:
    assert on_two_ranks(counted) == [(1, 0), (1, 0)]


def late(rank: int) -> tuple[float, float]:
    exchange = LocalExchange(20)
    if rank == 1:
        time.sleep(0.6)
    before, cpu = time.monotonic(), time.process_time()
    assert torch.equal(exchange.gather(torch.tensor(rank)), torch.arange(2))
    return time.monotonic() - before, time.process_time() - cpu


def test_a_rank_sleeps_while_another_one_takes_long() -> None:
    (waited, busy), _ = on_two_ranks(late)
    assert waited > 0.4 and busy < 0.1


def lost(rank: int) -> tuple[bool, str]:
    exchange = LocalExchange(20)
    if rank == 1:
        exchange.close()  # as its process does when it ends
        return True, ""
    with pytest.raises(dist.DistNetworkError) as error:
        for _ in range(2):
            exchange.gather(torch.tensor(rank))
    return _lost_a_rank(error.value), str(error.value)


def silent(rank: int) -> tuple[bool, str]:
    exchange = LocalExchange(0.3)
    if rank == 1:
        time.sleep(1)
        return True, ""
    with pytest.raises(dist.DistNetworkError) as error:
        exchange.gather(torch.tensor(rank))
    return _lost_a_rank(error.value), str(error.value)


def test_a_rank_that_ends_or_sends_nothing_is_lost() -> None:
    assert on_two_ranks(lost)[0][0]
    assert on_two_ranks(silent)[0] == (True, "Timed out waiting for another rank for 0.3 s")


def folders(rank: int) -> list[tuple[str, int, bool]]:
    """Modes and lengths of the folders of sockets, where temporary files have a short and a long path."""
    seen: list[tuple[str, int, bool]] = []
    used, modes = list[Path](), list[str]()
    original = dist.broadcast_object_list

    def broadcast(box: list[Any], src: int) -> None:
        original(box, src=src)
        used.append(Path(box[0]))
        modes.append(oct(used[-1].stat().st_mode))

    for folder in ("/tmp", tempfile.mkdtemp(prefix="x" * 120)):
        with patch.object(tempfile, "tempdir", folder), patch.object(dist, "broadcast_object_list", broadcast):
            LocalExchange(20).close()
        dist.barrier()
        seen.append((modes[-1], len(os.fsencode(used[-1])), used[-1].exists()))
    return seen


def test_the_sockets_are_in_a_folder_of_this_user_that_disappears() -> None:
    for seen in on_two_ranks(folders):
        assert len(seen) == 2
        assert all(mode == "0o40700" and length < 100 and not exists for mode, length, exists in seen)
