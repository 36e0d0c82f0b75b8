"""DCLW: DCL with more weight on positives that are far apart.

    L = -w s / tau + log sum_k exp(s_k / tau)
    w = sg[ 2 - exp(s / sigma) / mean_i exp(s_i / sigma) ]

The mean is over the images of the batch, so w has mean 1; w is negative where a pair is much closer than the others.
DCL (Yeh et al. 2021) eq. 6 and the paragraph below it.
"""

import math

import torch
from torch import Tensor

from ssl_bench.distributed import gather
from ssl_bench.errors import require
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss


class DCLW(Loss):
    """DCL whose positives have weights with mean 1.

    Args:
        sigma: width of the weighting, positive; DCL at infinity.
    """

    equation = "l - w s / tau, w = sg(2 - k / mean k), k = exp(s / sigma)"
    gradient = "grad l - (w / tau) grad s"
    code = "raminnakhli/Decoupled-Contrastive-Learning"
    needs = frozenset({"negatives"})

    def __init__(self, sigma: float = 0.5) -> None:
        super().__init__()
        require(sigma > 0, "sigma", sigma, "a positive number")
        self.sigma = sigma

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        with torch.no_grad():
            k = contrast.cosine / self.sigma  # [V, B] logarithms: exp(s / sigma) over- or underflows at a small sigma
            all_anchors = gather(k, dim=1)  # [V, N]
            mean = all_anchors.logsumexp(1, keepdim=True) - math.log(all_anchors.shape[1])
            w = 2 - (k - mean).exp()
        return contrast.lse(tau) - w * contrast.pos / tau  # [V, B]
