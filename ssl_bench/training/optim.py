"""Optimisers, and the learning rate as a function of training progress.

Biases and norm parameters (those of one dimension) have no adapted rate under LARS, and weight decay only if
``decay_norms`` is set. Every optimiser updates all parameters in a few fused or batched operations.

Gradients are clipped by the norm of all of them together, as the ViT (Dosovitskiy et al. 2021, arXiv 2010.11929,
table 3) was trained with 1.0. ``layer_decay`` lowers the rates of early layers, as BEiT (Bao et al. 2022, arXiv
2106.08254) and timm do.
"""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from msgspec import Meta
from torch import Tensor, nn
from torch.optim.sgd import sgd

from ssl_bench.config.ranges import Count, NotNegative, Positive, Probability, Share, in_range
from ssl_bench.errors import require

Momentum = Annotated[float, Meta(ge=0, lt=1)]
EPSILON = 1e-8  # of LARS, as in timm


@dataclass(eq=False, kw_only=True)
class Recipe(ABC):
    """An optimiser and the schedule of its learning rate.

    Args:
        lr: learning rate at a global batch of ``base_batch`` images.
        rule: factor of ``lr`` for the batch size N: ``linear`` N / base_batch, ``sqrt`` sqrt(N / base_batch), ``none``.
        schedule: after the warm-up ``cosine`` or ``linear`` to ``final_lr``, ``step`` (lower from each milestone on) or
            ``constant``.
        milestones: in (0, 1], fractions of the whole training.
        final_lr: fraction of the scaled rate at the end of ``cosine`` and ``linear``.
        warmup_epochs: linear from ``warmup_start`` (a fraction of the scaled rate) up to the scaled rate.
        weight_decay: applied to biases and norm parameters only with ``decay_norms``, and to scalars never.
        decay_norms: decay biases and norm parameters too, as torch's optimisers do with ``model.parameters()``: the
            codes of MoCo, CLD, NPID (lemniscate.pytorch), Inv. Spread and leftthomas/SimCLR.
        clip: largest norm of the gradient of all parameters, over all ranks and chunks, positive; None: no bound.
        layer_decay: factor in (0, 1] of the rate from each layer of the backbone to the one before it.
        factors: with ``schedule=step``, a fraction of the scaled rate in [0, 1] for each of the ascending milestones,
            which holds from there on; empty: each milestone divides the rate by ten.
    """

    lr: Positive
    rule: Literal["linear", "sqrt", "none"]
    base_batch: Count
    schedule: Literal["cosine", "linear", "step", "constant"]
    milestones: tuple[Share, ...]
    final_lr: Probability
    warmup_epochs: NotNegative
    warmup_start: Probability
    weight_decay: NotNegative
    decay_norms: bool = False
    clip: Positive | None = None
    layer_decay: Share = 1.0
    factors: tuple[Probability, ...] = ()

    def __post_init__(self) -> None:
        milestones, factors = self.milestones, self.factors
        if factors:
            remedy = "a fraction of lr for each milestone, or to []"
            require(len(factors) == len(milestones), "factors", factors, remedy)
            require(self.schedule == "step", "factors", factors, "[], or schedule to step")
            require(sorted(milestones) == list(milestones), "milestones", milestones, "ascending numbers for factors")

    def scaled_lr(self, batch_size: int) -> float:
        """Learning rate after the warm-up for a global batch of ``batch_size`` images."""
        ratio = batch_size / self.base_batch
        return self.lr * {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}[self.rule]

    def factor(self, progress: float, warmup: float) -> float:
        """Factor of the scaled rate at ``progress`` in [0, 1] of the training; the warm-up ends at ``warmup``."""
        if progress < warmup:
            return self.warmup_start + (1 - self.warmup_start) * progress / warmup
        if self.schedule in ("cosine", "linear"):
            along = (progress - warmup) / (1 - warmup) if warmup < 1 else 1.0
            falling = 1 - along if self.schedule == "linear" else (1 + math.cos(math.pi * along)) / 2  # from 1 to 0
            return self.final_lr + (1 - self.final_lr) * falling
        if self.schedule == "step":
            reached = sum(progress >= milestone for milestone in self.milestones)
            return self.factors[reached - 1] if self.factors and reached else float(0.1**reached)
        return 1.0

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        """Parameter groups of the trained parameters: weights, then biases and norms, the decayed ones first.

        With ``layer_decay`` each of them is several groups, the last layers first, with ``lr_scale``.

        Raises:
            InvalidValue: ``layer_decay`` is below 1, and the backbone does not say the order of its layers.
        """
        scales = layer_scales(model, self.layer_decay) if self.layer_decay < 1 else {}
        members: dict[tuple[bool, float, float], list[nn.Parameter]] = {}
        for p in (p for p in model.parameters() if p.requires_grad):
            decayed = p.ndim > 1 or (p.ndim == 1 and self.decay_norms)  # a scalar is learned by a temperature or a loss
            key = p.ndim > 1, self.weight_decay if decayed else 0.0, scales.get(p, 1.0)
            members.setdefault(key, []).append(p)
        return [
            {"params": members[key], "weight_decay": key[1]} | ({"lr_scale": key[2]} if scales else {})
            for key in sorted(members, reverse=True)
        ]

    def clipped(self, model: nn.Module) -> Tensor:
        """Scale the gradients of ``model`` so that their norm is at most ``clip``; return the norm [] before that."""
        assert self.clip is not None
        return nn.utils.clip_grad_norm_(model.parameters(), self.clip, foreach=True)

    @abstractmethod
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Optimiser of the trained parameters of ``model``; the loop sets its rate before each step."""


@in_range
@dataclass(eq=False, kw_only=True)
class SGD(Recipe):
    """torch's SGD with momentum."""

    momentum: Momentum
    nesterov: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = "false, or momentum to more than 0"
        require(self.momentum > 0 or not self.nesterov, "nesterov", self.nesterov, remedy)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        options: dict[str, Any] = {"momentum": self.momentum, "nesterov": self.nesterov, "fused": True}
        optimizer = _eager(FusedSGD)(self.groups(model), self.lr, **options)
        if self.momentum:
            # torch would make them in the first step, and leave them unset if its fp16 gradients overflow.
            for parameter in (p for group in optimizer.param_groups for p in group["params"]):
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return optimizer


_sgd: Callable[..., None] = sgd  # the type of torch asks for each list by name


class FusedSGD(torch.optim.SGD):
    """torch's fused SGD, whose kernel for CPUs would copy every gradient that is not contiguous, for nothing."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        options = "weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize"
        scaling = {"grad_scale": getattr(self, "grad_scale", None), "found_inf": getattr(self, "found_inf", None)}
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            gradients = [p.grad for p in weights]
            velocities = [self.state[p]["momentum_buffer"] for p in weights if group["momentum"]]
            tensors = [[_in_memory_order(tensor) for tensor in some] for some in (weights, gradients, velocities)]
            _sgd(*tensors, fused=True, **scaling, **{name: group[name] for name in options})


def _in_memory_order(tensor: Tensor) -> Tensor:
    """A contiguous view of a tensor in channels_last on a CPU; any other as it is."""
    last = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return tensor.permute(0, 2, 3, 1) if last and tensor.device.type == "cpu" else tensor


@in_range
@dataclass(eq=False, kw_only=True)
class Adam(Recipe):
    """torch's Adam; weight decay is added to the gradient."""

    implementation: ClassVar[type[torch.optim.Optimizer]] = torch.optim.Adam

    betas: tuple[Momentum, Momentum]

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return _eager(type(self).implementation)(self.groups(model), self.lr, betas=self.betas, fused=True)


class AdamW(Adam):
    """torch's AdamW; weight decay is decoupled."""

    implementation = torch.optim.AdamW


@in_range
@dataclass(eq=False, kw_only=True)
class LARS(Recipe):
    """LARS as implemented by timm: v <- m v + eta |w| / (|g| + wd |w|) (g + wd w); w <- w - lr v.

    The ratio is eq. 6 of You et al. 2017; biases and norm parameters have none, even if they are decayed. SimCLR's code
    divides by |g + wd w| and keeps lr inside v.
    """

    momentum: Momentum
    trust_coefficient: Positive

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        groups = [group | {"always_adapt": group["params"][0].ndim > 1} for group in self.groups(model)]
        return _eager(LarsOptimizer)(groups, self.lr, self.momentum, self.trust_coefficient)


class LarsOptimizer(torch.optim.Optimizer):
    """timm's Lars, to the last bit and with its checkpoints; groups adapt their rate under ``always_adapt``.

    A gradient scaler, which fp16 needs, hands over its scale and whether a gradient overflowed. A step with an overflow
    changes nothing, which is computed on the device: the host need not wait for the answer, as with timm's Lars.
    """

    _step_supports_amp_scaling = True  # the scaler sets the attributes grad_scale and found_inf for the time of a step

    def __init__(self, groups: list[dict[str, Any]], lr: float, momentum: float, trust_coeff: float) -> None:
        defaults = {"momentum": momentum, "weight_decay": 0.0, "trust_coeff": trust_coeff, "always_adapt": False}
        super().__init__(groups, {"lr": lr, **defaults})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            self._update(group, [p for p in group["params"] if p.grad is not None])

    def _update(self, group: dict[str, Any], weights: list[Tensor]) -> None:
        """Update the weights of a group that have a gradient."""
        scale, overflow = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        lr, momentum, decay = group["lr"], group["momentum"], group["weight_decay"]
        gradients: list[Tensor] | tuple[Tensor, ...] = [p.grad for p in weights if p.grad is not None]
        for p in weights:
            if p not in self.state:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
        velocities = [self.state[p]["momentum_buffer"] for p in weights]
        if scale is not None:
            gradients = torch._foreach_mul(gradients, scale.double().reciprocal().float())
        if group["always_adapt"]:
            sizes, steps = torch.stack(torch._foreach_norm(weights)), torch.stack(torch._foreach_norm(gradients))  # [n]
            ratios = group["trust_coeff"] * sizes / (steps + sizes * decay + EPSILON)
            ratios = torch.where((sizes > 0) & (steps > 0), ratios, 1.0)
            gradients = torch._foreach_add(gradients, weights, alpha=decay)
            torch._foreach_mul_(gradients, ratios.unbind())
        elif decay:
            gradients = torch._foreach_add(gradients, weights, alpha=decay)
        if overflow is not None:
            gradients, momentum = _zeroed(gradients, overflow), momentum * (1 - overflow) + overflow
        torch._foreach_mul_(velocities, momentum)
        torch._foreach_add_(velocities, gradients)
        moves = velocities if overflow is None else _zeroed(velocities, overflow)  # a step of 0 keeps every weight
        if isinstance(lr, Tensor):
            torch._foreach_add_(weights, torch._foreach_mul(moves, -lr))
        else:
            torch._foreach_add_(weights, moves, alpha=-lr)


def layer_scales(model: nn.Module, decay: float) -> dict[nn.Parameter, float]:
    """The factor of the rate of each weight of the backbone in ``model``: decay^(layers behind its layer).

    Patches or stem are the first layer, each block is one, and the last norm belongs to the last block, as in timm; the
    head, which follows, has the factor 1.

    Raises:
        InvalidValue: the backbone is not one of timm with an order of layers.
    """
    from timm.models import group_parameters  # heavy: only where it is used

    backbones: list[Any] = [part for part in model.modules() if hasattr(part, "group_matcher")]
    require(
        bool(backbones), "layer_decay", decay, "1: only the networks of backbone=timm say the order of their layers"
    )
    scales: dict[nn.Parameter, float] = {}
    for backbone in backbones:
        layers = group_parameters(backbone, backbone.group_matcher(coarse=False), reverse=True)
        head = 1 + max(layers.values())
        scales |= {weight: decay ** (head - layers[name]) for name, weight in backbone.named_parameters()}
    return scales


def _eager(kind: type[torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """Make a subclass that steps without importing torch's compiler, which takes two seconds."""
    wrapped = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in wrapped}
    return type(kind.__name__, (kind,), methods | {"step": torch.no_grad()(inspect.unwrap(kind.step))})


def _zeroed(tensors: Sequence[Tensor], overflow: Tensor) -> list[Tensor]:
    """Copies of float32 tensors, zero if ``overflow`` is 1: their bits are multiplied, since 0 x infinity is NaN."""
    bits = torch._foreach_mul([t.view(torch.int32) for t in tensors], (1 - overflow).int())
    return [t.view(torch.float32) for t in bits]


@dataclass(frozen=True)
class Schedule:
    """Length and learning rates of a training.

    Attributes:
        lr: scaled rate after the warm-up.
        steps: number of steps of the whole training.
        last_step: number of steps after which the training stops, at most ``steps``.
        warmup: end of the warm-up as a fraction of the training.
    """

    recipe: Recipe
    lr: float
    steps_per_epoch: int
    steps: int
    last_step: int
    warmup: float

    @classmethod
    def of(
        cls, recipe: Recipe, batch_size: int, epochs: int, steps_per_epoch: int, max_steps: int | None
    ) -> "Schedule":
        """The schedule of a training of ``epochs`` epochs that stops early after ``max_steps`` steps."""
        steps = epochs * steps_per_epoch
        lr, warmup = recipe.scaled_lr(batch_size), recipe.warmup_epochs / max(1, epochs)
        return cls(recipe, lr, steps_per_epoch, steps, min(steps, max_steps or steps), warmup)

    def progress(self, step: int) -> float:
        """Fraction of the training done before ``step``."""
        return step / self.steps

    def lr_at(self, step: int) -> float:
        """Learning rate of ``step``."""
        if self.recipe.schedule == "constant":  # in epochs: not a bit depends on the length of the training
            return self.lr * self.recipe.factor(self.epoch(step), self.recipe.warmup_epochs)
        return self.lr * self.recipe.factor(step / self.steps, self.warmup)

    def epoch(self, step: int) -> float:
        """Epochs done after ``step`` steps."""
        return step / self.steps_per_epoch
