"""Estimate what a run costs: hours of pre-training on 8 V100.

    hours = images x epochs x passes x FLOPs of a view / RATE

RATE is that of a published ResNet-50: 8,322 images of 224 pixels per second on 8 V100 in mixed precision (NVIDIA
DeepLearningExamples), 24.3 GFLOP each, forward and backward. Other networks are assumed to reach the same FLOP rate,
which holds within a factor of two, and data loading is assumed not to be the limit. A view that is trained on counts as
one pass; a view that only goes through a momentum network counts as a third, the share of the forward pass: SimCLR 2,
MoCo 4/3, BYOL 8/3. NPID has one view; MoCo + CLD has two and a third view in the momentum network.

A ResNet-50 with w times the channels has 0.971 w^2 + 0.029 w times the FLOPs: its first convolution, 2.9% of them,
reads three channels whatever w is.

With 2 views an epoch of ImageNet's 1,281,167 images takes 308 s. Evaluation is not counted.
"""

from collections.abc import Mapping
from typing import Any

RATE = 8322 * 24.3  # GFLOP/s
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
}
# GFLOP that a VAE's decoder adds at a side of 32: 2.1 million products in each of two inner convolutions, 0.13 million
# for each channel in the last one and 0.26 million in the linear map before them; a product is 2 FLOP forward and 4
# backward.
DECODER = 0.03
# Views that are trained on, and views that only the momentum network sees, of frameworks without the usual two views.
VIEWS = {"npid": (1, 0), "moco_cld": (2, 1)}


def hours(config: Mapping[str, Any]) -> float | None:
    """Hours of a composed configuration; None for a network or a dataset of unknown size."""
    choices = config["choices"]
    network = VIEW.get(choices.get("backbone"))
    images = config["dataset"].get("train_images")
    if network is None or not isinstance(images, int):
        return None
    flops, side = network
    if choices.get("framework") == "vae":
        flops += DECODER * (side / 32) ** 2
    processed = images * config["epochs"]
    if config["max_steps"] is not None:
        processed = min(processed, config["max_steps"] * config["batch_size"]["size"])
    return float(processed * _passes(config, side) * flops / RATE / 3600)


def _passes(config: Mapping[str, Any], side: int) -> float:
    """Passes per image, each view counted by its area over side x side."""
    augment, framework = config["augment"], config["framework"]
    crops = [augment | {"count": 2}] if "_target_" in augment else list(augment.values())
    areas = [(crop["count"], (crop["size"] / side) ** 2) for crop in crops]
    if (name := config["choices"].get("framework")) in VIEWS:
        trained, in_momentum = VIEWS[name]
        return float((trained + in_momentum / 3) * areas[0][1])
    total = sum(count * area for count, area in areas)
    if framework.get("momentum") is None:
        return float(total)
    first = areas[0][1]
    anchors = total if framework["symmetric"] else first
    return float(anchors + (total if framework["symmetric"] else total - first) / 3)
