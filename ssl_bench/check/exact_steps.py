"""Loss and gradients of one step, for every framework and loss, on the device against float64 on the CPU.

Both have the same weights, images and random draws. How far rounding may move a loss or a gradient depends on the
network and on the loss (a logit is a cosine over 0.07), so no one number can be the bound. The bound is
``FACTOR`` times the deviation of the same float64 step in which every layer's output, and the gradient of every
output, has normal noise of the size that rounding has in that place, relative to its root mean square:

    u + sqrt(n / 3) u32     u: of the format: input, weight and output of a layer are rounded, each by u / sqrt(3) in
                            the root mean square; u32: of the accumulators; n: the additions of a sum (blocked sums add
                            2 sqrt(m) times for m values of a channel)

plus u + sqrt(m) u32 of the gradient itself, a sum over m pixels that may be in any order. The deviation is the root
mean square over ``DRAWS`` draws of the noise. The loss is one number, of which three draws say little: to its variance
is added that by the first derivatives, the sum over all outputs of the variance of their noise times the squared norm
of the loss's gradient there. FACTOR = 6: two for accumulators that cut off instead of rounding, and three for chance,
of three draws as well as of the step that is compared.

ReLU is replaced by SiLU: rounding moves some of its inputs across zero, and the gradient in half precision would be off
by the root of their share, 10 to 30%, which hides other errors.

CLD clusters its images by k-means: a rounding may move an image to another cluster, which changes the loss at once.
Half precision and TF32 are therefore compared for the other frameworks only.
"""

import contextlib
import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ssl_bench.check.bounds import U32, UNITS, Difference, NumberFormat, computing, formats, judged
from ssl_bench.check.finding import Check, Finding, Level
from ssl_bench.config.compose import Composer
from ssl_bench.config.schema import directory
from ssl_bench.data.batch import Batch
from ssl_bench.errors import ConfigError
from ssl_bench.hardware import move
from ssl_bench.methods.base import Method
from ssl_bench.objective.sampling import StepGenerator
from ssl_bench.parts import OBJECTIVE, Parts
from ssl_bench.seeding import rng_state, seed_everything, set_rng_state

IMAGES = 16
FACTOR, DRAWS = 6, 3
SCALE = 2.0**10  # of the loss in fp16, against gradients below its smallest number
QUICK_FRAMEWORKS = ("simclr", "moco_v2", "byol")
QUICK_LOSSES = ("infonce", "dcl", "byol")
CLUSTERED = ("moco_cld", "npid_cld")
SMALL = {"k": 64, "clusters": 4, "predictor": 16, "hidden": 16, "width": 8}  # arguments that a framework or head has


@dataclass(frozen=True)
class Step64:
    """A step in float64 on the CPU: the reference of all formats.

    Attributes:
        name: of the loss.
        method: in float32 on the CPU.
        gradients: by the name of the parameter.
    """

    name: str
    method: Method
    batch: Batch
    loss: Tensor
    gradients: dict[str, Tensor]

    def noisy(self, unit: float) -> tuple[float, dict[str, float]]:
        """Deviations of the loss and of the norm of each gradient under noise of the size of rounding."""
        squares, of_loss = dict.fromkeys(self.gradients, 0.0), list[float]()
        for draw in range(DRAWS):
            method = copy.deepcopy(self.method).double()
            generator = torch.Generator().manual_seed(draw)
            for module in method.modules():
                if isinstance(module, nn.SiLU) or any(True for _ in module.parameters(recurse=False)):
                    module.register_forward_hook(_rounding(unit, generator, of_loss))
            loss, gradients = stepped(method, self.batch, torch.float64)
            of_loss.append(float((loss - self.loss).square()))
            for name, gradient in gradients.items():
                squares[name] += float((gradient - self.gradients[name]).square().sum()) / DRAWS
        pixels = sum(view[:, 0].numel() for view in self.batch.views)  # values that a gradient of a weight adds up
        own = unit + math.sqrt(pixels) * min(unit, U32)
        norms = {name: float(gradient.norm()) for name, gradient in self.gradients.items()}
        deviations = {name: math.hypot(math.sqrt(square), own * norms[name]) for name, square in squares.items()}
        return math.sqrt(sum(of_loss) / DRAWS), deviations

    def compare(self, form: NumberFormat, device: torch.device, compiled: bool = False) -> list[Difference]:
        """Differences of the loss and of each gradient in a format on a device, relative to their size.

        Args:
            compiled: compile the networks, as ``compile=true`` does.
        """
        method: Any = move(copy.deepcopy(self.method).to(form.precision.weights), device)
        for network in method.networks() if compiled else ():
            network.compile()
        with computing(form.name == "tf32"):
            loss, gradients = stepped(method, self.batch, form.precision.weights, form.precision.autocast)
        of_loss, deviations = self.noisy(form.unit)
        # The last operations of every loss are a sum and a mean in single precision.
        of_loss = FACTOR * of_loss + 2 * min(form.unit, U32) * max(1.0, float(self.loss.abs()))
        size = max(float(self.loss.abs()), 1e-12)
        found = [Difference(f"{self.name}, the loss", float((loss - self.loss).abs()) / size, of_loss / size)]
        for name, exact in self.gradients.items():
            error = float((gradients[name] - exact).norm()) if name in gradients else math.inf
            size = max(float(exact.norm()), 1e-12)
            bound = FACTOR * deviations[name] / size
            found.append(Difference(f"{self.name}, the gradient of {name}", error / size, bound))
        return found


def _rounding(unit: float, generator: torch.Generator, of_loss: list[float]) -> Callable[..., Tensor | None]:
    """A hook that adds noise to a module's output and to the gradient of the output.

    It appends the variance of the loss that the noise of the output causes to ``of_loss``.
    """

    def noise(x: Tensor, size: float) -> Tensor:
        return torch.randn(x.shape, generator=generator, dtype=x.dtype) * (size * x.square().mean().sqrt())

    def hook(module: nn.Module, inputs: Any, output: Any) -> Tensor | None:
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return None
        values = output.numel() / (output.shape[1] if output.ndim > 1 else 1)
        weights = [p.numel() / min(p.shape[:2]) for p in module.parameters(recurse=False) if p.ndim > 1]
        size = unit + math.sqrt(max(2 * math.sqrt(values), *weights, 1) / 3) * min(unit, U32)
        noisy = output + noise(output.detach(), size)

        def on_gradient(gradient: Tensor) -> Tensor:
            of_loss.append(float(size**2 * output.detach().square().mean() * gradient.square().sum()))
            return gradient + noise(gradient, size)

        if noisy.requires_grad:
            noisy.register_hook(on_gradient)
        return noisy

    return hook


def stepped(
    method: Method, batch: Batch, dtype: torch.dtype, autocast: torch.dtype | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients of a step in the middle of a training, float64 on the CPU."""
    device = next(method.parameters()).device
    views = [view.to(device, dtype) for view in batch.views]
    moved = Batch(views, batch.ids.to(device), batch.labels.to(device))
    method.train()
    mixed = torch.autocast(device.type, autocast) if autocast else contextlib.nullcontext()
    scale = SCALE if autocast is torch.float16 else 1.0
    draws = any(isinstance(module, StepGenerator) for module in method.modules())
    with DrawsOfCPU() if draws else contextlib.nullcontext():
        with mixed:
            loss = method(moved, 0.5).loss
        (loss * scale).backward()
    grads = {name: p.grad.cpu().double() / scale for name, p in method.named_parameters() if p.grad is not None}
    return loss.detach().cpu().double(), grads


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


# ---- the combinations


class Combinations:
    """Every framework with every loss that it trains, on a small network.

    Args:
        level: at ``QUICK`` a few of them.
    """

    def __init__(self, level: Level) -> None:
        def options(group: str) -> list[str]:
            return sorted(path.stem for path in (directory() / group).glob("*.yaml"))

        quick = level is Level.QUICK
        self.frameworks = list(dict.fromkeys([*QUICK_FRAMEWORKS, *([] if quick else options("framework"))]))
        self.losses = list(QUICK_LOSSES) if quick else options("loss")
        self._composer = Composer()

    @cached_property
    def _nodes(self) -> dict[str, dict[str, Any]]:
        """The nodes of the losses, and of the negatives that a loss may need."""
        losses = {name: self._composer.load([f"loss={name}"])["loss"] for name in self.losses}
        pools = ("in_batch", "cross_view")
        return losses | {name: self._composer.load([f"negatives={name}"])["negatives"] for name in pools}

    def steps(self, framework: str) -> list[Step64]:
        """The reference steps of a framework, one for each loss; losses that it cannot train are left out."""
        config = self._composer.load([f"framework={framework}", "backbone=conv_n", "head.out=16"])
        for group in ("framework", "head"):
            config[group] |= {key: value for key, value in SMALL.items() if config[group].get(key)}
        if config["negatives"] and "k" in config["negatives"]:
            config["negatives"]["k"] = SMALL["k"]
        if config["framework"].get("channels"):  # the decoder of a VAE has images of 10 classes
            config["head"]["out"] = 16
        own_objective = all(config[group] is None for group in OBJECTIVE)
        kept = rng_state()
        try:
            found = [self._step(config, name) for name in (["its own loss"] if own_objective else self.losses)]
        finally:
            set_rng_state(kept)
        return [step for step in found if step is not None]

    def _step(self, config: dict[str, Any], name: str) -> Step64 | None:
        """The step with a loss; None if there are no negatives with which it can be trained."""
        pools = [config["negatives"], *(self._nodes[pool] for pool in ("in_batch", "cross_view"))]
        for pool in pools:
            chosen = {} if name not in self.losses else {"loss": self._nodes[name], "negatives": pool}
            seed_everything(0)
            with contextlib.suppress(ConfigError):
                method = smooth(Parts(config | chosen).method)
                batch = images(config["dataset"], method.views)
                return Step64(name, method, batch, *stepped(copy.deepcopy(method).double(), batch, torch.float64))
        return None


def smooth(method: Method) -> Method:
    """``method`` with SiLU in place of ReLU."""
    for module in list(method.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.ReLU):
                setattr(module, name, nn.SiLU())
    return method


def images(dataset: dict[str, Any], views: int) -> Batch:
    """Some similar views of images of noise, float64."""
    generator = torch.Generator().manual_seed(0)
    shape = IMAGES, dataset["channels"], dataset["size"], dataset["size"]
    common, *own = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(1 + views))
    return Batch([common + each for each in own], torch.arange(IMAGES), torch.arange(IMAGES) % dataset["num_classes"])


def step_checks(device: torch.device, level: Level) -> Iterator[Check]:
    """A check for each framework and format."""
    combinations = Combinations(level)
    references: dict[str, list[Step64]] = {}
    seconds = 1 + 0.4 * len(combinations.losses)

    def compare(framework: str, form: NumberFormat) -> Finding:
        if framework not in references:
            references.clear()  # of the framework before
            references[framework] = combinations.steps(framework)
        differences = [each for step in references[framework] for each in step.compare(form, device)]
        return judged(differences, "losses and gradients")

    for framework in combinations.frameworks:
        for form in formats(device):
            if framework not in CLUSTERED or form.unit <= UNITS["fp32"]:
                name = f"step {framework} {form.name}"
                yield Check(name, partial(compare, framework, form), seconds)
