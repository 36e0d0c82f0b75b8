"""Kernels that everything is made of, on the device against float64 on the CPU, at awkward sizes.

Both get the same numbers, which the format holds exactly.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ssl_bench.check.bounds import Difference, distance, finding_of, formats
from ssl_bench.check.finding import Finding, Setting

# m, k, n of products: one number, odd sizes, sizes for tensor cores
PRODUCTS = ((1, 1, 1), (7, 129, 65), (257, 1000, 33), (64, 64, 64), (128, 512, 256))
# images, channels in and out, height, width, kernel, stride
CONVOLUTIONS = ((3, 13, 29, 17, 19, 3, 2), (2, 3, 24, 15, 15, 7, 2), (2, 64, 64, 8, 8, 3, 1), (5, 32, 16, 9, 9, 1, 1))
# Largest relative error: many times what a right machine has, a few times in 16 bits. Fast convolutions cost some bits.
BOUNDS = {"fp64": 1e-12, "fp32": 5e-5, "tf32": 1e-3, "fp16": 2e-3, "bf16": 1e-2}
Compute = Callable[[list[Tensor]], list[Tensor]]
Case = tuple[str, Compute, list[Tensor]]


def section(setting: Setting) -> Iterator[Finding]:
    """Matrix products and convolutions; ``networks`` and ``methods`` compare what is made of them."""
    for name, cases in {"matrix product": products(), "convolution": convolutions()}.items():
        yield finding_of(name, [each for case in cases for each in compared(setting.device, *case)], "results")


def compared(device: torch.device, name: str, compute: Compute, tensors: list[Tensor]) -> Iterator[Difference]:
    """Differences of all results of a computation in all formats of a device."""
    for form in formats(device):
        form.select()
        given = [form.rounded(x) for x in tensors]
        results = zip(compute([x.to(device) for x in given]), compute([x.double() for x in given]), strict=True)
        for number, (result, exact) in enumerate(results):
            yield distance(f"{form.name} {name}, result {number}", result, exact, BOUNDS[form.name])


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers, float32 on the CPU."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def products() -> Iterator[Case]:
    """Products [m, k] [k, n] and a batch of them."""
    for a, b in [*(((m, k), (k, n)) for m, k, n in PRODUCTS), ((3, 17, 31), (3, 31, 13))]:
        yield f"product {list(a)} x {list(b)}", lambda x: [x[0] @ x[1]], [normal(*a), normal(*b, seed=1)]


def convolutions() -> Iterator[Case]:
    """Convolutions of images whose channels are last in memory, with their gradients."""
    for n, inputs, outputs, height, width, kernel, stride in CONVOLUTIONS:
        x, w = normal(n, inputs, height, width), normal(outputs, inputs, kernel, kernel, seed=1)
        gradient = normal(*F.conv2d(x, w, None, stride, kernel // 2).shape, seed=2)
        yield f"convolution {list(x.shape)} x {list(w.shape)}", partial(convolved, stride=stride), [x, w, gradient]


def convolved(tensors: list[Tensor], stride: int) -> list[Tensor]:
    """A convolution of images with a weight, and the gradients of both for a gradient of the output."""
    images, weight, gradient = (x.to(memory_format=torch.channels_last) for x in tensors)
    given = [images.requires_grad_(), weight.requires_grad_()]
    out = F.conv2d(images, weight, None, stride, weight.shape[-1] // 2)
    return [out, *torch.autograd.grad(out, given, gradient)]
