"""The collectives that the rest of the package uses, each the identity on one process.

The one gradient convention (DistributedDataParallel averages parameter gradients over ranks): every rank computes the
mean over its own anchors, and what crossed ranks on the way forward has its gradient summed over ranks on the way
back. The parameters then receive exactly the gradient of the mean over the global batch.
"""

import inspect
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def active() -> bool:
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    return dist.get_rank() if active() else 0


def world() -> int:
    return dist.get_world_size() if active() else 1


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        ctx.dim, ctx.size = dim, x.shape[dim]
        joined = x.new_empty(world() * len(x), *x.shape[1:])  # no list of parts, of which NCCL would make one more copy
        dist.all_gather_into_tensor(joined, x.contiguous())
        return joined if dim == 0 else torch.cat(joined.chunk(world()), dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        grad = grads[0].contiguous()
        dist.all_reduce(grad)  # the other ranks' losses also depend on this rank's slice
        return grad.narrow(ctx.dim, rank() * ctx.size, ctx.size), None


def gather(x: Tensor, dim: int = 0) -> Tensor:
    """Concatenates every rank's ``x`` (same shape everywhere) along ``dim``, in rank order; differentiable."""
    return _Gather.apply(x, dim) if world() > 1 else x  # type: ignore[no-any-return]


def global_mean(x: Tensor, dim: int = 0) -> Tensor:
    """Mean over ``dim`` and over all ranks (equal sizes); differentiable, exact under the convention above."""
    return gather(x.mean(dim, keepdim=True), dim).mean(dim)


def all_sum(x: Tensor) -> Tensor:
    """The sum of every rank's ``x``, in place and without gradient."""
    if world() > 1:
        dist.all_reduce(x)
    return x


def average_gradients(module: nn.Module) -> None:
    """What DistributedDataParallel does to gradients, in one collective, for a step without it."""
    if world() == 1:
        return
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in gradients]).div_(world())
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
    """Leaves the process group that this process joined, if it did."""
    if not active():
        return
    # In torch 2.6 gloo's threads may still be about to free a tensor, for which they need the interpreter's lock, which
    # the group's destructor holds while it waits for them.
    time.sleep(0.1)
    dist.destroy_process_group()


def parallel(module: nn.Module, device: torch.device) -> nn.Module:
    """``module`` with its parameter gradients averaged over ranks."""
    if world() == 1:
        return module
    # Every rank made the same weights, from the seed or a checkpoint; batch statistics are global already, or meant to
    # be local. So nothing is sent before the training or in a forward.
    known = inspect.signature(DistributedDataParallel).parameters
    # torch 2.6 has one switch for both, by another name.
    never = {"forward_sync_buffers", "init_sync"} & set(known) or {"broadcast_buffers"}
    options: dict[str, Any] = dict.fromkeys(never, False) | {"gradient_as_bucket_view": True, "static_graph": True}
    return DistributedDataParallel(module, [device.index] if device.type == "cuda" else None, **options)
