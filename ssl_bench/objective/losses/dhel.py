"""DHEL: DCL over the anchor's own view, with half the weight on the positive.

    L = -s / (2 tau) + log sum_k exp(s_k / tau),   s_k with the other images in the anchor's own view

The pair of an image has -s / tau + l_1 + l_2, the official code's loss with ``include_augs``: each view spreads by
itself, and the positive counts once. Without ``include_augs`` the code is DCL with ``negatives=own_view``. Bridging
mini-batch and asymptotic analysis in contrastive learning (Koromilas et al. 2024).
"""

from torch import Tensor

from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss


class DHEL(Loss):
    """DCL over the anchor's own view, plus s / (2 tau)."""

    equation = "u + s / (2 tau) = l - s / (2 tau)"
    gradient = "grad l - grad s / (2 tau)"
    code = "pakoromilas/DHEL-KCL"
    needs = frozenset({"negatives", "own_view"})

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        return contrast.lse(tau) - contrast.pos / (2 * tau)  # [V, B]
