"""Backbone and projection head as one network, unit vectors, and convolutions whose kernels compute right gradients.

Shapes: B images; F width of the backbone; D width of the projection; C channels; H x W pixels; s the stride.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, threshold

# uxlfoundation/oneDNN#6035, open in oneDNN 3.12 and 3.13 (torch 2.14 and 2.15): for channels-last images with fewer
# channels than the kernel's block (8 with AVX2, 16 with AVX-512), the gradient of the weights is written past the end
# of a workspace. With one thread the process dies; with two the gradient is wrong by 75% and nothing says so.
BLOCK = 16


class Encoder(nn.Module):
    """A backbone followed by a projection head; evaluators use the outputs of both.

    A backbone with the attribute ``frozen`` (:func:`freeze`) is never in training mode.
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


def freeze(backbone: nn.Module) -> None:
    """Exclude a backbone from the training: its weights and running statistics never change."""
    backbone.requires_grad_(False).eval()
    backbone.frozen = True  # type: ignore[assignment]  # read by Encoder; a copy of the network has it too


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


class NarrowConv2d(nn.Conv2d):
    """A 1 x 1 convolution of stride s that reads every s-th pixel itself: the same sums, by the kernel of stride 1."""

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W] -> [B, D, ceil(H / s), ceil(W / s)]
        rows, columns = self.stride
        return conv2d(x[:, :, ::rows, ::columns], self.weight, self.bias, groups=self.groups)


def replace_narrow(network: nn.Module) -> nn.Module:
    """Turn each strided 1 x 1 ``nn.Conv2d`` with fewer than 16 input channels a group into a :class:`NarrowConv2d`.

    In place: parameters and their names stay. Wider ones stay as they are, since a slice costs time.
    """
    for conv in network.modules():
        if type(conv) is not nn.Conv2d or conv.in_channels // conv.groups >= BLOCK:
            continue
        if conv.kernel_size == (1, 1) and conv.stride != (1, 1) and conv.padding in ((0, 0), "valid"):
            conv.__class__ = NarrowConv2d
    return network
