"""Estimate what a run costs: hours of pre-training on this machine, or on 8 V100 as long as nobody has measured it.

    hours = steps x (fixed + images of a device x passes x FLOPs of a view / rate)

The rate of this machine is that of the newest ``ssl-bench check`` of it, for the measured network that is most like the
run's; ``fixed`` is what a step takes whatever its batch, which on GPUs is the launches of a recorded step. The rate of
8 V100 is that of MoCo's authors, who train a ResNet-50 for 200 epochs of ImageNet at batch 256 in 53 h (README of
facebookresearch/moco), 24.3 GFLOP a view, forward and backward. It is in single precision and with decoding, so that
mixed precision may be faster. Other networks are assumed to reach the same FLOP rate. A view that is trained on counts
as one pass; a view that only goes through a momentum network counts as a third, the share of the forward pass: SimCLR
2, MoCo 4/3, BYOL 8/3. NPID and MoCo + CLD, which have one view and three, are counted like SimCLR and MoCo.

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
    batch: int


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
        gflop_s: GFLOP per second of one device, by measured network; at least one of MEASURED.
        devices: GPUs, or 1 for its cores. Runs of fewer devices are trained side by side.
        fixed: seconds of a step that do not depend on its batch.
    """

    machine: str
    gflop_s: Mapping[str, float]
    devices: int
    fixed: float

    def of(self, backbone: str, side: int) -> float:
        """The rate of the measured network that is most like a backbone on views of ``side`` pixels."""
        like = (0 if side <= 48 else 1) if side <= 128 or not backbone.startswith("resnet50") else 2
        return self.gflop_s[min(self.gflop_s, key=lambda name: abs(MEASURED.index(name) - like))]


REPLAYED = 1.6e-3  # seconds of a recorded step of ResNet-18 that no image accounts for, measured on an H200
EAGER = 10e-3  # seconds of the launches of a step on a V100, computed from their number
MOCO_STEPS, MOCO_GFLOP = 200 * 5004, 32 * 24.3 * 4 / 3  # of a GPU in each of them
V100 = Rates("8 V100", {"resnet50 224px": MOCO_GFLOP / (53 * 3600 / MOCO_STEPS - EAGER)}, 8, EAGER)


def rates(outputs: Path) -> Rates:
    """The rates of the newest check of this host that measured them; without one, those of 8 V100."""
    paths = outputs.glob(f"checks/{socket.gethostname()}-*/check.json")
    for path in sorted(paths, reverse=True):  # the names end with the time
        record: Check | None = files.read_json(path, Check)
        if record is None:
            continue
        measured = {speed["name"]: speed["values"] for speed in record["findings"] if speed["section"] == "speed"}
        speeds = {name: measured[name] for name in MEASURED if fits(measured.get(name), Speed)}
        fixed = REPLAYED if record["gpus"] else 0.0
        seconds = {
            name: speed["batch"] / speed["images_s"] - fixed for name, speed in speeds.items() if speed["images_s"]
        }
        gflop_s = {
            name: speeds[name]["batch"] * speeds[name]["gflop_per_image"] / s for name, s in seconds.items() if s > 0
        }
        if gflop_s:
            machine = f"{record['machine']}, as checked in {path.parent.name}"
            return Rates(machine, gflop_s, max(1, record["gpus"]), fixed)
    return V100


def hours(config: Mapping[str, Any], on: Rates = V100) -> float | None:
    """Hours of a composed configuration; None for a network or a dataset of unknown size."""
    images, gflop = config["dataset"].get("train_images"), gflop_of_a_step(config)
    if gflop is None or not isinstance(images, int):
        return None
    ranks = on.devices if on is V100 else config["devices"]
    rate = on.of(config["choices"]["backbone"], max(int(crop["size"]) for crop in _crops(config)))
    return steps(config, images) * (on.fixed + gflop / ranks / rate) / 3600 * ranks / on.devices


def gflop_of_a_step(config: Mapping[str, Any]) -> float | None:
    """GFLOP of a step; None for a network of unknown size."""
    network = VIEW.get(config["choices"].get("backbone"))
    if network is None:
        return None
    flops, side = network
    return float(config["batch_size"]["size"] * _passes(config["framework"], _crops(config), side) * flops)


def steps(config: Mapping[str, Any], images: int) -> float:
    """Steps of a training on so many images."""
    all_steps = images * config["epochs"] / config["batch_size"]["size"]
    return float(all_steps if config["max_steps"] is None else min(all_steps, config["max_steps"]))


def price(total: float, on: Rates | None) -> str:
    """The hours of some runs in words; None: by their steps on this machine."""
    if on is None:
        hours = f"{max(total, 0.01):.2g} h"
        return f"about {hours} of pre-training on this machine, one run after another, by three steps of each kind"
    hint = " at MoCo's published pace (ssl-bench check measures this machine)" if on is V100 else ""
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
