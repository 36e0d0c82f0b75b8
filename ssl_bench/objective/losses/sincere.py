"""SINCERE: the mean of InfoNCE over several positives, each against the candidates of other classes alone.

    L = mean_p softplus(log sum_n exp(s_n / tau) - s_p / tau)

p runs over the other view and the candidates of the anchor's class, n over the candidates of other classes. No positive
is in the denominator of another one, unlike in SupCon. SINCERE (Feeney and Hughes 2023, arXiv 2309.14277).
"""

from torch import Tensor

from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss, softplus


class SINCERE(Loss):
    """Cross-entropy of each positive of a class among other classes, InfoNCE where an image is alone in its class."""

    equation = "mean_p softplus(log sum_n exp(s_n / tau) - s_p / tau)"
    code = "tufts-ml/SupContrast"
    needs = frozenset({"negatives", "labels", "cosine"})

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        return contrast.reduce_by_class(_loss, contrast.pos, tau)


def _loss(cosines: Tensor, left_out: Tensor | None, same: Tensor, pos: Tensor, tau: Tensor) -> Tensor:
    """[...] for the cosines [..., C] of an anchor; ``pos`` and ``tau`` are [..., 1] or []."""
    logits = cosines / tau
    other_class = same if left_out is None else same | left_out
    others = logits.masked_fill(other_class, float("-inf")).logsumexp(-1, keepdim=True)
    terms = softplus(others - logits) * same
    return (softplus(others - pos / tau)[..., 0] + terms.sum(-1)) / (1 + same.sum(-1))
