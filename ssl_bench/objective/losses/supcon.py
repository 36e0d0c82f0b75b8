"""SupCon: the mean of InfoNCE over several positives, which are in each other's denominators.

    L = -mean_p log( exp(s_p / tau) / (exp(s / tau) + sum_k exp(s_k / tau)) ) = softplus(u) + (s - mean_p s_p) / tau

p runs over the other view, whose cosine is s, and over the candidates of the anchor's class; k runs over all
candidates. Supervised contrastive learning (Khosla et al. 2020, arXiv 2004.11362) eq. 2, L_out.
"""

from torch import Tensor

from ssl_bench.objective.candidates import masked_logits
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss, softplus


class SupCon(Loss):
    """Cross-entropy of the positives of a class among all candidates, InfoNCE where an image is alone in its class."""

    equation = "softplus(u) + (s - mean_p s_p) / tau"
    code = "HobbitLong/SupContrast"
    needs = frozenset({"negatives", "labels", "cosine"})

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        return contrast.reduce_by_class(_loss, contrast.pos, tau)


def _loss(cosines: Tensor, left_out: Tensor | None, same: Tensor, pos: Tensor, tau: Tensor) -> Tensor:
    """[...] for the cosines [..., C] of an anchor; ``pos`` and ``tau`` are [..., 1] or []."""
    mean = (pos[..., 0] + (cosines * same).sum(-1)) / (1 + same.sum(-1))
    logits = masked_logits(cosines, left_out, tau)
    rest = (pos - mean[..., None]) / tau
    return softplus(logits.logsumexp(-1) - (pos / tau)[..., 0]) + rest[..., 0]
