"""InfoNCE, or NT-Xent with the other images of the batch as negatives.

    L = -log( exp(s / tau) / (exp(s / tau) + sum_k exp(s_k / tau)) ) = softplus(u)
    u = log sum_k exp(s_k / tau) - s / tau

s is the cosine of an anchor and its positive, s_k those of its negatives. CPC (van den Oord et al. 2018) eq. 4; SimCLR
(Chen et al. 2020) eq. 1; DCL (Yeh et al. 2021) eq. 1.
"""

from torch import Tensor

from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss, softplus


class InfoNCE(Loss):
    """Cross-entropy of the positive among the negatives: softplus(u)."""

    equation = "softplus(u)"
    gradient = "sigmoid(u) grad u"
    code = "google-research/simclr"
    needs = frozenset({"negatives"})

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        return softplus(contrast.log_odds(tau))  # [V, B]
