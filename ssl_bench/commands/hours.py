"""Estimate what is left to train of some runs: their steps and hours, in one of three ways.

* By runs like these: those with equally long steps that were trained on this machine, at the median of their speeds.
* By three timed steps of each kind of run, on the cores of this machine, if they take some seconds.
* Else on 8 V100, at the pace that the authors of MoCo publish: 53 h for 200 epochs of ImageNet at batch 256 with a
  ResNet-50 (README of facebookresearch/moco), in single precision and with decoding. Other networks are assumed to
  reach the same rate:

      hours = steps x (launches + images of a GPU x passes x FLOPs of a view / rate)

  A view that is trained on counts as one pass, forward and backward, of the backbone; a view that only goes through a
  momentum network counts as a third: SimCLR 2, MoCo 4/3, BYOL 8/3. NPID and MoCo + CLD, which have one view and three,
  are counted like SimCLR and MoCo; a VAE's decoder is not counted.

Evaluation is not counted in any of them.
"""

import contextlib
import json
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from ssl_bench.config.build import build
from ssl_bench.config.from_disk import find_prepared
from ssl_bench.config.identity import run_id
from ssl_bench.record import results, rows, runs

MEASURED, TIMED, HERE = "by runs like these", "by three timed steps of each kind", "on this machine"
GPUS = 8
PUBLISHED = f"on {GPUS} V100 at MoCo's published pace"
# Keys that the time of a step depends on most; losses, negatives and rates are not among them.
OF_A_STEP = ("backbone", "head", "framework", "augment", "batch_size", "precision", "compile", "devices")
MOST_KINDS = 8  # of runs whose steps are timed
MOST_GFLOP = 300  # of a step that is timed: a few seconds on a core
EAGER = 10e-3  # seconds of the launches of a step on a V100, computed from their number
MOCO_STEPS, MOCO_GFLOP = 200 * 5004, 32 * 24.3 * 4 / 3  # of a GPU in each of them
RATE = MOCO_GFLOP / (53 * 3600 / MOCO_STEPS - EAGER)  # GFLOP per second of a GPU

Config = Mapping[str, Any]


class Estimate(NamedTuple):
    """What is left to train of some runs, one after another.

    Attributes:
        steps: of each run; None for a data set of unknown size.
        hours: of each run; None where its images are not on this disk, or its network cannot be counted.
        way: how the hours were found, in words; empty if no run has any.
    """

    steps: list[int | None]
    hours: list[float | None]
    way: str

    def __str__(self) -> str:
        steps, known = sum(count or 0 for count in self.steps), [took for took in self.hours if took is not None]
        took = f", about {duration(sum(known))} {self.way}" if self.way and len(known) == len(self.hours) else ""
        return f"{steps:,} steps of pre-training{took}{', one run after another' * bool(took and len(known) > 1)}"


def estimate(configs: Iterable[Config], here: bool = True) -> Estimate:
    """Estimate what is left to train of runs that are started one after another.

    A training that several of them go on with, or only evaluate, counts once.

    Args:
        configs: resolved.
        here: they run on this machine.
    """
    configs = [find_prepared(dict(config)) for config in configs]
    outputs = {Path(config["paths"]["outputs"]) for config in configs}
    places = {folder.name: folder for path in outputs for folder in runs.folders(path)}
    left = _steps_left(configs, places)
    kinds = [_kind(c) if count and _has_images(c) else "" for c, count in zip(configs, left, strict=True)]
    of_kind = {kind: config for kind, config in zip(kinds, configs, strict=True) if kind}
    seconds, way = _seconds(of_kind, places.values(), here) if of_kind else ({}, "")
    paces = [0.0 if count == 0 else seconds.get(kind) for count, kind in zip(left, kinds, strict=True)]
    pairs = zip(left, paces, strict=True)
    hours = [None if count is None or pace is None else count * pace / 3600 for count, pace in pairs]
    return Estimate(left, hours, way)


def duration(hours: float) -> str:
    """Hours in words, below one the minutes."""
    return f"{hours:,.1f} h" if hours >= 1 else f"{math.ceil(60 * hours)} min"


def steps(config: Config) -> int | None:
    """Steps of the whole training of a configuration; None for a data set of unknown size."""
    dataset = config["dataset"]
    images = dataset.get("train_images")
    if not isinstance(images, int):
        return None
    if dataset.get("content") is None:  # else those that are set apart are not counted any more
        images -= sum(dataset.get("held_out") or ())
    all_steps = int(images // config["batch_size"]["size"] * config["epochs"])
    return min(all_steps, config["max_steps"] or all_steps)


def _has_images(config: Config) -> bool:
    """Whether the images of a run are on this disk, where they were looked for."""
    return config["dataset"].get("content", "") is not None


def _steps_left(configs: Sequence[Config], places: Mapping[str, Path]) -> list[int | None]:
    """The steps of each run after those that it has, or a run before it.

    Args:
        places: directories of runs by their run_ids.
    """
    done, left = dict[str, float](), list[int | None]()
    for config in configs:
        name, every = run_id(config), steps(config)
        if name not in done:
            done[name] = rows.progress(places[name] / runs.METRICS).step or 0 if name in places else 0
        left.append(None if every is None else max(0, every - int(done[name])))
        done[name] = max(done[name], every or 0)
    return left


def _seconds(kinds: Mapping[str, Config], places: Iterable[Path], here: bool) -> tuple[Mapping[str, float | None], str]:
    """Seconds of a step of each kind of run, and how they were found; None for a network that cannot be counted."""
    if here:
        measured = _measured(kinds, places)
        timed = _timed({kind: config for kind, config in kinds.items() if kind not in measured})
        if len(measured) + len(timed) == len(kinds):
            return measured | timed, " and ".join([MEASURED] * bool(measured) + [TIMED] * bool(timed)) + f" {HERE}"
    counted = {kind: gflop_of_a_step(config) for kind, config in kinds.items()}
    paces = {kind: EAGER + gflop / GPUS / RATE for kind, gflop in counted.items() if gflop is not None}
    return paces, PUBLISHED if paces else ""


def _kind(config: Config) -> str:
    """A text that runs with equally long steps have in common."""
    of_images = {key: (config.get("dataset") or {}).get(key) for key in ("_target_", "size")}
    return json.dumps({key: config.get(key) for key in OF_A_STEP} | of_images, default=str)


def _measured(kinds: Mapping[str, Config], places: Iterable[Path]) -> dict[str, float]:
    """Seconds of a step of those kinds of which a run was trained on such a device, or as many cores of one."""
    import torch  # heavy: only where there are hours to be said

    from ssl_bench.hardware import local_device
    from ssl_bench.record.environment import conditions

    found = dict[str, float]()
    for folder in places:
        content = results.examined(folder)[0] if len(found) < len(kinds) else None
        kind = _kind(content["config"]) if content else ""
        if content is None or kind in found or kind not in kinds:
            continue
        config, device = kinds[kind], local_device(0, kinds[kind]["device"])
        same = {"device": conditions(device)["device"], "ranks": config["devices"]}
        if device.type == "cpu":
            same["threads"] = config["threads"] or torch.get_num_threads() // config["devices"]
        if same.items() <= content.get("environment", {}).items():
            speeds = [rows.finite(row, "images_per_second") for row in rows.read(folder / runs.METRICS)]
            known = [speed for speed in speeds if speed]
            found |= {kind: config["batch_size"]["size"] / median(known)} if known else {}
    return found


def _timed(kinds: Mapping[str, Config]) -> dict[str, float]:
    """Seconds of a step of each kind of run; none if this machine has a GPU, or one would take too long."""
    if not 0 < len(kinds) <= MOST_KINDS or any(config["devices"] > 1 for config in kinds.values()):
        return {}
    if any((gflop_of_a_step(config) or math.inf) > MOST_GFLOP for config in kinds.values()):
        return {}
    import torch

    from ssl_bench.check.speed import seconds_of_a_step

    if any(config["device"] != "cpu" for config in kinds.values()) and torch.cuda.is_available():
        return {}
    with tempfile.TemporaryDirectory() as folder:
        return {kind: seconds_of_a_step(dict(config), Path(folder)) for kind, config in kinds.items()}


def gflop_of_a_step(config: Config) -> float | None:
    """GFLOP of a step; None for a network that cannot be counted."""
    augment, framework = config["augment"], config["framework"]
    crops = [augment | {"count": 2}] if "_target_" in augment else [*augment.values()]  # the global ones first
    backbone = json.dumps(config["backbone"])
    views = [_gflop_of_a_view(backbone, config["dataset"]["channels"], crop["size"]) for crop in crops]
    if None in views:
        return None
    first, passes = views[0], sum(crop["count"] * view for crop, view in zip(crops, views, strict=True))
    if framework.get("momentum") is not None:
        passes = passes * 4 / 3 if framework.get("symmetric") else first + (passes - first) / 3
    return float(config["batch_size"]["size"] * passes)


@lru_cache
def _gflop_of_a_view(backbone: str, channels: int, size: int) -> Any:
    """GFLOP of the forward and backward pass of a view; None if the code of a user's network fails without values.

    Args:
        backbone: its node as JSON.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    node = json.loads(backbone)
    frozen = node.pop("freeze", False)
    with contextlib.suppress(Exception), torch.device("meta"), FlopCounterMode(display=False) as counter:
        network = build(node, "backbone")
        if frozen:
            network.requires_grad_(False)
        output = network(torch.empty(2, channels, size, size))  # two views: batch statistics need them
        if output.requires_grad:
            output.sum().backward()
        return counter.get_total_flops() / 2 / 1e9
    return None
