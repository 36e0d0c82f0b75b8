"""Gradient of a batch of N images with the memory of n: the two-pass gradient cache (Gao et al. 2021, "Scaling deep
contrastive learning batch size under memory limited setup").

The loss depends on the networks only through their outputs. The first pass computes the outputs of every chunk and
keeps nothing else. The objective on all outputs gives the gradient of each output. The second pass computes each chunk
again and propagates the gradients of its outputs to the weights. For networks without batch statistics the result is
the gradient of the whole batch. Batch statistics are over a chunk (of all ranks, under norm=sync) instead of the whole
batch, in both passes alike. Chunk c of n has the images c, c + n, c + 2 n ... of each rank, and a rank has a
contiguous slice of the batch: a chunk is therefore the same set of images on any number of ranks.
"""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from ssl_bench.data.batch import Batch
from ssl_bench.methods.base import Method, StepResult
from ssl_bench.objective.schedule import Progress
from ssl_bench.seeding import rng_state, set_rng_state

Autocast = Callable[[], contextlib.AbstractContextManager[None]]


def backward(
    method: Method,
    part: Callable[[slice], Batch],
    images: int,
    chunk: int,
    progress: Progress,
    diagnostics: bool,
    autocast: Autocast,
    scale: Callable[[Tensor], Tensor],
) -> StepResult:
    """Do the same as the method's forward and a backward pass of its loss, in chunks; return the forward's result.

    The loss of the result is detached. Gradients are added to ``grad`` of the parameters and not averaged over ranks.

    Args:
        part: makes a batch of some images of this rank, with the same views at every call.
        images: number of images of this rank.
        chunk: images per pass, a divisor of ``images``.
        autocast: makes the context in which the networks run.
        scale: scales the loss before the backward pass.
    """
    chunks = images // chunk
    rows = [slice(first, None, chunks) for first in range(chunks)]
    trained, constant, parts, randomness = [], [], [], []
    with torch.no_grad():
        for chunk_rows in rows:
            randomness.append(rng_state())
            batch = part(chunk_rows)
            with autocast():
                with _frozen_running_statistics(method):
                    trained.append(method.trained_outputs(batch))
                constant.append(method.momentum_outputs(batch))
            parts.append(Batch([], batch.ids, batch.labels))
    leaves = {name: _joined([t[name] for t in trained], 1).requires_grad_() for name in trained[0]}
    fixed = {name: _joined([c[name] for c in constant], 1) for name in constant[0]}
    whole = Batch([], _joined([p.ids for p in parts], 0), _joined([p.labels for p in parts], 0))
    result = method.objective(leaves | fixed, whole, progress, diagnostics)
    scale(result.loss).backward()  # type: ignore[no-untyped-call]
    grads = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    for chunk_rows, state in zip(rows, randomness, strict=True):
        set_rng_state(state)
        batch = part(chunk_rows)
        with autocast():
            outputs = method.trained_outputs(batch)
        torch.autograd.backward([outputs[name] for name in grads], [grad[:, chunk_rows] for grad in grads.values()])
    return result._replace(loss=result.loss.detach())


def _joined(parts: list[Tensor], dim: int) -> Tensor:
    """Join the tensors of the chunks along ``dim``, in the order of the batch."""
    return torch.stack(parts, dim + 1).flatten(dim, dim + 1)


@contextlib.contextmanager
def _frozen_running_statistics(method: nn.Module) -> Iterator[None]:
    """Leave running statistics unchanged within the block: the second pass updates them."""
    norms = [m for m in method.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    former = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, state in zip(norms, former, strict=True):
            norm.momentum, norm.num_batches_tracked = state
