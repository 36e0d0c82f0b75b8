"""Backbone and projection head as one network.

B images   F width of the backbone   D width of the projection
"""

import torch
from torch import Tensor, nn


class Encoder(nn.Module):
    """A backbone followed by a head; its outputs are the two representations that are evaluated."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """[B, channels, H, W] -> ``backbone`` [B, F] and ``projection`` [B, D], neither normalised."""
        features = self.backbone(x)
        return {"backbone": features, "projection": self.head(features)}


def full_precision(x: Tensor) -> Tensor:
    """``x`` in float32, or in float64 if it is float64: half precision ends before vectors are normalised."""
    return x if x.dtype == torch.float64 else x.float()
