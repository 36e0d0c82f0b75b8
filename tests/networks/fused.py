"""Computes with the fused kernels on a CPU, interpreted by Triton, and prints how far the results are from others.

    TRITON_INTERPRET=1 python -m tests.networks.fused FUNCTION...

Triton reads the variable when it is imported: hence a process of its own.
"""

import copy
import itertools
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ssl_bench.networks import fused_norm
from ssl_bench.networks.backbones import DigitsResNet, timm_backbone
from ssl_bench.networks.norm import group_statistics, of_this_rank

LAST = torch.channels_last
SHAPES = [(2, 64, 6, 7), (3, 24, 5, 7), (5, 8, 9, 9), (2, 130, 3, 3), (2, 1, 2, 3)]  # of 3 tiles or less
Values = dict[str, Tensor]


def far(values: Tensor, exact: Tensor) -> float:
    """Distance relative to the exact values."""
    return float((values.double() - exact).norm() / exact.norm())


def drawn(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2 + seed
    return x.to(dtype).contiguous(memory_format=LAST)


def values(norm: Callable[..., Tensor], shape: tuple[int, ...], dtype: torch.dtype, add: bool, relu: bool) -> Values:
    """The result of a batch norm, its gradients, and the running statistics; in float64 if ``norm`` is torch's."""
    exact = torch.float64 if norm is functional.batch_norm else None
    x, added, dy = (drawn(shape, dtype, seed).to(exact or dtype) for seed in (3, 1, 0))
    weight, bias, mean, var = (
        drawn((1, shape[1], 1, 1), torch.float32, seed).flatten().to(exact or torch.float32) for seed in (1, 0, 2, 5)
    )
    var.abs_()
    for leaf in (x, added, weight, bias):
        leaf.requires_grad_()
    y = norm(x, mean, var, weight, bias, True, 0.3, 1e-5)
    y = y + added if add else y
    y = torch.relu(y) if relu else y * 1
    y.backward(dy)
    found: dict[str, Any] = {"y": y, "dx": x.grad, "dweight": weight.grad, "dbias": bias.grad, "mean": mean, "var": var}
    return {name: value.detach() for name, value in found.items()} | ({"dadded": added.grad} if add else {})


def kernels() -> dict[str, dict[str, float]]:
    """How far each value is from that of torch in float64, the largest of some shapes, by number format."""
    found, numbers = dict[str, dict[str, float]](), itertools.count()
    for dtype, add, relu in itertools.product(fused_norm.DTYPES, (False, True), (False, True)):
        of_dtype = found.setdefault(str(dtype), {})
        number = next(numbers)
        fused_norm.PARTS = (512, 1)[number % 2]  # a part is one tile, or all of them
        both = fused_norm.batch_norm, functional.batch_norm
        one, other = (values(norm, SHAPES[number % 5], dtype, add, relu) for norm in both)
        for name in other:
            of_dtype[name] = max(of_dtype.get(name, 0.0), far(one[name], other[name]))
    return found


# ---- what follows a batch norm


def twice(y: Tensor, other: Tensor) -> Tensor:
    return torch.relu(y) + torch.relu(y + other) + y


def in_place(y: Tensor, other: Tensor) -> Tensor:
    again = y
    y += other
    functional.relu(y, inplace=True)
    return again * 2


def gated(y: Tensor, other: Tensor) -> Tensor:
    return torch.relu_(y * y.mean((2, 3), keepdim=True).sigmoid() + other)


def joined(y: Tensor, other: Tensor) -> Tensor:
    return torch.cat([y, other], 1)[:, 1:9]


def scaled(y: Tensor, other: Tensor) -> Tensor:
    y.mul_(2)
    return torch.relu(torch.add(y, other, alpha=2))


def onto(y: Tensor, other: Tensor) -> Tensor:
    return torch.relu(other + y)


def of_planes(y: Tensor, other: Tensor) -> Tensor:
    return torch.relu(y + other[:, :, :1, :1])


def uses() -> dict[str, float]:
    """How far result, gradient and running mean are from torch's, of different things that follow a batch norm."""
    found = {}
    for use in (twice, in_place, gated, joined, scaled, onto, of_planes):
        results = []
        for norm, dtype in ((fused_norm.batch_norm, torch.float32), (functional.batch_norm, torch.float64)):
            x, other = drawn((4, 8, 6, 5), dtype, 1).requires_grad_(), drawn((4, 8, 6, 5), dtype, 0)
            mean, var, weight, bias = (drawn((1, 8, 1, 1), dtype, 1).flatten().abs() for _ in range(4))
            y = use(norm(x, mean, var, weight, bias, True, 0.1, 1e-5), other)
            (y * torch.arange(y.numel()).view(y.shape) / y.numel()).sum().backward()
            results.append((y.detach(), x.grad, mean))
        found[use.__name__] = max(far(one, exact) for one, exact in zip(*results, strict=True))
    return found


def others() -> list[str]:
    """The types of results that are torch's: of another format, layout or number of dimensions, or of one position."""
    inputs = [torch.ones(4, 8, 3, 3), drawn((4, 8, 3, 3), torch.float64, 0), torch.ones(4, 8)]
    settings = torch.zeros(8), torch.ones(8), torch.ones(8), torch.zeros(8)
    found = [fused_norm.batch_norm(x, *(s.to(x.dtype) for s in settings), True, 0.1, 1e-5) for x in inputs]
    missing = fused_norm.batch_norm(drawn((4, 8, 3, 3), torch.float32, 0), None, None, None, None, True, 0.1, 1e-5)
    return [type(y).__name__ for y in [*found, missing]]


def not_a_number() -> bool:
    x = drawn((2, 8, 4, 4), torch.float32, 0)
    x[0, 3, 1, 1] = torch.nan
    settings = torch.zeros(8), torch.ones(8), torch.ones(8), torch.zeros(8)
    y = torch.relu(fused_norm.batch_norm(x, *settings, True, 0.1, 1e-5))
    return bool(y[:, 3].isnan().all()) and bool(y[:, 4:].isfinite().all())


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        return y / 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] / 2


def by_function() -> str:
    """Why a function of one's own cannot follow a batch norm: its gradient would end there."""
    x = drawn((4, 8, 3, 3), torch.float32, 0).requires_grad_()
    settings = torch.zeros(8), torch.ones(8), torch.ones(8), torch.zeros(8)
    try:
        Halved.apply(fused_norm.batch_norm(x, *settings, True, 0.1, 1e-5)).sum().backward()
    except NotImplementedError as error:
        return str(error)
    return f"none, and the gradient is {x.grad}"


# ---- networks


def networks() -> Iterator[tuple[str, nn.Module]]:
    yield "resnet18_cifar", timm_backbone("resnet18", 3, "cifar", zero_init_residual=False)
    yield "test_resnet", timm_backbone("test_resnet", 3)  # with basic blocks, bottlenecks and a deep stem
    yield "digits", DigitsResNet(8, 3)


def nodes(y: Tensor) -> Counter[str]:
    """The operations that a tensor was computed with, by name."""
    seen, left, found = set(), [y.grad_fn], Counter[str]()
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            found[type(node).__name__] += 1
            left += [other for other, _ in node.next_functions]
    return found


def trained(network: nn.Module, dtype: torch.dtype, fused: bool) -> tuple[dict[str, Tensor], Counter[str]]:
    """Output, gradients and state of a training step, and the output of another network with that state; operations."""
    other = copy.deepcopy(network).to(dtype).eval()
    network = copy.deepcopy(network).to(dtype).to(memory_format=LAST).train()
    group_statistics(network, 1)
    for norm in of_this_rank(network) if fused else ():
        norm.normalise = fused_norm.batch_norm
    network = copy.deepcopy(network)  # as a momentum network is made
    x = drawn((4, 3, 12, 12), dtype, 0)
    y = network(x)
    y.square().mean().backward()
    names: dict[str, Any] = {f"d {name}": p.grad for name, p in network.named_parameters()} | dict(
        network.named_buffers()
    )
    found = {"y": y.detach()} | {name: value.detach().clone() for name, value in names.items()}
    other.load_state_dict(network.state_dict())
    return found | {"resumed": other(x).detach()} | network.state_dict(), nodes(y)


def networks_far() -> dict[str, Any]:
    """How far each tensor of fused networks and of torch's is from float64, and how often operations occur."""
    fused_norm.TILE, fused_norm.COLUMNS = 2**14, 512  # the interpreter takes as long for a tile of any size
    found = {}
    for name, network in networks():
        exact, _ = trained(network, torch.float64, False)
        compared, counted = list[dict[str, float]](), Counter[str]()
        for fused in (False, True):
            one, counted = trained(network, torch.float32, fused)
            assert one.keys() == exact.keys()
            compared.append({key: far(one[key], value) for key, value in exact.items() if value.is_floating_point()})
        norms = sum(isinstance(module, nn.BatchNorm2d) for module in network.modules())
        found[name] = {"far": compared, "norms": norms, "counted": counted}
    return found


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(json.dumps({name: globals()[name]() for name in sys.argv[1:]}))
