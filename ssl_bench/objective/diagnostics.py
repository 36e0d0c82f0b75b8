"""Diagnostics of a contrast, the same for every loss; scalars over the anchors of all ranks.

    positive            mean cosine of the positives
    tau                 mean temperature
    npc/mean, std, cv   of the negative-positive coupling multiplier sigmoid(u) (DCL's q_B, MACL's W_i), the factor by
                        which InfoNCE's gradient falls short of DCL's; cv = std / mean (DCL, figure 1)
    npc/histogram       [20] shares of the anchors in equal steps of it from 0 to 1
    negatives/effective (sum w)^2 / sum w^2 of the weights w = exp(s_k / tau), Kish's number of equal ones: mean
    information         lower bound on the mutual information of the views, nats (Loss.information)
    loss/<name>         each number that the loss learns (SigLIP's bias)
    query_grad/mean, var   of |dL/dq| over the anchors, all else constant (EqCo, figure 4); L the anchor's own loss

Shapes: V anchor views; B images on this rank; N of all ranks; D width.
"""

import torch
from torch import Tensor

from ssl_bench.distributed import gather
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss

BINS = 20


def diagnose(contrast: Contrast, tau: Tensor, loss: Loss) -> dict[str, Tensor]:
    """Compute the diagnostics above, from this rank's anchors [V, B] and ``tau`` [] or [V, B], over all ranks.

    Without negatives they are only ``positive``, ``tau`` and ``query_grad``. Returned are scalars [], and the histogram
    [20], by name.
    """
    gradient = _query_gradient(contrast, tau.detach(), loss)
    with torch.no_grad():
        values = {"positive": _all(contrast.cosine).mean(), "tau": (_all(tau) if tau.ndim else tau).mean()}
        values |= {f"loss/{name}": value.clone() for name, value in loss.named_parameters() if value.ndim == 0}
        if contrast.candidates is not None:
            npc = _all(contrast.log_odds(tau).sigmoid())  # [V, N]
            values |= {"npc/mean": npc.mean(), "npc/std": npc.std(correction=0)}
            values["npc/cv"] = values["npc/std"] / values["npc/mean"].clamp(min=torch.finfo(npc.dtype).tiny)
            bins = (npc.nan_to_num(0) * BINS).long().clamp_(max=BINS - 1).flatten()
            values["npc/histogram"] = torch.zeros(BINS, device=npc.device).index_add_(
                0, bins, torch.full_like(bins, 1 / len(bins), dtype=torch.float32)
            )
            values["information"] = _all(loss.information(contrast, tau)).mean()
            values["negatives/effective"] = _all((2 * contrast.lse(tau) - contrast.lse(tau / 2)).exp()).mean()
        if gradient is not None:
            norm = _all(gradient.norm(dim=-1))
            values |= {"query_grad/mean": norm.mean(), "query_grad/var": norm.var(correction=0)}
    return values


def _query_gradient(contrast: Contrast, tau: Tensor, loss: Loss) -> Tensor | None:
    """d (sum of the losses) / d q: [V, B, D], or None if the loss does not depend on q."""
    if (leaves := contrast.with_leaf_anchors()) is None:
        return None
    q, leaf_contrast = leaves
    with torch.enable_grad():
        values = loss(leaf_contrast, tau).sum()
        return torch.autograd.grad(values, q, allow_unused=True)[0] if values.requires_grad else None


def _all(values: Tensor) -> Tensor:
    """[V, B] of every rank: [V, N]."""
    return gather(values.detach(), dim=1)
