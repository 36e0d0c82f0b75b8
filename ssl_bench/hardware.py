"""The cores, GPUs and memory of this machine. torch is imported only where a GPU or a tensor is involved."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ssl_bench.errors import ConfigError, require

if TYPE_CHECKING:
    import torch
    from torch import nn

QUOTA = Path("/sys/fs/cgroup/cpu.max")  # microseconds of a period, which all cores together have
GPUS = Path("/proc/driver/nvidia/gpus")  # a folder for each, also where torch sees none
CUDA_12 = 'pip install "torch<2.11" torchvision'  # 2.10 is PyPI's last build for drivers of CUDA 12, and for Volta


def available_cores() -> int:
    """Number of CPU cores that this process may use, by its affinity and the quota of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # there is no quota: "max"
        quota, period = map(int, QUOTA.read_text().split())
        cores = min(cores, max(1, quota // period))
    return cores


def visible_gpus(device: str = "auto") -> list[str]:
    """The GPUs that torch sees, by the names that ``CUDA_VISIBLE_DEVICES`` has for them; none for ``device=cpu``.

    CUDA ignores all names from the first one on that no GPU has, so the variable alone does not say how many there are.
    """
    if device == "cpu":
        return []
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = map(str, range(count)) if given is None else map(str.strip, given.split(","))
    return list(names)[:count]


def cores_per_process() -> int:
    """The cores of this machine divided by the processes of the run on it, at least 1."""
    return max(1, available_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


def check_devices(devices: int, device: str = "auto") -> None:
    """Refuse more processes than this machine has GPUs or cores, and GPUs that the installed torch cannot use.

    Args:
        devices: processes on this machine.
        device: ``cpu``: they leave the GPUs alone.

    Raises:
        ConfigError: naming what to set or to install.
    """
    import torch

    if device == "cpu" or not torch.cuda.is_available():
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0].strip() in ("", "-1", "NoDevFiles")
        if device != "cpu" and not hidden and any(GPUS.glob("*")):
            build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs"
            remedy = f"install a torch for their driver (for one of CUDA 12 `{CUDA_12}`), or set device=cpu"
            raise ConfigError(f"torch {torch.__version__}, built for {build}, can use none of the GPUs here: {remedy}")
        cores, why = available_cores(), "device=cpu" if device == "cpu" else "there is no GPU"
        require(devices <= cores, "devices", devices, f"{cores} or less: {why} and {cores} CPU core{'s' * (cores > 1)}")
        return
    count = torch.cuda.device_count()
    require(devices <= count, "devices", devices, f"{count} or less: this machine shows {count} GPUs")
    for index in range(devices):
        check_architecture(
            torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index), torch.cuda.get_arch_list()
        )


def check_architecture(name: str, capability: tuple[int, int], built_for: list[str]) -> None:
    """Refuse a GPU on which none of torch's architectures (``sm_80``, ``compute_90``) runs.

    A binary for sm_XY runs on GPUs of the same major version and the same or a newer minor one. compute_XY is compiled
    at run time for any GPU that is at least as new.
    """
    for kind, digits in re.findall(r"(sm|compute)_(\d+)", " ".join(built_for)):
        version = divmod(int(digits), 10)
        if version <= capability and (kind == "compute" or version[0] == capability[0]):
            return
    raise ConfigError(
        f"{name} has compute capability {capability[0]}.{capability[1]}, and torch was built for "
        f"{', '.join(built_for)}: install one that was built for it, which for a V100 is `{CUDA_12}`, or set device=cpu"
    )


def local_device(local_rank: int, device: str = "auto") -> torch.device:
    """Select and prepare the device of the ``local_rank``-th process of this machine; ``cpu``: not a GPU."""
    import torch

    if device == "cpu" or not torch.cuda.is_available():
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
