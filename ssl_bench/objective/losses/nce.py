"""NCE: noise-contrastive estimation, whether a key is the anchor's own among K drawn ones (NPID, Wu et al. 2018).

    L = -log h(s) - sum_k log(1 - h(s_k)),   h(s) = P(s) / (P(s) + K / N),   P(s) = exp(s / tau) / Z

N is the number of images, each of which the noise has with probability 1 / N. Z is N times the mean of exp(s / tau)
over the positives and negatives of the first batch; it is then fixed. With v = log(Z K / N): L = softplus(v - s / tau)
+ sum_k softplus(s_k / tau - v). In the authors' code an image may be drawn twice, and may be the anchor's own.
"""

import math

import torch
from torch import Tensor

from ssl_bench.distributed import gather
from ssl_bench.errors import require
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss, softplus


class NCE(Loss):
    """Noise-contrastive estimation, made for some negatives of a memory bank.

    Args:
        instances: images to pre-train on.
    """

    equation = "softplus(v - s / tau) + sum_k softplus(s_k / tau - v), v = log(Z K / N)"
    code = "zhirongw/lemniscate.pytorch"
    needs = frozenset({"negatives"})
    log_z: Tensor  # 0: no batch was seen

    def __init__(self, instances: int) -> None:
        super().__init__()
        require(instances >= 1, "instances", instances, "1 or more")
        self.images = instances
        self.register_buffer("log_z", torch.zeros(()))

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        shift = self._log_z(contrast, tau) + contrast.count.log() - math.log(self.images)  # [V or 1, B]
        shift = shift.to(contrast.pos.dtype).expand_as(contrast.pos)
        return softplus(shift - contrast.pos / tau) + contrast.sum(_of_noise, tau, shift)  # [V, B]

    def for_update(self, contrast: Contrast, tau: Tensor) -> dict[str, Tensor]:
        return {"log_z": self._log_z(contrast, tau)}

    def update(self, ids: Tensor, values: dict[str, Tensor]) -> None:
        self.log_z.copy_(values["log_z"])

    @torch.no_grad()
    def _log_z(self, contrast: Contrast, tau: Tensor) -> Tensor:
        """log Z []: that of this batch, if none was seen before."""
        total = torch.logaddexp(contrast.lse(tau).detach(), contrast.pos.detach() / tau).logsumexp((0, 1))
        total = gather(total[None]).logsumexp(0)
        number = gather((contrast.count + 1).expand_as(contrast.pos).sum()[None]).sum()
        return torch.where(self.log_z == 0, total + math.log(self.images) - number.log(), self.log_z)


def _of_noise(s: Tensor, tau: Tensor, shift: Tensor) -> Tensor:
    return softplus(s / tau - shift)
