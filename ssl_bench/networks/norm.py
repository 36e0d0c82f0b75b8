"""Batch normalisation over groups of images: each of G equal groups of the global batch has its own statistics.

Group k holds the k-th of G consecutive slices of the global batch, on any number of ranks: a rank holds G / W whole
groups, or all ranks together hold one. The running averages follow the mean over the groups.

Shapes: B rows of this rank; C channels; W ranks; G groups; g groups of this rank, of b rows; V views.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm

from ssl_bench.distributed import all_sum, gather, world
from ssl_bench.errors import require


def group_statistics(model: nn.Module, groups: int) -> None:
    """Give every BN of ``model`` the statistics of each of ``groups`` groups of the global batch, in place.

    Args:
        model: networks whose rows are the images of this rank in order, or the rows of :func:`joint_forward`.
        groups: G: 1, or a multiple of the number of ranks.

    Raises:
        InvalidValue: the model has a BN of another class, and a group is not all images of a rank.
    """
    for module in model.modules():
        if type(module) in (nn.BatchNorm1d, nn.BatchNorm2d) and module.momentum is not None:
            module.__class__ = GroupedBatchNorm
            assert isinstance(module, GroupedBatchNorm)
            module.groups, module.joined = local_groups(groups), groups < world()
        elif isinstance(module, _BatchNorm):
            remedy = f"devices={world()}, with framework.norm=local: {type(module).__name__} cannot be grouped"
            require(groups == world(), "framework.groups", groups, remedy)


def count_steps(model: nn.Module) -> None:
    """Add a step to what every BN of ``model`` has counted, in one operation instead of one in every forward."""
    norms = [module for module in model.modules() if isinstance(module, GroupedBatchNorm) and module.training]
    counters = [norm.num_batches_tracked for norm in norms if norm.num_batches_tracked is not None]
    if counters:
        torch._foreach_add_(counters, 1)


def local_groups(groups: int) -> int:
    """Number of groups g of this rank; 1 if all ranks share one group."""
    return max(1, groups // world())


def joint_forward(network: Callable[[Tensor], Tensor], views: Sequence[Tensor], groups: int) -> Tensor:
    """Outputs [V, B, ...] of one forward for all views [B, ...], in which a group holds every view of its images."""
    g = local_groups(groups)
    parts = [part for group in zip(*(view.chunk(g) for view in views), strict=True) for part in group]
    rows = parts[0] if len(parts) == 1 else torch.cat(parts)  # [g V b, ...]
    return network(rows).unflatten(0, (g, len(views), -1)).transpose(0, 1).flatten(1, 2)


@torch.no_grad()
def average_running_statistics(model: nn.Module, groups: int) -> None:
    """Replace the running averages of every rank by their mean over the ranks, where ranks hold different groups.

    An update is linear in the statistics of the batch, so that all ranks then have the averages of one process.
    """
    if groups == 1 or world() == 1:
        return
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    buffers = [buffer for norm in norms for buffer in (norm.running_mean, norm.running_var) if buffer is not None]
    if buffers:
        means = all_sum(torch.cat(buffers)).div_(world()).split([len(buffer) for buffer in buffers])
        torch._foreach_copy_(buffers, means)


class GroupedBatchNorm(nn.BatchNorm1d):
    """BN with the statistics of each group of rows, which :func:`group_statistics` makes of torch's BN.

    ``num_batches_tracked`` is left to :func:`count_steps`.

    Attributes:
        groups: g, consecutive slices of the rows.
        joined: the rows of all ranks, which have equally many, are one group.
        momentum: share of the batch in the running averages, in [0, 1].
    """

    groups: int
    joined: bool
    momentum: float

    def _check_input_dim(self, input: Tensor) -> None:
        pass  # accepts [B, C] and [B, C, H, W]

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        if self.groups == 1 and not self.joined:
            averages = self.running_mean, self.running_var
            return batch_norm(input, *averages, self.weight, self.bias, True, self.momentum, self.eps)
        # No statistics in half precision; the kernels for GPUs see to it themselves.
        x = input if input.is_cuda or input.dtype == torch.float64 else input.float()
        normalise: Any = (_NormaliseOnGPUs if self.joined else _Normalise).apply
        if torch.compiler.is_compiling() or (self.joined and not x.is_cuda):
            normalise = _traceable  # torch.compile cannot trace the kernels for statistics, and fuses this
        return normalise(x, self.weight, self.bias, self).to(input.dtype)  # type: ignore[no-any-return]

    @torch.no_grad()
    def move(self, mean: Tensor, var: Tensor, count: int) -> None:
        """Move the running averages towards the mean over the groups of ``mean`` and the unbiased ``var`` [g, C].

        ``count`` is the number of values of each channel in a group.
        """
        if self.running_mean is not None and self.running_var is not None:
            self.running_mean.lerp_(mean.mean(0), self.momentum)
            self.running_var.lerp_(var.mean(0) * (count / (count - 1)), self.momentum)

    def count(self, x: Tensor) -> int:
        """Number of values of each channel of ``x`` [B, C, ...] in a group."""
        return x.numel() // x.shape[1] // self.groups * (world() if self.joined else 1)


class _Normalise(torch.autograd.Function):
    """(x - mean) / sqrt(var + eps) * weight + bias for groups of this rank.

    One kernel per group computes statistics, and one kernel the rest of all groups.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, norm: GroupedBatchNorm) -> Tensor:
        x = _dense(x, x)
        parts = x.unflatten(0, (norm.groups, -1))  # [g, b, C, ...]
        found = [torch.stack(torch.batch_norm_update_stats(part, None, None, 0.0)) for part in parts]
        mean, var = torch.stack(found).unbind(1)  # [g, C]
        norm.move(mean, var, norm.count(x))
        invstd = torch.rsqrt(var + norm.eps)
        scale = invstd if weight is None else invstd * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        y = torch.empty_like(x)
        torch.addcmul(_along(shift, parts), parts, _along(scale, parts), out=y.unflatten(0, (norm.groups, -1)))
        ctx.save_for_backward(x, weight, mean, invstd)
        ctx.norm = norm
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, invstd = ctx.saved_tensors
        groups = ctx.norm.groups
        parts, dy = x.unflatten(0, (groups, -1)), _dense(grads[0], x).unflatten(0, (groups, -1))
        # Of each group the sums of dy and of dy times the unit values: [g, 2, C].
        sums = torch.stack([_sums(*each, weight) for each in zip(dy, parts, mean, invstd, strict=True)])
        dbias, dweight = sums.sum(0)
        factors = (_along(each, parts) for each in _factors(sums / ctx.norm.count(x), weight, mean, invstd))
        affine = (None, None) if weight is None else (dweight, dbias)
        return _input_gradient(parts, dy, *factors).flatten(0, 1).to(x.dtype), *affine, None


class _NormaliseOnGPUs(torch.autograd.Function):
    """The same for one group of all ranks on GPUs, by the kernels of torch's SyncBatchNorm.

    That one drops ranks without rows, and therefore waits for the device in every layer. Here ranks have equally many.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, norm: GroupedBatchNorm) -> Tensor:
        x = _dense(x, x)
        found = torch.stack(torch.batch_norm_stats(x, norm.eps))  # [2, C]: mean and 1 / sqrt(var + eps)
        means, invstds = gather(found[None]).unbind(1)  # [W, C]
        counts = means.new_full((world(),), norm.count(x) // world())
        running = norm.running_mean, norm.running_var, norm.momentum
        mean, invstd = torch.batch_norm_gather_stats_with_counts(x, means, invstds, *running, norm.eps, counts)
        ctx.save_for_backward(x, weight, mean, invstd, counts)
        return torch.batch_norm_elemt(x, weight, bias, mean, invstd, norm.eps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, invstd, counts = ctx.saved_tensors
        dy = _dense(grads[0], x)
        *found, dweight, dbias = torch.batch_norm_backward_reduce(dy, x, mean, invstd, weight, True, True, True)
        sums = all_sum(torch.stack(found))  # [2, C]: of dy, and of dy times x - mean
        dx = torch.batch_norm_backward_elemt(dy, x, mean, invstd, weight, sums[0], sums[1], counts.int())
        affine = (None, None) if weight is None else (dweight, dbias)
        return dx, *affine, None


def _traceable(x: Tensor, weight: Tensor | None, bias: Tensor | None, norm: GroupedBatchNorm) -> Tensor:
    """The same in operations that torch.compile can trace and differentiate; on CPUs for one group of all ranks too."""
    parts = x.unflatten(0, (norm.groups, -1))
    parts = parts if x.dtype == torch.float64 else parts.float()
    var, mean = torch.var_mean(parts, [1, *range(3, parts.ndim)], correction=0)
    if norm.joined:
        mean, var = _over_ranks(torch.cat([mean, var]))
    norm.move(mean.detach(), var.detach(), norm.count(x))
    scale = torch.rsqrt(var + norm.eps) if weight is None else torch.rsqrt(var + norm.eps) * weight
    y = (parts - _along(mean, parts)) * _along(scale, parts)
    y = y if bias is None else y + _along(bias[None], parts)
    return y.flatten(0, 1).to(x.dtype)


def _over_ranks(statistics: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance [1, C] over the ranks' equally many rows, from those of this rank [2, C]. Differentiable."""
    means, variances = gather(statistics[None]).unbind(1)  # [W, C]
    # Variance within the ranks plus variance between them: no difference of large squares.
    between, mean = torch.var_mean(means, 0, correction=0, keepdim=True)
    return mean, variances.mean(0, keepdim=True) + between


def _along(values: Tensor, parts: Tensor) -> Tensor:
    """[g, C] with the dimensions of ``parts`` [g, b, C, ...]."""
    return values.view(values.shape[0], 1, values.shape[1], *[1] * (parts.ndim - 3))


def _dense(x: Tensor, like: Tensor) -> Tensor:
    """``x`` without gaps in memory, channels last if ``like`` is."""
    last = like.ndim == 4 and like.is_contiguous(memory_format=torch.channels_last)
    return x.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


def _sums(dy: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None) -> Tensor:
    """Sums [2, C] over the rows of a group, of dy and of dy times the unit values; one kernel."""
    if x.is_cuda:
        _, _, dweight, dbias = torch.batch_norm_backward_reduce(dy, x, mean, invstd, weight, False, True, True)
    else:
        backward = torch.ops.aten.native_batch_norm_backward
        _, dweight, dbias = backward(dy, x, weight, None, None, mean, invstd, True, 0.0, [False, True, True])
    return torch.stack([dbias, dweight])


def _factors(means: Tensor, weight: Tensor | None, mean: Tensor, invstd: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``offset``, ``slope`` and ``scale`` [g, C] for the gradient dx = offset + slope x + scale dy of the input.

    The gradient is scale (dy - mean_dy - mean_dot (x - mean) invstd), and ``means`` [g, 2, C] are mean_dy and mean_dot:
    the means over a group of dy and of dy times the unit values.
    """
    mean_dy, mean_dot = means.unbind(1)
    scale = invstd if weight is None else invstd * weight
    minus_slope = scale * invstd * mean_dot
    return minus_slope * mean - scale * mean_dy, -minus_slope, scale


def _input_gradient(x: Tensor, dy: Tensor, offset: Tensor, slope: Tensor, scale: Tensor) -> Tensor:
    """``offset + slope x + scale dy``."""
    return torch.addcmul(offset, x, slope).addcmul_(dy, scale)
