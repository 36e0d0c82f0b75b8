"""HCL: Debiased whose negatives have more weight the closer they are to the anchor.

    L = log(1 + g exp(-s / tau)) with the g of Debiased, where the sum over the negatives is

    K sum_k w_k exp(s_k / tau),   w_k = exp(beta s_k / tau) / sum_j exp(beta s_j / tau)

The sum is K exp(l(tau / (1 + beta)) - l(tau / beta)), so its log-odds are log K + u(tau / (1 + beta)) - u(tau / beta).
The gradient goes through the weights too. beta = 0 is Debiased, and with tau_plus = 0 it is InfoNCE. Contrastive
learning with hard negative samples (Robinson et al. 2021) and its official code.
"""

from torch import Tensor

from ssl_bench.errors import require
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss, debiased, softplus


class HCL(Loss):
    """Debiased with weights on the negatives that grow with their cosines.

    Args:
        beta: how fast the weights grow, at least 0.
        tau_plus: share of the negatives that are of the anchor's class, in [0, 1).
    """

    equation = "as Debiased, with log K + u at tau / (1 + beta) - u at tau / beta in place of u"
    code = "joshr17/HCL"
    needs = frozenset({"negatives", "cosine"})

    def __init__(self, beta: float = 1.0, tau_plus: float = 0.1) -> None:
        super().__init__()
        require(beta >= 0, "beta", beta, "0 or more")
        require(0 <= tau_plus < 1, "tau_plus", tau_plus, "0 or more and below 1")
        self.beta, self.tau_plus = beta, tau_plus

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        if self.beta > 0:
            sharp, weights = contrast.log_odds_at(tau / (1 + self.beta), tau / self.beta)
            u = contrast.count.log() + sharp - weights  # [V, B]
        else:
            u = contrast.log_odds(tau)
        return softplus(debiased(u, contrast, tau, self.tau_plus))
