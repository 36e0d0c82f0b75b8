"""The least possible seconds of a step of SimCLR with ResNet-18, CIFAR stem, on 32 pixels.

    arithmetic floor               of a view = FLOP / rate
    arithmetic and memory floor    of a view = FLOP / rate + bytes / bandwidth

The rate is the best that this device has just reached in matrix products and convolutions, the bandwidth the best of
copies. The two add up because convolutions and batch norms run one after another. FLOP are 3 times those of the forward
pass. Bytes are those of fused kernels: a convolution reads and writes its tensors once in each of its three passes, a
batch norm reads its input for the statistics, reads and writes it to normalise, and reads four tensors and writes one
in the backward pass.
"""

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from ssl_bench.check.speed import seconds_of_calls
from ssl_bench.training.precision import Precision

NETWORK = "resnet18 32px"
# Of a view, forward and backward: 10^9 operations, 10^6 bytes in a format of 16 bits, numbers in the largest tensor.
GFLOP, MEGABYTES, LARGEST = 3.33, 17.5, 64 * 32**2
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
ARITHMETIC, WITH_MEMORY = "arithmetic floor", "arithmetic and memory floor"


def floors(batch: int, precision: Precision, device: torch.device, tflops: float, gigabytes: float) -> dict[str, float]:
    """The least seconds of a step of ``batch`` images, of two views each, at measured rates.

    Args:
        gigabytes: of copies that no cache holds. Copies as large as the largest tensor count if they are faster.
    """
    views, size = 2 * batch, 4 if precision.autocast is None else 2  # bytes of a number
    gigabytes = max(gigabytes, copy_gigabytes(device, views * LARGEST * size))
    arithmetic = views * GFLOP / 1e3 / tflops
    memory = views * MEGABYTES * size / 2 / 1e3 / gigabytes
    return {ARITHMETIC: arithmetic, WITH_MEMORY: arithmetic + memory}


def copy_gigabytes(device: torch.device, count: int | None = None) -> float:
    """Measure a copy of ``count`` bytes, or of so many that no cache holds them: 10^9 bytes a second, both ways."""
    count = count or (2**30 if device.type == "cuda" else 2**27)
    source = torch.zeros(count, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return 2 * count / min(seconds_of_calls(lambda: target.copy_(source))) / 1e9


def best_tflops(device: torch.device, number_format: str) -> float:
    """Measure square matrix products and a ResNet's convolutions, as a run computes them: the best 10^12 FLOP/s."""

    def numbers(*shape: int) -> Tensor:
        x = torch.randn(shape, device=device).to(FORMATS[number_format])
        return x if x.ndim == 2 else x.contiguous(memory_format=torch.channels_last)

    sides, images = ((4096, 8192), 1024) if device.type == "cuda" else ((1024, 2048), 32)
    rates = []
    for side in sides:
        product = partial(torch.mm, numbers(side, side), numbers(side, side))
        rates.append(2 * side**3 / min(seconds_of_calls(product)))
    for channels, side in ((64, 32), (128, 16), (256, 8)):
        x, weights = numbers(images, channels, side, side), numbers(channels, channels, 3, 3)
        flop = 2 * 3 * 3 * images * (side * channels) ** 2
        rates.append(flop / min(seconds_of_calls(partial(conv2d, x, weights, padding=1))))
    return max(rates) / 1e12
