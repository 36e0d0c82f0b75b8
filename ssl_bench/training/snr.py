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
        parameters: those without gradient are ignored.
        decay: b in (0, 1).
    """

    def __init__(self, parameters: Iterable[nn.Parameter], decay: float) -> None:
        self.parameters, self.decay = [p for p in parameters if p.requires_grad], decay
        size = sum(p.numel() for p in self.parameters)
        # The gradients and the two moments of all parameters are one vector each, so that a step is a few operations.
        self._gradients, self._m, self._v = self.parameters[0].new_zeros(3, size)
        self.first, self.second = self._like_parameters(self._m), self._like_parameters(self._v)
        self.steps = torch.zeros((), dtype=torch.int64, device=self._m.device)

    def _like_parameters(self, vector: Tensor) -> list[Tensor]:
        """Views of ``vector`` with the shapes and the memory formats of the parameters."""
        parts = vector.split([p.numel() for p in self.parameters])
        return [part.as_strided(p.shape, p.stride()) for part, p in zip(parts, self.parameters, strict=True)]

    @torch.no_grad()
    def add(self) -> None:
        """Add the gradients of a step. If one is not finite the step is ignored, as the loss scaler skips it too."""
        g = self._gradients
        pairs = zip(self._like_parameters(g), self.parameters, strict=True)
        trained = [(view, p.grad) for view, p in pairs if p.grad is not None]
        if len(trained) < len(self.parameters):
            g.zero_()
        torch._foreach_copy_([view for view, _ in trained], [gradient for _, gradient in trained])
        finite = g.isfinite().all()
        self._m.lerp_(torch.where(finite, g, self._m), 1 - self.decay)
        self._v.lerp_(torch.where(finite, g * g, self._v), 1 - self.decay)
        self.steps += finite

    @torch.no_grad()
    def read(self) -> dict[str, Tensor]:
        """Mean and standard deviation of the ratio over all weights; a weight without variance counts as 0."""
        bias = 1 - self.decay ** self.steps.double()
        m, v = self._m / bias, self._v / bias
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
        for moment, saved in zip([*self.first, *self.second], [*state["first"], *state["second"]], strict=True):
            moment.copy_(saved)
