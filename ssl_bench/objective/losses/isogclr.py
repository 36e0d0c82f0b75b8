"""iSogCLR: SogCLR with a temperature for each image, which is learned.

    L = tau_i (log u' + rho) - s,   with g, u' and s of :mod:`ssl_bench.objective.losses.sogclr` at tau_i
    dL / dtau_i = log u' + rho - (g / u') sum_k p_k s_k / tau_i,   p_k the softmax of s_k / tau_i
    m_i <- (1 - beta) m_i + beta mean of dL / dtau_i over the anchor views,   tau_i <- tau_i - eta m_i, within its range

An image with many similar ones gets a high temperature. Not All Semantics are Created Equal (Qiu et al. 2023) and the
authors' code, which bounds the mean of dL / dtau_i by 3 on both sides.
"""

import torch
from torch import Tensor

from ssl_bench.errors import require
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.losses.sogclr import SogCLR

LARGEST = 3.0  # of the gradient of a temperature


class ISogCLR(SogCLR):
    """SogCLR with a learned temperature for each image; that of ``temperature`` is not used.

    Args:
        instances, gamma: as in :class:`SogCLR`.
        tau: of all images at the start.
        tau_min, tau_max: the range of the temperatures, positive.
        rho: the higher, the lower the temperatures, at least 0.
        eta: rate of the temperatures, positive.
        beta: share of the new gradient in its moving average, above 0 and up to 1.

    Raises:
        InvalidValue: a value outside of its range.
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

    def fresh(self, contrast: Contrast, tau: Tensor) -> dict[str, Tensor]:
        log_g, log_u = self._averages(contrast, tau)
        leaf = tau.detach().clone().requires_grad_()
        with torch.enable_grad():
            by_tau = torch.autograd.grad(contrast.lse(leaf).sum(), leaf)[0]
        slope = (log_u + self.rho + tau * (log_g - log_u).exp() * by_tau).mean(0)  # [B]
        slope = self._remembered("slopes", contrast)[0].lerp(slope.clamp(-LARGEST, LARGEST), self.beta)
        taus = (tau[0] - self.eta * slope).clamp(self.tau_min, self.tau_max)
        return super().fresh(contrast, tau) | {"taus": taus, "slopes": slope}
