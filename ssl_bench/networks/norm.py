"""Batch normalisation on several ranks: statistics of the global batch, or separate ones on each rank.

C channels   W ranks
"""

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ssl_bench.distributed import all_sum, gather, world
from ssl_bench.errors import InvalidValue


class GlobalBatchNorm(nn.BatchNorm1d):
    """BN with the statistics of the global batch; every rank has the same number of rows.

    For ranks on CPUs: torch's SyncBatchNorm has kernels for GPUs only.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        pass  # accepts [B, C] and [B, C, H, W]

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or world() == 1:
            return super().forward(input)
        x = input if input.dtype == torch.float64 else input.float()  # no statistics in half precision
        dims = [d for d in range(x.ndim) if d != 1]
        var, mean = torch.var_mean(x, dims, correction=0)  # [C]
        means, variances = gather(torch.stack([mean, var])[None]).unbind(1)  # [W, C] each, one collective
        mean = means.mean(0)
        # Variance within the ranks plus variance between them: no difference of large squares.
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
    """Make every BN of ``model`` global over the ranks: torch's SyncBatchNorm on GPUs, ours elsewhere.

    Raises:
        InvalidValue: the model has a BN of another class, which neither of the two can replace.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    for other in (m for m in norms if type(m) not in (nn.BatchNorm1d, nn.BatchNorm2d)):
        remedy = f"local: {type(other).__name__} cannot be made global"
        raise InvalidValue("framework.norm", "sync", remedy)
    if device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for module in norms:
        module.__class__ = GlobalBatchNorm
    return model


class RankStatistics:
    """The running statistics that differ between ranks; empty for one rank and for ``norm=sync``.

    Args:
        module: the trained networks, on their device.
        norm: ``sync``, ``shuffle`` or ``local``.
    """

    def __init__(self, module: nn.Module, norm: str) -> None:
        differ = world() > 1 and norm != "sync"
        layers = [m for m in module.modules() if isinstance(m, _BatchNorm)] if differ else []
        self._buffers = [buffer for layer in layers for buffer in layer.buffers() if buffer.is_floating_point()]

    def read(self) -> list[Tensor]:
        """Copy this rank's statistics to the CPU."""
        return [buffer.to("cpu", copy=True) for buffer in self._buffers]

    def write(self, statistics: Sequence[Tensor]) -> None:
        """Set this rank's statistics to those that :meth:`read` returned."""
        for buffer, value in zip(self._buffers, statistics, strict=True):
            buffer.copy_(value)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Give every rank the mean over the ranks inside the block, to save and evaluate it; restore afterwards."""
        before = [buffer.clone() for buffer in self._buffers]
        for buffer in self._buffers:
            all_sum(buffer).div_(world())
        yield
        self.write(before)
