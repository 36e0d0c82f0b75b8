"""ReLIC: InfoNCE plus a penalty on the difference between the two views' distributions over the candidates.

    L = softplus(u) + weight KL(p_vw || p_ww)

p_vw is the softmax over [s, s_1 .. s_K] / tau, the anchor in view v against its positive and its negatives in view w.
p_ww is the softmax of the positive against the same keys: its cosine with itself is 1, as it has unit length. ReLIC
(Mitrovic et al. 2021); Less can be more in contrastive learning (Mitrovic et al. 2020) eq. 3.

The sum of eq. 3 is printed over all v and w, that of eq. 2 over v != w. A term of v = w has no divergence and contrasts
an image with itself in its own view: -log p_ww(positive). It pulls nothing together; it only pushes the negatives of
the same view away. ``own_view`` adds it.
"""

import torch
from torch import Tensor

from ssl_bench.errors import require
from ssl_bench.objective.candidates import masked_logits
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss, softplus


class ReLIC(Loss):
    """InfoNCE with a divergence between the views.

    Args:
        weight: of the divergence, at least 0.
        detach_target: p_ww is a constant in the divergence, which eq. 3 leaves open.
        own_view: add the terms of v = w, -log p_ww(positive); with reduction=sum the loss is then eq. 3 as printed.
            Where a momentum network makes the positives, these terms are constants.
    """

    equation = "softplus(u) + weight KL(p_vw, p_ww)"
    needs = frozenset({"negatives", "aligned", "cosine"})

    def __init__(self, weight: float = 1.0, detach_target: bool = False, own_view: bool = False) -> None:
        super().__init__()
        require(weight >= 0, "weight", weight, "0 or more")
        self.weight, self.detach_target, self.own_view = weight, detach_target, own_view

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        return contrast.reduce(self._loss, contrast.mirror, contrast.pos, tau)

    def _loss(self, cosines: Tensor, left_out: Tensor | None, mirror: Tensor, pos: Tensor, tau: Tensor) -> Tensor:
        """[...] for the cosines [..., C] of an anchor and of its positive; ``pos`` is [..., 1], ``tau`` too or []."""
        log_p = _log_softmax(pos, cosines, left_out, tau)  # [..., 1 + C]
        log_q = _log_softmax(torch.ones_like(pos), mirror, left_out, tau)
        target = log_q.detach() if self.detach_target else log_q
        ratio = (log_p - target).masked_fill(log_p.isneginf(), 0)  # inf - inf, where a candidate is left out
        u = log_p[..., 1:].logsumexp(-1) - log_p[..., 0]
        loss = softplus(u) + self.weight * (log_p.exp() * ratio).sum(-1)
        return loss - log_q[..., 0] if self.own_view else loss


def _log_softmax(first: Tensor, others: Tensor, left_out: Tensor | None, tau: Tensor) -> Tensor:
    """[..., 1 + C] of the cosines ``first`` [..., 1] and ``others`` [..., C]; what is left out has probability 0."""
    logits = masked_logits(others, left_out, tau)
    return torch.cat([first / tau, logits], -1).log_softmax(-1)
