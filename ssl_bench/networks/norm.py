"""Batch normalisation over ranks, on any device: statistics of the global batch, or of each rank its own."""

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ssl_bench.distributed import all_sum, gather, world


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
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    for other in (m for m in norms if type(m) not in (nn.BatchNorm1d, nn.BatchNorm2d)):
        raise ValueError(f"{type(other).__name__} cannot be made global: set norm to local")
    if device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for module in norms:
        module.__class__ = GlobalBatchNorm
    return model


class OwnStatistics:
    """Running averages that differ between ranks; none where there is one rank, or where ``norm`` makes them global.

    Args:
        module: what is trained, on its device.
        norm: ``sync``, ``shuffle`` or ``local``.
    """

    def __init__(self, module: nn.Module, norm: str) -> None:
        norms = [m for m in module.modules() if isinstance(m, _BatchNorm)] if world() > 1 and norm != "sync" else []
        self._buffers = [buffer for norm_ in norms for buffer in norm_.buffers() if buffer.is_floating_point()]

    def read(self) -> list[Tensor]:
        """This rank's, copied to the CPU."""
        return [buffer.to("cpu", copy=True) for buffer in self._buffers]

    def write(self, kept: Sequence[Tensor]) -> None:
        """What :meth:`read` gave."""
        for buffer, value in zip(self._buffers, kept, strict=True):
            buffer.copy_(value)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside it every rank has the mean of the ranks, which is what is kept and judged; then its own again."""
        own = [buffer.clone() for buffer in self._buffers]
        for buffer in self._buffers:
            all_sum(buffer).div_(world())
        yield
        self.write(own)
