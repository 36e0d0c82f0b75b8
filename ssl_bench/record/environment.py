"""Versions, commit, hardware and memory that a run is recorded with."""

import os
import platform
import resource
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import ssl_bench
from ssl_bench.distributed import world

PACKAGES = ("torch", "torchvision", "timm", "numpy", "scikit-learn", "hydra-core", "wandb")
LIMITS = ("ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")  # for oneDNN and MKL, which choose on their own


def environment(device: torch.device) -> dict[str, Any]:
    """Versions, commit and hardware."""
    facts: dict[str, Any] = {"ssl_bench": ssl_bench.__version__, "python": platform.python_version()}
    facts |= {package: metadata.version(package) for package in PACKAGES} | conditions(device)
    cuda = torch.version.cuda if device.type == "cuda" else None
    return facts | {"git": commit(), "platform": platform.platform(), "cuda": cuda}


def conditions(device: torch.device) -> dict[str, Any]:
    """The conditions that the bits of a result depend on, beside the configuration and this package."""
    limits = [f"{name}={os.environ[name]}" for name in LIMITS if os.environ.get(name)]
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor(),
        "instructions": ", ".join([torch.backends.cpu.get_cpu_capability(), *limits]),
        "threads": torch.get_num_threads(),
        "ranks": world(),
        "torch": metadata.version("torch"),
    }


def peak_memory(device: torch.device, earlier: int = 0) -> dict[str, float]:
    """The most memory that this process has used, in MB of 10^6 bytes; of a GPU what torch has reserved.

    Args:
        earlier: bytes that it had reserved before torch began to count anew.
    """
    unit = 1 if sys.platform == "darwin" else 1024  # bytes in the unit of ru_maxrss
    peaks = {"peak_host_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6, 1)}
    if device.type == "cuda":
        peaks["peak_device_mb"] = round(max(earlier, torch.cuda.max_memory_reserved(device)) / 1e6, 1)
    return peaks


def now() -> str:
    """The time in UTC, such as 2026-11-25T08:02:00+00:00."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@cache
def commit() -> str | None:
    """Commit of the checkout that the package runs from, with + if files have changed; None outside a checkout.

    It is that of the first call of a process: a later commit is not the code that was imported.
    """
    here = Path(ssl_bench.__file__).parent.parent
    command = ["git", "-C", str(here), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    if not (here / ".git").exists() or not shutil.which("git"):
        return None
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or None


def processor() -> str:
    """Name of the CPU."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if "model name" in line)
    return next(names, platform.processor() or platform.machine())
