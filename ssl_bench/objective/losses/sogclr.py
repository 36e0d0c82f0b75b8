"""SogCLR: DCL whose mean over the negatives is a moving average for each image, not that of its batch.

    g = mean_k exp(s_k / tau),   u' = (1 - gamma) u + gamma g,   u <- mean of u' over the anchor views
    L = tau log u' - s,   dL = tau (g / u') dl - ds

u is remembered for the image of the anchor; at its first visit u' = g. The gradient of log u' is that of g over u', as
if all of u' moved. gamma = 1 has tau times the gradient of DCL. Provable Stochastic Optimization for Global Contrastive
Learning (Yuan et al. 2022); LibAUC, whose printed value is another one with this gradient. The first code of the
authors keeps the sum over both views in place of the mean.

iSogCLR: SogCLR with a temperature for each image, which is learned.

    L = tau_i (log u' + rho) - s
    dL / dtau_i = log u' + rho - (g / u') sum_k p_k s_k / tau_i,   p_k the softmax of s_k / tau_i
    m_i <- (1 - beta) m_i + beta mean of dL / dtau_i over the anchor views,   tau_i <- tau_i - eta m_i, within its range

An image with many similar ones gets a high temperature. Not All Semantics are Created Equal (Qiu et al. 2023) and the
authors' code, which bounds the mean of dL / dtau_i by 3 on both sides.
"""

import math

import torch
from torch import Tensor

from ssl_bench.errors import require
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss

LARGEST_SLOPE = 3.0  # of the gradient of a temperature


class SogCLR(Loss):
    """DCL, times tau, against a moving average of each image's negatives.

    Every rank has the averages of all images, 4 bytes each.

    Args:
        instances: images to pre-train on.
        gamma: share of the batch in the average, above 0 and up to 1.
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

    def for_update(self, contrast: Contrast, tau: Tensor) -> dict[str, Tensor]:
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


class ISogCLR(SogCLR):
    """SogCLR with a learned temperature for each image; that of ``temperature`` is not used.

    Args:
        instances, gamma: as in :class:`SogCLR`.
        tau: of all images at the start.
        tau_min, tau_max: the range of the temperatures, positive.
        rho: the higher, the lower the temperatures, at least 0.
        eta: rate of the temperatures, positive.
        beta: share of the new gradient in its moving average, above 0 and up to 1.
    """

    equation = "tau_i (log u' + rho) - s, tau_i of the image"
    gradient = "that of SogCLR at tau_i"
    code = "zhqiu/contrastive-learning-iSogCLR"
    uses_tau = False

    def __init__(
        self,
        instances: int,
        gamma: float = 0.8,
        tau: float = 0.1,
        tau_min: float = 0.05,
        tau_max: float = 1.0,
        rho: float = 0.4,
        eta: float = 0.03,
        beta: float = 0.5,
    ) -> None:
        super().__init__(instances, gamma)
        require(tau_min > 0, "tau_min", tau_min, "a positive number")
        require(tau_max >= tau_min, "tau_max", tau_max, f"tau_min={tau_min} or more")
        require(tau_min <= tau <= tau_max, "tau", tau, f"a number from tau_min={tau_min} to tau_max={tau_max}")
        require(rho >= 0, "rho", rho, "0 or more")
        require(eta > 0, "eta", eta, "a positive number")
        require(0 < beta <= 1, "beta", beta, "a number above 0 and up to 1")
        self.tau, self.tau_min, self.tau_max, self.rho, self.eta, self.beta = tau, tau_min, tau_max, rho, eta, beta
        self.register_buffer("taus", torch.full((instances,), tau))
        self.register_buffer("slopes", torch.zeros(instances))

    def temperature(self, contrast: Contrast, tau: Tensor) -> Tensor:
        return self._remembered("taus", contrast)

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        return super().forward(contrast, tau) + self.rho * tau  # [V, B]

    def for_update(self, contrast: Contrast, tau: Tensor) -> dict[str, Tensor]:
        log_g, log_u = self._averages(contrast, tau)
        mean = contrast.sum(lambda s, t, lse: s * (s / t - lse).exp(), tau, contrast.lse(tau))  # sum_k p_k s_k
        slope = (log_u + self.rho - (log_g - log_u).exp() * mean / tau).mean(0)  # [B]
        slope = self._remembered("slopes", contrast)[0].lerp(slope.clamp(-LARGEST_SLOPE, LARGEST_SLOPE), self.beta)
        taus = (tau[0] - self.eta * slope).clamp(self.tau_min, self.tau_max)
        return super().for_update(contrast, tau) | {"taus": taus, "slopes": slope}
