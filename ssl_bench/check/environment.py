"""Versions, and whether this build of torch can use the machine's devices."""

import importlib
import os
from collections.abc import Iterator
from pathlib import Path

import torch

from ssl_bench.check.finding import Finding, Setting, Verdict
from ssl_bench.errors import ConfigError
from ssl_bench.hardware import available_cores, check_devices
from ssl_bench.record.environment import environment


def section(setting: Setting) -> Iterator[Finding]:
    """Versions of the packages, torchvision's compiled operators, and the devices."""
    facts = environment(setting.device) | {"cores": available_cores()}
    shown = ("python", "torch", "torchvision", "timm")
    yield Finding("versions", ", ".join(f"{name} {facts[name]}" for name in shown), values=facts)
    yield torchvision_operators()
    present = len(list(Path("/dev").glob("nvidia[0-9]*")))  # in a container, only those that it was given
    yield devices(setting, present, os.environ.get("CUDA_VISIBLE_DEVICES"))


def torchvision_operators() -> Finding:
    """Whether torchvision's compiled operators load: they belong to one version of torch only."""
    try:
        importlib.import_module("torchvision")
        boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 1.9]])
        kept = torch.ops.torchvision.nms(boxes, torch.tensor([1.0, 0.5]), 0.5).tolist()
        if kept != [0]:
            raise RuntimeError(f"of two boxes it keeps {kept} and not [0]")
    except (ImportError, AttributeError, RuntimeError) as error:
        reason = f"torchvision does not fit torch {torch.__version__}: {str(error).splitlines()[0]}"
        advice = "install torch and torchvision together, from the same index"
        return Finding("torchvision operators", "", Verdict.WRONG, reason, advice)
    return Finding("torchvision operators", "they load and give the right result", Verdict.GOOD)


def devices(setting: Setting, present: int, visible: str | None) -> Finding:
    """Whether torch can use the GPUs that the driver shows, and was built for them.

    Args:
        present: number of GPUs that the driver shows.
        visible: ``CUDA_VISIBLE_DEVICES``.
    """
    built = f"torch built for CUDA {torch.version.cuda}" if torch.version.cuda else "torch built without CUDA"
    if setting.device.type == "cuda":
        figure = f"{setting.devices} x {torch.cuda.get_device_name(setting.device)}, {built}"
        try:
            check_devices(setting.devices)
        except ConfigError as error:
            reason, _, advice = str(error).partition(": install ")
            return Finding("devices", figure, Verdict.WRONG, reason, f"install {advice}")
        return Finding("devices", figure, Verdict.GOOD)
    if present and visible not in ("", "-1"):
        reason = f"the driver shows {present} GPUs, and torch can use none"
        advice = f"install a build of torch {'for this driver' if torch.version.cuda else 'with CUDA'}"
        return Finding("devices", f"{built}, no GPU", Verdict.WRONG, reason, advice)
    return Finding("devices", f"{available_cores()} cores, {built}, no GPU")
