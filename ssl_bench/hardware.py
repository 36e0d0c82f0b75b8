"""The device of a process and the number formats it computes in."""

import ctypes
import gc
import sys
from dataclasses import dataclass

import torch
from torch import nn

from ssl_bench.errors import ConfigError
from ssl_bench.launch.slots import available_cores

CUDA_12 = 'pip install "torch<2.15" torchvision --index-url <PyTorch\'s wheel index>/cu126'


def check_devices(devices: int) -> None:
    """Refuses a number of processes that this machine has no place for, and GPUs that the installed torch cannot use.

    Raises:
        ConfigError: naming what to set or to install.
    """
    if not torch.cuda.is_available():
        cores = available_cores()
        if devices > cores:
            raise ConfigError(
                f"devices={devices}: there is no GPU and {cores} CPU cores; set devices to {cores} or less"
            )
        return
    count = torch.cuda.device_count()
    if devices > count:
        raise ConfigError(f"devices={devices}: this machine shows {count} GPUs; set devices to {count} or less")
    for index in range(devices):
        refuse_architecture(
            torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index), torch.cuda.get_arch_list()
        )


def refuse_architecture(name: str, capability: tuple[int, int], built_for: list[str]) -> None:
    """Raises ConfigError unless one of torch's architectures (``sm_80``, ``compute_90``) runs on a GPU's capability.

    A binary for sm_XY runs on GPUs of the same major version and at least that minor one; compute_XY is compiled at
    run time for anything at least as new.
    """
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
    """The device of a process by its place on this machine, made ready for it."""
    if not torch.cuda.is_available():
        _reuse_memory()
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _reuse_memory() -> None:
    """Makes glibc keep the memory of freed tensors for the next ones.

    Left alone, it returns every block above 32 MB to the kernel, which clears it page by page for the next step again.
    """
    _glibc("mallopt", -4, 0)  # M_MMAP_MAX: no block outside the heap
    _glibc("mallopt", -1, 2**31 - 1)  # M_TRIM_THRESHOLD: what may lie free at its end
    _glibc("mallopt", -2, 2**26)  # M_TOP_PAD: it grows by 64 MiB at a time


def release_memory(device: torch.device) -> None:
    """Gives back what a run has kept for its next step, so that the next run of this process finds it free."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        _glibc("malloc_trim", 0)


def _glibc(name: str, *arguments: int) -> None:
    """Calls a function that only that C library has."""
    function = getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
    if function is not None:
        function(*arguments)


def move(module: nn.Module, device: torch.device) -> nn.Module:
    """``module`` on ``device``, its convolutions with the channels last in memory, where they are faster."""
    return module.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True)
class Precision:
    """How a run computes: the format of weights and views, autocast's, and whether gradients need scaling."""

    name: str
    weights: torch.dtype
    autocast: torch.dtype | None
    scaled: bool

    @classmethod
    def of(cls, name: str, cuda: bool) -> "Precision":
        """``auto`` is bf16 on GPUs that have it, fp16 on older ones (V100), fp32 on CPUs.

        Raises:
            ConfigError: fp16 without a GPU.
        """
        if name == "auto":
            # Volta emulates bf16 and would claim to support it.
            bf16 = cuda and torch.cuda.is_bf16_supported(including_emulation=False)
            name = "bf16" if bf16 else "fp16" if cuda else "fp32"
        if name == "fp16" and not cuda:
            raise ConfigError("precision=fp16 needs a GPU: set precision to fp32 or bf16")
        autocast = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name)
        return cls(name, torch.float64 if name == "fp64" else torch.float32, autocast, name == "fp16")
