"""Batch normalisation with statistics over all ranks, on any device."""

import torch
from torch import Tensor, nn

from ssl_bench.distributed import gather, world


class GlobalBatchNorm(nn.BatchNorm1d):
    """BN whose statistics are those of the global batch; equal numbers of rows on every rank.

    For processes on CPUs: torch's SyncBatchNorm has kernels for GPUs only.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        pass  # [B, C] and [B, C, H, W] alike

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or world() == 1:
            return super().forward(input)
        x = input if input.dtype == torch.float64 else input.float()  # statistics are never of half precision
        dims = [d for d in range(x.ndim) if d != 1]
        var, mean = torch.var_mean(x, dims, correction=0)  # [C]
        means, variances = gather(torch.stack([mean, var])[None]).unbind(1)  # [W, C] each, one collective
        mean = means.mean(0)
        # Equal shares: the variance within the ranks and that between them. No difference of large squares.
        var = variances.mean(0) + (means - mean).square().mean(0)
        if self.track_running_stats:
            n = world() * x.numel() / x.shape[1]
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)  # type: ignore[union-attr, arg-type]
                self.running_var.lerp_(var * (n / (n - 1)), self.momentum)  # type: ignore[union-attr, arg-type]
                self.num_batches_tracked.add_(1)  # type: ignore[union-attr]
        shape = [1, -1] + [1] * (x.ndim - 2)
        scale = torch.rsqrt(var + self.eps) * self.weight
        return ((x - mean.view(shape)) * scale.view(shape) + self.bias.view(shape)).to(input.dtype)


def synchronise(model: nn.Module, device: torch.device) -> nn.Module:
    """``model`` with every BN made global over the ranks: torch's SyncBatchNorm on GPUs, ours elsewhere.

    Raises:
        ValueError: a BN of another class, which neither of the two can stand in for.
    """
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for other in (m for m in norms if type(m) not in (nn.BatchNorm1d, nn.BatchNorm2d)):
        raise ValueError(f"{type(other).__name__} cannot be made global: set norm to local")
    if device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for module in norms:
        module.__class__ = GlobalBatchNorm
    return model
