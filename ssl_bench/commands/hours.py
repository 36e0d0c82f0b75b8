"""Estimate what is left to train of some runs: their steps, and their hours on this machine.

* By runs like these: those with equally long steps that were trained here, at the median of their speeds.
* Else by three timed steps of each kind of run, where there is no GPU and they take some seconds.

Evaluation is not counted. Where neither can be, or the runs are carried out elsewhere, there are steps alone.
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
from ssl_bench.hardware import local_device, visible_gpus
from ssl_bench.record import runs

MEASURED, TIMED, HERE = "by runs like these", "by three timed steps of each kind", "on this machine"
# Keys that the time of a step depends on most; losses, negatives and rates are not among them.
OF_A_STEP = ("backbone", "head", "framework", "augment", "batch_size", "precision", "compile", "devices")
MOST_KINDS, MOST_GFLOP = 8, 300  # of runs whose steps are timed; of a step, for a few seconds on a core

Config = Mapping[str, Any]


class Estimate(NamedTuple):
    """Steps and hours that are left to train of some runs, one after another.

    Attributes:
        steps: of each run; None for a data set of unknown size.
        hours: of each run; None where its images are not on this disk, or its network cannot be counted.
        way: how the hours were found, in words; empty if no run has any.
    """

    steps: list[int | None]
    hours: list[float | None]
    way: str

    def __str__(self) -> str:
        known = [took for took in self.hours if took is not None]
        took = f", about {duration(sum(known))} {self.way}" if self.way and len(known) == len(self.hours) else ""
        took += ", one run after another" if took and len(known) > 1 else ""
        return f"{sum(filter(None, self.steps)):,} steps of pre-training{took}"


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
    done, left, kinds, of_kind = dict[str, int](), list[int | None](), list[str](), dict[str, Config]()
    for config in configs:
        place, every = run_dir(config), steps(config)
        if place.name not in done:
            done[place.name] = int(runs.progress(places.get(place.name, place) / runs.METRICS).step or 0)
        left.append(None if every is None else max(0, every - done[place.name]))
        done[place.name] = max(done[place.name], every or 0)
        kinds.append(_kind(config) if left[-1] and config["dataset"].get("content", "") is not None else "")
        of_kind |= {kinds[-1]: config} if kinds[-1] else {}
    seconds, way = _seconds(of_kind, places.values()) if of_kind and here else ({}, "")
    pairs = zip(left, kinds, strict=True)
    return Estimate(left, [n and (seconds[k] * n / 3600 if k in seconds else None) for n, k in pairs], way)


def duration(hours: float) -> str:
    """Hours in words, below one the minutes."""
    return f"{hours:,.1f} h" if hours >= 1 else f"{math.ceil(60 * hours)} min"


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
    """A text that runs with equally long steps have in common."""
    of_images = {key: (config.get("dataset") or {}).get(key) for key in ("_target_", "size")}
    return json.dumps({key: config.get(key) for key in OF_A_STEP} | of_images, default=str)


def _seconds(kinds: Mapping[str, Config], places: Iterable[Path]) -> tuple[dict[str, float], str]:
    """Seconds of a step of each kind of run, as far as they can be known, and how they were found."""
    from ssl_bench.launch.run import threads  # imports torch

    kinds = {kind: {**c, "threads": threads(c, run_dir(c))} for kind, c in kinds.items()}  # alone
    measured = _measured(kinds, places)
    timed = _timed({kind: config for kind, config in kinds.items() if kind not in measured})
    ways = " and ".join([MEASURED] * bool(measured) + [TIMED] * bool(timed))
    return measured | timed, f"{ways} {HERE}" if ways else ""


def _measured(kinds: Mapping[str, Config], places: Iterable[Path]) -> dict[str, float]:
    """Seconds of a step of those kinds of which a run was trained on such a device, or as many cores of one."""
    from ssl_bench.record.environment import conditions  # imports torch: only where there are hours to be said

    found = dict[str, float]()
    for run in map(runs.read, places):
        if len(found) == len(kinds):
            break
        kind = _kind(run.config) if run.finished else ""
        if kind not in kinds or kind in found:
            continue
        config = kinds[kind]
        same = {"device": conditions(local_device(0, config["device"]))["device"], "ranks": config["devices"]}
        same |= {"threads": config["threads"]} if config["threads"] else {}
        speeds = [runs.finite(row, "images_per_second") or 0.0 for row in runs.read_rows(run.folder / runs.METRICS)]
        if same.items() <= run.environment.items() and any(speeds):
            found[kind] = config["batch_size"]["size"] / median(filter(None, speeds))
    return found


def _timed(kinds: Mapping[str, Config]) -> dict[str, float]:
    """Seconds of a step of each kind of run; none if this machine has a GPU, or one would take too long."""
    elsewhere = any(visible_gpus(c["device"]) or c["devices"] > 1 for c in kinds.values())
    if elsewhere or not 0 < len(kinds) <= MOST_KINDS or max(map(gflop_of_a_step, kinds.values())) > MOST_GFLOP:
        return {}
    from ssl_bench.check.speed import seconds_of_a_step

    return {kind: seconds_of_a_step(dict(config)) for kind, config in kinds.items()}


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
