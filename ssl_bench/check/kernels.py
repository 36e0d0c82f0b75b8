"""Kernels that everything is made of, on the device against float64 on the CPU, at awkward sizes.

Both get the same numbers, which the format holds exactly. ``bounds.py`` derives the bounds.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ssl_bench.check.bounds import U32, Difference, NumberFormat, computing, difference, formats, judged, sum_bound
from ssl_bench.check.finding import Check, Finding

# m, k, n of products: one number, odd sizes, sizes for tensor cores
PRODUCTS = ((1, 1, 1), (7, 129, 65), (257, 1000, 33), (64, 64, 64), (128, 512, 256))
# images, channels in and out, height, width, kernel, stride
CONVOLUTIONS = ((3, 13, 29, 17, 19, 3, 2), (2, 3, 24, 15, 15, 7, 2), (2, 64, 64, 8, 8, 3, 1), (5, 32, 16, 9, 9, 1, 1))
ROWS = ((5, 1), (3, 7), (9, 1023), (2, 65537))
WINOGRAD = 4  # roundings of numbers of the size of a typical output, in cuDNN's fast convolutions
SIGMAS = 6.0  # of a mean of random numbers: exceeded once in 5e8 trials


def kernel_checks(device: torch.device) -> Iterator[Check]:
    """The checks of single kernels on a device, in all its formats."""
    checks: Sequence[tuple[str, str, Callable[[torch.device], list[Difference]]]] = [
        ("matrix product", "matrix products", products),
        ("convolution", "convolutions and gradients", convolutions),
        ("batch norm", "batch norms and gradients", batch_norms),
        ("softmax", "softmaxes and sums of exponentials", softmaxes),
        ("sort and topk", "orders", orders),
        ("scatter and index", "indexed results", indexed),
        ("random numbers", "moments and permutations", random_numbers),
    ]
    for name, what, compare in checks:
        yield Check(name, partial(_judged, compare, device, what), 1)


def _judged(compare: Callable[[torch.device], list[Difference]], device: torch.device, what: str) -> Finding:
    return judged(compare(device), what)


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
            for part, *each, length in zip(
                ("output", "gradient of the images", "gradient of the weight"),
                results,
                exact,
                sizes,
                terms,
                strict=True,
            ):
                bound = _bound(form, length, each[1], each[2]) + WINOGRAD * _last(form) * each[1].square().mean().sqrt()
                found.append(difference(f"{name}, {part}", each[0], each[1], bound))
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
    """Unit roundoff of the results: TF32 rounds the factors only."""
    return U32 if form.name == "tf32" else form.unit


def batch_norms(device: torch.device) -> list[Difference]:
    """BN in training with a mean of three deviations, and its gradients.

    The mean and the deviation of m values have errors of 8 sqrt(m) u of a value; then each unit value is off by that,
    times itself for the deviation. The gradient subtracts two means more.
    """
    found = []
    for shape in ((3, 5, 7, 11), (64, 13), (16, 32, 10, 10)):
        x, weight = normal(*shape) + 3, normal(shape[1], seed=1)
        bias, gradient = normal(shape[1], seed=2), normal(*shape, seed=3)
        tensors = [x, weight, bias, gradient]
        results = _normed([each.to(device) for each in tensors])
        exact = _normed([each.double() for each in tensors])
        m, most = (
            x.numel() // shape[1],
            4 * float(weight.abs().max()) * float(exact[0].detach().abs().max().clamp(min=1)),
        )
        totals = float(m * gradient.abs().max())  # of the sums that are the gradients of weight and bias
        for part, result, each, size in zip(
            ("output", "gradient of the images", "gradient of the weight", "gradient of the bias"),
            results,
            exact,
            (most, most * float(gradient.abs().max()), 4 * totals, totals),
            strict=True,
        ):
            found.append(difference(f"batch norm of {list(shape)}, {part}", result, each, sum_bound(m) * size))
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


def orders(device: torch.device) -> list[Difference]:
    """Sorted values, stable orders and the largest values, with ties: equal."""
    found = []
    for shape in ((4, 1), (3, 31), (5, 1000), (3, 4097), (2, 70001)):
        for x in (normal(*shape).mul(50).round(), normal(*shape).mul(2**40).long()):
            kind, y, k = f"{list(shape)} {str(x.dtype).removeprefix('torch.')}", x.to(device), min(17, shape[1])
            order = y.sort(dim=1, descending=True, stable=True)
            exact = x.sort(dim=1, descending=True, stable=True)
            found.append(difference(f"sort of {kind}", order.values, exact.values))
            found.append(difference(f"stable order of {kind}", order.indices, exact.indices))
            top = y.topk(k, 1)
            found.append(difference(f"topk of {kind}", top.values, exact.values[:, :k]))
            found.append(difference(f"indices of topk of {kind}", y.gather(1, top.indices), exact.values[:, :k]))
    return found


def indexed(device: torch.device) -> list[Difference]:
    """Rows that are read, written and added by index; the sums are of small integers, and therefore exact."""
    found = []
    for rows, width, chosen in ((1, 1, 1), (37, 13, 1001), (1000, 129, 333)):
        generator = torch.Generator().manual_seed(0)
        x = torch.randint(-8, 9, (rows, width), generator=generator).float()
        index = torch.randint(rows, (chosen,), generator=generator)
        source = torch.randint(-8, 9, (chosen, width), generator=generator).float()
        order = torch.randperm(rows, generator=generator)
        y, on, more, new = x.to(device), index.to(device), source.to(device), order.to(device)
        x, source = x.double(), source.double()
        columns = index[:, None].expand(-1, width)
        pairs = {
            "index_select": (y.index_select(0, on), x[index]),
            "index": (y[on], x[index]),
            "gather": (y.gather(0, columns.to(device)), x.gather(0, columns)),
            "index_add": (y.clone().index_add_(0, on, more), x.clone().index_add_(0, index, source)),
            "scatter_add": (
                y.clone().scatter_add_(0, columns.to(device), more),
                x.clone().scatter_add_(0, columns, source),
            ),
            "index_copy": (torch.zeros_like(y).index_copy_(0, new, y), torch.zeros_like(x).index_copy_(0, order, x)),
            "bincount": (on.bincount(minlength=rows), index.bincount(minlength=rows)),
            "cumsum": (y.cumsum(0), x.cumsum(0)),
        }
        found += [difference(f"{name} of [{rows}, {width}]", *pair) for name, pair in pairs.items()]
    return found


def random_numbers(device: torch.device) -> list[Difference]:
    """Permutations have every number once; means and squares of random numbers are within six standard errors."""
    found = []
    for n in (1, 1000, 100003):
        order = torch.randperm(n, generator=torch.Generator(device).manual_seed(n), device=device)
        found.append(difference(f"randperm({n})", order.sort().values, torch.arange(n)))
    n = 200001
    for name, mean, variance, fourth in (("rand", 0.5, 1 / 12, 1 / 80), ("randn", 0.0, 1.0, 3.0)):
        draw: Callable[..., Tensor] = getattr(torch, name)
        x, again = (draw(n, generator=torch.Generator(device).manual_seed(0), device=device) for _ in range(2))
        centred = x.double().cpu() - mean
        error = SIGMAS * (variance / n) ** 0.5, SIGMAS * ((fourth - variance**2) / n) ** 0.5
        found.append(difference(f"mean of {name}", centred.mean(), torch.tensor(0.0), error[0]))
        found.append(difference(f"variance of {name}", centred.square().mean(), torch.tensor(variance), error[1]))
        found.append(difference(f"{name} with the same seed", again, x))
    x = torch.randint(7, (n,), generator=torch.Generator(device).manual_seed(0), device=device)
    counts = torch.bincount(x, minlength=7)
    bound = SIGMAS * (n / 7 * 6 / 7) ** 0.5
    found.append(difference("counts of randint(7)", counts, torch.full((7,), n / 7), bound))
    return found
