"""What a run costs: hours on 8 V100, pre-training only.

    hours = images x epochs x passes x FLOPs of a view / RATE

RATE is what a published ResNet-50 does: 8,322 images of 224 pixels a second on 8 V100 in mixed precision (NVIDIA
DeepLearningExamples), 24.3 GFLOP each, forward and backward. Other networks are taken to reach the same FLOP rate,
which is within a factor of two; data loading is taken not to be the limit. Passes count views that are trained as one
and views that only go through a momentum network as a third, the share of the forward pass: SimCLR 2, MoCo 4/3, BYOL
8/3. NPID has one view, MoCo with CLD two and the average's third.

A ResNet-50 of w times the channels has 0.971 w^2 + 0.029 w times the FLOPs: its first convolution, 2.9% of them, reads
three channels whatever w is.

With 2 views ImageNet's 1,281,167 images take 308 s an epoch. Evaluation is not counted.
"""

from collections.abc import Mapping
from typing import Any

RATE = 8322 * 24.3  # GFLOP/s
# GFLOP of a view, forward and backward, and the side of the image at which it is that; it grows with the area.
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
# GFLOP that a VAE's decoder adds at a side of 32: 2.1 million products in each of two inner convolutions, 0.13 for each
# channel in the last one and 0.26 in the linear map before them, a product being 2 FLOP forward and 4 backward.
DECODER = 0.03
# Views that are trained and views that only the average sees, where a framework takes other than two views.
VIEWS = {"npid": (1, 0), "moco_cld": (2, 1)}
IMAGES = {
    "scattered_digits": 1347,
    "mnist": 60_000,
    "multi_digits": 60_000,
    "randbit_mnist": 60_000,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "randbit_cifar10": 50_000,
    "stl10": 105_000,
    "imagenet100": 126_689,
    "imagenet": 1_281_167,
    "imagenet64": 1_281_167,
    "digit_on_imagenet": 1_281_167,
    "randbit_imagenet": 1_281_167,
}


def hours(config: Mapping[str, Any]) -> float | None:
    """Hours of a composed configuration; None for a network or a dataset that is not listed."""
    choices = config["choices"]
    network = VIEW.get(choices.get("backbone"))
    images = config["dataset"].get("images", IMAGES.get(choices.get("dataset")))
    if network is None or not isinstance(images, int):
        return None
    flops, side = network
    if choices.get("framework") == "vae":
        flops += DECODER * (side / 32) ** 2
    seen = images * config["epochs"]
    if config["max_steps"] is not None:
        seen = min(seen, config["max_steps"] * config["batch_size"]["size"])
    return float(seen * _passes(config, side) * flops / RATE / 3600)


def _passes(config: Mapping[str, Any], side: int) -> float:
    """Trained views of an image, each by its area over side x side."""
    augment, framework = config["augment"], config["framework"]
    crops = [augment | {"count": 2}] if "_target_" in augment else list(augment.values())
    areas = [(crop["count"], (crop["size"] / side) ** 2) for crop in crops]
    if (chosen := config["choices"].get("framework")) in VIEWS:
        trained, followed = VIEWS[chosen]
        return float((trained + followed / 3) * areas[0][1])
    total = sum(count * area for count, area in areas)
    if framework.get("momentum") is None:
        return float(total)
    first = areas[0][1]
    anchors = total if framework["symmetric"] else first
    return float(anchors + (total if framework["symmetric"] else total - first) / 3)
