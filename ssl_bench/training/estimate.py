"""The advice when a step does not fit into the memory of a GPU."""

import contextlib
import copy
import traceback
from collections.abc import Iterator

import torch

from ssl_bench.data.loader import Loader
from ssl_bench.errors import RunError
from ssl_bench.methods.base import Method
from ssl_bench.training.precision import Precision

SAMPLE = 16  # images of the trial pass


@contextlib.contextmanager
def memory_advice(
    method: Method, loader: Loader, device: torch.device, size: int, ranks: int, precision: Precision
) -> Iterator[None]:
    """Turn an out-of-memory error into a RunError that names the ``batch_size.chunk`` that would fit.

    Args:
        method: in training.
        loader: of its images.
        size: images of the global batch, or of a chunk of it, shared by ``ranks``.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info(device)
        peak = torch.cuda.max_memory_allocated(device)
        spare = torch.cuda.memory_reserved(device) - sum(p.nbytes for p in method.parameters()) * 4
        traceback.clear_frames(error.__traceback__)  # they hold the outputs of the step that did not fit
        per_image = 0.0  # not known
        if ranks == 1:  # a pass on this rank alone would wait for the others
            with contextlib.suppress(torch.OutOfMemoryError):
                per_image = bytes_per_image(method, loader, precision)
        raise RunError(out_of_memory(size, ranks, peak, total, free + spare, per_image)) from error


def bytes_per_image(method: Method, loader: Loader, precision: Precision) -> float:
    """Measure the bytes of GPU memory that a step takes per image, by a pass of a few on a copy of the networks."""
    device, trial = loader.device, copy.deepcopy(method)
    images = method.groups * max(2, SAMPLE // method.groups)  # as many in each group
    sample = loader.sample(min(images, loader.batch_size))
    torch.cuda.reset_peak_memory_stats(device)
    held = torch.cuda.memory_allocated(device)
    with torch.autocast(device.type, precision.autocast, enabled=precision.autocast is not None):
        loss = trial(sample.batch(), 0.0).loss
    loss.backward()
    return (torch.cuda.max_memory_allocated(device) - held) / len(sample.ids)


def out_of_memory(size: int, ranks: int, peak: float, total: float, free: float, per_image: float) -> str:
    """The sentence for a step that did not fit.

    Args:
        size: images of the global batch, shared by ``ranks``.
        peak: most bytes that this process used, of the GPU's ``total``.
        free: bytes available for a step, beside the weights and other processes.
        per_image: bytes that a step takes per image; 0: not known.
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
