"""Gradient of a contrastive loss for a batch of B images with the activations of ``chunk`` of them."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ssl_bench.data.batch import Batch
from ssl_bench.distributed import average_gradients
from ssl_bench.errors import require
from ssl_bench.methods.base import Method, Outputs, StepResult
from ssl_bench.objective.schedule import Progress
from ssl_bench.training.chunked import backward


def chunked(
    encoder: nn.Module,
    loss: Callable[..., Tensor],
    views: Sequence[Tensor],
    chunk: int,
    scale: Callable[[Tensor], Tensor] = lambda value: value,
) -> Tensor:
    """Run forward and backward, as ``loss(*[encoder(x) for x in views]).backward()`` does, in chunks of the batch.

    Every negative of the whole batch counts, which plain accumulation of gradients does not give. The price is a second
    forward pass (gradient cache, Gao et al. 2021; :mod:`ssl_bench.training.chunked`). Without batch statistics the
    gradient is that of the whole batch; a batch norm has the statistics of each chunk and updates its running ones
    once. A chunk has the images c, c + n, c + 2 n, ... of n chunks. Dropout is drawn alike in both passes.

    Args:
        encoder: maps [n, ...] to vectors [n, D]; if it is a DistributedDataParallel, the gradients of the encoder and
            of the loss are averaged over the ranks once, at the end.
        loss: a function of as many tensors [B, D] as there are views, such as a :class:`PairLoss`; it is called once.
        views: [B, ...] each.
        chunk: images per pass, a divisor of B.
        scale: function of the loss before the backward pass, such as ``scaler.scale`` of a GradScaler.

    Returns:
        The loss [], without gradient. Gradients are added to ``grad`` of the parameters.

    Raises:
        InvalidValue: ``chunk`` does not divide the batch, or there is nothing to train.
    """
    images = len(views[0])
    valid = chunk >= 1 and images % chunk == 0 and all(len(view) == images for view in views)
    require(valid, "chunk", chunk, f"a divisor of {images}, the images of every view")
    averaged = isinstance(encoder, DistributedDataParallel)
    network: Any = encoder.module if averaged else encoder
    whole = _Whole(network, loss)
    trained = any(parameter.requires_grad for parameter in whole.parameters())
    require(trained, "encoder", type(network).__name__, "a network with weights to train")
    ids = torch.arange(images, device=views[0].device)

    def part(rows: slice) -> Batch:
        return Batch([view[rows] for view in views], ids[rows], ids[rows])

    value = backward(whole, part, images, chunk, 0.0, False, _current_autocast(views[0].device.type), scale).loss
    if averaged:
        average_gradients(whole)
    return value


class _Whole(Method):
    """An encoder and a loss as a method."""

    def __init__(self, encoder: nn.Module, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.encoder, self.loss = encoder, loss

    def trained_outputs(self, batch: Batch) -> Outputs:
        return {"z": torch.stack([self.encoder(view) for view in batch.views])}

    def objective(self, outputs: Outputs, batch: Batch, progress: Progress, diagnostics: bool) -> StepResult:
        return StepResult(self.loss(*outputs["z"]), {})


def _current_autocast(device: str) -> Callable[[], Any]:
    """Autocast as it is now, without its cache: the first pass would fill it with weights that have no gradient."""
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    return functools.partial(torch.autocast, device, dtype, enabled, False)
