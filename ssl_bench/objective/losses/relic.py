"""ReLIC: InfoNCE plus a penalty on the difference between the two views' distributions over the candidates.

    L = softplus(u) + weight KL(p_vw || p_ww)

p_vw is the softmax over [s, s_1 .. s_K] / tau, the anchor in view v against its positive and its negatives in view w.
p_ww is the softmax of the positive against the same keys: its cosine with itself is 1, as it has unit length. ReLIC
(Mitrovic et al. 2021); Less can be more in contrastive learning (Mitrovic et al. 2020) eq. 3, for views v and w that
differ.
"""

import torch
from torch import Tensor

from ssl_bench.errors import require
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss, softplus


class ReLIC(Loss):
    """``weight`` of the divergence, at least 0; ``detach_target``: p_ww is a constant, which eq. 3 leaves open."""

    needs = frozenset({"negatives", "aligned", "dense"})

    def __init__(self, weight: float = 1.0, detach_target: bool = False) -> None:
        super().__init__()
        require(weight >= 0, "weight", weight, "0 or more")
        self.weight, self.detach_target = weight, detach_target

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        neg, valid = contrast.neg  # [V, B, C]
        absent = None if valid is None else ~valid
        log_p = _log_softmax(contrast.pos, neg, absent, tau)  # [V, B, 1 + C]
        log_q = _log_softmax(torch.ones_like(contrast.pos), contrast.mirror, absent, tau)
        if self.detach_target:
            log_q = log_q.detach()
        ratio = (log_p - log_q).masked_fill(log_p.isneginf(), 0)  # inf - inf, where a candidate is absent
        divergence = (log_p.exp() * ratio).sum(-1)
        return softplus(contrast.log_odds(tau)) + self.weight * divergence  # [V, B]


def _log_softmax(first: Tensor, others: Tensor, absent: Tensor | None, tau: Tensor) -> Tensor:
    """[V, B, 1 + C] for the logits ``first`` [V, B] and ``others`` [V, B, C]; ``absent`` ones have probability 0."""
    t = tau[..., None] if tau.ndim else tau
    others = others / t
    if absent is not None:  # scaled first: inf / tau has a NaN gradient where tau is learned
        others = others.masked_fill(absent, float("-inf"))
    return torch.cat([first[..., None] / t, others], -1).log_softmax(-1)
