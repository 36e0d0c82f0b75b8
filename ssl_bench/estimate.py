"""How long a step will take, before the first one."""

import copy
import time

import torch

from ssl_bench.data.loader import Loader
from ssl_bench.device import Precision
from ssl_bench.objective.method import Method
from ssl_bench.seeding import rng_state, set_rng_state

FEW = 16  # images; enough to be representative, little enough to cost nothing beside a training


def seconds_per_step(method: Method, loader: Loader, share: int, precision: Precision) -> float:
    """Times views, forward and backward of a few images on a copy of the networks and scales to ``share`` images.

    On a GPU, where few images leave most of it idle, this is an upper bound.
    """
    few = min(FEW, share)
    device, trial, kept = loader.device, copy.deepcopy(method), rng_state()
    sample, seconds = loader.sample(few), 0.0
    for _ in range(2):  # the first one pays for what happens once
        started = _now(device)
        with torch.autocast(device.type, precision.autocast, enabled=precision.autocast is not None):
            loss, _ = trial(sample.batch(), 0.0)
        loss.backward()
        seconds = _now(device) - started
    set_rng_state(kept)
    return seconds * share / few


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
