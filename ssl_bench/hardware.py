"""The cores, GPUs and memory of this machine. torch is imported only where a GPU or a tensor is involved."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ssl_bench.errors import ConfigError, InvalidValue

if TYPE_CHECKING:
    import torch
    from torch import nn

GPU_FILES = "nvidia[0-9]*"  # in /dev
CUDA_12 = 'pip install "torch<2.15" torchvision --index-url <PyTorch\'s wheel index>/cu126'


def available_cores() -> int:
    """Number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def visible_gpus() -> list[str]:
    """The GPUs that torch sees, by the names that ``CUDA_VISIBLE_DEVICES`` has for them.

    CUDA stops at the first name that is none of a GPU: the variable alone says nothing.
    """
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = map(str, range(count)) if given is None else map(str.strip, given.split(","))
    return list(names)[:count]


def concurrent_runs(devices: int, runs_per_gpu: int) -> int:
    """Number of runs of ``devices`` processes each that fit on this machine at once, at least 1."""
    gpus = len(visible_gpus())
    return max(1, (gpus * runs_per_gpu if gpus else available_cores()) // devices)


def check_devices(devices: int) -> None:
    """Refuse more processes than this machine has GPUs or cores, and GPUs that the installed torch cannot use.

    Raises:
        ConfigError: naming what to set or to install.
    """
    import torch

    if not torch.cuda.is_available():
        _say_that_gpus_are_not_used()
        cores = available_cores()
        if devices > cores:
            raise InvalidValue(
                "devices", devices, f"{cores} or less: there is no GPU and {cores} CPU core{'s' * (cores > 1)}"
            )
        return
    count = torch.cuda.device_count()
    if devices > count:
        raise InvalidValue("devices", devices, f"{count} or less: this machine shows {count} GPUs")
    for index in range(devices):
        check_architecture(
            torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index), torch.cuda.get_arch_list()
        )


@cache
def _say_that_gpus_are_not_used() -> None:
    """Print once that torch can use none of the GPUs of this machine, or of ``CUDA_VISIBLE_DEVICES``."""
    import torch

    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    named = (given or "").partition(",")[0].strip()
    if named in ("", "-1", "NoDevFiles") and (given is not None or not any(map(_opens, Path("/dev").glob(GPU_FILES)))):
        return
    what = "the GPUs of this machine" if given is None else f"the GPUs of CUDA_VISIBLE_DEVICES={given}"
    build = f"torch {torch.__version__} is built for {f'CUDA {torch.version.cuda}' if torch.version.cuda else 'CPUs'}"
    remedy = "install one for the driver that nvidia-smi shows, or set CUDA_VISIBLE_DEVICES= if the CPU is meant"
    print(f"ssl-bench: torch sees none of {what} and computes on the CPU: {build}; {remedy}", file=sys.stderr)


def _opens(device: Path) -> bool:
    """Whether this process may use a device; Slurm shows those of other jobs too."""
    try:
        os.close(os.open(device, os.O_RDWR | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def check_architecture(name: str, capability: tuple[int, int], built_for: list[str]) -> None:
    """Refuse a GPU on which none of torch's architectures (``sm_80``, ``compute_90``) runs.

    A binary for sm_XY runs on GPUs of the same major version and the same or a newer minor one. compute_XY is compiled
    at run time for any GPU that is at least as new.
    """
    import torch

    for architecture in built_for:
        kind, _, digits = architecture.partition("_")
        number = int("".join(c for c in digits if c.isdigit()))
        major, minor = divmod(number, 10)
        if kind == "sm" and major == capability[0] and minor <= capability[1]:
            return
        if kind == "compute" and (major, minor) <= capability:
            return
    raise ConfigError(
        f"{name} has compute capability {capability[0]}.{capability[1]}, and torch {torch.__version__} was built for "
        f"{', '.join(built_for)}: install one that was built for it (Volta: `{CUDA_12}`)"
    )


def local_device(local_rank: int) -> torch.device:
    """Select and prepare the device of the ``local_rank``-th process of this machine."""
    import torch

    if not torch.cuda.is_available():
        _keep_freed_memory()
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _keep_freed_memory() -> None:
    """Make glibc keep the memory of freed tensors for the next ones.

    By default it returns every block above 32 MB to the kernel, which then clears the pages again for the next step:
    the default run has 14% fewer images/s on two cores.
    """
    _glibc("mallopt", -4, 0)  # M_MMAP_MAX: no block outside the heap
    _glibc("mallopt", -1, 2**31 - 1)  # M_TRIM_THRESHOLD: bytes that may stay free at the end of the heap
    _glibc("mallopt", -2, 2**26)  # M_TOP_PAD: the heap grows by 64 MiB at a time


def release_memory(device: torch.device) -> None:
    """Give back the memory that a finished run kept for its next step."""
    import torch

    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        _glibc("malloc_trim", 0)


def _glibc(name: str, *arguments: int) -> None:
    """Call a function that only glibc has; do nothing with any other C library."""
    function = getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
    if function is not None:
        function(*arguments)


def move(module: nn.Module, device: torch.device) -> nn.Module:
    """``module`` on ``device`` in the channels-last memory format, in which convolutions are faster."""
    import torch

    return module.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]
