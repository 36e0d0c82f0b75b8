"""The Siamese framework: two views of an image through one network, or through a network and its moving average.

SimCLR, MoCo and their kin are settings of this one class; what they contrast with is the negatives' affair.
"""

import copy
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ssl_bench.objective.contrast import Batch, Embedded
from ssl_bench.objective.method import Framework


class Encoder(nn.Module):
    """Backbone and head. In evaluation it gives both representations of an image."""

    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """[B, channels, H, W] -> ``backbone`` [B, F] and ``projection`` [B, D], neither normalised."""
        features = self.backbone(x)
        return {"backbone": features, "projection": self.head(features)}


class Siamese(Framework):
    """Each view of an image is an anchor whose positive is the other view.

    Args:
        backbone, head: the networks.
        momentum: None: positives come from the trained network itself, with gradient (SimCLR). A number in [0, 1):
            they come, without gradient, from its moving average k <- momentum k + (1 - momentum) q (MoCo eq. 2), over
            the parameters; the average's batch statistics are its own.
        views_forward: ``joint``: all views in one forward, so that batch statistics are over all of them (official
            SimCLR); ``separate``: one forward per view (most PyTorch codes).
        norm: ``sync``: batch statistics over all ranks; ``local``: over each rank's own images.
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Module,
        momentum: float | None = None,
        views_forward: Literal["joint", "separate"] = "joint",
        norm: Literal["sync", "local"] = "sync",
    ) -> None:
        super().__init__()
        if momentum is not None and not 0 <= momentum < 1:
            raise ValueError(f"momentum={momentum} must be in [0, 1), or null for no momentum network")
        self.momentum, self.views_forward, self.norm = momentum, views_forward, norm
        self.encoder = Encoder(backbone, head)
        self.target = None if momentum is None else copy.deepcopy(self.encoder).requires_grad_(False)

    def forward(self, batch: Batch) -> Embedded:
        views = batch.views[:2]
        raw = self._project(self.encoder, views)  # [2, B, D]
        q = normalize(raw, dim=-1)
        if self.target is None:
            keys = q
        else:
            with torch.no_grad():
                keys = normalize(self._project(self.target, views), dim=-1)
        return Embedded(q, keys.flip(0), raw, batch.ids)

    def _project(self, encoder: nn.Module, views: list[Tensor]) -> Tensor:
        if self.views_forward == "joint":
            z = encoder(torch.cat(views))["projection"].unflatten(0, (len(views), -1))
        else:
            z = torch.stack([encoder(view)["projection"] for view in views])
        return z if z.dtype == torch.float64 else z.float()  # unit vectors are never made in half precision

    @torch.no_grad()
    def after_step(self) -> None:
        if self.target is not None and self.momentum is not None:
            # One operation for all parameters instead of two for each.
            k: list[Tensor] = [*self.target.parameters()]
            q: list[Tensor] = [*self.encoder.parameters()]
            torch._foreach_lerp_(k, q, 1 - self.momentum)
