"""Estimate what a run costs: hours of pre-training on 8 V100, at the pace that the authors of MoCo publish.

    hours = steps x (launches + images of a GPU x passes x FLOPs of a view / rate)

They train a ResNet-50 for 200 epochs of ImageNet at batch 256 in 53 h (README of facebookresearch/moco), 24.3 GFLOP a
view, forward and backward. It is in single precision and with decoding, so that mixed precision may be faster. Other
networks are assumed to reach the same FLOP rate. A view that is trained on counts as one pass; a view that only goes
through a momentum network counts as a third, the share of the forward pass: SimCLR 2, MoCo 4/3, BYOL 8/3. NPID and
MoCo + CLD, which have one view and three, are counted like SimCLR and MoCo.

A ResNet-50 with w times the channels has 0.971 w^2 + 0.029 w times the FLOPs: its first convolution, 2.9% of them,
reads three channels whatever w is. Evaluation and a VAE's decoder are not counted.
"""

from collections.abc import Iterable, Mapping
from typing import Any

# GFLOP of a view, forward and backward, and the image side for which they hold; they grow with the area.
VIEW = {
    "resnet50": (24.3, 224),
    "resnet50_x2": (95.8, 224),
    "resnet50_x4": (380.4, 224),
    "resnet18": (10.7, 224),
    "resnet50_cifar": (7.8, 32),
    "resnet18_cifar": (3.33, 32),
    "resnet_digits": (0.04, 20),
    "conv_n": (0.006, 28),
    "conv_n_keras": (0.006, 28),
}
GPUS = 8
EAGER = 10e-3  # seconds of the launches of a step on a V100, computed from their number
MOCO_STEPS, MOCO_GFLOP = 200 * 5004, 32 * 24.3 * 4 / 3  # of a GPU in each of them
RATE = MOCO_GFLOP / (53 * 3600 / MOCO_STEPS - EAGER)  # GFLOP per second of a GPU


def hours(config: Mapping[str, Any]) -> float | None:
    """Hours of a composed configuration; None for a network or a dataset of unknown size."""
    count, gflop = steps(config), gflop_of_a_step(config)
    if gflop is None or count is None:
        return None
    return count * (EAGER + gflop / GPUS / RATE) / 3600


def gflop_of_a_step(config: Mapping[str, Any]) -> float | None:
    """GFLOP of a step; None for a network of unknown size."""
    flops, side = VIEW.get(config["choices"].get("backbone"), (None, 1))
    if flops is None:
        return None
    return float(config["batch_size"]["size"] * _passes(config["framework"], _crops(config), side) * flops)


def steps(config: Mapping[str, Any]) -> int | None:
    """Steps of the training of a composed configuration; None for a dataset of unknown size."""
    images = config["dataset"].get("train_images")
    if not isinstance(images, int):
        return None
    all_steps = int(images // config["batch_size"]["size"] * config["epochs"])
    return min(all_steps, config["max_steps"] or all_steps)


def price(configs: Iterable[Mapping[str, Any]], hours: float | None, here: bool = False) -> str:
    """The cost of some runs in words: their hours, or their steps where ``hours`` is None.

    Args:
        here: the hours are those of this machine.
    """
    if hours is None:
        return f"{sum(steps(config) or 0 for config in configs):,} steps of pre-training"
    if here:
        estimate = f"about {max(hours, 0.01):.2g} h of pre-training on this machine"
        return f"{estimate}, one run after another, by three steps of each kind"
    return f"about {hours:.1f} h of pre-training on {GPUS} V100 at MoCo's published pace"


def _passes(framework: Mapping[str, Any], crops: list[Mapping[str, Any]], side: int) -> float:
    """Passes per image, each view counted by its area over side x side."""
    areas = [crop["count"] * (crop["size"] / side) ** 2 for crop in crops]
    if framework.get("momentum") is None:
        return sum(areas)
    if framework.get("symmetric"):
        return sum(areas) * 4 / 3
    first = areas[0] / crops[0]["count"]
    return first + (sum(areas) - first) / 3


def _crops(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The kinds of views, the global crops first."""
    augment = config["augment"]
    return [augment | {"count": 2}] if "_target_" in augment else list(augment.values())
