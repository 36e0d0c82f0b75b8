"""InfoNCE, or NT-Xent with the other images of the batch as negatives.

    L = -log( exp(s / tau) / (exp(s / tau) + sum_k exp(s_k / tau)) ) = softplus(u)
    u = log sum_k exp(s_k / tau) - s / tau

s is the cosine of an anchor and its positive, s_k those of its negatives. CPC (van den Oord et al. 2018) eq. 4; SimCLR
(Chen et al. 2020) eq. 1; DCL (Yeh et al. 2021) eq. 1.
"""

from torch import Tensor
from torch.nn.functional import logsigmoid

from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss


class InfoNCE(Loss):
    needs = frozenset({"negatives"})

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        # softplus(u), without torch's own shortcut to u above 20, which is off by 2e-9 in double precision.
        return -logsigmoid(-contrast.log_odds(tau))  # [V, B]
