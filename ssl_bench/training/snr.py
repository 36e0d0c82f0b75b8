"""Signal-to-noise ratio of every weight's gradient ("Less can be more in contrastive learning", figure 4).

    m <- b m + (1 - b) g,   v <- b v + (1 - b) g^2,   both divided by 1 - b^t,   SNR = |m| / sqrt(v - m^2)

g is the gradient of the global batch and b a decay, which the paper does not give.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class GradientSNR:
    """First and second moments of the gradients, two numbers per weight.

    Args:
        parameters: of the networks; those without gradient are ignored.
        decay: b in (0, 1).
    """

    def __init__(self, parameters: Iterable[nn.Parameter], decay: float) -> None:
        self.parameters, self.decay = [p for p in parameters if p.requires_grad], decay
        self.first = [torch.zeros_like(p) for p in self.parameters]
        self.second = [torch.zeros_like(p) for p in self.parameters]
        self.steps = torch.zeros((), dtype=torch.int64, device=self.first[0].device)

    @torch.no_grad()
    def add(self) -> None:
        """Add the gradients of a step. If one is not finite the step is ignored, as the loss scaler skips it too."""
        gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in self.parameters]
        finite = torch.stack([gradient.isfinite().all() for gradient in gradients]).all()
        for moments, values in ((self.first, gradients), (self.second, torch._foreach_mul(gradients, gradients))):
            new = [torch.where(finite, value, moment) for value, moment in zip(values, moments, strict=True)]
            torch._foreach_lerp_(moments, new, 1 - self.decay)
        self.steps += finite

    @torch.no_grad()
    def read(self) -> dict[str, Tensor]:
        """Mean and standard deviation of the ratio over all weights; a weight without variance counts as 0."""
        bias = 1 - self.decay ** self.steps.double()
        m = torch.cat([m.flatten() for m in self.first]) / bias
        v = torch.cat([v.flatten() for v in self.second]) / bias
        variance = v - m.square()
        # After one step the variance is 0 up to rounding, which the division by 1 - b enlarges: below this bound it
        # counts as 0.
        noise = (8 + 1 / (1 - self.decay)) * torch.finfo(v.dtype).eps * v
        ratio = torch.where(variance > noise, m.abs() * variance.clamp(min=torch.finfo(v.dtype).tiny).rsqrt(), 0.0)
        return {"gradient_snr/mean": ratio.mean(), "gradient_snr/std": ratio.std(correction=0)}

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps, "first": self.first, "second": self.second}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps.copy_(torch.as_tensor(state["steps"]))
        for own, saved in zip([*self.first, *self.second], [*state["first"], *state["second"]], strict=True):
            own.copy_(saved)
