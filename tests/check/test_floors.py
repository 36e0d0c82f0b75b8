"""Floors: the published table, rates of known GPUs, and measured rates."""

import time
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ssl_bench.check import timing
from ssl_bench.check.floors import (
    COSTS,
    DeviceRates,
    copy_gigabytes,
    floor_images,
    known_rates,
    network_formats,
    product_format,
    product_tflops,
)
from ssl_bench.check.steps import NETWORKS

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SECONDS", 0.05)


@pytest.mark.parametrize(
    ("gpu", "number_format", "network", "views"),
    [
        ("NVIDIA H200", "bf16", "resnet18 32px", 121e3),
        ("NVIDIA H200", "bf16", "resnet18 96px", 186e3),
        ("NVIDIA H200", "bf16", "resnet50 224px", 9.76e3),
        ("NVIDIA A100-SXM4-80GB", "bf16", "resnet50 224px", 3.45e3),
        ("Tesla V100-SXM2-16GB", "fp16", "resnet18 32px", 19.0e3),
        ("Tesla V100-SXM2-16GB", "fp16", "resnet50 224px", 1.61e3),
    ],
)
def test_floors_of_known_gpus(gpu: str, number_format: str, network: str, views: float) -> None:
    rates = known_rates(gpu, number_format)
    assert rates is not None
    assert 2 * floor_images(COSTS[network], rates, number_format) == pytest.approx(views, rel=0.02)


@pytest.mark.parametrize("name", ["", "AMD EPYC", "NVIDIA GeForce RTX 4090", "NVIDIA L40S", "NVIDIA A10"])
def test_other_devices_have_no_known_rates(name: str) -> None:
    assert known_rates(name, "fp32") is None


def test_volta_has_neither_bf16_nor_tf32() -> None:
    assert known_rates("Tesla V100-PCIE-32GB", "bf16") is None and known_rates("Tesla V100-PCIE-32GB", "tf32") is None


def test_a_format_of_32_bits_moves_twice_the_bytes() -> None:
    cost, rates = COSTS["resnet50 224px"], DeviceRates(1e9, 1000)  # products take no time
    assert floor_images(cost, rates, "bf16") == pytest.approx(1000 / 0.308 / 2)
    assert floor_images(cost, rates, "fp32") == pytest.approx(floor_images(cost, rates, "bf16") / 2)


def test_every_network_has_a_floor_and_a_cpu_its_formats() -> None:
    assert COSTS.keys() == NETWORKS.keys()
    assert network_formats(CPU) == ["fp32", "bf16"] and product_format("fp32", CPU) == "fp32"


class SlowProducts(TorchDispatchMode):
    """A device whose matrix products take 30 ms longer."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name == "aten::mm":
            time.sleep(0.03)
        return func(*args, **(kwargs or {}))


def test_slow_products_have_a_low_rate() -> None:
    with SlowProducts():
        slow = product_tflops(CPU, "fp32")
    assert 0 < slow < 2 * 1024**3 / 0.03 / 1e12 < 0.08


def test_the_bandwidth_of_copies_is_measured() -> None:
    assert 0.1 < copy_gigabytes(CPU) < 5000
