"""Time and memory of a step, measured before the first one, and the advice when a step does not fit."""

import contextlib
import copy
import time
from collections.abc import Iterator

import torch
from torch import nn

from ssl_bench.data.loader import Loader
from ssl_bench.errors import RunError
from ssl_bench.methods.base import Method
from ssl_bench.precision import Precision
from ssl_bench.seeding import rng_state, set_rng_state

SAMPLE = 16  # images: enough for an estimate, and cheap beside a training


def step_cost(method: Method, loader: Loader, share: int, precision: Precision) -> tuple[float, float]:
    """Measure a step of ``share`` images: its seconds, and the bytes of GPU memory per image (0 on a CPU).

    It makes the views and runs forward and backward for a few images, on a copy of the networks. On a GPU the time is
    an upper bound, since a few images leave most of the GPU idle.
    """
    sample_size = min(SAMPLE, share)
    device, trial, kept_rng = loader.device, copy.deepcopy(method), rng_state()
    sample, seconds, held = loader.sample(sample_size), 0.0, 0
    for _ in range(2):  # the first pass includes costs that occur only once
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            held = torch.cuda.memory_allocated(device)
        started = _now(device)
        with torch.autocast(device.type, precision.autocast, enabled=precision.autocast is not None):
            loss = trial(sample.batch(), 0.0).loss
        loss.backward()
        seconds = _now(device) - started
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    set_rng_state(kept_rng)
    return seconds * share / sample_size, max(0, peak - held) / sample_size


@contextlib.contextmanager
def memory_advice(module: nn.Module, device: torch.device, size: int, ranks: int, per_image: float) -> Iterator[None]:
    """Turn an out-of-memory error into a RunError that names the ``batch_size.chunk`` that would fit.

    Args:
        module: the networks in training.
        size: images of the global batch, or of a chunk of it, shared by ``ranks``.
        per_image: bytes that a step takes per image, as :func:`step_cost` measured them.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info(device)
        peak = torch.cuda.max_memory_allocated(device)
        spare = torch.cuda.memory_reserved(device) - sum(p.nbytes for p in module.parameters()) * 4
        raise RunError(out_of_memory(size, ranks, peak, total, free + spare, per_image)) from error


def out_of_memory(size: int, ranks: int, peak: float, total: float, free: float, per_image: float) -> str:
    """The sentence for a step that did not fit.

    Args:
        size: images of the global batch, shared by ``ranks``.
        peak: most bytes that this process used, of the GPU's ``total``.
        free: bytes available for a step, beside the weights and other processes.
        per_image: bytes that a step takes per image.
    """
    share, gib, mib = size // ranks, 2**30, 2**20
    fitting = [n for n in range(1, share) if share % n == 0 and n * per_image <= free]
    used = f"the batch does not fit: this process used up to {peak / gib:.1f} of the GPU's {total / gib:.1f} GiB"
    if not per_image or not fitting:
        return f"{used}; set a smaller batch_size.chunk or batch_size.size, or more devices"
    return (
        f"{used}, and an image takes about {per_image / mib:.0f} MiB in a step; set "
        f"batch_size.chunk={fitting[-1] * ranks}, which changes the gradient by batch statistics only, or more devices"
    )


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
