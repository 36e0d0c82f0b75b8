"""Collectives over the ranks, each the identity on one process.

Gradient convention: every rank computes the mean loss over its own anchors, a gathered tensor sums its gradient over
the ranks in the backward pass, and the gradients of the parameters are averaged. The parameters then have exactly the
gradient of the mean over the global batch.
"""

import contextlib
import inspect
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Exchange(Protocol):
    """A quicker way than the process group's for tensors on CPUs."""

    largest: int  # bytes of a tensor that the first two methods take

    def gather(self, x: Tensor) -> Tensor:
        """The ranks' ``x`` [...] as [W, ...]."""

    def scatter_sums(self, x: Tensor) -> Tensor:
        """This rank's part [B / W, ...] of the sum of the ranks' ``x`` [B, ...]."""

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace ``tensors`` of one type by their sums over the ranks."""

    def close(self) -> None:
        """End the connections."""


_alone = False
_exchange: Exchange | None = None


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Compute the block as on one process."""
    global _alone
    kept, _alone = _alone, True
    try:
        yield
    finally:
        _alone = kept


def active() -> bool:
    """Whether this process has joined a process group, and is not in a block of :func:`alone`."""
    return not _alone and dist.is_available() and dist.is_initialized()


def rank() -> int:
    """Number of this process among all ranks; 0 on one process."""
    return dist.get_rank() if active() else 0


def world() -> int:
    """Number of ranks W."""
    return dist.get_world_size() if active() else 1


def gather_by(exchange: Exchange) -> None:
    """Until :func:`leave`, use ``exchange`` for tensors on CPUs; all ranks do."""
    global _exchange
    _exchange = exchange


def direct() -> bool:
    """Whether tensors on CPUs go through the exchange of :func:`gather_by`."""
    return _exchange is not None


def _quicker(x: Tensor) -> Exchange | None:
    """The exchange, if there is one for ``x``."""
    return None if x.device.type != "cpu" or torch.compiler.is_compiling() else _exchange


def _gathered(x: Tensor, dim: int) -> Tensor:
    """The ranks' ``x`` along ``dim``, without gradient."""
    if (exchange := _quicker(x)) and x.nbytes <= exchange.largest:
        joined = exchange.gather(x).flatten(0, 1)
    else:
        joined = x.new_empty(world() * len(x), *x.shape[1:])  # one buffer: a list of parts would cost NCCL a copy
        dist.all_gather_into_tensor(joined, x.contiguous())
    return joined if dim == 0 else torch.cat(joined.chunk(world()), dim)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        ctx.dim = dim
        return _gathered(x, dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        # The losses of the other ranks depend on this rank's slice too.
        slices = grads[0] if ctx.dim == 0 else torch.cat(grads[0].chunk(world(), ctx.dim))
        if (exchange := _quicker(slices)) and slices.nbytes <= exchange.largest:
            return exchange.scatter_sums(slices), None
        grad = slices.new_empty(len(slices) // world(), *slices.shape[1:])
        dist.reduce_scatter_tensor(grad, slices.contiguous())
        return grad, None


def gather(x: Tensor, dim: int = 0) -> Tensor:
    """Concatenate the ranks' ``x`` along ``dim`` in rank order; all have the same shape. Differentiable."""
    if world() == 1:
        return x
    differentiable = torch.is_grad_enabled() and x.requires_grad
    return _Gather.apply(x, dim) if differentiable else _gathered(x, dim)  # type: ignore[no-any-return]


def global_mean(x: Tensor, dim: int = 0) -> Tensor:
    """Mean over ``dim`` and all ranks, which have equal sizes. Differentiable, exact under the convention above."""
    return gather(x.mean(dim, keepdim=True), dim).mean(dim)


def all_sum(x: Tensor) -> Tensor:
    """Sum the ranks' ``x`` in place, without gradient."""
    if world() == 1:
        return x
    if exchange := _quicker(x):
        exchange.sum([x])
    else:
        dist.all_reduce(x)
    return x


def backward(loss: Tensor, network: nn.Module) -> None:
    """Backward pass of ``loss``, and the average over the ranks of the gradients that it adds.

    Args:
        network: returned by :func:`parallel`; its parameters have had no gradients.
    """
    loss.backward()
    if not isinstance(network, DistributedDataParallel):  # which averages in the backward pass
        average_gradients(network)


def average_gradients(module: nn.Module) -> None:
    """Average the gradients of the parameters over the ranks, for a backward pass without DDP."""
    if world() == 1:
        return
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    if not gradients:
        return
    torch._foreach_div_(gradients, world())
    if exchange := _quicker(gradients[0]):
        exchange.sum(gradients)
        return
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat)
    parts = flat.split([g.numel() for g in gradients])
    torch._foreach_copy_(gradients, [part.view_as(g) for part, g in zip(parts, gradients, strict=True)])


def broadcast_object(value: Any) -> Any:
    """Rank 0's ``value`` on every rank."""
    if world() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def leave() -> None:
    """Leave the process group, if this process has joined one."""
    global _exchange
    if not active():
        return
    if _exchange:
        _exchange.close()
        _exchange = None
    # In torch 2.6 the group's destructor holds the interpreter's lock while it waits for gloo's threads, and these need
    # the lock to free their last tensors.
    time.sleep(0.1)
    dist.destroy_process_group()


def parallel(module: nn.Module, device: torch.device) -> nn.Module:
    """``module`` for a forward pass before :func:`backward`: under DDP, unless the gradients are averaged without."""
    if world() == 1 or (direct() and device.type == "cpu"):
        return module
    # All ranks have the same weights, from the seed or a checkpoint, and batch statistics are either global already or
    # local on purpose. So DDP need not send anything before the training or in a forward pass.
    known = inspect.signature(DistributedDataParallel).parameters
    # torch 2.6 has a single option for both, with another name.
    never = {"forward_sync_buffers", "init_sync"} & set(known) or {"broadcast_buffers"}
    options: dict[str, Any] = dict.fromkeys(never, False) | {"gradient_as_bucket_view": True, "static_graph": True}
    return DistributedDataParallel(module, [device.index] if device.type == "cuda" else None, **options)
