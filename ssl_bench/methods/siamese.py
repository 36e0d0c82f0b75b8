"""The Siamese framework: two views of an image through one network, or through a network and its moving average.

SimCLR, MoCo, SiMo, ReLIC and BYOL are settings of this one class. Negatives are configured separately.

V views   B images on this rank   W ranks   D width
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
from ssl_bench.errors import require
from ssl_bench.methods.base import Framework, Outputs
from ssl_bench.networks.encoder import Encoder, full_precision
from ssl_bench.networks.heads import MLP
from ssl_bench.objective.contrast import Embedded


class Siamese(Framework):
    """Two views of an image are each other's positives; both are anchors, or only the first.

    Further views, smaller crops, are positives of the first two and not anchors (SwAV's multi-crop, for DCLW); this
    needs a symmetric framework of one network.

    Args:
        backbone, head: the networks.
        momentum: None: positives come from the trained network itself, with gradient (SimCLR). A number in [0, 1]:
            they come, without gradient, from the momentum network, a moving average of the parameters updated after
            every step by k <- momentum k + (1 - momentum) q (MoCo eq. 2); it has batch statistics of its own.
        final_momentum: the momentum at the end of the training, reached on half a cosine (BYOL appendix C.2); None: the
            momentum is constant.
        predictor: None, or the hidden width of a two-layer MLP that anchors pass after the head (BYOL).
        symmetric: both views are anchors, or only the first.
        views_forward: ``joint``: all views in one forward, so that batch statistics are over all of them (official
            SimCLR); ``separate``: one forward per view (most PyTorch codes).
        norm: ``sync``: batch statistics over all ranks; ``local``: over each rank's images; ``shuffle``: local, and the
            images are dealt to other ranks for the momentum network, so that an image shares its batch statistics with
            other images than in the trained network (MoCo). On one rank, ``shuffle`` is ``local``.

    Raises:
        InvalidValue: a momentum outside [0, 1], or a setting that needs a momentum network without one.
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
            require(value is None or 0 <= value <= 1, name, value, "null or a number from 0 to 1")
        averaged = momentum is not None
        remedy = "or framework.momentum to a number from 0 to 1: without one there is no momentum network"
        require(averaged or norm != "shuffle", "norm", norm, f"sync or local, {remedy}")
        require(averaged or final_momentum is None, "final_momentum", final_momentum, f"null, {remedy}")
        self.momentum, self.final_momentum = momentum, final_momentum
        self.views_forward, self.norm, self.symmetric = views_forward, norm, symmetric
        self.encoder = Encoder(backbone, head)
        self.target = None if momentum is None else copy.deepcopy(self.encoder).requires_grad_(False)
        width = head.num_features
        self.predictor = None if predictor is None else MLP(width, 2, predictor, width, True, "none")
        self.gives = frozenset({"both_views"} if symmetric else {})
        if symmetric and momentum is None and predictor is None:
            self.gives |= {"two_views"}

    def trained_outputs(self, batch: Batch) -> Outputs:
        """``z`` of every view that the trained network sees and, with a predictor, ``prediction`` of the anchors."""
        seen = 1 if self.target is not None and not self.symmetric else 2
        views = batch.views if "two_views" in self.gives else batch.views[:seen]
        z = self._each(lambda x: self.encoder(x)["projection"], views)  # [V, B, D]
        if self.predictor is None:
            return {"z": z}
        anchors = [*z] if self.symmetric else [z[0]]
        return {"z": z, "prediction": self._each(self.predictor, anchors)}

    @torch.no_grad()
    def momentum_outputs(self, batch: Batch) -> Outputs:
        """``key`` of every view that is a positive, from the momentum network; empty without one."""
        if self.target is None:
            return {}
        views = batch.views[:2] if self.symmetric else batch.views[1:2]
        if self.norm == "shuffle" and world() > 1:
            shuffled = [gather(view)[rank() :: world()] for view in views]  # each W-th image of the global batch
            keys = gather(self._keys(shuffled), dim=1)  # in the order of the ranks that computed them
            in_order = keys.unflatten(1, (world(), -1)).transpose(1, 2).flatten(1, 2)
            size = views[0].shape[0]
            return {"key": in_order[:, rank() * size : (rank() + 1) * size]}
        return {"key": self._keys(views)}

    def embed(self, outputs: Outputs, ids: Tensor) -> Embedded:
        z = full_precision(outputs["z"])
        if len(z) > 2:  # each of the first two with every other view
            unit = normalize(z, dim=-1)
            pairs = [(anchor, view) for anchor in range(2) for view in range(len(z)) if view != anchor]
            anchor, positive = map(list, zip(*pairs, strict=True))
            return Embedded(unit[anchor], unit[positive], z[anchor], ids, anchor_keys=unit[anchor])
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
        """Outputs [V, B, D] of a network, from one forward for all inputs of a size or one for each input."""
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
