"""SogCLR: DCL whose mean over the negatives is a moving average for each image, not that of its batch.

    g = mean_k exp(s_k / tau),   u' = (1 - gamma) u + gamma g,   u <- mean of u' over the anchor views
    L = tau log u' - s,   dL = tau (g / u') dl - ds

u is remembered for the image of the anchor; at its first visit u' = g. The gradient of log u' is that of g over u', as
if all of u' moved. gamma = 1 has tau times the gradient of DCL. Provable Stochastic Optimization for Global Contrastive
Learning (Yuan et al. 2022); LibAUC, whose printed value is another one with this gradient. The first code of the
authors keeps the sum over both views in place of the mean.
"""

import math

import torch
from torch import Tensor

from ssl_bench.errors import require
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss


class SogCLR(Loss):
    """DCL, times tau, against a moving average of each image's negatives.

    Every rank has the averages of all images, 4 bytes each.

    Args:
        instances: images to pre-train on.
        gamma: share of the batch in the average, above 0 and up to 1.

    Raises:
        InvalidValue: gamma outside of its range.
    """

    equation = "tau log u' - s, u' a moving average of mean_k exp(s_k / tau) for each image"
    gradient = "tau mean_k exp(s_k / tau) / u' grad l - grad s"
    code = "Optimization-AI/LibAUC"
    needs = frozenset({"negatives"})
    log_u: Tensor  # its logarithm: u overflows at small tau; 0: not visited yet

    def __init__(self, instances: int, gamma: float = 0.9) -> None:
        super().__init__()
        require(0 < gamma <= 1, "gamma", gamma, "a number above 0 and up to 1")
        self.instances, self.gamma = instances, gamma
        self.register_buffer("log_u", torch.zeros(instances))

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        log_g, log_u = self._averages(contrast, tau)
        lse = contrast.lse(tau)
        return tau * (log_u + (log_g - log_u).exp() * (lse - lse.detach())) - contrast.pos  # [V, B]

    def fresh(self, contrast: Contrast, tau: Tensor) -> dict[str, Tensor]:
        log_u = self._averages(contrast, tau)[1]
        return {"log_u": log_u.logsumexp(0) - math.log(len(log_u))}

    def _averages(self, contrast: Contrast, tau: Tensor) -> tuple[Tensor, Tensor]:
        """log g and log u' [V, B], without gradient."""
        log_g = contrast.lse(tau).detach() - contrast.count.log()
        old = self._remembered("log_u", contrast)
        old = torch.where(old == 0, log_g, old) + (math.log1p(-self.gamma) if self.gamma < 1 else -math.inf)
        return log_g, torch.logaddexp(old, log_g + math.log(self.gamma))

    def _remembered(self, name: str, contrast: Contrast) -> Tensor:
        """The numbers of a buffer for the images of the anchors, [V, B]."""
        if contrast.ids is None:
            raise ValueError("ids are not known: give Contrast.dense the images of the anchors")
        return self.get_buffer(name)[contrast.ids].to(contrast.pos.dtype).expand_as(contrast.pos)
