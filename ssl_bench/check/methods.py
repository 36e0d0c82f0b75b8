"""Loss and gradients of a step, of every framework and of every loss, on the device against float64 on the CPU.

Both have the same weights, images and random draws, and a small network. ReLU is replaced by SiLU: rounding moves some
of its inputs across zero, and the gradient in half precision would be off by the root of their share, 10 to 30%, which
hides other errors. An error of a gradient is relative to its norm, or to a hundredth of the norm of all gradients if
its own is smaller: the gradient of a bias before batch normalisation is zero.
"""

import contextlib
import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ssl_bench.api.options import names, node
from ssl_bench.check.answer import Answer, Setting
from ssl_bench.check.bounds import Deviation, NumberFormat, answer_of, distance, formats
from ssl_bench.config.build import find_target
from ssl_bench.config.compose import load
from ssl_bench.data.batch import Batch
from ssl_bench.hardware import move
from ssl_bench.methods.base import Method
from ssl_bench.seeding import seed_everything
from ssl_bench.training import build

# Largest relative error of a loss and of a gradient in each format: about ten times what a right machine has, and three
# times in formats of 16 bits. A loss whose backward pass is off by a thousandth is found in fp32.
BOUNDS = {"fp64": (1e-12, 1e-9), "fp32": (2e-5, 2e-4), "tf32": (1e-2, 0.05), "fp16": (1e-2, 0.05), "bf16": (0.05, 0.3)}
IMAGES = 16
# Of the loss in fp16, whose smallest and largest numbers are near: the first with which all gradients are finite, as in
# a training. Other formats need none.
SCALES = {"fp16": (2.0**10, 2.0**5, 1.0)}
SMALL = {"k": 64, "clusters": 4, "predictor": 16, "hidden": 16, "width": 8}  # arguments that a framework or head has
# A rounding may change the order of numbers, and with it a cluster or a pair: compared in single precision only.
ORDERED = {"framework=densecl", "framework=moco_cld", "framework=npid_cld", "loss=swd"}
# What a loss may need that SimCLR does not have by default.
SUITED = {"aligned": "negatives=cross_view", "own_view": "negatives=own_view", "labels": "positives=label"}


def section(setting: Setting) -> Iterator[Answer]:
    """An answer for each number format."""
    references = [reference(words) for words in cases()]
    for form in formats(setting.device):
        chosen = (step for step in references if not form.half or step.name not in ORDERED)
        deviations = [deviation for step in chosen for deviation in step.deviations(form, setting.device)]
        yield answer_of(form.name, deviations, "losses and gradients")


def cases() -> Iterator[list[str]]:
    """Overrides: of each framework with its own loss, and of SimCLR with each loss."""
    yield from ([f"framework={name}"] for name in names("framework") if name != "frozen")
    for name in names("loss"):
        needs = find_target(node("loss", name), "loss").needs
        yield [f"loss={name}", *(word for need, word in SUITED.items() if need in needs)]


@dataclass(frozen=True)
class Step64:
    """A step in float64 on the CPU: the reference of all formats.

    Attributes:
        name: the tested option: ``loss=dcl``.
        method: the method in float32 on the CPU.
        gradients: the gradients in float64, by the name of the parameter.
    """

    name: str
    method: Method
    batch: Batch
    loss: Tensor
    gradients: dict[str, Tensor]

    def deviations(self, form: NumberFormat, device: torch.device) -> Iterator[Deviation]:
        """Deviations of the loss and of each gradient in a format on a device."""
        form.select()
        for scale in SCALES.get(form.name, (1.0,)):
            method: Any = move(copy.deepcopy(self.method).to(form.precision.weights), device)
            loss, gradients = stepped(method, self.batch, form.precision.weights, form.precision.autocast, scale)
            if all(gradient.isfinite().all() for gradient in gradients.values()):
                break
        of_loss, of_gradients = BOUNDS[form.name]
        yield distance(f"{self.name}, the loss", loss, self.loss, of_loss, 1.0)
        least = 1e-2 * math.hypot(*(float(exact.norm()) for exact in self.gradients.values()))
        for name, exact in self.gradients.items():
            gradient = gradients.get(name, torch.full_like(exact, math.nan))
            yield distance(f"{self.name}, the gradient of {name}", gradient, exact, of_gradients, least)


def stepped(
    method: Method, batch: Batch, dtype: torch.dtype, autocast: torch.dtype | None = None, scale: float = 1.0
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients of a step in the middle of a training, float64 on the CPU; ``scale``: of the loss."""
    device = next(method.parameters()).device
    views = [view.to(device, dtype) for view in batch.views]
    moved = Batch(views, batch.ids.to(device), batch.labels.to(device))
    method.train()
    with DrawsOfCPU():
        with torch.autocast(device.type, autocast) if autocast else contextlib.nullcontext():
            loss = method(moved, 0.5).loss
        (loss * scale).backward()
    gradients = {name: p.grad.cpu().double() / scale for name, p in method.named_parameters() if p.grad is not None}
    return loss.detach().cpu().double(), gradients


class DrawsOfCPU(TorchFunctionMode):
    """Takes all draws with a generator from a CPU generator of its seed, in float64: they are equal on every device."""

    def __init__(self) -> None:
        super().__init__()
        self._mirrors: dict[tuple[int, int], torch.Generator] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        generator = kwargs.get("generator")
        if not isinstance(generator, torch.Generator):
            return func(*args, **kwargs)
        key = id(generator), generator.initial_seed()
        kwargs["generator"] = self._mirrors.setdefault(key, torch.Generator().manual_seed(key[1]))
        if args and isinstance(args[0], Tensor):  # x.normal_(generator=...)
            drawn = torch.empty(args[0].shape, dtype=torch.float64)
            return args[0].copy_(func(drawn, *args[1:], **kwargs))
        device, dtype = kwargs.pop("device", "cpu"), kwargs.pop("dtype", None)
        if func in (torch.rand, torch.randn):
            return func(*args, **kwargs, dtype=torch.float64).to(device, dtype or torch.get_default_dtype())
        return func(*args, **kwargs).to(device, dtype)


# ---- the runs


def reference(words: list[str]) -> Step64:
    """The step in float64 of a small run."""
    config = load([*words, "head.out=16", "backbone=conv_n"])
    if getattr(find_target(config["framework"], "framework"), "needs", None):  # conv_n has no feature map
        config = load([*words, "head.out=16", "backbone=resnet_digits", "backbone.width=8"])
    for group in ("framework", "head", "negatives"):
        part = config[group] or {}
        part |= {key: value for key, value in SMALL.items() if part.get(key)}
    seed_everything(0)
    method = smooth(build.method(build.build(config)))
    batch = noise_batch(config["dataset"], method.views)
    return Step64(words[0], method, batch, *stepped(copy.deepcopy(method).double(), batch, torch.float64))


def smooth(method: Method) -> Method:
    """``method`` without kinks, at which rounding chooses a gradient: SiLU in place of ReLU, no floor in Debiased."""
    for module in list(method.modules()):
        if "tau_plus" in vars(module):
            vars(module)["tau_plus"] = 0.0
        for name, child in module.named_children():
            if isinstance(child, nn.ReLU):
                setattr(module, name, nn.SiLU())
    return method


def noise_batch(dataset: dict[str, Any], views: int) -> Batch:
    """Some similar views of images of noise, float64."""
    generator = torch.Generator().manual_seed(0)
    shape = IMAGES, dataset["channels"], dataset["size"], dataset["size"]
    common, *others = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(1 + views))
    ids = torch.arange(IMAGES)
    return Batch([common + noise for noise in others], ids, ids % dataset["num_classes"])
