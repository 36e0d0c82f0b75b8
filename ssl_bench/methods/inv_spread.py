"""Invariant and spreading embeddings (Ye et al., Unsupervised Embedding Learning via Invariant and Spreading Instance
Feature, arXiv 1904.03436): a view is classified as its own image, and the other images are not classified as it.

    P_ij = exp(x_i . x_j / tau) / sum over k != i of exp(x_i . x_k / tau), i, j, k of the 2 N unit vectors of both views
    L = mean over i of  -log P_ip - sum over j not in {i, p} of log(1 - P_ij),   p the other view of i

The sum in P includes the positive. As in the authors' code, x_j and x_k are constants: the gradient goes through row i.

With l the logits of row i and u = log sum_j exp(l_j) - l_p the log-odds against the positive, -log P_ip = softplus(u).
P_im of the nearest negative m may be close to 1: -log(1 - P_im) is softplus(l_m - log of the sum of the rest). Any
other P_ij is at most 1/2, where log1p(-P) is exact.

Shapes: B images on this rank; N of all ranks; D width.
"""

from typing import Any, Literal

import torch
from torch import nn
from torch.nn.functional import softplus

from ssl_bench.data.batch import Batch
from ssl_bench.distributed import gather
from ssl_bench.errors import ConfigError, require
from ssl_bench.methods.base import Method, Outputs, StepResult
from ssl_bench.networks.encoder import Encoder, full_precision, unit
from ssl_bench.networks.norm import joint_forward
from ssl_bench.objective.schedule import Progress
from ssl_bench.precision import products


class InvSpread(Method):
    """Both views of every image are rows; the columns are the views of all ranks.

    Args:
        backbone, head: the networks.
        tau: temperature, positive.
        norm, groups: of the batch statistics, as in :class:`Method`.

    Raises:
        InvalidValue: a temperature that is not positive.
    """

    def __init__(
        self, backbone: nn.Module, head: nn.Module, tau: float, norm: Literal["sync", "local"], groups: int = 1
    ) -> None:
        super().__init__()
        require(tau > 0, "tau", tau, "a positive number")
        self.encoder, self.tau, self.norm, self.groups = Encoder(backbone, head), tau, norm, groups

    def trained_outputs(self, batch: Batch) -> Outputs:
        return {"z": joint_forward(lambda x: self.encoder(x)["projection"], batch.views[:2], self.groups)}

    def objective(self, outputs: Outputs, batch: Batch, progress: Progress, diagnostics: bool) -> StepResult:
        with torch.autocast(batch.ids.device.type, enabled=False):
            x = unit(full_precision(outputs["z"]))  # [2, B, D]
            keys, ids = gather(x.detach(), 1), gather(batch.ids)  # [2, N, D], [N]
            positive = (x * x.detach().flip(0)).sum(2) / self.tau  # [2, B]
            same_image = (batch.ids[:, None] == ids).repeat(1, 2)  # [B, 2 N], in either view
            negative = (products(x, keys.flatten(0, 1)) / self.tau).masked_fill(same_image, -torch.inf)  # [2, B, 2 N]
            nearest, place = negative.max(2, keepdim=True)  # [2, B, 1]
            rest = negative.scatter(2, place, -torch.inf)  # [2, B, 2 N]
            others = negative.logsumexp(2)  # [2, B]
            invariance = softplus(others - positive)
            total = torch.logaddexp(others, positive)[..., None]  # [2, B, 1]
            all_but_nearest = torch.logaddexp(rest.logsumexp(2), positive)
            spread = softplus(nearest[..., 0] - all_but_nearest) - torch.log1p(-(rest - total).exp()).sum(2)
            loss = (invariance + spread).mean()
        if not diagnostics:
            return StepResult(loss, {})
        values = {"inv_spread/invariance": invariance, "inv_spread/spread": spread}
        return StepResult(loss, {name: gather(value.detach().mean()[None]).mean() for name, value in values.items()})

    def facts(self, images: int) -> dict[str, Any]:
        if images < 2:
            raise ConfigError(f"batch_size.size={images}: set batch_size.size to 2 or more: negatives are other images")
        return {}
