"""Debiased: InfoNCE for negatives of which a share tau_plus shows the anchor's own class.

    L = log(1 + g exp(-s / tau)),   g = max( (sum_k exp(s_k / tau) - K tau_plus exp(s / tau)) / (1 - tau_plus), least )

g estimates the sum over K negatives of other classes; least = K exp(-1 / tau) is the smallest that this sum can be.
tau_plus = 0 is InfoNCE. Debiased contrastive learning (Chuang et al. 2020) and its official code.
"""

from torch import Tensor

from ssl_bench.errors import require
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss, debiased, softplus


class Debiased(Loss):
    """InfoNCE whose sum over the negatives is corrected for those of the anchor's own class.

    Args:
        tau_plus: share of the negatives that are of the anchor's class, in [0, 1).
    """

    equation = "log(1 + max((exp(u) - K tau_plus) / (1 - tau_plus), K exp(-(1 + s) / tau)))"
    code = "chingyaoc/DCL"
    needs = frozenset({"negatives", "cosine"})

    def __init__(self, tau_plus: float = 0.1) -> None:
        super().__init__()
        require(0 <= tau_plus < 1, "tau_plus", tau_plus, "0 or more and below 1")
        self.tau_plus = tau_plus

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        return softplus(debiased(contrast.log_odds(tau), contrast, tau, self.tau_plus))  # [V, B]
