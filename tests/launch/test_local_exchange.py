"""The collectives in shared memory: equal to gloo's, and no rank waits for ever."""

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

from ssl_bench.distributed import all_sum, average_gradients, gather, gather_by, global_mean
from ssl_bench.launch.local_exchange import CAPACITY, LocalExchange
from ssl_bench.launch.ranks import _lost_a_rank
from tests.ranks import on_ranks, on_two_ranks

FULL = torch.arange(CAPACITY // 4, dtype=torch.float32)


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
        large = part(rank, 16, CAPACITY // 256).requires_grad_()  # its gradient from both ranks fills the memory
        larger = part(rank, CAPACITY // 8 + 1).requires_grad_()
        values = [
            gather(x),
            gather(y, 1),
            global_mean(x, 1),
            all_sum(x.detach().clone()),
            gather(large),
            gather(larger),
        ]
        sum(((rank + 2) * value**3).sum() for value in values).backward()  # type: ignore[union-attr]
        gradients = [each.grad for each in (x, y, large, larger) if each.grad is not None]
        found.append([value.detach() for value in values] + gradients)
    return found


def test_collectives_and_their_gradients_have_the_bits_of_gloo() -> None:
    for by_gloo, directly in on_two_ranks(collectives):
        assert len(by_gloo) == 10
        assert all(torch.equal(one, other) for one, other in zip(by_gloo, directly, strict=True))


def summed(rank: int) -> list[list[Tensor]]:
    """Sums and averages, by gloo and directly: of tensors of many sizes and layouts, as gradients have them."""
    shapes = [(3,), (1,), (0,), (5, 7), (CAPACITY // 4 - 3,), (2,), (4, 3, 3, 3), (3 * CAPACITY // 4 + 1,), (1, 9)]
    found = []
    for direct in (False, True):
        if direct:
            gather_by(LocalExchange(20))
        tensors = [part(rank, *shape).float() for shape in shapes]
        tensors[6] = tensors[6].to(memory_format=torch.channels_last)
        tensors[8] = tensors[8].T
        module = torch.nn.ParameterList(tensors)
        for parameter, tensor in zip(module, tensors, strict=True):
            parameter.grad = tensor.clone()
        module.append(torch.zeros(3))  # without a gradient
        average_gradients(module)
        sums = [all_sum(each.clone()) for each in (part(rank, 9), torch.tensor([rank > 0, True]).long(), FULL + rank)]
        found.append(sums + [p.grad for p in module if p.grad is not None])
    return found


def test_sums_of_tensors_of_any_size_and_layout_have_the_bits_of_gloo() -> None:
    for by_gloo, directly in on_two_ranks(summed):
        assert len(by_gloo) == 12
        assert all(torch.equal(one, other) for one, other in zip(by_gloo, directly, strict=True))


def summed_by_three(rank: int) -> tuple[Tensor, ...]:
    exchange = LocalExchange(20)
    small, large = part(rank, 7), part(rank, CAPACITY // 4 + 5)  # two turns
    parts = part(rank, 6, 2), part(rank, 9, 1000)
    exchange.sum([small, large])
    return small, large, *map(exchange.scatter_sums, parts)


def test_three_ranks_have_the_same_sums() -> None:
    ranks = on_ranks(summed_by_three, 3)
    shapes: list[tuple[int, ...]] = [(7,), (CAPACITY // 4 + 5,), (6, 2), (9, 1000)]
    for index, shape in enumerate(shapes[:2]):
        expected = part(0, *shape) + part(1, *shape) + part(2, *shape)
        assert all(torch.equal(sums[index], ranks[0][index]) for sums in ranks)
        assert torch.allclose(ranks[0][index], expected, rtol=0, atol=1e-15)
    for index, shape in enumerate(shapes[2:], 2):
        expected = part(0, *shape) + part(1, *shape) + part(2, *shape)
        assert torch.allclose(torch.cat([sums[index] for sums in ranks]), expected, rtol=0, atol=1e-15)


def without_memory_files(rank: int) -> Tensor:
    found = []
    for error in (AttributeError, OSError):
        with patch.object(os, "memfd_create", side_effect=error):
            found.append(LocalExchange(20).gather(torch.tensor(rank)))
    return torch.stack(found)


def test_systems_without_files_in_memory_share_a_temporary_one() -> None:
    assert all(torch.equal(found, torch.arange(2).expand(2, 2)) for found in on_two_ranks(without_memory_files))


def racing(rank: int) -> float:
    """The largest error of many operations in a row, while the ranks take different times between them."""
    exchange, error = LocalExchange(20), 0.0
    for turn in range(300):
        time.sleep(0.0005 * ((turn // 7 + rank) % 3))
        x = torch.full((20_000,), float(rank + turn))
        if turn % 3 == 0:
            found, expected = exchange.gather(x), torch.arange(3.0)[:, None] + turn
        else:
            exchange.sum([x])
            found, expected = x, torch.tensor(3.0 * turn + 3)
        error = max(error, float((found - expected).abs().max()))
    return error


def test_no_rank_overwrites_what_another_one_has_not_read() -> None:
    assert on_ranks(racing, 3) == [0, 0, 0]


def counted(rank: int) -> list[str]:
    """The direct exchanges that the collectives make, of tensors that just fit and of larger ones."""
    gather_by(LocalExchange(20, spin=0))
    calls = list[str]()

    def record(name: str) -> Any:
        original = getattr(LocalExchange, name)

        def call(exchange: LocalExchange, x: Any) -> Any:
            calls.append(name)
            return original(exchange, x)

        return patch.object(LocalExchange, name, call)

    with record("gather"), record("scatter_sums"), record("sum"):
        for x in (FULL, torch.ones(CAPACITY // 4 + 1)):
            gather(x)
            all_sum(x.clone())
        for size in (CAPACITY // 8, CAPACITY // 8 + 1):
            gather(torch.zeros(size, requires_grad=True)).sum().backward()
    return calls


def test_all_but_large_gathers_are_direct() -> None:
    expected = ["gather", "sum", "sum", "gather", "scatter_sums", "gather"]
    assert on_two_ranks(counted) == [expected, expected]


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
