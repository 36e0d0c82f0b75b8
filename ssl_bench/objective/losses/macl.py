"""MACL: InfoNCE divided by its gradient multiplier W, with a temperature that depends on the batch's alignment.

    L = sg[1 / W] softplus(u),   W = 1 - exp(s / tau) / (exp(s / tau) + sum_k exp(s_k / tau)) = sigmoid(u)

The gradient is that of DCL; MACL differs from DCL by its temperature, ``macl_a`` or ``macl_b``. MACL (Huang et al.
2022) eq. 14, with W (eq. 11) at the same temperature, as in the official code.
"""

from torch import Tensor

from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss, unscaled_softplus


class MACL(Loss):
    """InfoNCE divided by its gradient multiplier, which is constant in the gradient."""

    equation = "softplus(u) / sg(sigmoid(u))"
    gradient = "grad u"
    code = "winnerziqi/MACL"
    needs = frozenset({"negatives"})

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        return unscaled_softplus(contrast.log_odds(tau))  # [V, B]
