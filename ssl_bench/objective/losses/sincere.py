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
    needs = frozenset({"negatives", "labels", "dense", "cosine"})

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        (cosines, valid), same = contrast.neg, contrast.same_label  # [V, B, C], [B, C]
        logits = cosines / (tau[..., None] if tau.ndim else tau)
        left_out = same if valid is None else same | ~valid
        others = logits.masked_fill(left_out, float("-inf")).logsumexp(-1)  # [V, B]
        each = softplus(others[..., None] - logits) * same  # [V, B, C]
        return (softplus(others - contrast.pos / tau) + each.sum(-1)) / (1 + same.sum(-1))
