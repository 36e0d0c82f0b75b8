"""Collectives over the ranks, each the identity on one process.

Gradient convention: every rank computes the mean loss over its own anchors, a gathered tensor sums its gradient over
the ranks in the backward pass, and the gradients of the parameters are averaged. The parameters then have exactly the
gradient of the mean over the global batch.
"""

import contextlib
import datetime
import inspect
import os
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ssl_bench.surroundings import register_no_graphs, stay_on_this_machine

_alone = False
_timeout = datetime.timedelta(minutes=30)  # of a collective
_statistics: Any = None  # the group for sums of batch statistics under DDP; None: that of all other collectives


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Compute the block as on one process."""
    global _alone
    former, _alone = _alone, True
    try:
        yield
    finally:
        _alone = former


def active() -> bool:
    """Whether this process has joined a process group, and is not in a block of :func:`alone`."""
    return not _alone and dist.is_available() and dist.is_initialized()


def join_local(meeting: Path, rank: int, ranks: int, device: torch.device, timeout: float) -> None:
    """Join the group of the ranks of this machine, to which no other machine can connect.

    Args:
        meeting: a file that does not exist before, in a folder of this user only.
        timeout: seconds that a collective may take.
    """
    stay_on_this_machine()
    join_group(device, timeout, store=dist.FileStore(str(meeting), ranks), rank=rank, world_size=ranks)


def join_group(device: torch.device, timeout: float, **meeting: Any) -> None:
    """Join the group of all ranks; ``meeting``: how they find each other, arguments of ``init_process_group``."""
    global _timeout
    _timeout = datetime.timedelta(seconds=timeout)
    backend, gpu = ("nccl", device) if device.type == "cuda" else ("gloo", None)
    register_no_graphs()
    dist.init_process_group(backend, timeout=_timeout, device_id=gpu, **meeting)


def without_room(error: BaseException) -> str:
    """The sentence on an error of NCCL that comes from a full ``/dev/shm``; empty for any other error."""
    line = next((line for line in str(error).splitlines() if "/dev/shm/nccl" in line), "")
    remedy = "Docker has 64 MB for it: start the container with --shm-size=1g or --ipc=host"
    return line and f"NCCL cannot share memory between the ranks ({line}): {remedy}"


def rank() -> int:
    """Number of this process among all ranks; 0 on one process."""
    return dist.get_rank() if active() else 0


def world() -> int:
    """Number of ranks W."""
    return dist.get_world_size() if active() else 1


def _collective(name: str, former: str) -> Any:
    """A collective of torch; versions that have the new name warn of the former one."""
    return getattr(dist, name, None) or getattr(dist, former)


def _gathered(x: Tensor, dim: int) -> Tensor:
    """The ranks' ``x`` along ``dim``, without gradient."""
    joined = x.new_empty(world() * len(x), *x.shape[1:])  # one buffer: a list of parts would cost NCCL a copy
    _collective("all_gather_single", "all_gather_into_tensor")(joined, x.contiguous())
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
        grad = slices.new_empty(len(slices) // world(), *slices.shape[1:])
        _collective("reduce_scatter_single", "reduce_scatter_tensor")(grad, slices.contiguous())
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


def all_sum(x: Tensor, statistics: bool = False) -> Tensor:
    """Sum the ranks' ``x`` in place, without gradient; ``statistics``: as :func:`separate_statistics` says."""
    if world() > 1:
        # Two communicators in one CUDA graph may wait for each other forever.
        separate = statistics and _statistics is not None and not torch.cuda.is_current_stream_capturing()
        dist.all_reduce(x, group=_statistics if separate else None)
    return x


def separate_statistics() -> None:
    """Connect the GPUs once more, for sums of batch statistics: in one group they would wait for DDP's gradients.

    A step that is recorded has no DDP, and keeps to one group.

    All ranks must call it at the same time.
    """
    global _statistics
    if _statistics is None and world() > 1 and dist.get_backend() == "nccl":
        _statistics = dist.new_group(timeout=_timeout)


class Votes:
    """Exchange numbers and texts between the ranks without their GPUs."""

    def __init__(self) -> None:
        self._group: Any = None
        if world() > 1:
            # A process group of their own on the CPU: they must not queue behind the work of the GPUs.
            self._group = dist.new_group(backend="gloo", timeout=_timeout)
        self._last: tuple[Tensor, Any] | None = None

    def __call__(self, number: int) -> int:
        """The maximum over the ranks of the numbers of the call before this one, 0 in the first call.

        So no rank waits for the numbers of this call. On one process it is ``number`` itself.
        """
        if self._group is None:
            return number
        counted = 0
        if self._last is not None:
            votes, work = self._last
            work.wait()
            counted = int(votes)
        votes = torch.tensor(number)
        self._last = votes, dist.all_reduce(votes, dist.ReduceOp.MAX, self._group, async_op=True)
        return counted

    def first(self, text: str) -> str:
        """The first text of the ranks that is not empty, with its rank; ``text`` itself on one process.

        All ranks wait for each other.
        """
        if self._group is None:
            return text
        texts: list[Any] = [None] * world()
        dist.all_gather_object(texts, text, self._group)
        return next((f"rank {number}: {text}" for number, text in enumerate(texts) if text), "")


def average_gradients(module: nn.Module) -> None:
    """Average the gradients of the parameters over the ranks, for a backward pass without DDP."""
    if world() == 1:
        return
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    if not gradients:
        return
    for dtype in dict.fromkeys(g.dtype for g in gradients):
        alike = [g for g in gradients if g.dtype == dtype]
        if has_groups():  # one launch, which reads and writes the gradients where they are
            with dist._coalescing_manager():
                for gradient in alike:
                    dist.all_reduce(gradient, dist.ReduceOp.AVG)
            continue
        flat = torch.cat([g.flatten() for g in alike]).div_(world())
        dist.all_reduce(flat)
        parts = flat.split([g.numel() for g in alike])
        torch._foreach_copy_(alike, [part.view_as(g) for part, g in zip(parts, alike, strict=True)])


def has_groups() -> bool:
    """Whether the backend has one launch for several all-reduces: gloo and torch 2.15's second one for NCCL do not."""
    is_second = hasattr(dist, "ProcessGroupNCCL2") and os.environ.get("TORCH_DIST_USE_NCCL2") != "0"
    return dist.get_backend() == "nccl" and not is_second


def broadcast(value: float) -> float:
    """Rank 0's number on every rank."""
    values = [value]
    if world() > 1:
        dist.broadcast_object_list(values)
    return values[0]


def leave() -> None:
    """Leave the process group, if this process has joined one."""
    global _statistics
    if not active():
        return
    _statistics = None
    # In torch 2.6 the group's destructor holds the interpreter's lock while it waits for gloo's threads, and these need
    # the lock to free their last tensors.
    time.sleep(0.1)
    dist.destroy_process_group()


def parallel(module: nn.Module, device: torch.device) -> nn.Module:
    """``module`` under DDP, which averages the gradients in the backward pass; unchanged on one process."""
    if world() == 1:
        return module
    for weight in module.parameters():
        if weight.requires_grad and 1 in weight.shape:
            weight.register_hook(partial(_with_strides, strides=weight.stride()))
    # All ranks have the same weights, from the seed or a checkpoint, and batch statistics are either global already or
    # local on purpose. So DDP need not send anything before the training or in a forward pass.
    arguments = inspect.signature(DistributedDataParallel).parameters
    # torch 2.6 has broadcast_buffers only, 2.7 to 2.13 also init_sync, later ones forward_sync_buffers and init_sync.
    never = {"init_sync", "forward_sync_buffers"} & set(arguments)
    if "forward_sync_buffers" not in arguments:
        never.add("broadcast_buffers")
    options: dict[str, Any] = dict.fromkeys(never, False) | {"gradient_as_bucket_view": True, "static_graph": True}
    return DistributedDataParallel(module, [device.index] if device.type == "cuda" else None, **options)


def _with_strides(gradient: Tensor, strides: Sequence[int]) -> Tensor:
    """``gradient`` with other strides of its dimensions of size 1, which may be any: else DDP would warn of them."""
    sizes = zip(gradient.shape, gradient.stride(), strides, strict=True)
    alike = all(size == 1 or given == wanted for size, given, wanted in sizes)
    return gradient.as_strided(gradient.shape, strides) if alike else gradient
