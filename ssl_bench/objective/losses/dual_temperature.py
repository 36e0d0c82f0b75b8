"""Dual temperature: InfoNCE with the multiplier W of its gradient taken at a higher temperature.

    L = sg[ W(ratio tau) / W(tau) ] softplus(u),   W = sigmoid(u)

W weights the anchors against each other, the softmax weights the negatives of an anchor against each other; here the
two have different temperatures. ratio = 1 is InfoNCE and ratio = inf is MACL times K / (K + 1). Dual temperature
(Zhang et al. 2022) and its official code.
"""

from torch import Tensor

from ssl_bench.errors import require
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss, unscaled_softplus


class DualTemperature(Loss):
    """InfoNCE with its multiplier at a second temperature.

    Args:
        ratio: the temperature of the multiplier divided by that of the softmax, positive.
    """

    equation = "softplus(u) sg(sigmoid(u at ratio tau) / sigmoid(u))"
    gradient = "sigmoid(u at ratio tau) grad u"
    code = "ChaoningZhang/Dual-temperature"
    needs = frozenset({"negatives"})

    def __init__(self, ratio: float = 10.0) -> None:
        super().__init__()
        require(ratio > 0, "ratio", ratio, "a positive number")
        self.ratio = ratio

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        u, second_u = contrast.log_odds_at(tau, self.ratio * tau)
        return second_u.detach().sigmoid() * unscaled_softplus(u)  # [V, B]
