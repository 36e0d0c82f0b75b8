"""Estimate what a run costs: hours of pre-training on this machine, or on 8 V100 as long as nobody has measured it.

    hours = images x epochs x passes x FLOPs of a view / rate

The rate of this machine is that of the newest ``ssl-bench check`` of it, for the measured network that is most like the
run's. The rate of 8 V100 is that of a published ResNet-50: 8,322 images of 224 pixels per second in mixed precision
(NVIDIA DeepLearningExamples), 24.3 GFLOP each, forward and backward; an epoch of ImageNet's 1,281,167 images with two
views takes 308 s. Other networks are assumed to reach the same FLOP rate, which holds within a factor of two, and data
loading is assumed not to be the limit. A view that is trained on counts as one pass; a view that only goes through a
momentum network counts as a third, the share of the forward pass: SimCLR 2, MoCo 4/3, BYOL 8/3. NPID and MoCo + CLD,
which have one view and three, are counted like SimCLR and MoCo.

A ResNet-50 with w times the channels has 0.971 w^2 + 0.029 w times the FLOPs: its first convolution, 2.9% of them,
reads three channels whatever w is. Evaluation and a VAE's decoder are not counted.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from ssl_bench import files
from ssl_bench.disk.shapes import fits

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
    "conv_n_keras": (0.006, 28),
}


class Speed(TypedDict):
    """How fast a network trains on one device."""

    images_s: float
    gflop_per_image: float


class CheckFinding(TypedDict):
    """A finding of ``ssl-bench check``."""

    section: str
    name: str
    values: dict[str, Any]


class Check(TypedDict):
    """Content of ``check.json``."""

    machine: str
    gpus: int
    findings: list[CheckFinding]


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


def rates(outputs: Path) -> Rates:
    """The rates of the newest check of this host that measured them; without one, those of 8 V100."""
    paths = outputs.glob(f"checks/{socket.gethostname()}-*/check.json")
    for path in sorted(paths, reverse=True):  # the names end with the time
        record: Check | None = files.read_json(path, Check)
        if record is None:
            continue
        measured = {speed["name"]: speed["values"] for speed in record["findings"] if speed["section"] == "speed"}
        speeds = {name: measured[name] for name in MEASURED if fits(measured.get(name), Speed)}
        of_one = {name: speed["images_s"] * speed["gflop_per_image"] for name, speed in speeds.items()}
        gpus = max(1, record["gpus"])  # which train a run each
        gflop_s = {name: rate * gpus for name, rate in of_one.items() if rate > 0}
        if gflop_s:
            return Rates(f"{record['machine']}, as checked in {path.parent.name}", gflop_s)
    return V100


def hours(config: Mapping[str, Any], on: Rates = V100) -> float | None:
    """Hours of a composed configuration; None for a network or a dataset of unknown size."""
    choices = config["choices"]
    network = VIEW.get(choices.get("backbone"))
    images = config["dataset"].get("train_images")
    if network is None or not isinstance(images, int):
        return None
    flops, side = network
    processed = images * config["epochs"]
    if config["max_steps"] is not None:
        processed = min(processed, config["max_steps"] * config["batch_size"]["size"])
    crops = _crops(config)
    rate = on.of(choices["backbone"], max(int(crop["size"]) for crop in crops))
    return float(processed * _passes(config["framework"], crops, side) * flops / rate / 3600)


def price(total: float, on: Rates) -> str:
    """The hours of some runs in words."""
    hint = " (ssl-bench check measures this machine)" if on is V100 else ""
    return f"about {total:.1f} h of pre-training on {on.machine}{hint}"


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
