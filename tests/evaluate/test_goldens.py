"""Accuracies of every protocol on the features of fixed random filters, and the order in which it draws its images.

The numbers are correct predictions of 450 digits and of 1,000 images of CIFAR-10, which AVX2 and AVX-512 and one rank
and two share.
"""

import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ssl_bench.config.build import build
from ssl_bench.config.compose import load
from ssl_bench.data.digits import scatter
from ssl_bench.data.source import Images
from ssl_bench.evaluate.few_labels import FewLabels
from ssl_bench.evaluate.target import Target
from tests.ranks import on_two_ranks

CIFAR10 = Path(os.environ.get("SSL_BENCH_DATA", "data")) / "cifar10"
SHORT = {"epochs": 2, "milestones": [1]}
# By name: the option of conf/evaluate, what is changed of it, and the share of the labels.
PROTOCOLS: dict[str, tuple[str, dict[str, Any], float]] = {
    "knn": ("knn", {"k": [5, 20], "temperature": [0.07, 0.1]}, 1.0),
    "knn_few": ("knn", {"k": 2}, 0.1),
    "knn_euclidean": ("knn_solo", {}, 1.0),
    "knn_val": ("knn_val", {"k": 10}, 1.0),
    "linear": ("linear", {"epochs": 6, "hold_out": "images"}, 1.0),
    "linear_decays": ("linear", {"epochs": 3, "lrs": [0.1, 0.01], "weight_decay": [0.0, 0.01]}, 1.0),
    "linear_classes": ("linear", {"epochs": 3, "hold_out": "classes", "lrs": [0.1], "features": "projection"}, 0.5),
    "convex": ("linear", {"hold_out": "none"}, 0.1),
    "convex_few": ("linear", {"hold_out": "none"}, 0.01),
    "sgd_lightly": ("linear_lightly", {"epochs": 4, "lr": 0.3}, 1.0),
    "sgd_solo": ("linear_solo", SHORT, 1.0),
    "sgd_dino": ("linear_dino", {"epochs": 4, "lr": 0.1}, 1.0),
    "sgd_moco": ("linear_moco_features", {**SHORT, "lr": 1.0}, 0.5),
    "images_moco": ("linear_moco", {**SHORT, "lr": 1.0}, 0.5),
    "images_simclr": ("linear_simclr", {"epochs": 4, "lr": 1.0, "batch_size": 128}, 0.5),
    "images_randbit": ("linear_randbit", {"epochs": 3, "batch_size": 100, "lr": 0.02}, 0.5),
    "images_macl": ("linear_macl", {"epochs": 2, "lr": 0.3}, 0.5),
    "images_opensel": (
        "linear_opensel",
        {**SHORT, "lr": 0.1, "layers": ["0", "3"], "windows": None, "cells": 100},
        0.5,
    ),
    "finetune": ("finetune", {"epochs": 3, "least_steps": 0, "batch_size": 64, "lr": 0.4}, 0.5),
}
# Of each protocol a checksum of the permutations that it draws, and its numbers in their order.
DIGITS = {
    "knn": "00000000 144 331 144 331 144 331 184 380 184 380 103 298 103 298 103 298 123 357 123 357",
    "knn_few": "00000000 118 273 82 256",
    "knn_euclidean": "00000000 168 373 136 354",
    "knn_val": "105bcbaf 0.3556 0.2148",
    "linear": "cffb3dd5 216 413 0.5259 1",
    "linear_decays": "1f488838 187 407 0.4519 0.1 0",
    "linear_classes": "a40a4b95 118 373 0.2571 0.1",
    "convex": "8afc594b 160 388 0.3",
    "convex_few": "00000000 73 294 0.1",
    "sgd_lightly": "c11c916a 88 329",
    "sgd_solo": "b55e87a5 77 249",
    "sgd_dino": "8cea8815 120 352",
    "sgd_moco": "6364f014 82 238",
    "images_moco": "224f690a 73 271",
    "images_simclr": "d3d6b1db 98 354",
    "images_randbit": "aebc8790 92 288",
    "images_macl": "224f690a 45 263",
    "images_opensel": "2681ffea 79 316 60 266",
    "finetune": "4e81fa40 91 314",
}
PHOTOS = {
    "knn": "00000000 271 702 271 702 271 702 316 797 314 797 250 682 250 682 250 682 285 758 285 758",
    "knn_few": "00000000 230 607 213 599",
    "knn_euclidean": "00000000 316 771 277 751",
    "knn_val": "cceb943c 0.275 0.21",
    "linear": "f0036d6a 330 825 0.43 0.3",
    "linear_decays": "fac468c8 278 797 0.38 0.1 0",
    "linear_classes": "b3158bee 232 756 0.2075 0.1",
    "convex": "2d0d5d8c 238 737 1",
    "convex_few": "00000000 185 654 0.1",
    "sgd_lightly": "e490f9fa 240 744",
    "sgd_solo": "6b09e0db 251 760",
    "sgd_dino": "dc2c7932 246 749",
    "sgd_moco": "34fdd449 189 693",
    "images_moco": "aba413b6 217 710",
    "images_simclr": "6e8836ac 280 781",
    "images_randbit": "5a162fbe 206 734",
    "images_macl": "aba413b6 237 682",
    "images_opensel": "b2ef50f1 289 806 235 737",
    "finetune": "d53cf5a0 306 832",
}


class Filters(nn.Module):
    """Two stages of random filters on images of C channels, with 64 features and a projection of 16."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        stages = [nn.Conv2d(channels, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 1)]
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


def digits() -> Target:
    images, labels = scatter(20)
    splits = Images([images[:1347]], labels[:1347]), Images([images[1347:]], labels[1347:])
    return Target(Filters(1), *splits, num_classes=10, view=_scaled, device="cpu", seed=5, batch_size=100)


def photos() -> Target:
    """The first images of each split."""

    def split(name: str, count: int) -> Images:
        pixels, labels = (np.load(CIFAR10 / f"{name}_{what}.npy", mmap_mode="r") for what in ("images", "labels"))
        images = torch.from_numpy(pixels[:count].copy()).permute(0, 3, 1, 2).contiguous()
        return Images([images], torch.from_numpy(labels[:count].copy()))

    splits = split("train", 2000), split("test", 1000)
    return Target(Filters(3), *splits, num_classes=10, view=_scaled, device="cpu", seed=5, batch_size=100)


def _scaled(images: Tensor) -> Tensor:
    return (images.float() / 255 - 0.5) / 0.25


def measured(target: Target) -> dict[str, tuple[str, dict[str, Any]]]:
    names = {option for option, _, _ in PROTOCOLS.values()}
    options, image = load([f"evaluate=[{','.join(sorted(names))}]"])["evaluate"], target.train.take(torch.arange(1))[0]
    of_images = {"size": image.shape[1], "mean": [0.5] * len(image), "std": [0.25] * len(image)}
    found = {}
    for name, (option, changes, share) in PROTOCOLS.items():
        node = options[option] | ({} if "size" not in options[option] else of_images) | changes
        with Permutations() as drawn:
            values = build(node, f"evaluate.{option}").run(FewLabels.of(target, share))
            metrics = dict(values)
        found[name] = f"{drawn.crc:08x}", metrics
    return found


def of_digits(_: int = 0) -> dict[str, str]:
    return written(measured(digits()), 450)


def of_photos(_: int = 0) -> dict[str, str]:
    return written(measured(photos()), 1000)


def written(found: dict[str, tuple[str, dict[str, Any]]], images: int) -> dict[str, str]:
    """Numbers as in the tables: correct predictions of test images, and of settings and held-out images four digits."""
    lines = {}
    for name, (drawn, metrics) in found.items():
        numbers = [
            f"{value * images:.0f}" if "top" in metric and "val" not in metric + name else f"{value:.4g}"
            for metric, value in metrics.items()
        ]
        lines[name] = " ".join([drawn, *numbers])
    return lines


def test_digits() -> None:
    assert of_digits() == DIGITS


@pytest.mark.slow
def test_digits_on_two_ranks() -> None:
    assert on_two_ranks(of_digits) == [DIGITS, DIGITS]


has_photos = pytest.mark.skipif(not CIFAR10.is_dir(), reason="CIFAR-10 is not in the folder SSL_BENCH_DATA")


@pytest.mark.slow
@has_photos
def test_photos() -> None:
    assert of_photos() == PHOTOS


@pytest.mark.slow
@has_photos
def test_photos_on_two_ranks() -> None:
    assert on_two_ranks(of_photos) == [PHOTOS, PHOTOS]
