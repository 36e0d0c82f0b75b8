"""MACL-w: MACL with more weight on positives that are far apart.

    L = sg[(2 - s) / W] softplus(u),   W = sigmoid(u)

MACL (Huang et al. 2022) eq. 15; its table 4 prints the name as MACL-c.
"""

from torch import Tensor

from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss, unscaled_softplus


class MACLW(Loss):
    """MACL, multiplied by 2 - s, which is constant in the gradient."""

    equation = "sg(2 - s) softplus(u) / sg(sigmoid(u))"
    gradient = "(2 - s) grad u"
    needs = frozenset({"negatives"})

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        return (2 - contrast.cosine).detach() * unscaled_softplus(contrast.log_odds(tau))  # [V, B]
