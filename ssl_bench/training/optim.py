"""Optimisers with their learning rate as a function of training progress.

Biases and norm parameters (those of one dimension) are neither decayed nor, under LARS, adapted. Every optimiser
updates all parameters in a handful of fused or batched operations.
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn


class Recipe:
    """A learning rate over a training, and the optimiser that follows it.

    Args:
        lr: at a global batch of ``base_batch`` images.
        rule: how it follows the batch size N: ``linear`` N / base_batch, ``sqrt`` sqrt(N / base_batch), ``none``.
        schedule: after the warm-up ``cosine`` or ``linear`` to ``final_lr``, ``step`` (a tenth at each milestone) or
            ``constant``.
        milestones: in (0, 1], fractions of the whole training.
        final_lr: fraction of the scaled rate at the end of ``cosine`` and ``linear``.
        warmup_epochs: linear from ``warmup_start`` (a fraction of the scaled rate) up to the scaled rate.
        weight_decay: not applied to biases and norm parameters.
    """

    def __init__(
        self,
        lr: float,
        rule: Literal["linear", "sqrt", "none"],
        base_batch: int,
        schedule: Literal["cosine", "linear", "step", "constant"],
        milestones: tuple[float, ...],
        final_lr: float,
        warmup_epochs: float,
        warmup_start: float,
        weight_decay: float,
    ) -> None:
        for name, value in {"lr": lr, "base_batch": base_batch}.items():
            if not value > 0:
                raise ValueError(f"{name}={value} must be positive")
        for name, value in {"weight_decay": weight_decay, "warmup_epochs": warmup_epochs}.items():
            if value < 0:
                raise ValueError(f"{name}={value} must not be negative")
        for name, value in {"final_lr": final_lr, "warmup_start": warmup_start}.items():
            if not 0 <= value <= 1:
                raise ValueError(f"{name}={value} must be in [0, 1], a fraction of lr")
        if any(not 0 < m <= 1 for m in milestones):
            raise ValueError(f"milestones={list(milestones)} must be in (0, 1], fractions of the training")
        self.base_lr, self.rule, self.base_batch, self.schedule = lr, rule, base_batch, schedule
        self.milestones, self.final_lr = milestones, final_lr
        self.warmup_epochs, self.warmup_start, self.weight_decay = warmup_epochs, warmup_start, weight_decay

    def scaled_lr(self, batch_size: int) -> float:
        """The rate after the warm-up for a global batch of ``batch_size`` images."""
        ratio = batch_size / self.base_batch
        return self.base_lr * {"linear": ratio, "sqrt": math.sqrt(ratio), "none": 1.0}[self.rule]

    def factor(self, progress: float, warmup: float) -> float:
        """What the scaled rate is multiplied by at ``progress`` in [0, 1], with a warm-up up to ``warmup``."""
        if progress < warmup:
            return self.warmup_start + (1 - self.warmup_start) * progress / warmup
        if self.schedule in ("cosine", "linear"):
            along = (progress - warmup) / (1 - warmup) if warmup < 1 else 1.0
            left = 1 - along if self.schedule == "linear" else (1 + math.cos(math.pi * along)) / 2
            return self.final_lr + (1 - self.final_lr) * left
        if self.schedule == "step":
            return float(0.1 ** sum(progress >= m for m in self.milestones))
        return 1.0

    def groups(self, model: nn.Module) -> list[dict[str, Any]]:
        trained = [p for p in model.parameters() if p.requires_grad]
        decayed, rest = [p for p in trained if p.ndim > 1], [p for p in trained if p.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": self.weight_decay}, {"params": rest, "weight_decay": 0.0}]
        return [group for group in groups if group["params"]]

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimiser of ``model``'s trained parameters; its rate is set before each step."""
        raise NotImplementedError


class SGD(Recipe):
    """torch's SGD with momentum."""

    def __init__(self, momentum: float, nesterov: bool, **recipe: Any) -> None:
        super().__init__(**recipe)
        self.options: dict[str, Any] = {"momentum": momentum, "nesterov": nesterov}

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.groups(model), self.base_lr, **self.options, fused=True)


class Adam(Recipe):
    """torch's Adam; weight decay is added to the gradient."""

    implementation: Callable[..., torch.optim.Optimizer] = torch.optim.Adam

    def __init__(self, betas: tuple[float, float], **recipe: Any) -> None:
        super().__init__(**recipe)
        self.betas = betas

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return type(self).implementation(self.groups(model), self.base_lr, betas=self.betas, fused=True)


class AdamW(Adam):
    """torch's AdamW; weight decay is decoupled."""

    implementation = torch.optim.AdamW


class LARS(Recipe):
    """Layer-wise adaptive rates as timm has them: v <- m v + eta |w| / (|g| + wd |w|) (g + wd w); w <- w - lr v.

    The ratio is that of You et al. 2017, eq. 6; SimCLR's own code divides by |g + wd w| and keeps lr inside v.
    """

    def __init__(self, momentum: float, trust_coefficient: float, **recipe: Any) -> None:
        super().__init__(**recipe)
        self.momentum, self.trust_coefficient = momentum, trust_coefficient

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        from timm.optim import Lars  # heavy: only where it is used

        decayed, *rest = self.groups(model)
        groups = [decayed | {"always_adapt": True}, *rest]  # also without weight decay, where timm would not
        options: dict[str, Any] = {"momentum": self.momentum, "trust_coeff": self.trust_coefficient, "foreach": True}
        lars: torch.optim.Optimizer = Lars(groups, self.base_lr, **options)
        return lars
