"""A batch of N images with the memory of n: the two-pass gradient cache (Gao et al. 2021, "Scaling deep contrastive
learning batch size under memory limited setup").

The loss depends on the networks through their outputs alone. A first pass computes those of every chunk and keeps
nothing else; the objective on all of them gives the gradient of each output; a second pass computes each chunk again
and takes its outputs' gradients on to the weights. For networks without batch statistics that is the gradient of the
whole batch at once. With them, statistics are over a chunk (of all ranks, under norm=sync) instead of over the batch:
another network function, the same in both passes.
"""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from ssl_bench.objective.contrast import Batch
from ssl_bench.objective.method import Method

Autocast = Callable[[], contextlib.AbstractContextManager[None]]


def backward(
    method: Method,
    chunks: Callable[[], Iterator[Batch]],
    progress: float,
    diagnostics: bool,
    autocast: Autocast,
    scale: Callable[[Tensor], Tensor],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Forward and backward of a batch; gradients are added to the parameters' own, on each rank its share.

    Args:
        method: what is trained.
        chunks: the parts of the batch, each of the same images and views whenever it is called.
        progress, diagnostics: as for the method's forward.
        autocast: a context for what the networks compute.
        scale: of the loss, before its gradient is taken.

    Returns:
        The loss [] and the diagnostics.
    """
    trained, constant, parts, randomness = [], [], [], []
    with torch.no_grad():
        for batch in chunks():
            randomness.append(_rng_state(batch.ids.device))
            with autocast():
                with _unmoved_statistics(method):
                    trained.append(method.trained(batch))
                constant.append(method.followed(batch))
            parts.append(Batch([], batch.ids, batch.labels))
    leaves = {name: torch.cat([t[name] for t in trained], 1).requires_grad_() for name in trained[0]}
    fixed = {name: torch.cat([c[name] for c in constant], 1) for name in constant[0]}
    whole = Batch([], torch.cat([p.ids for p in parts]), torch.cat([p.labels for p in parts]))
    loss, found = method.objective(leaves | fixed, whole, progress, diagnostics)
    scale(loss).backward()  # type: ignore[no-untyped-call]
    used = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    row = 0
    for batch, state in zip(chunks(), randomness, strict=True):
        _set_rng_state(batch.ids.device, state)
        with autocast():
            outputs = method.trained(batch)
        rows = slice(row, row := row + len(batch.ids))
        torch.autograd.backward([outputs[name] for name in used], [grad[:, rows] for grad in used.values()])
    return loss.detach(), found


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
