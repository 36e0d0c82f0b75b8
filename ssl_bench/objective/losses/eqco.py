"""EqCo: InfoNCE whose K negatives are weighted as if there were alpha of them.

    L = log( exp(s / tau) + (alpha / K) sum_k exp(s_k / tau) ) - s / tau = softplus(u + log(alpha / K))

This is the margin m = tau log(alpha / K) on the positive. alpha = K is InfoNCE; the gradient tends to that of DCL as
alpha grows. EqCo (Zhu et al. 2020) eq. 1 with the m of eq. 5.
"""

import math

import torch
from torch import Tensor

from ssl_bench.errors import require
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss, softplus


class EqCo(Loss):
    """InfoNCE with the sum over the negatives weighted by alpha / K.

    Args:
        alpha: the number of negatives that the K negatives represent, positive.
    """

    equation = "softplus(u + log(alpha / K))"
    gradient = "sigmoid(u + log(alpha / K)) grad u"
    code = "poodarchu/SelfSup"
    needs = frozenset({"negatives"})

    def __init__(self, alpha: float = 256.0) -> None:
        super().__init__()
        require(alpha > 0, "alpha", alpha, "a positive number")
        self.alpha = alpha

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        margin = math.log(self.alpha) - torch.log(contrast.count)  # [V or 1, B]
        return softplus(contrast.log_odds(tau) + margin)  # [V, B]

    def information(self, contrast: Contrast, tau: Tensor) -> Tensor:
        """log(1 + alpha) - L, [V, B]: the largest possible bound is log(1 + alpha) instead of log(1 + K).

        EqCo (Zhu et al. 2020), section 2.1; ``contrast`` and ``tau`` are those of :meth:`Loss.forward`.
        """
        return math.log1p(self.alpha) - self(contrast, tau)
