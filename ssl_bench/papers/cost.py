"""Estimate what a run costs: hours of pre-training on this machine, or on 8 V100 as long as nobody has measured it.

    hours = images x epochs x passes x FLOPs of a view / rate

The rate of this machine is that of the newest ``ssl-bench check`` of it, for the measured network that is most like the
run's. The rate of 8 V100 is that of a published ResNet-50: 8,322 images of 224 pixels per second in mixed precision
(NVIDIA DeepLearningExamples), 24.3 GFLOP each, forward and backward; an epoch of ImageNet's 1,281,167 images with two
views takes 308 s. Other networks are assumed to reach the same FLOP rate, which holds within a factor of two, and data
loading is assumed not to be the limit. A view that is trained on counts as one pass; a view that only goes through a
momentum network counts as a third, the share of the forward pass: SimCLR 2, MoCo 4/3, BYOL 8/3. NPID has one view;
MoCo + CLD has two and a third view in the momentum network.

A ResNet-50 with w times the channels has 0.971 w^2 + 0.029 w times the FLOPs: its first convolution, 2.9% of them,
reads three channels whatever w is. Evaluation is not counted.
"""

import math
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.record.results import is_number

# The networks that ``ssl-bench check`` measures, from small to large.
MEASURED = ("resnet18 32px", "resnet18 96px", "resnet50 224px")
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


@dataclass(frozen=True)
class Rates:
    """How fast a machine trains.

    Attributes:
        machine: its name, and where the rates come from.
        gflop_s: GFLOP per second on all its GPUs, by measured network; at least one of MEASURED.
    """

    machine: str
    gflop_s: Mapping[str, float]

    def of(self, backbone: str, side: int) -> float:
        """The rate of the measured network that is most like a backbone on views of ``side`` pixels."""
        like = (0 if side <= 48 else 1) if side <= 128 or not backbone.startswith("resnet50") else 2
        return self.gflop_s[min(self.gflop_s, key=lambda name: abs(MEASURED.index(name) - like))]


V100 = Rates("8 V100", {"resnet50 224px": 8322 * 24.3})


def measured(speed: Mapping[str, Mapping[str, Any]], gpus: int) -> dict[str, float]:
    """GFLOP per second of ``gpus`` GPUs that train a run each; empty if no network was measured.

    Args:
        speed: values of the section speed, by the name of its check, with ``images_s`` of one device and
            ``gflop_per_image``.
    """
    rates = {}
    for name in MEASURED:
        factors: list[Any] = [speed.get(name, {}).get(key) for key in ("images_s", "gflop_per_image")]
        if all(is_number(factor) and 0 < factor < math.inf for factor in factors):
            rates[name] = float(factors[0] * factors[1]) * gpus
    return rates


def checks(outputs: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Folder's name and content of each check of this host in a results folder, the newest first."""
    host = socket.gethostname()
    for path in sorted(outputs.glob("checks/*/check.json"), reverse=True):  # the names end with the time
        record = files.read_json(path)
        if isinstance(record, dict) and record.get("host") == host and isinstance(record.get("findings"), list):
            yield path.parent.name, record


def rates(outputs: Path) -> Rates:
    """The rates of the newest check of this host that measured them; without one, those of 8 V100."""
    for name, record in checks(outputs):
        found = [each for each in record["findings"] if isinstance(each, dict) and each.get("section") == "speed"]
        speed = {str(each.get("name")): each["values"] for each in found if isinstance(each.get("values"), dict)}
        gpus = record.get("gpus")
        if gflop_s := measured(speed, max(1, gpus) if isinstance(gpus, int) else 1):
            return Rates(f"{record.get('machine')}, as checked in {name}", gflop_s)
    return V100


def hours(config: Mapping[str, Any], on: Rates = V100) -> float | None:
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
    return float(processed * _passes(config, side) * flops / on.of(choices["backbone"], _side(config)) / 3600)


def _passes(config: Mapping[str, Any], side: int) -> float:
    """Passes per image, each view counted by its area over side x side."""
    framework = config["framework"]
    areas = [(crop["count"], (crop["size"] / side) ** 2) for crop in _crops(config)]
    if (name := config["choices"].get("framework")) in VIEWS:
        trained, in_momentum = VIEWS[name]
        return float((trained + in_momentum / 3) * areas[0][1])
    total = sum(count * area for count, area in areas)
    if framework.get("momentum") is None:
        return float(total)
    first = areas[0][1]
    anchors = total if framework["symmetric"] else first
    return float(anchors + (total if framework["symmetric"] else total - first) / 3)


def _crops(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The kinds of views, the global crops first."""
    augment = config["augment"]
    return [augment | {"count": 2}] if "_target_" in augment else list(augment.values())


def _side(config: Mapping[str, Any]) -> int:
    """Pixels of a side of the largest views."""
    return max(int(crop["size"]) for crop in _crops(config))
