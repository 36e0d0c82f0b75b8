"""Alignment and uniformity.

    L = ||f - g||^2 + weight log mean exp(-t ||f - f_k||^2)

The mean is over the anchors of a view and their negatives, so the second term is one number for all of them. With
||a - b||^2 = 2 - 2 cos it is log mean_i[ exp(l_i) / K_i ] - 2 t, with l_i at the temperature 1 / (2 t). Wang and Isola
(2020) take all pairs of images of one view, which is negatives=own_view.
"""

import math

import torch
from torch import Tensor

from ssl_bench.distributed import gather
from ssl_bench.errors import require
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss


class AlignUniform(Loss):
    """Distance to the positive plus the logarithm of the mean kernel between anchors. The temperature is not used.

    Args:
        weight: of uniformity, at least 0.
        t: sharpness of its kernel, positive.
    """

    equation = "2 - 2 s + weight (log mean_i(exp(l_i) / K_i) - 2 t) at tau = 1 / (2 t)"
    code = "ssnl/align_uniform"
    needs = frozenset({"negatives"})
    uses_tau = False
    tau: Tensor

    def __init__(self, weight: float = 1.0, t: float = 2.0) -> None:
        super().__init__()
        require(weight >= 0, "weight", weight, "0 or more")
        require(t > 0, "t", t, "a positive number")
        self.weight, self.t = weight, t
        self.register_buffer("tau", torch.tensor(1 / (2 * t), dtype=torch.float64), persistent=False)

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        log_kernel = contrast.lse(self.tau) - contrast.count.log()  # [V, B]
        all_anchors = gather(log_kernel, dim=1)  # [V, N]
        uniformity = all_anchors.logsumexp(1, keepdim=True) - math.log(all_anchors.shape[1]) - 2 * self.t  # [V, 1]
        return 2 - 2 * contrast.pos + self.weight * uniformity  # [V, B]
