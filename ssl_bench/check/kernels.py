"""Kernels that everything is made of, on the device against float64 on the CPU, at awkward sizes.

Both get the same numbers, which the format holds exactly. ``bounds.py`` derives the bounds.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ssl_bench.check.bounds import U32, Difference, NumberFormat, computing, difference, formats, judged, sum_bound
from ssl_bench.check.finding import Finding, Setting

# m, k, n of products: one number, odd sizes, sizes for tensor cores
PRODUCTS = ((1, 1, 1), (7, 129, 65), (257, 1000, 33), (64, 64, 64), (128, 512, 256))
# images, channels in and out, height, width, kernel, stride
CONVOLUTIONS = ((3, 13, 29, 17, 19, 3, 2), (2, 3, 24, 15, 15, 7, 2), (2, 64, 64, 8, 8, 3, 1), (5, 32, 16, 9, 9, 1, 1))
NORMS = ((3, 5, 7, 11), (64, 13), (16, 32, 10, 10))
ROWS = ((5, 1), (3, 7), (9, 1023), (2, 65537))
ROUNDINGS = 4  # of a result in 16 bits: the sum is added up in some parts
WINOGRAD = 4  # roundings of numbers of the size of a typical output, in cuDNN's fast convolutions


def section(setting: Setting) -> Iterator[Finding]:
    """Matrix products and convolutions in all formats of the device; batch norms and softmaxes in float32."""
    device = setting.device
    yield judged("matrix product", products(device), "matrix products")
    yield judged("convolution", convolutions(device), "convolutions and gradients")
    yield judged("batch norm", batch_norms(device), "batch norms and gradients")
    yield judged("softmax", softmaxes(device), "softmaxes and sums of exponentials")


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers, float32 on the CPU."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def products(device: torch.device) -> list[Difference]:
    """Products [m, k] [k, n] and a batch of them."""
    found = []
    for form in formats(device):
        shapes = [((m, k), (k, n)) for m, k, n in PRODUCTS] + [((3, 17, 31), (3, 31, 13))]
        for left, right in shapes:
            a, b = form.rounded(normal(*left)), form.rounded(normal(*right, seed=1))
            with computing(form.name == "tf32"):
                c = torch.matmul(a.to(device), b.to(device))
            exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
            name = f"{form.name} product {list(left)} x {list(right)}"
            found.append(difference(name, c, exact, _bound(form, left[-1], exact, size)))
    return found


def convolutions(device: torch.device) -> list[Difference]:
    """Convolutions of images whose channels are last in memory, with their gradients."""
    found = []
    for form in formats(device):
        for n, inputs, outputs, height, width, kernel, stride in CONVOLUTIONS:
            x, w = normal(n, inputs, height, width), normal(outputs, inputs, kernel, kernel, seed=1)
            shape = F.conv2d(x, w, None, stride, kernel // 2).shape
            tensors = [form.rounded(each) for each in (x, w, normal(*shape, seed=2))]
            with computing(form.name == "tf32"):
                results = _convolved([each.to(device) for each in tensors], stride)
            exact = _convolved([each.double() for each in tensors], stride)
            sizes = _convolved([each.double().abs() for each in tensors], stride)
            terms = inputs * kernel**2, outputs * kernel**2, n * shape[2] * shape[3]
            name = f"{form.name} convolution {list(x.shape)} x {list(w.shape)} stride {stride}"
            parts = ("output", "gradient of the images", "gradient of the weight")
            for part, result, right, size, length in zip(parts, results, exact, sizes, terms, strict=True):
                bound = _bound(form, length, right, size) + WINOGRAD * _last(form) * right.square().mean().sqrt()
                found.append(difference(f"{name}, {part}", result, right, bound))
    return found


def _convolved(tensors: Sequence[Tensor], stride: int) -> list[Tensor]:
    """Output of a convolution of images with a weight, and the gradients of both for a gradient of the output."""
    images, weight = (t.to(memory_format=torch.channels_last).detach().requires_grad_() for t in tensors[:2])
    out = F.conv2d(images, weight, None, stride, weight.shape[-1] // 2)
    return [out, *torch.autograd.grad(out, [images, weight], tensors[2].to(memory_format=torch.channels_last))]


def _bound(form: NumberFormat, terms: int, exact: Tensor, size: Tensor) -> Tensor:
    """For sums of ``terms`` products with values ``exact`` and sums of magnitudes ``size``."""
    least = float(torch.finfo(form.dtype).smallest_normal) * _last(form)  # of numbers too small for the format
    return sum_bound(terms, min(form.unit, U32)) * size + _last(form) * exact.abs() + least


def _last(form: NumberFormat) -> float:
    """Error of a result by its rounding: TF32 rounds the factors only; in 16 bits some parts of a sum are rounded."""
    return U32 if form.name == "tf32" else ROUNDINGS * form.unit if form.unit > U32 else form.unit


def batch_norms(device: torch.device) -> list[Difference]:
    """BN in training with a mean of three deviations, and its gradients.

    The mean and the deviation of m values have errors of 8 sqrt(m) u of a value; then each unit value is off by that,
    times itself for the deviation. The gradient subtracts two means more.
    """
    found = []
    for shape in NORMS:
        m, gradient = normal(*shape).numel() // shape[1], normal(*shape, seed=3)
        tensors = [normal(*shape) + 3, normal(shape[1], seed=1), normal(shape[1], seed=2), gradient]
        results = _normed([each.to(device) for each in tensors])
        exact = _normed([each.double() for each in tensors])
        most = 4 * float(tensors[1].abs().max()) * float(exact[0].detach().abs().max().clamp(min=1))
        totals = float(m * gradient.abs().max())  # of the sums that are the gradients of weight and bias
        sizes = (most, most * float(gradient.abs().max()), 4 * totals, totals)
        parts = ("output", "gradient of the images", "gradient of the weight", "gradient of the bias")
        for part, result, right, size in zip(parts, results, exact, sizes, strict=True):
            found.append(difference(f"batch norm of {list(shape)}, {part}", result, right, sum_bound(m) * size))
    return found


def _normed(tensors: Sequence[Tensor]) -> list[Tensor]:
    x, weight, bias = (each.detach().requires_grad_() for each in tensors[:3])
    out = F.batch_norm(x, None, None, weight, bias, True)
    return [out, *torch.autograd.grad(out, [x, weight, bias], tensors[3])]


def softmaxes(device: torch.device) -> list[Difference]:
    """Of cosine-like numbers over a temperature of 0.07, up to 60.

    The difference from the maximum is rounded by u times its size, which becomes a relative error of the exponential,
    itself good to four units; then come the sum and the division or the logarithm.
    """
    found = []
    for shape in ROWS:
        x = normal(*shape) / 0.07
        relative = U32 * (4 + 2 * float(x.max() - x.min())) + sum_bound(shape[1])
        exact = x.double().logsumexp(1)
        bound = relative + 2 * U32 * exact.abs()
        found.append(difference(f"logsumexp of {list(shape)}", x.to(device).logsumexp(1), exact, bound))
        exact = x.double().softmax(1)
        found.append(difference(f"softmax of {list(shape)}", x.to(device).softmax(1), exact, relative * exact + 1e-37))
    return found
