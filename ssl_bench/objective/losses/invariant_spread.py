"""Invariant and spreading instance features: InfoNCE, plus a term by which no negative is taken for the own image.

    L = -log P - sum_k log(1 - P_k),   P_k = exp(s_k / tau) / (exp(s / tau) + sum_j exp(s_j / tau))

P is that of the positive. P_m of the nearest negative m may be close to 1: -log(1 - P_m) is softplus(l_m - log of the
sum of the rest), l its logits. Any other P_k is at most 1/2, where log1p(-P) is exact. Unsupervised Embedding Learning
via Invariant and Spreading Instance Feature (Ye et al. 2019, arXiv 1904.03436), whose negatives have no gradient
(``framework.stop_gradient``).
"""

import torch
from torch import Tensor

from ssl_bench.objective.candidates import masked_logits
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss, softplus


class InvariantSpread(Loss):
    """InfoNCE, plus the cross-entropy of every negative that it is another image."""

    equation = "softplus(u) - sum_k log(1 - exp(s_k / tau) / (exp(l) + exp(s / tau)))"
    code = "mangye16/Unsupervised_Embedding_Learning"
    needs = frozenset({"negatives"})

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        return contrast.reduce(_loss, contrast.pos, tau)


def _loss(s: Tensor, left_out: Tensor | None, pos: Tensor, tau: Tensor) -> Tensor:
    """[...] for the similarities [..., C] of an anchor; ``pos`` is [..., 1], ``tau`` too or []."""
    positive, negative = (pos / tau)[..., 0], masked_logits(s, left_out, tau)
    nearest, index = negative.max(-1, keepdim=True)  # [..., 1]
    rest = negative.scatter(-1, index, float("-inf"))
    others = negative.logsumexp(-1)
    total = torch.logaddexp(others, positive)[..., None]
    all_but_nearest = torch.logaddexp(rest.logsumexp(-1), positive)
    spread = softplus(nearest[..., 0] - all_but_nearest) - torch.log1p(-(rest - total).exp()).sum(-1)
    return softplus(others - positive) + spread
