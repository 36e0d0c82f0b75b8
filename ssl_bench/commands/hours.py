"""Estimate the remaining training of runs: their steps, and their hours on this machine.

* From the median speed of finished runs with equally long steps that were trained on this machine.
* Where there is no such run and no GPU: from three timed steps of each kind of run, with a part of the batch if a whole
  step takes more than some seconds.

Evaluation is not counted. Where both are impossible, or the runs are carried out elsewhere, only steps are known.
"""

import contextlib
import json
import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from ssl_bench.config.build import build
from ssl_bench.config.from_disk import find_prepared
from ssl_bench.config.identity import run_dir
from ssl_bench.errors import ConfigError
from ssl_bench.hardware import local_device, visible_gpus
from ssl_bench.record import runs
from ssl_bench.record.terminal import clock

MEASURED, TIMED, HERE = "runs like these", "three timed steps", "on this machine"
# The keys on which the time of a step depends most; losses, negatives and rates change it little.
OF_A_STEP = ("backbone", "head", "framework", "augment", "batch_size", "precision", "compile", "devices")
MOST_KINDS, MOST_GFLOP = 8, 300  # of runs whose steps are timed; of a timed step, which takes seconds on a core

Config = Mapping[str, Any]


class Estimate(NamedTuple):
    """The remaining steps and hours of runs that are trained one after another.

    Attributes:
        steps: of each run; None for a data set of unknown size.
        hours: of each run; None if its images are not on this disk, or no step was timed.
        way: what the hours are estimated from, in words; empty if no run has any.
    """

    steps: list[int | None]
    hours: list[float | None]
    way: str

    def __str__(self) -> str:
        hours = [took for took in self.hours if took is not None]
        turns = ", one run after another" if len(hours) > 1 else ""
        took = f"about {clock(3600 * sum(hours))}{turns}, without evaluation, estimated from {self.way}"
        about = f": {took}" if self.way and len(hours) == len(self.hours) else ""
        return f"{sum(filter(None, self.steps)):,} steps of pre-training{about}"


def estimate(configs: Iterable[Config], here: bool = True) -> Estimate:
    """Estimate the remaining steps and hours of runs that are started one after another.

    A training that several of the runs continue, or only evaluate, is counted once.

    Args:
        configs: resolved.
        here: they run on this machine.
    """
    configs = [find_prepared(dict(config)) for config in configs]
    outputs = {Path(config["paths"]["outputs"]) for config in configs}
    places = {folder.name: folder for path in outputs for folder in runs.folders(path)}
    done, remaining, kinds, of_kind = dict[str, int](), list[int | None](), list[str](), dict[str, Config]()
    for config in configs:
        place, every = run_dir(config), steps(config)
        if place.name not in done:
            done[place.name] = int(runs.progress(places.get(place.name, place) / runs.METRICS).step or 0)
        remaining.append(None if every is None else max(0, every - done[place.name]))
        done[place.name] = max(done[place.name], every or 0)
        kinds.append(_kind(config) if remaining[-1] and config["dataset"].get("content", "") is not None else "")
        of_kind |= {kinds[-1]: config} if kinds[-1] else {}
    seconds, way = _seconds(of_kind, places.values()) if of_kind and here else ({}, "")
    pairs = zip(remaining, kinds, strict=True)
    return Estimate(remaining, [n and (seconds[k] * n / 3600 if k in seconds else None) for n, k in pairs], way)


def steps(config: Config) -> int | None:
    """Steps of the whole training of a configuration; None for a data set of unknown size."""
    dataset = config["dataset"]
    if (images := dataset.get("train_images")) is None:
        return None
    # Where images have been looked for, those that are set apart are not counted any more.
    images -= sum(dataset.get("held_out") or ()) if dataset.get("content") is None else 0
    all_steps = int(images // config["batch_size"]["size"] * config["epochs"])
    return min(all_steps, config["max_steps"] or all_steps)


def _kind(config: Config) -> str:
    """A text that is the same for runs with equally long steps."""
    of_images = {key: (config.get("dataset") or {}).get(key) for key in ("_target_", "size")}
    return json.dumps({key: config.get(key) for key in OF_A_STEP} | of_images, default=str)


def _seconds(kinds: Mapping[str, Config], places: Iterable[Path]) -> tuple[dict[str, float], str]:
    """Seconds of a step of each kind of run, if they are known, and what they are estimated from."""
    from ssl_bench.launch.run import threads  # imports torch

    kinds = {kind: {**c, "threads": threads(c, run_dir(c))} for kind, c in kinds.items()}  # alone
    measured = _measured(kinds, places)
    timed = _timed({kind: config for kind, config in kinds.items() if kind not in measured})
    ways = " and ".join([MEASURED] * bool(measured) + [TIMED] * bool(timed))
    return measured | timed, f"{ways} {HERE}" if ways else ""


def _measured(kinds: Mapping[str, Config], places: Iterable[Path]) -> dict[str, float]:
    """Seconds of a step, for each kind of which a run was trained on the same device and number of cores."""
    from ssl_bench.record.environment import conditions  # imports torch: only where there are hours to be said

    seconds = dict[str, float]()
    for run in map(runs.read, places):
        if len(seconds) == len(kinds):
            break
        kind = _kind(run.config) if run.finished else ""
        if (config := kinds.get(kind)) and kind not in seconds:
            same = {"device": conditions(local_device(0, config["device"]))["device"], "ranks": config["devices"]}
            same |= {"threads": config["threads"]} if config["threads"] else {}
            speeds = [runs.finite(row, "images_per_second") or 0.0 for row in runs.read_rows(run.folder / runs.METRICS)]
            if same.items() <= run.environment.items() and any(speeds):
                seconds[kind] = config["batch_size"]["size"] / median(filter(None, speeds))
    return seconds


def _timed(kinds: Mapping[str, Config]) -> dict[str, float]:
    """Seconds of a step of each kind of run; none with a GPU, or where a step of two images takes too long."""
    if any(visible_gpus(c["device"]) or c["devices"] > 1 for c in kinds.values()) or len(kinds) > MOST_KINDS:
        return {}
    from ssl_bench.check.speed import seconds_of_a_step

    seconds = dict[str, float]()
    for kind, config in kinds.items():
        size = config["batch_size"]["size"]
        images = min(size, int(MOST_GFLOP * size / gflop_of_a_step(config)))
        with contextlib.suppress(ConfigError):  # so few images have fewer negatives than the run
            if images > 1:
                few = {**config, "batch_size": {"size": images, "chunk": None}}
                seconds[kind] = seconds_of_a_step(few) * size / images
    return seconds


def gflop_of_a_step(config: Config) -> float:
    """GFLOP of a step's views, forward and backward; infinite for a network that cannot be counted."""
    augment, backbone, channels = config["augment"], json.dumps(config["backbone"]), config["dataset"]["channels"]
    crops = [augment | {"count": 2}] if "_target_" in augment else augment.values()
    of_image = sum(crop["count"] * _gflop_of_a_view(backbone, channels, crop["size"]) for crop in crops)
    return float(config["batch_size"]["size"] * of_image)


@lru_cache
def _gflop_of_a_view(backbone: str, channels: int, size: int) -> float:
    """GFLOP of the forward and backward pass of a view; infinite if the code of a user's network fails without values.

    Args:
        backbone: its node as JSON.
    """
    import torch  # heavy: only where there are hours to be said
    from torch.utils.flop_counter import FlopCounterMode

    node = json.loads(backbone)
    trained = not node.pop("freeze", False)
    with contextlib.suppress(Exception), torch.device("meta"), FlopCounterMode(display=False) as counter:
        output = build(node, "backbone")(torch.empty(2, channels, size, size))  # batch statistics need two views
        if trained:
            output.sum().backward()
        return counter.get_total_flops() / 2 / 1e9
    return math.inf
