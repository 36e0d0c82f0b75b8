"""Batch statistics over groups of images and over ranks."""

import copy
import functools
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ssl_bench.errors import InvalidValue
from ssl_bench.networks import norm as module
from ssl_bench.networks.norm import (
    GroupedBatchNorm,
    average_running_statistics,
    count_steps,
    group_statistics,
    joint_forward,
)
from tests.ranks import on_ranks, on_two_ranks

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


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
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


def test_groups_keep_names_and_evaluation() -> None:
    plain, grouped = _bn(4), _bn(4)
    group_statistics(grouped, 4)
    assert isinstance(grouped, GroupedBatchNorm) and list(grouped.state_dict()) == list(plain.state_dict())
    x, _ = _rows(SHAPES[1])
    assert torch.equal(grouped.eval()(x), plain.eval()(x))


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


def test_a_norm_that_cannot_be_grouped_is_refused() -> None:
    class Special(nn.BatchNorm2d):
        pass

    expected = r"^framework\.groups=2: set framework\.groups to devices=1, .* Special cannot be grouped$"
    with pytest.raises(InvalidValue, match=expected):
        group_statistics(nn.Sequential(Special(3)), 2)


# ---- the kernels for GPUs, replaced by their formulas


def _stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    var, mean = torch.var_mean(x, [d for d in range(x.ndim) if d != 1], correction=0)
    return mean, (var + eps).rsqrt()


def _gather_stats(
    x: Tensor,
    means: Tensor,
    invstds: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    weights = (counts / counts.sum())[:, None]
    mean = (weights * means).sum(0)
    var = (weights * (invstds**-2 - eps + (means - mean).square())).sum(0)
    running_mean.lerp_(mean, momentum)
    running_var.lerp_(var * (counts.sum() / (counts.sum() - 1)), momentum)
    return mean, (var + eps).rsqrt()


def _view(values: Tensor, x: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (x.ndim - 2))


def _elemt(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, invstd: Tensor, eps: float) -> Tensor:
    return (x - _view(mean, x)) * _view(invstd * weight, x) + _view(bias, x)


def _reduce(
    dy: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor, *mask: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dims = [d for d in range(x.ndim) if d != 1]
    total, dot = dy.sum(dims), (dy * (x - _view(mean, x))).sum(dims)
    return total, dot, dot * invstd, total


def _backward_elemt(
    dy: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor, total: Tensor, dot: Tensor, counts: Tensor
) -> Tensor:
    assert counts.dtype == torch.int32
    n = counts.sum()
    centred = x - _view(mean, x)
    return (dy - _view(total / n, x) - centred * _view(invstd**2 * dot / n, x)) * _view(invstd * weight, x)


FORMULAS = {
    "batch_norm_stats": _stats,
    "batch_norm_gather_stats_with_counts": _gather_stats,
    "batch_norm_elemt": _elemt,
    "batch_norm_backward_reduce": _reduce,
    "batch_norm_backward_elemt": _backward_elemt,
}


def _on_ranks(shape: tuple[int, ...], groups: int, channels_last: bool, gpu: bool, rank: int) -> dict[str, Any]:
    """As :func:`_loop` for this rank's slice; gradients of weights are averaged."""
    x, target = (each.chunk(dist.get_world_size())[rank] for each in _rows(shape, channels_last))
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    norm = _bn(x.ndim)
    group_statistics(norm, groups)
    if gpu:
        for name, formula in FORMULAS.items():
            setattr(torch, name, formula)
        apply: Any = module._NormaliseOnGPUs.apply
        norm.num_batches_tracked += 1
        found = _values(norm, apply(x, norm.weight, norm.bias, norm), x, target)
    else:
        found = _values(norm, norm(x), x, target)
    average_running_statistics(norm, groups)
    for name in ("weight", "bias"):
        dist.all_reduce(found[name])
        found[name] /= dist.get_world_size()
    found["x"] = found["x"] / dist.get_world_size()  # the loss is a mean over this rank's rows
    return found


def _check_ranks(ranks: int, groups: int, gpu: bool = False) -> None:
    for shape in SHAPES:
        for channels_last in (False, True):
            results = on_ranks(functools.partial(_on_ranks, shape, groups, channels_last, gpu), ranks)
            together = {name: torch.cat([each[name] for each in results]) for name in ("y", "x")}
            expected = _loop(shape, groups)
            for found in results:
                _compare(found | together, expected)


def test_statistics_of_two_ranks_are_those_of_one_process() -> None:
    results = on_two_ranks(functools.partial(_on_ranks, SHAPES[1], 1, True, False))
    together = {name: torch.cat([each[name] for each in results]) for name in ("y", "x")}
    for found in results:
        _compare(found | together, _loop(SHAPES[1], 1))


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "groups"), [(2, 1), (2, 2), (2, 4), (4, 1), (4, 4), (4, 12)])
def test_statistics_of_groups_on_ranks_are_those_of_one_process(ranks: int, groups: int) -> None:
    _check_ranks(ranks, groups)


@pytest.mark.slow
def test_the_kernels_for_gpus_are_called_as_their_formulas_ask() -> None:
    """Proves the plumbing: no kernel for GPUs runs here."""
    _check_ranks(2, 1, gpu=True)


def _compiled_on_ranks(rank: int) -> dict[str, Any]:
    x, target = (each.chunk(2)[rank] for each in _rows(SHAPES[0]))
    x = x.clone().requires_grad_()
    norm: Any = _bn(2)
    group_statistics(norm, 1)
    norm.compile(backend="aot_eager")
    return _values(norm, norm(x), x, target)


@pytest.mark.slow
def test_compiled_statistics_of_two_ranks_are_those_of_one_process() -> None:
    results, expected = on_two_ranks(_compiled_on_ranks), _loop(SHAPES[0], 1)
    torch.testing.assert_close(torch.cat([each["y"] for each in results]), expected["y"], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.cat([each["x"] for each in results]) / 2, expected["x"], rtol=1e-12, atol=1e-12)
    for found in results:
        torch.testing.assert_close(found["var"], expected["var"], rtol=1e-12, atol=1e-12)


def _half_norm(rank: int) -> dict[str, Tensor]:
    x = torch.randn(8, 3, 2, 2, generator=torch.Generator().manual_seed(0)) + 30
    model: Any = nn.Sequential(nn.BatchNorm2d(3))
    group_statistics(model, 1)
    y = model(x.bfloat16()[4 * rank : 4 * rank + 4])
    return {"y": y, "mean": model[0].running_mean}


def test_global_batch_statistics_of_half_precision_are_computed_in_full_precision() -> None:
    x = (torch.randn(8, 3, 2, 2, generator=torch.Generator().manual_seed(0)) + 30).bfloat16().double()
    ranks = on_two_ranks(_half_norm)
    unit = (x - x.mean((0, 2, 3), keepdim=True)) / (x.var((0, 2, 3), correction=0, keepdim=True) + 1e-5).sqrt()
    y = torch.cat([rank["y"] for rank in ranks])
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.double(), unit, rtol=2**-8, atol=1e-4)  # only the result is rounded
    torch.testing.assert_close(ranks[0]["mean"].double(), x.mean((0, 2, 3)) / 10, rtol=1e-6, atol=0)
