"""What a step will take in time and memory, before the first one."""

import copy
import time

import torch

from ssl_bench.data.loader import Loader
from ssl_bench.hardware import Precision
from ssl_bench.methods.base import Method
from ssl_bench.seeding import rng_state, set_rng_state

FEW = 16  # images; enough to be representative, little enough to cost nothing beside a training


def step_cost(method: Method, loader: Loader, share: int, precision: Precision) -> tuple[float, float]:
    """Seconds for a step of ``share`` images, and bytes of a GPU's memory for each of them (0 on a CPU).

    Views, forward and backward of a few images on a copy of the networks. On a GPU, where few images leave most of it
    idle, the time is an upper bound.
    """
    few = min(FEW, share)
    device, trial, kept = loader.device, copy.deepcopy(method), rng_state()
    sample, seconds, held = loader.sample(few), 0.0, 0
    for _ in range(2):  # the first one pays for what happens once
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            held = torch.cuda.memory_allocated(device)
        started = _now(device)
        with torch.autocast(device.type, precision.autocast, enabled=precision.autocast is not None):
            loss, _ = trial(sample.batch(), 0.0)
        loss.backward()
        seconds = _now(device) - started
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    set_rng_state(kept)
    return seconds * share / few, max(0, peak - held) / few


def out_of_memory(size: int, ranks: int, peak: float, total: float, free: float, per_image: float) -> str:
    """What to say when a step did not fit.

    Args:
        size: images of the global batch, which ``ranks`` share.
        peak: bytes that this process had at most, of the GPU's ``total``.
        free: bytes that it can have for a step, beside its weights and what others have there.
        per_image: bytes that a step takes for each image, measured on a few.
    """
    share, gib, mib = size // ranks, 2**30, 2**20
    fitting = [n for n in range(1, share) if share % n == 0 and n * per_image <= free]
    said = f"the batch does not fit: this process had up to {peak / gib:.1f} of the GPU's {total / gib:.1f} GiB"
    if not per_image or not fitting:
        return f"{said}; set a smaller batch_size.chunk or batch_size.size, or more devices"
    return (
        f"{said}, and an image takes about {per_image / mib:.0f} MiB in a step; set "
        f"batch_size.chunk={fitting[-1] * ranks}, whose gradient differs by batch statistics only, or more devices"
    )


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
