"""The Siamese framework: two views of an image through one network, or through a network and its moving average.

SimCLR, MoCo, SiMo, ReLIC, BYOL and SimSiam are settings of this one class. Negatives are configured separately.

Shapes: V views; B images on this rank; G groups; D width.
"""

import copy
import itertools
import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from ssl_bench.data.batch import Batch
from ssl_bench.errors import require
from ssl_bench.methods.base import Framework, Outputs, Term
from ssl_bench.networks.encoder import Encoder, full_precision, unit
from ssl_bench.networks.heads import MLP, FinalNorm
from ssl_bench.networks.norm import collect, deal, joint_forward
from ssl_bench.objective.contrast import Embedded


class Siamese(Framework):
    """Two views of an image are each other's positives; both are anchors, or only the first.

    Further views, smaller crops, are positives of the first two and not anchors (SwAV's multi-crop, for DCLW); this
    needs a symmetric framework of one network.

    Args:
        momentum: None: positives come from the trained network itself, with gradient (SimCLR). A number in [0, 1]:
            they come, without gradient, from the momentum network, a moving average of the parameters updated after
            every step by k <- momentum k + (1 - momentum) q (MoCo eq. 2); it has batch statistics of its own.
        final_momentum: the momentum at the end of the training, reached on half a cosine (BYOL appendix C.2); None: the
            momentum is constant.
        predictor: None, or the hidden width of a two-layer MLP that anchors pass after the head (BYOL).
        stop_gradient: without a momentum network, positives have no gradient (SimSiam).
        predictor_norm: BN after the predictor's last Linear, as ``final_norm`` of :class:`MLP` (MoCo v3: ``plain``).
        symmetric: both views are anchors, or only the first.
        views_forward: ``joint``: all views in one forward, so that batch statistics are over all of them (official
            SimCLR); ``separate``: one forward per view (most PyTorch codes).
        norm: ``sync``: batch statistics are over the global batch; ``local``: over each of ``groups`` slices of it;
            ``shuffle``: as ``local``, and for the momentum network group k of G has the images k, k + G, k + 2 G ...,
            so that an image shares its batch statistics with other images than in the trained network (MoCo).
        groups: G. With one group, ``local`` and ``shuffle`` are ``sync``.
        encoder: class of the networks.

    Raises:
        InvalidValue: a momentum outside [0, 1], or a setting that needs a momentum network or predictor without one.
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
        groups: int = 1,
        stop_gradient: bool = False,
        predictor_norm: FinalNorm = "none",
        *,
        encoder: type[Encoder] = Encoder,
    ) -> None:
        super().__init__()
        for name, value in {"momentum": momentum, "final_momentum": final_momentum}.items():
            require(value is None or 0 <= value <= 1, name, value, "null or a number from 0 to 1")
        averaged = momentum is not None
        remedy = "or framework.momentum to a number from 0 to 1: without one there is no momentum network"
        require(averaged or norm != "shuffle", "norm", norm, f"sync or local, {remedy}")
        require(averaged or final_momentum is None, "final_momentum", final_momentum, f"null, {remedy}")
        self.momentum, self.final_momentum = momentum, final_momentum
        self.views_forward, self.norm, self.groups, self.symmetric = views_forward, norm, groups, symmetric
        self.stop_gradient = stop_gradient
        self.encoder = encoder(backbone, head)
        self.target = None if momentum is None else copy.deepcopy(self.encoder).requires_grad_(False)
        require(predictor is None or predictor >= 1, "predictor", predictor, "1 or more, or null")
        remedy = "none, or framework.predictor to a width: without a predictor there is no norm after it"
        require(predictor is not None or predictor_norm == "none", "predictor_norm", predictor_norm, remedy)
        width = head.num_features
        self.predictor = None if predictor is None else MLP(width, 2, predictor, width, True, predictor_norm)
        self.gives = frozenset({"both_views"} if symmetric else {})
        if symmetric and momentum is None and predictor is None and not stop_gradient:
            self.gives |= {"two_views"}

    def trained_outputs(self, batch: Batch) -> Outputs:
        """``z`` of every view that the trained network sees and, with a predictor, ``prediction`` of the anchors."""
        seen = 1 if self.target is not None and not self.symmetric else 2
        views = batch.views if "two_views" in self.gives else batch.views[:seen]
        z = self._outputs(lambda x: self.encoder(x)["projection"], views)  # [V, B, D]
        if self.predictor is None:
            return {"z": z}
        anchors = [*z] if self.symmetric else [z[0]]
        return {"z": z, "prediction": self._outputs(self.predictor, anchors)}

    @torch.no_grad()
    def momentum_outputs(self, batch: Batch) -> Outputs:
        """``key`` of every view that is a positive, from the momentum network; empty without one."""
        if self.target is None:
            return {}
        target, views = self.target, batch.views[:2] if self.symmetric else batch.views[1:2]
        keys = self._outputs(lambda x: target(x)["projection"], [self._dealt(view) for view in views])
        return {"key": torch.stack([self._collected(key) for key in keys]) if self._shuffles else keys}

    @property
    def _shuffles(self) -> bool:
        return self.norm == "shuffle" and self.groups > 1

    def _dealt(self, view: Tensor) -> Tensor:
        """The images of a view in the order in which the momentum network sees them."""
        return deal(view, self.groups) if self._shuffles else view

    def _collected(self, y: Tensor) -> Tensor:
        """Outputs [B, ...] of the momentum network in the order of this rank's images."""
        return collect(y, self.groups) if self._shuffles else y

    def embed(self, outputs: Outputs, ids: Tensor) -> list[Term]:
        z = full_precision(outputs["z"])
        if len(z) > 2:  # each of the first two with every other view
            units = unit(z)
            view = torch.arange(len(z), device=z.device)  # a list as an index would be copied from the host
            anchor = view[:2].repeat_interleave(len(z) - 1)  # 0 0 ... 1 1 ...
            positive = torch.cat([view[1:], view[:1], view[2:]])  # 1 2 ... 0 2 ...
            return [Term(Embedded(units[anchor], units[positive], z[anchor], ids, anchor_keys=units[anchor]))]
        anchors = 2 if self.symmetric else 1
        raw = full_precision(outputs["prediction"]) if self.predictor is not None else _first(z, anchors)
        q = unit(raw)
        if self.target is not None:
            keys = unit(full_precision(outputs["key"]))
            p = keys.flip(0) if self.symmetric else keys
        else:
            units = q if self.predictor is None and self.symmetric else unit(z)
            p = _first(units.flip(0), anchors)
        return [Term(Embedded(q, p.detach() if self.stop_gradient else p, raw, ids))]

    def _outputs(self, network: Callable[[Tensor], Tensor], inputs: list[Tensor]) -> Tensor:
        """Outputs [V, B, D] of a network, from one forward for all inputs of a size or one for each input."""
        if self.views_forward == "separate":
            return torch.stack([network(x) for x in inputs])
        sizes = [list(same) for _, same in itertools.groupby(inputs, lambda x: x.shape)]
        outputs = [joint_forward(network, same, self.groups) for same in sizes]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    @torch.no_grad()
    def update(self, e: Embedded, progress: float) -> None:
        if self.target is None or self.momentum is None:
            return
        momentum = self.momentum
        if self.final_momentum is not None:
            momentum = self.final_momentum - (self.final_momentum - momentum) * (math.cos(math.pi * progress) + 1) / 2
        # One operation for all parameters instead of two for each.
        k: list[Tensor] = [*self.target.parameters()]
        q: list[Tensor] = [*self.encoder.parameters()]
        torch._foreach_lerp_(k, q, 1 - momentum)


def _first(x: Tensor, count: int) -> Tensor:
    """``x[:count]``, without an operation where that is all of it."""
    return x if len(x) == count else x[:count]
