"""The least time that a view of a training can take on a device, which measured steps are compared with.

    floor of a view = FLOP / rate of matrix products + bytes / bandwidth of copies

The two add up because convolutions and batch norms run one after another. FLOP are 3 times those of the forward pass,
without the gradient of the images. Bytes are those of the fused kernels of today's libraries in a format of 16 bits: a
convolution reads and writes its tensors once in each of its three passes, a batch norm reads its input for the
statistics, reads and writes it to normalise, and reads four tensors and writes one in the backward pass. Kernels that
fuse convolutions with batch norms could be faster. Well-written training code reaches 60% to 75% of this floor on a
GPU: ResNet-50 of NVIDIA's DeepLearningExamples 72% on an A100 and 74% on a V100.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ssl_bench.check.timing import seconds_at_best

FORMATS = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class ViewCost:
    """Cost of training on one view, forward and backward.

    Attributes:
        gflop: floating-point operations, in 10^9.
        megabytes: read and written in a format of 16 bits, in 10^6.
    """

    gflop: float
    megabytes: float


@dataclass(frozen=True)
class DeviceRates:
    """Highest rates of a device in one number format.

    Attributes:
        tflops: matrix products, in 10^12 floating-point operations per second.
        gigabytes: read and written by copies, in 10^9 per second.
    """

    tflops: float
    gigabytes: float


# Each network as the tests of speed name it: ResNet-18 with the CIFAR stem, ResNet-18 and ResNet-50 with the ImageNet
# stem. Multiply-adds of the forward pass, 10^9: 0.555, 0.334 and 4.09.
COSTS: Mapping[str, ViewCost] = {
    "resnet18 32px": ViewCost(3.33, 17.5),
    "resnet18 96px": ViewCost(1.96, 12.4),
    "resnet50 224px": ViewCost(24.30, 308),
}

# Rates that large products and copies reach: 80% of the data sheet's tensor cores on Hopper and Ampere, 85% to 90% of
# its bandwidth. V100: the data sheet of the PCIe card, which has no TF32.
KNOWN: Mapping[str, Mapping[str, DeviceRates]] = {
    "H200": {
        "bf16": DeviceRates(790, 4300),
        "fp16": DeviceRates(790, 4300),
        "tf32": DeviceRates(395, 4300),
        "fp32": DeviceRates(54, 4300),
    },
    "H100": {
        "bf16": DeviceRates(790, 3000),
        "fp16": DeviceRates(790, 3000),
        "tf32": DeviceRates(395, 3000),
        "fp32": DeviceRates(54, 3000),
    },
    "A100": {
        "bf16": DeviceRates(250, 1600),
        "fp16": DeviceRates(250, 1600),
        "tf32": DeviceRates(125, 1600),
        "fp32": DeviceRates(15.6, 1600),
    },
    "V100": {"fp16": DeviceRates(112, 765), "fp32": DeviceRates(14, 765)},
}


def known_rates(device_name: str, number_format: str) -> DeviceRates | None:
    """Rates of a GPU by the name that CUDA gives it, such as ``NVIDIA H200``; None for one that is not in the table."""
    words = device_name.replace("-", " ").split()
    found = (rates for name, rates in KNOWN.items() if name in words)
    return next(found, {}).get(number_format)


def floor_images(cost: ViewCost, rates: DeviceRates, number_format: str) -> float:
    """Images per second, of two views each, at the floor."""
    size = torch.finfo(FORMATS[number_format]).bits / 16
    seconds = cost.gflop / (1e3 * rates.tflops) + size * cost.megabytes / (1e3 * rates.gigabytes)
    return 1 / (2 * seconds)


def network_formats(device: torch.device) -> list[str]:
    """Values of the key ``precision`` that the networks can be trained with on ``device``, the usual one first."""
    if device.type == "cpu":
        return ["fp32", "bf16"]
    native = torch.cuda.is_bf16_supported(including_emulation=False)
    return ["bf16", "fp16", "fp32"] if native else ["fp16", "fp32"]


def product_format(precision: str, device: torch.device) -> str:
    """Number format of the networks' products: ``tf32`` where ``precision=fp32`` uses it."""
    ampere = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return "tf32" if precision == "fp32" and ampere else precision


def product_tflops(device: torch.device, number_format: str) -> float:
    """Measure the best rate of a large square matrix product, in 10^12 floating-point operations per second."""
    side = 8192 if device.type == "cuda" else 1024
    a = torch.randn(side, side, device=device).to(FORMATS[number_format])
    matmul, before = torch.backends.cuda.matmul, torch.backends.cuda.matmul.allow_tf32
    matmul.allow_tf32 = number_format == "tf32"
    try:
        return 2 * side**3 / seconds_at_best(lambda: a @ a, device) / 1e12
    finally:
        matmul.allow_tf32 = before


def copy_gigabytes(device: torch.device) -> float:
    """Measure the best rate of a copy that no cache holds: 10^9 bytes per second, read and written."""
    count = 2**30 if device.type == "cuda" else 2**27
    source = torch.zeros(count, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return 2 * count / seconds_at_best(lambda: target.copy_(source), device) / 1e9
