"""Dual temperature: InfoNCE with the multiplier W of its gradient taken at a higher temperature.

    L = sg[ W(ratio tau) / W(tau) ] softplus(u),   W = sigmoid(u)

W weights the anchors against each other, the softmax over the negatives weights them within an anchor; here each has a
temperature of its own. ratio = 1 is InfoNCE and ratio = inf is MACL times K / (K + 1). Dual temperature (Zhang et al.
2022) and its official code.
"""

from torch import Tensor

from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss, unscaled_softplus


class DualTemperature(Loss):
    """``ratio`` > 0 of the temperature between anchors to that within one."""

    needs = frozenset({"negatives"})

    def __init__(self, ratio: float = 10.0) -> None:
        super().__init__()
        if not ratio > 0:
            raise ValueError(f"ratio={ratio} must be positive")
        self.ratio = ratio

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        u, wide = contrast.log_odds_at(tau, self.ratio * tau)
        return wide.sigmoid() * unscaled_softplus(u)  # [V, B]
