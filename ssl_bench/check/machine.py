"""Versions and devices, and whether this build of torch was made for them."""

from collections.abc import Iterator

import torch

from ssl_bench.check.answer import Answer, Setting, Verdict
from ssl_bench.errors import ConfigError
from ssl_bench.hardware import available_cores, check_devices
from ssl_bench.record.environment import environment


def section(setting: Setting) -> Iterator[Answer]:
    """The versions of all that a run depends on, and the devices."""
    facts = environment(setting.device) | {"cores": available_cores()}
    shown = ("python", "torch", "torchvision", "timm")
    yield Answer("versions", ", ".join(f"{name} {facts[name]}" for name in shown), values=facts)
    built = f"torch built for CUDA {torch.version.cuda}" if torch.version.cuda else "torch built without CUDA"
    cuda = setting.device.type == "cuda"
    gpus = f"{setting.devices} x {torch.cuda.get_device_name(setting.device)}, {built}" if cuda else ""
    figure = gpus or f"{available_cores()} cores, {built}, no GPU"
    try:
        check_devices(setting.devices)
    except ConfigError as error:
        reason, _, advice = str(error).rpartition(": ")
        yield Answer("devices", figure, Verdict.WRONG, reason, advice)
    else:
        yield Answer("devices", figure, Verdict.GOOD if cuda else Verdict.MEASURED)
