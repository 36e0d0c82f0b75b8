"""The Siamese framework: two views of an image through one network, or through a network and its moving average.

SimCLR, MoCo, SiMo, ReLIC and BYOL are settings of this one class; what they contrast with is the negatives' affair.

B images on this rank   W ranks   D width
"""

import copy
import itertools
import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ssl_bench.data.batch import Batch
from ssl_bench.distributed import gather, rank, world
from ssl_bench.methods.base import Framework, Outputs
from ssl_bench.networks.encoder import Encoder, full_precision
from ssl_bench.networks.heads import MLP
from ssl_bench.objective.contrast import Embedded


class Siamese(Framework):
    """Each view of an image is an anchor whose positive is the other view, or the first is and its positive the second.

    Further views, smaller crops, are positives of the first two and no anchors (SwAV's multi-crop, for DCLW); that
    takes a symmetric framework of one network.

    Args:
        backbone, head: the networks.
        momentum: None: positives come from the trained network itself, with gradient (SimCLR). A number in [0, 1]:
            they come, without gradient, from its moving average k <- momentum k + (1 - momentum) q after every step
            (MoCo eq. 2), over the parameters; the average's batch statistics are its own.
        final_momentum: where the momentum ends, on half a cosine over the training (BYOL appendix C.2); None: constant.
        predictor: None, or the hidden width of a two-layer MLP that anchors pass after the head (BYOL).
        symmetric: both views are anchors, or only the first.
        views_forward: ``joint``: all views in one forward, so that batch statistics are over all of them (official
            SimCLR); ``separate``: one forward per view (most PyTorch codes).
        norm: ``sync``: batch statistics over all ranks; ``local``: over each rank's own images; ``shuffle``: local, and
            the moving average sees the images dealt to other ranks, so that no image has the same company in both
            networks (MoCo). On one rank there is nobody to deal to.
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: MLP,
        momentum: float | None = None,
        final_momentum: float | None = None,
        predictor: int | None = None,
        symmetric: bool = True,
        views_forward: Literal["joint", "separate"] = "joint",
        norm: Literal["sync", "shuffle", "local"] = "sync",
    ) -> None:
        super().__init__()
        for name, value in {"momentum": momentum, "final_momentum": final_momentum}.items():
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"{name}={value} must be in [0, 1]")
        if momentum is None and (final_momentum is not None or norm == "shuffle"):
            key = "norm=shuffle" if norm == "shuffle" else f"final_momentum={final_momentum}"
            raise ValueError(f"{key} is for a network that follows another one: set framework.momentum too")
        self.momentum, self.final_momentum = momentum, final_momentum
        self.views_forward, self.norm, self.symmetric = views_forward, norm, symmetric
        self.encoder = Encoder(backbone, head)
        self.target = None if momentum is None else copy.deepcopy(self.encoder).requires_grad_(False)
        width = head.num_features
        self.predictor = None if predictor is None else MLP(width, 2, predictor, width, True, "none")
        self.gives = frozenset({"both_views"} if symmetric else {})
        if symmetric and momentum is None and predictor is None:
            self.gives |= {"two_views"}

    def trained(self, batch: Batch) -> Outputs:
        """``z`` of every view that the trained network sees and, under a predictor, the anchors' ``prediction``."""
        seen = 1 if self.target is not None and not self.symmetric else 2
        views = batch.views if "two_views" in self.gives else batch.views[:seen]
        z = self._each(lambda x: self.encoder(x)["projection"], views)  # [1 or 2, B, D]
        if self.predictor is None:
            return {"z": z}
        anchors = [*z] if self.symmetric else [z[0]]
        return {"z": z, "prediction": self._each(self.predictor, anchors)}

    @torch.no_grad()
    def followed(self, batch: Batch) -> Outputs:
        """``key`` of every view that is a positive, from the moving average."""
        if self.target is None:
            return {}
        views = batch.views[:2] if self.symmetric else batch.views[1:2]
        if self.norm == "shuffle" and world() > 1:
            dealt = [gather(view)[rank() :: world()] for view in views]  # each W-th image of the global batch
            keys = gather(self._keys(dealt), dim=1)  # those of rank 0, of rank 1, ...
            back = keys.unflatten(1, (world(), -1)).transpose(1, 2).flatten(1, 2)
            size = views[0].shape[0]
            return {"key": back[:, rank() * size : (rank() + 1) * size]}
        return {"key": self._keys(views)}

    def embed(self, outputs: Outputs, ids: Tensor) -> Embedded:
        z = full_precision(outputs["z"])
        if len(z) > 2:  # each of the first two with every other view
            unit = normalize(z, dim=-1)
            pairs = [(anchor, view) for anchor in range(2) for view in range(len(z)) if view != anchor]
            anchor, positive = map(list, zip(*pairs, strict=True))
            return Embedded(unit[anchor], unit[positive], z[anchor], ids, own=unit[anchor])
        anchors = 2 if self.symmetric else 1
        raw = full_precision(outputs["prediction"]) if self.predictor is not None else z[:anchors]
        q = normalize(raw, dim=-1)
        if self.target is not None:
            keys = normalize(full_precision(outputs["key"]), dim=-1)
            p = keys.flip(0) if self.symmetric else keys
        else:
            unit = q if self.predictor is None and self.symmetric else normalize(z, dim=-1)
            p = unit.flip(0)[:anchors]
        return Embedded(q, p, raw, ids)

    def _keys(self, views: list[Tensor]) -> Tensor:
        assert self.target is not None
        target = self.target
        return self._each(lambda x: target(x)["projection"], views)

    def _each(self, network: Callable[[Tensor], Tensor], inputs: list[Tensor]) -> Tensor:
        """[V, B, D], from one forward for all inputs of a size or one for each input."""
        if self.views_forward == "separate":
            return torch.stack([network(x) for x in inputs])
        groups = [list(group) for _, group in itertools.groupby(inputs, lambda x: x.shape)]
        return torch.cat([network(torch.cat(group)).unflatten(0, (len(group), -1)) for group in groups])

    @torch.no_grad()
    def after_step(self, progress: float) -> None:
        if self.target is None or self.momentum is None:
            return
        momentum = self.momentum
        if self.final_momentum is not None:
            momentum = self.final_momentum - (self.final_momentum - momentum) * (math.cos(math.pi * progress) + 1) / 2
        # One operation for all parameters instead of two for each.
        k: list[Tensor] = [*self.target.parameters()]
        q: list[Tensor] = [*self.encoder.parameters()]
        torch._foreach_lerp_(k, q, 1 - momentum)
