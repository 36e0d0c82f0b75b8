"""Unit vectors are torch's, in value and gradient; gradients of networks of any width, in the memory format of runs."""

import math
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ssl_bench.hardware import move
from ssl_bench.networks.backbones import DigitsResNet
from ssl_bench.networks.encoder import Encoder, NarrowConv2d, full_precision, replace_narrow, unit


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
