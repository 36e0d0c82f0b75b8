"""Batch statistics over groups of images and over ranks."""

import copy
import functools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ssl_bench.networks.norm import (
    GroupedBatchNorm,
    average_running_statistics,
    count_steps,
    group_statistics,
    joint_forward,
)
from tests.ranks import on_ranks

SHAPES = [(24, 3), (24, 3, 2, 5)]
C = 3


def _rows(shape: tuple[int, ...], channels_last: bool = False) -> tuple[Tensor, Tensor]:
    """Rows whose mean is many deviations, and a target for each."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator, dtype=torch.float64) * 5 + 100
    x += torch.arange(shape[0], dtype=x.dtype).view(-1, *[1] * (x.ndim - 1))  # groups differ
    target = torch.randn(shape, generator=generator, dtype=torch.float64)
    return (x.contiguous(memory_format=torch.channels_last) if channels_last and x.ndim == 4 else x), target


def _bn(dimensions: int) -> Any:
    torch.manual_seed(1)
    norm: Any = (nn.BatchNorm1d(C) if dimensions == 2 else nn.BatchNorm2d(C)).double()
    nn.init.uniform_(norm.weight, 0.5, 2.0)
    nn.init.normal_(norm.bias)
    return norm


def _values(norm: Any, y: Tensor, x: Tensor, target: Tensor) -> dict[str, Any]:
    """Outputs, gradients of the mean loss, and running averages."""
    (y - target).square().mean().backward()
    found = {"y": y.detach(), "x": x.grad, "weight": norm.weight.grad, "bias": norm.bias.grad}
    found |= {"mean": norm.running_mean, "var": norm.running_var}
    return found


def _loop(shape: tuple[int, ...], groups: int) -> dict[str, Any]:
    """The same by a forward of torch's BN for each group."""
    x, target = _rows(shape)
    x.requires_grad_()
    norm = _bn(x.ndim)
    parts = []
    statistics = []
    for part in x.chunk(groups):
        own: Any = copy.deepcopy(norm)
        own.weight, own.bias = norm.weight, norm.bias
        parts.append(own(part))
        statistics.append(torch.stack([own.running_mean, own.running_var]))
    norm.running_mean, norm.running_var = torch.stack(statistics).mean(0)
    return _values(norm, torch.cat(parts), x, target)


def _compare(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12, msg=name)


LAYOUTS = [(shape, last, False) for shape in SHAPES for last in (False, True)]


@pytest.mark.parametrize(
    ("shape", "channels_last", "compiled"), [*LAYOUTS, pytest.param(SHAPES[1], True, True, marks=pytest.mark.slow)]
)
def test_each_group_has_its_own_statistics(shape: tuple[int, ...], channels_last: bool, compiled: bool) -> None:
    for groups in (2, 8):
        x, target = _rows(shape, channels_last)
        x.requires_grad_()
        norm: Any = _bn(x.ndim)
        group_statistics(norm, groups)
        if compiled:  # traced as torch.compile does it, without a break
            norm.compile(backend="aot_eager", fullgraph=True)
        found = _values(norm, norm(x), x, target)
        _compare(found, _loop(shape, groups))
        assert found["y"].stride() == x.stride() and (compiled or found["x"].stride() == x.stride())


def test_one_group_on_one_process_is_torchs_norm_and_steps_are_counted_at_once() -> None:
    (x, target), plain, grouped = _rows(SHAPES[1]), _bn(4), _bn(4)
    group_statistics(grouped, 1)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, expected = _values(grouped, grouped(a), a, target), _values(plain, plain(b), b, target)
    assert grouped.num_batches_tracked == 0 and plain.num_batches_tracked == 1
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    count_steps(nn.Sequential(grouped, _bn(4), nn.BatchNorm1d(C, track_running_stats=False)))
    assert grouped.num_batches_tracked == 1
    count_steps(grouped.eval())
    assert grouped.num_batches_tracked == 1
    group_statistics(grouped, 4)
    assert isinstance(grouped, GroupedBatchNorm) and list(grouped.state_dict()) == list(plain.state_dict())
    assert torch.equal(grouped(x), plain.eval()(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_groups_without_weights_and_in_half_precision(dtype: torch.dtype) -> None:
    """Statistics are never in half precision: only the result is rounded."""
    norm: Any = nn.BatchNorm2d(C, affine=False)
    group_statistics(norm, 2)
    x = _rows(SHAPES[1])[0].to(dtype)
    y = norm(x.requires_grad_())
    y.float().square().sum().backward()
    for found, part in zip(y.chunk(2), x.detach().double().chunk(2), strict=True):
        var, mean = torch.var_mean(part, (0, 2, 3), correction=0, keepdim=True)
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), (part - mean) / (var + 1e-5).sqrt(), rtol=2**-8, atol=1e-3)
    mean = x.detach().double().mean((0, 2, 3))
    torch.testing.assert_close(norm.running_mean.double(), mean / 10, rtol=1e-6, atol=0)
    assert x.grad is not None and x.grad.dtype == dtype


def test_a_group_of_a_joint_forward_has_every_view_of_its_images() -> None:
    torch.manual_seed(0)
    norm: Any = nn.BatchNorm1d(C, affine=False).double()
    views = [torch.randn(6, C, dtype=torch.float64) * (1 + v) for v in range(3)]
    group_statistics(norm, 2)
    found = joint_forward(norm, views, 2)  # [3, 6, C]
    plain = nn.BatchNorm1d(C, affine=False).double()
    for rows in (slice(0, 3), slice(3, 6)):
        expected = plain(torch.cat([view[rows] for view in views])).unflatten(0, (3, 3))
        torch.testing.assert_close(found[:, rows], expected, rtol=1e-12, atol=1e-12)
    group_statistics(plain, 1)
    assert torch.equal(joint_forward(plain, views, 1), plain(torch.cat(views)).unflatten(0, (3, 6)))


# ---- ranks


def _on_ranks(shape: tuple[int, ...], groups: int, channels_last: bool, rank: int) -> dict[str, Any]:
    """As :func:`_loop` for this rank's slice; gradients of weights are averaged."""
    x, target = (each.chunk(dist.get_world_size())[rank] for each in _rows(shape, channels_last))
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    norm = _bn(x.ndim)
    group_statistics(norm, groups)
    found = _values(norm, norm(x), x, target)
    average_running_statistics(norm, groups)
    for name in ("weight", "bias"):
        dist.all_reduce(found[name])
        found[name] /= dist.get_world_size()
    found["x"] = found["x"] / dist.get_world_size()  # the loss is a mean over this rank's rows
    return found


@pytest.mark.parametrize(
    ("ranks", "groups"), [(2, 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((2, 4), (4, 4), (4, 12)))]
)
def test_statistics_of_groups_on_ranks_are_those_of_one_process(ranks: int, groups: int) -> None:
    for shape, channels_last in ((SHAPES[0], False), (SHAPES[1], True)):
        results = on_ranks(functools.partial(_on_ranks, shape, groups, channels_last), ranks)
        together = {name: torch.cat([each[name] for each in results]) for name in ("y", "x")}
        for found in results:
            _compare(found | together, _loop(shape, groups))
