"""DCL: InfoNCE without the positive in the denominator, so that its gradient lacks the multiplier sigmoid(u).

    L = -s / tau + log sum_k exp(s_k / tau) = u

It may be negative. DCL (Yeh et al. 2021) eq. 5; the printed eq. 4 still has the positive in its denominator.
"""

from torch import Tensor

from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss


class DCL(Loss):
    """InfoNCE without the positive in the denominator: u."""

    equation = "u"
    gradient = "grad u"
    code = "raminnakhli/Decoupled-Contrastive-Learning"
    needs = frozenset({"negatives"})

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        return contrast.log_odds(tau)  # [V, B]
