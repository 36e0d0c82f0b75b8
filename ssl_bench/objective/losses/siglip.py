"""SigLIP's loss: whether a pair shows one image, asked of each pair on its own.

    L = softplus(-(s / tau + b)) + sum_k softplus(s_k / tau + b)

The bias b is learned. The papers learn the scale t = 1 / tau as well, as exp(t'): that is ``temperature=learned``.
SigLIP (Zhai et al. 2023) algorithm 1, for images and texts; SigCLR (2024) for two views of images.
"""

import torch
from torch import Tensor, nn

from ssl_bench.errors import require
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss, softplus


class SigLIP(Loss):
    """The logistic loss of every pair; the temperature is the scale of the logits.

    Args:
        bias: b at the start.
    """

    equation = "softplus(-(s / tau + b)) + sum_k softplus(s_k / tau + b)"
    code = "mlfoundations/open_clip"
    needs = frozenset({"negatives"})

    def __init__(self, bias: float = -10.0) -> None:
        super().__init__()
        require(abs(bias) < 1e300, "bias", bias, "a finite number")
        self.bias = nn.Parameter(torch.tensor(float(bias)))

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        repelled = contrast.sum(lambda s, tau, bias: softplus(s / tau + bias), tau, self.bias)  # [V, B]
        return softplus(-(contrast.pos / tau + self.bias)) + repelled
