"""Batch statistics over groups of images and over ranks."""

import copy
import functools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import timm
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import normalize

from ssl_bench.hardware import move
from ssl_bench.networks.backbones import DigitsResNet
from ssl_bench.networks.encoder import Encoder, NarrowConv2d, full_precision, replace_narrow, unit
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


# ---- unit vectors, and gradients of networks of any width


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unit_vectors_and_their_gradient_are_those_of_normalize(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 16, 24, dtype=dtype), torch.randn(2, 16, 24, dtype=dtype)
    x[1, 5] *= 1e-9
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, expected = unit(ours), normalize(theirs, dim=-1)
    (found * weight).sum().backward()
    (expected * weight).sum().backward()
    assert torch.equal(found, expected)
    assert ours.grad is not None and theirs.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12 if dtype == torch.float64 else 1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("length", [0, 1e-17, 1e-13, 1e-5, 1e3, math.nan])
def test_a_vector_of_any_length_has_the_gradient_of_its_formula(dtype: torch.dtype, length: float) -> None:
    """x / |x| in double precision; zero has no gradient, and one of half precision is what that can hold."""
    x = torch.zeros(2, 512, dtype=torch.float64)
    x[:] = normalize(torch.randn(2, 512, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=1)
    x[0] *= length
    ours = x.to(dtype).requires_grad_()
    weight = torch.linspace(-1e-3, 1e-3, 512, dtype=torch.float64)
    theirs = ours.detach().double().requires_grad_()
    found = unit(full_precision(ours))
    (found.double() * weight).sum().backward()
    expected = normalize(theirs, dim=1, eps=1e-100)
    (expected * weight).sum().backward()
    assert ours.grad is not None and theirs.grad is not None
    wanted = theirs.grad.clone()
    if not theirs[0].any():
        assert not found[0].any() and not ours.grad[0].any()
        wanted[0] = 0
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[dtype]
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-7, equal_nan=True)
    smallest = 1e-7 if dtype == torch.float16 else tolerance * float(wanted.abs().nan_to_num().amax())
    torch.testing.assert_close(ours.grad.double(), wanted, rtol=tolerance, atol=smallest, equal_nan=True)


def resnet(name: str, width: int) -> nn.Module:
    channels = tuple(width * 2**i for i in range(4))
    return timm.create_model(name, in_chans=2, num_classes=0, channels=channels)  # type: ignore[no-any-return]


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    **{f"resnet_digits width {width}": partial(DigitsResNet, width, 2) for width in (1, 4, 7, 8, 16)},
    **{f"resnet18 width {width}": partial(resnet, "resnet18", width) for width in (2, 16)},
    **{f"resnet50 width {width}": partial(resnet, "resnet50", width) for width in (1, 4)},
}


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def gradients(network: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Gradients of a sum of squares of the features, by the images [B, 2, H, W] and all weights, in float64."""
    images = images.contiguous(memory_format=torch.channels_last).requires_grad_()
    (network(images)["backbone"] * torch.linspace(-1, 1, len(images))[:, None]).square().sum().backward()
    tensors = [("images", images), *network.named_parameters()]
    return {name: tensor.grad.double() for name, tensor in tensors if tensor.grad is not None}


@pytest.mark.parametrize("size", [20, 15])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_in_float32_are_those_in_float64(name: str, size: int, threads: int) -> None:
    """oneDNN's kernel for AVX2 is wrong by 75% with two threads, and with one it ends the process."""
    torch.manual_seed(0)
    exact, single = (Encoder(NETWORKS[name](), nn.Identity()) for _ in range(2))
    single.load_state_dict(exact.state_dict())
    images = torch.randn(32, 2, size, size, dtype=torch.float64)
    right = gradients(exact.double(), images)
    result = gradients(move(single, torch.device("cpu")), images.float())
    for parameter, gradient in right.items():  # a hundredth: a ReLU whose input is nearly zero may be on the other side
        error = (result[parameter] - gradient).norm() / gradient.norm().clamp(min=1e-3)
        assert error < 1e-2, (parameter, error)


def test_only_narrow_strided_convolutions_are_replaced() -> None:
    network = replace_narrow(DigitsResNet(8, 1))
    kinds = {name: type(module) for name, module in network.named_modules() if isinstance(module, nn.Conv2d)}
    assert {name for name, kind in kinds.items() if kind is NarrowConv2d} == {"stages.1.shortcut.0"}
    # 8 channels are replaced, 16 are not
    assert kinds["stages.2.shortcut.0"] is nn.Conv2d


@pytest.mark.parametrize(("groups", "size"), [(1, 20), (3, 15)])
def test_a_replaced_convolution_computes_the_same(groups: int, size: int) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(6, 9, 1, (2, 3), groups=groups)).double()
    x = torch.randn(4, 6, size, size, dtype=torch.float64)  # float64 is not computed by oneDNN
    expected = plain(x)
    assert isinstance(replace_narrow(plain)[0], NarrowConv2d)  # type: ignore[index]
    torch.testing.assert_close(plain(x), expected, rtol=1e-14, atol=1e-14)
