"""A batch of N images with the memory of n: the two-pass gradient cache (Gao et al. 2021, "Scaling deep contrastive
learning batch size under memory limited setup").

The loss depends on the networks through their outputs alone. A first pass computes those of every chunk and keeps
nothing else; the objective on all of them gives the gradient of each output; a second pass computes each chunk again
and takes its outputs' gradients on to the weights. For networks without batch statistics that is the gradient of the
whole batch at once. With them, statistics are over a chunk (of all ranks, under norm=sync) instead of over the batch:
another network function, the same in both passes. Chunk c of n has every n-th image of each rank from the c-th on: the
same images of the global batch for any number of ranks, whose slices of it are contiguous.
"""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from ssl_bench.data.batch import Batch
from ssl_bench.methods.base import Method

Autocast = Callable[[], contextlib.AbstractContextManager[None]]


def backward(
    method: Method,
    part: Callable[[slice], Batch],
    images: int,
    chunk: int,
    progress: float,
    diagnostics: bool,
    autocast: Autocast,
    scale: Callable[[Tensor], Tensor],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Forward and backward of a batch; gradients are added to the parameters' own, on each rank its share.

    Args:
        method: what is trained.
        part: gives some of the images of this rank's batch, with the same views whenever it is called.
        images: how many it has.
        chunk: how many of them a pass may take, a divisor of ``images``.
        progress, diagnostics: as for the method's forward.
        autocast: a context for what the networks compute.
        scale: of the loss, before its gradient is taken.

    Returns:
        The loss [] and the diagnostics.
    """
    every = images // chunk
    rows = [slice(first, None, every) for first in range(every)]
    trained, constant, parts, randomness = [], [], [], []
    with torch.no_grad():
        for batch in map(part, rows):
            randomness.append(_rng_state(batch.ids.device))
            with autocast():
                with _unmoved_statistics(method):
                    trained.append(method.trained(batch))
                constant.append(method.followed(batch))
            parts.append(Batch([], batch.ids, batch.labels))
    leaves = {name: _joined([t[name] for t in trained], 1).requires_grad_() for name in trained[0]}
    fixed = {name: _joined([c[name] for c in constant], 1) for name in constant[0]}
    whole = Batch([], _joined([p.ids for p in parts], 0), _joined([p.labels for p in parts], 0))
    loss, found = method.objective(leaves | fixed, whole, progress, diagnostics)
    scale(loss).backward()  # type: ignore[no-untyped-call]
    used = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    for mine, state in zip(rows, randomness, strict=True):
        batch = part(mine)
        _set_rng_state(batch.ids.device, state)
        with autocast():
            outputs = method.trained(batch)
        torch.autograd.backward([outputs[name] for name in used], [grad[:, mine] for grad in used.values()])
    return loss.detach(), found


def _joined(parts: list[Tensor], dim: int) -> Tensor:
    """What the chunks have, in the order of the batch along ``dim``."""
    return torch.stack(parts, dim + 1).flatten(dim, dim + 1)


@contextlib.contextmanager
def _unmoved_statistics(method: nn.Module) -> Iterator[None]:
    """Leaves running averages as they are, for the pass that comes again."""
    norms = [m for m in method.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    kept = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, kept, strict=True):
            norm.momentum = momentum


def _rng_state(device: torch.device) -> list[Tensor]:
    """Of the generators that stochastic layers draw from."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _set_rng_state(device: torch.device, state: list[Tensor]) -> None:
    torch.set_rng_state(state[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[1], device)
