"""Accuracies of every protocol on the features of fixed random filters, and the order in which it draws its images.

The numbers, in goldens.yaml, are correct predictions of 450 digits, which AVX2 and AVX-512 and one rank and two share.
"""

import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ssl_bench.config.build import build
from ssl_bench.config.compose import load
from ssl_bench.data.digits import scatter
from ssl_bench.data.source import Images
from ssl_bench.evaluate.few_labels import FewLabels
from ssl_bench.evaluate.target import Target
from tests.ranks import on_two_ranks

GOLDENS = yaml.safe_load(Path(__file__).with_name("goldens.yaml").read_text())
DIGITS = {name: numbers for name, (*_, numbers) in GOLDENS.items()}


class Filters(nn.Module):
    """Two stages of random filters on grey images, with 64 features and a projection of 16."""

    def __init__(self) -> None:
        super().__init__()
        stages = [nn.Conv2d(1, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 1)]
        self.backbone = nn.Sequential(*stages, nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.head = nn.Linear(64, 16)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if weight.ndim > 1:
                    weight.copy_(torch.randn(weight.shape, generator=generator) / weight[0].numel() ** 0.5)
                elif name.endswith("bias"):
                    weight.zero_()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.backbone(x)
        return {"backbone": features, "projection": self.head(features)}


class Permutations(TorchDispatchMode):
    """A checksum of all permutations that are drawn in this thread from a generator of their own."""

    crc = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.randperm.generator:
            self.crc = zlib.crc32(result.numpy().tobytes(), self.crc)
        return result


def of_digits(_: int = 0) -> dict[str, str]:
    """Numbers as in goldens.yaml: correct predictions of test images, four digits of settings and held-out images."""
    images, labels = scatter(20)
    splits = Images([images[:1347]], labels[:1347]), Images([images[1347:]], labels[1347:])
    target = Target(Filters(), *splits, num_classes=10, view=_scaled, device="cpu", seed=5, batch_size=100)
    options = load([f"evaluate=[{','.join(sorted({option for option, *_ in GOLDENS.values()}))}]"])["evaluate"]
    of_images, lines = {"size": 20, "mean": [0.5], "std": [0.25]}, {}
    for name, (option, changes, share, _) in GOLDENS.items():
        node = options[option] | ({} if "size" not in options[option] else of_images) | changes
        with Permutations() as drawn:
            metrics: dict[str, Any] = dict(build(node, f"evaluate.{option}").run(FewLabels.of(target, share)))
        counted = {metric: "top" in metric and "val" not in metric + name for metric in metrics}
        numbers = [f"{450 * value:.0f}" if counted[metric] else f"{value:.4g}" for metric, value in metrics.items()]
        lines[name] = " ".join([f"{drawn.crc:08x}", *numbers])
    return lines


def _scaled(images: Tensor) -> Tensor:
    return (images.float() / 255 - 0.5) / 0.25


def test_digits() -> None:
    assert of_digits() == DIGITS


@pytest.mark.slow
def test_digits_on_two_ranks() -> None:
    assert on_two_ranks(of_digits) == [DIGITS, DIGITS]
