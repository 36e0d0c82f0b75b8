"""Strided 1 x 1 convolutions of few channels, without the kernel of oneDNN that computes wrong gradients for them.

Shapes: B images; C and D channels; H x W pixels; s the stride.
"""

import torch.nn.functional as F
from torch import Tensor, nn

# uxlfoundation/oneDNN#6035, open in oneDNN 3.12 and 3.13 (torch 2.14 and 2.15): for channels-last images with fewer
# channels than the kernel's block (8 with AVX2, 16 with AVX-512), the gradient of the weights is written past the end
# of a workspace. With one thread the process dies; with two the gradient is wrong by 75% and nothing says so.
BLOCK = 16


class NarrowConv2d(nn.Conv2d):
    """A 1 x 1 convolution of stride s that reads every s-th pixel itself: the same sums, by the kernel of stride 1."""

    def forward(self, x: Tensor) -> Tensor:  # [B, C, H, W] -> [B, D, ceil(H / s), ceil(W / s)]
        rows, columns = self.stride
        return F.conv2d(x[:, :, ::rows, ::columns], self.weight, self.bias, groups=self.groups)


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
