"""Batch normalisation over groups of images: each of G equal groups of the global batch has its own statistics.

Group k holds the k-th of G consecutive slices of the global batch, on any number of ranks: a rank holds G / W whole
groups, or all ranks together hold one. The running averages follow the mean over the groups.

Shuffled groups (:func:`deal`, :func:`collect`): images are dealt to groups for the momentum network, and its outputs
return to them (MoCo). Group k of G then gets the images k, k + G, k + 2 G ... of the global batch, so that an image
shares its batch statistics with other images than in the trained network. Ranks exchange only the images that change
ranks, in one collective.

Shapes: B rows of this rank; C channels; W ranks; G groups; g groups of this rank, of b rows; V views.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm

from ssl_bench.distributed import all_sum, gather, rank, world
from ssl_bench.errors import require
from ssl_bench.networks.encoder import full_precision


def group_statistics(model: nn.Module, groups: int) -> None:
    """Give every BN of ``model`` the statistics of each of ``groups`` groups of the global batch, in place.

    Args:
        model: networks whose rows are the images of this rank in order, or the rows of :func:`joint_forward`.
        groups: G: 1, or a multiple of the number of ranks.

    Raises:
        InvalidValue: the model has a BN of another class, and a group is not all images of a rank.
    """
    for module in model.modules():
        if type(module) in (nn.BatchNorm1d, nn.BatchNorm2d, GroupedBatchNorm) and module.momentum is not None:
            module.__class__ = GroupedBatchNorm
            assert isinstance(module, GroupedBatchNorm)
            module.groups, module.joined = local_groups(groups), groups < world()
        elif isinstance(module, _BatchNorm):
            remedy = f"devices={world()}, with framework.norm=local: {type(module).__name__} cannot be grouped"
            require(groups == world(), "framework.groups", groups, remedy)


def count_steps(model: nn.Module) -> None:
    """Increase ``num_batches_tracked`` of every BN of ``model``, in one operation instead of one in every forward."""
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

    ``num_batches_tracked`` is increased by :func:`count_steps` alone.

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
        if not self.joined:
            return self._by_group(input)
        if input.is_cuda and not torch.compiler.is_compiling():
            return _NormaliseOnGPUs.apply(input, self.weight, self.bias, self)  # type: ignore[no-any-return]
        return self._by_all_ranks(input)

    def _by_group(self, x: Tensor) -> Tensor:
        """Normalise each group of this rank by its own statistics, with torch's kernels."""
        settings = self.weight, self.bias, True
        if self.groups == 1:
            return batch_norm(x, self.running_mean, self.running_var, *settings, self.momentum, self.eps)
        # With a momentum of 1, running averages are the statistics of the last group.
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        means, variances = torch.zeros(2, self.groups, x.shape[1], dtype=dtype, device=x.device)
        parts = zip(x.chunk(self.groups), means, variances, strict=True)
        y = torch.cat([batch_norm(part, mean, var, *settings, 1.0, self.eps) for part, mean, var in parts])
        self._move(means.mean(0), variances.mean(0))
        return y

    def _by_all_ranks(self, input: Tensor) -> Tensor:
        """Normalise by the statistics of all ranks, in operations that torch can differentiate and compile."""
        x = full_precision(input)  # no statistics in half precision
        var, mean = torch.var_mean(x, [0, *range(2, x.ndim)], correction=0)
        means, variances = gather(torch.stack([mean, var])[None]).unbind(1)  # [W, C]
        # Variance within the ranks plus variance between them: no difference of large squares.
        between, mean = torch.var_mean(means, 0, correction=0)
        var, count = variances.mean(0) + between, x.numel() // x.shape[1] * world()
        self._move(mean.detach(), var.detach() * (count / (count - 1)))
        scale = torch.rsqrt(var + self.eps) if self.weight is None else torch.rsqrt(var + self.eps) * self.weight
        y = (x - _along(mean, x)) * _along(scale, x)
        return (y if self.bias is None else y + _along(self.bias, x)).to(input.dtype)

    @torch.no_grad()
    def _move(self, mean: Tensor, var: Tensor) -> None:
        """Move the running averages towards the mean over the groups of mean and unbiased variance, [C] each."""
        if self.running_mean is not None and self.running_var is not None:
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var, self.momentum)


class _NormaliseOnGPUs(torch.autograd.Function):
    """Batch normalisation by the statistics of all ranks, with the kernels of torch's SyncBatchNorm."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, norm: GroupedBatchNorm) -> Tensor:
        x = _dense(x, x)
        local = torch.stack(torch.batch_norm_stats(x, norm.eps))  # [2, C]: mean and 1 / sqrt(var + eps)
        means, invstds = gather(local[None]).unbind(1)  # [W, C]
        counts = means.new_full((world(),), x.numel() // x.shape[1])
        running = norm.running_mean, norm.running_var, norm.momentum
        mean, invstd = torch.batch_norm_gather_stats_with_counts(x, means, invstds, *running, norm.eps, counts)
        ctx.save_for_backward(x, weight, mean, invstd, counts)
        return torch.batch_norm_elemt(x, weight, bias, mean, invstd, norm.eps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, invstd, counts = ctx.saved_tensors
        dy = _dense(grads[0], x)
        *local, dweight, dbias = torch.batch_norm_backward_reduce(dy, x, mean, invstd, weight, True, True, True)
        sums = all_sum(torch.stack(local), statistics=True)  # [2, C]: of dy, and of dy times x - mean
        dx = torch.batch_norm_backward_elemt(dy, x, mean, invstd, weight, sums[0], sums[1], counts.int())
        affine = (None, None) if weight is None else (dweight, dbias)
        return dx, *affine, None


def _along(values: Tensor, x: Tensor) -> Tensor:
    """[C] with the dimensions of ``x`` [B, C, ...]."""
    return values.view(-1, *[1] * (x.ndim - 2))


def _dense(x: Tensor, like: Tensor) -> Tensor:
    """``x`` without gaps in memory, channels last if ``like`` is."""
    last = like.ndim == 4 and like.is_contiguous(memory_format=torch.channels_last)
    return x.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


@torch.no_grad()
def deal(x: Tensor, groups: int) -> Tensor:
    """The images of this rank's groups, one group after the other, from the slice ``x`` [B, ...] of the global batch.

    Under autocast they travel in its half precision, to which the network would convert them anyway.
    """
    rows = x.movedim(1, -1)  # dense for images whose channels are last in memory
    if world() > 1:
        if x.dtype == torch.float32 and torch.is_autocast_enabled(x.device.type):
            rows = rows.to(torch.get_autocast_dtype(x.device.type))
        order, sent, received = _route(len(x), groups, rank(), world(), x.device)
        rows = _exchange(rows[order], sent, received)  # in the order of the global batch, from group to group
    return rows.unflatten(0, (-1, local_groups(groups))).transpose(0, 1).flatten(0, 1).movedim(-1, 1)


@torch.no_grad()
def collect(y: Tensor, groups: int) -> Tensor:
    """The outputs [B, D] for this rank's slice of the global batch, from those for the images of :func:`deal`."""
    rows = y.unflatten(0, (local_groups(groups), -1)).transpose(0, 1).flatten(0, 1)
    if world() == 1:
        return rows
    order, sent, received = _route(len(y), groups, rank(), world(), y.device)
    returned = torch.empty_like(rows)
    returned[order] = _exchange(rows, received, sent)
    return returned


@functools.lru_cache(maxsize=8)
def _route(
    images: int, groups: int, rank: int, ranks: int, device: torch.device
) -> tuple[Tensor, list[int], list[int]]:
    """Order [B] that sorts the images of a rank by their destinations, and how many go to and come from each rank."""
    destination = torch.arange(images * ranks) % groups // (groups // ranks)
    local = destination[rank * images : (rank + 1) * images]
    received = (destination == rank).view(ranks, images).sum(1)
    return local.argsort(stable=True).to(device), local.bincount(minlength=ranks).tolist(), received.tolist()


def _exchange(rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
    """Send the first ``sent[0]`` rows to rank 0, the next to rank 1 and so on; return what arrives, in their order."""
    arrived = torch.empty_like(rows, memory_format=torch.contiguous_format)
    dist.all_to_all_single(arrived, rows.contiguous(), received, sent)
    return arrived
