"""Backbone and projection head as one network.

Shapes: B images; F width of the backbone; D width of the projection.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import threshold

from ssl_bench.networks.narrow import replace_narrow


class Encoder(nn.Module):
    """A backbone followed by a projection head; evaluators use the outputs of both.

    A backbone with the attribute ``frozen`` (:func:`ssl_bench.networks.weights.freeze`) is never in training mode.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = replace_narrow(backbone), head

    def train(self, mode: bool = True) -> "Encoder":
        super().train(mode)
        if getattr(self.backbone, "frozen", False):
            self.backbone.eval()
        return self

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """[B, channels, H, W] -> ``backbone`` [B, F] and ``projection`` [B, D], neither normalised."""
        features = self.backbone(x)
        return {"backbone": features, "projection": self.head(features)}


def unit(x: Tensor) -> Tensor:
    """Divide vectors [..., D] by their length, as ``torch.nn.functional.normalize`` in half as many operations.

    A vector whose squares underflow counts as zero: result and gradient are 0. torch divides its gradient by 1e-12,
    which gives infinity in half precision.
    """
    return _Unit.apply(x)  # type: ignore[no-any-return]


class _Unit(torch.autograd.Function):
    """x / |x|, of which the backward pass needs the result and the length only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        length = threshold(length, torch.finfo(x.dtype).tiny ** 0.5, math.inf)  # a division by infinity gives 0
        y = x / length
        ctx.save_for_backward(y, length)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        y, length = ctx.saved_tensors
        (grad,) = grads
        # In the order of torch's own backward pass, so that both round alike.
        by_length = (-grad * (y / length)).sum(-1, keepdim=True)
        return grad / length + y * by_length


def full_precision(x: Tensor) -> Tensor:
    """Convert ``x`` [...] to float32, float64 aside: vectors are never normalised in half precision."""
    return x if x.dtype == torch.float64 else x.float()
