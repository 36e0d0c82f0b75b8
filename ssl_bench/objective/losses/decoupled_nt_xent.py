"""Decoupled NT-Xent: alignment and distribution with a weight between them that is not the temperature.

    L = -s + weight log( exp(s / tau) + sum_k exp(s_k / tau) )                                          paper
    L = (1 - s) / D + weight [ log( exp(s / tau) + sum_k exp(s_k / tau) + exp(1 / tau) ) - log D ]      official

weight = tau in the paper's form is tau x NT-Xent. The official code takes the mean over the D coordinates in the first
term, so that its weight acts as weight x D does in the paper's form, and keeps the anchor itself in the sum. Intriguing
properties of contrastive losses (Chen et al. 2021) eq. 4; google-research/simclr, generalized_contrastive_loss.ipynb.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from ssl_bench.errors import require
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss, unnormalised


class DecoupledNTXent(Loss):
    """NT-Xent with a weight that is independent of the temperature.

    Args:
        weight: of the distribution term (lambda), at least 0.
        form: ``paper`` or ``official``, as above.
        scale: factor of the whole loss, positive; 1000 in the paper for normalised vectors, whose mean over D is small.
    """

    equation = "-s + weight log(exp(l) + exp(s / tau))"
    code = "google-research/simclr"
    needs = frozenset({"negatives", "cosine"})

    def __init__(self, weight: float = 0.1, form: Literal["paper", "official"] = "paper", scale: float = 1.0) -> None:
        super().__init__()
        require(weight >= 0, "weight", weight, "0 or more")
        require(form in ("paper", "official"), "form", form, "paper or official")
        require(scale > 0, "scale", scale, "a positive number")
        self.weight, self.form, self.scale = weight, form, scale

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        s = contrast.pos
        total = torch.logaddexp(contrast.lse(tau), s / tau)  # [V, B]
        if self.form == "paper":
            return self.scale * (self.weight * total - s)
        width = unnormalised(contrast).shape[-1]
        total = torch.logaddexp(total, 1 / tau)
        return self.scale * ((1 - s) / width + self.weight * (total - math.log(width)))
