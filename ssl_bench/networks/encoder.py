"""Backbone and projection head as one network.

B images   F width of the backbone   D width of the projection
"""

import torch
from torch import Tensor, nn


class Encoder(nn.Module):
    """A backbone followed by a projection head; evaluators use the outputs of both."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """[B, channels, H, W] -> ``backbone`` [B, F] and ``projection`` [B, D], neither normalised."""
        features = self.backbone(x)
        return {"backbone": features, "projection": self.head(features)}


def full_precision(x: Tensor) -> Tensor:
    """Convert ``x`` to float32, float64 aside: vectors are never normalised in half precision."""
    return x if x.dtype == torch.float64 else x.float()
