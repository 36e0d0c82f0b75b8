"""Dense contrastive learning: a term of whole views, and a term of the cells of their feature maps (DenseCL, Wang et
al. 2021, arXiv 2011.09157; official code WXinlong/DenseCL).

MoCo is the first term. For the second one, a head of its own gives each cell of a view's feature map a vector r. The
positive of cell i of the query is the vector of the cell of the key view whose features F are most like those of i, and
the keys of a queue are the means of the cells' vectors, one of each image:

    loss = (1 - weight) L(q, k) + weight mean_i L(r_i, r'_c(i)),   c(i) = argmax_j cos(F_i, F'_j)

L is the option ``loss``, InfoNCE in the paper.

Shapes: B images on this rank; S cells of a map; F width of its features; D width.
"""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ssl_bench.data.batch import Batch
from ssl_bench.errors import require
from ssl_bench.methods.base import Outputs, Term
from ssl_bench.methods.siamese import Siamese
from ssl_bench.networks.encoder import Encoder, full_precision, unit
from ssl_bench.networks.heads import MLP
from ssl_bench.objective.contrast import Embedded
from ssl_bench.objective.products import products


class DenseEncoder(Encoder):
    """An encoder with a head for the cells of the backbone's feature map: 1 x 1 convolutions, written as Linears."""

    def __init__(self, backbone: Any, head: MLP) -> None:
        super().__init__(backbone, head)
        inputs, hidden = backbone.num_features, next(iter(head.parameters())).shape[0]
        self.dense = nn.Sequential(
            nn.Linear(inputs, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, head.num_features)
        )

    def forward(self, x: Tensor, dense: bool = False) -> dict[str, Tensor]:
        """As in the base class; with ``dense`` instead ``z`` [B, D], ``r`` [B, S, D] and ``cells`` [B, S, F]."""
        if not dense:
            return super().forward(x)
        backbone: Any = self.backbone
        feature_map = backbone.forward_features(x)  # [B, F, h, w]
        cells = feature_map.flatten(2).mT
        return {"z": self.head(backbone.forward_head(feature_map)), "r": self.dense(cells), "cells": cells.detach()}


class DenseCL(Siamese):
    """MoCo with a second term of the cells of the feature map.

    Args:
        backbone, head: the networks; the head of the cells has the hidden width and the output width of ``head``.
        weight: weight of the term of the cells, from 0 to 1.
        momentum, norm, groups: as in :class:`ssl_bench.methods.siamese.Siamese`.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"map"})
    further = {"dense": True}  # noqa: RUF012

    def __init__(
        self,
        backbone: nn.Module,
        head: MLP,
        weight: float,
        momentum: float,
        norm: Literal["sync", "shuffle", "local"],
        groups: int = 1,
    ) -> None:
        require(0 <= weight <= 1, "weight", weight, "a number from 0 to 1")
        super().__init__(backbone, head, momentum, symmetric=False, norm=norm, groups=groups, encoder=DenseEncoder)
        self.weight = weight

    def trained_outputs(self, batch: Batch) -> Outputs:
        """``z`` [1, B, D] of the first view, ``r`` [S, B, D] and ``cells`` [S, B, F] of its map."""
        return _by_cell(self.encoder(batch.views[0], dense=True))

    @torch.no_grad()
    def momentum_outputs(self, batch: Batch) -> Outputs:
        """The same of the second view, from the momentum network; with ``key_`` before their names."""
        assert self.target is not None
        outputs = self.target(self._dealt(batch.views[1]), dense=True)
        collected = {name: self._collected(y) for name, y in outputs.items()}
        return {f"key_{name}": y for name, y in _by_cell(collected).items()}

    def embed(self, outputs: Outputs, ids: Tensor) -> list[Term]:
        z, r, cells, key, key_r, key_cells = (
            full_precision(outputs[name]) for name in ("z", "r", "cells", "key_z", "key_r", "key_cells")
        )
        alike = products(unit(cells).transpose(0, 1), unit(key_cells).transpose(0, 1))  # [B, S, S]
        match = alike.argmax(2).T[..., None].expand_as(r)  # [S, B, D]
        positives = unit(key_r).gather(0, match)
        pooled = Embedded(unit(z), unit(key), z, ids)
        dense = Embedded(unit(r), positives, r, ids, stored=unit(key_r.mean(0, keepdim=True)))
        return [Term(pooled, weight=1 - self.weight), Term(dense, "dense", self.weight, cells=len(r))]


def _by_cell(outputs: Outputs) -> Outputs:
    """Outputs [B, D] as [1, B, D], and those of cells [B, S, D] as [S, B, D]."""
    return {name: value[None] if value.ndim == 2 else value.transpose(0, 1) for name, value in outputs.items()}
