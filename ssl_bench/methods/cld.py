"""Cross-level instance-group discrimination: a second term beside that of instances (Wang et al. 2021, arXiv
2008.03813; official code frank-xwang/CLD-UnsupervisedLearning).

A second linear head gives each of two views of an image a unit vector u. The vectors of each view are clustered. The
vector of an image in one view must find, among the means M of the clusters of the other view, the image's own cluster:

    anchor u_v,   positive M_w of the image's cluster,   negatives M_w of the other clusters;   w the other view

With InfoNCE, the loss of the paper, that is -log softmax(u_v M_w / tau). The means are not normalised, and the
gradient goes through them. The clusters are of the global batch, so that the result does not depend on the number of
ranks; in the official code they are those of each GPU.

Shapes: B images on this rank; N images of all ranks; C clusters; D width.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ssl_bench.data.batch import Batch
from ssl_bench.distributed import gather, rank
from ssl_bench.errors import require
from ssl_bench.methods.base import Outputs, Term
from ssl_bench.methods.kmeans import kmeans
from ssl_bench.methods.npid import NPID
from ssl_bench.methods.siamese import Siamese
from ssl_bench.networks.encoder import full_precision, unit
from ssl_bench.networks.heads import MLP
from ssl_bench.objective.contrast import Bank, Embedded
from ssl_bench.objective.temperature import Fixed

LACKS = "set framework.weight=0, or loss to another option: clusters have none"


class CrossLevel(nn.Module):
    """The group head and the term ``cld``.

    Args:
        backbone, head: the networks; D is the width of the head's output.
        clusters: C, 2 or more.
        cld_tau: temperature of the term, positive; None: that of the option ``temperature``.
        weight: weight of the term, 0 or more; with 0 there is no term.
        iterations: steps of k-means, at least 1.
    """

    def __init__(
        self, backbone: Any, head: MLP, clusters: int, cld_tau: float | None, weight: float, iterations: int
    ) -> None:
        super().__init__()
        require(weight >= 0, "weight", weight, "0 or more")
        require(clusters >= 2 or not weight, "clusters", clusters, "2 or more, or framework.weight to 0")
        require(iterations >= 1, "iterations", iterations, "1 or more")
        require(
            cld_tau is None or cld_tau > 0, "cld_tau", cld_tau, "a positive number, or null for that of temperature"
        )
        self.clusters, self.weight, self.iterations = clusters, weight, iterations
        self.temperature = None if cld_tau is None else Fixed(cld_tau)
        self.head = nn.Linear(backbone.num_features, head.num_features) if weight else None
        self.further: Mapping[str, bool] = {"cld": False} if weight else {}
        self.lacks: Mapping[str, str] = dict.fromkeys(("own_view", "aligned"), LACKS) if weight else {}

    def trained_outputs(self, encoder: nn.Module, views: list[Tensor]) -> Outputs:
        """Projections ``z`` and group vectors ``group``, [2, B, D] each, from one forward for each view."""
        by_view = [encoder(view) for view in views]
        outputs = {"z": torch.stack([of_view["projection"] for of_view in by_view])}
        if self.head is not None:
            outputs["group"] = torch.stack([self.head(of_view["backbone"]) for of_view in by_view])
        return outputs

    def terms(self, outputs: Outputs, ids: Tensor) -> list[Term]:
        """The term of the group vectors, if its weight is not 0."""
        if self.head is None:
            return []
        raw = full_precision(outputs["group"])  # [2, B, D]
        u = unit(raw)
        all_u, share = gather(u, dim=1), u.shape[1]  # [2, N, D]
        clustered = [kmeans(view, self.clusters, self.iterations) for view in all_u.flip(0)]
        labels = torch.stack([label[rank() * share : (rank() + 1) * share] for label, _ in clustered])  # [2, B]
        means = torch.stack([mean for _, mean in clustered])  # [2, C, D]
        positives = torch.stack([mean[label] for mean, label in zip(means, labels, strict=True)])
        others = torch.arange(means.shape[1] - 1, device=u.device)
        index = others + (others >= labels[..., None])  # [2, B, C - 1]
        bank = Bank(means, None, index=index.int())
        return [Term(Embedded(u, positives, raw, ids), "cld", self.weight, bank, self.temperature)]

    def check(self, images: int) -> None:
        """Refuse a global batch of ``images`` that has fewer images than there are clusters.

        Raises:
            InvalidValue: naming the clusters.
        """
        fits, key = self.clusters <= images or self.head is None, "framework.clusters"
        require(fits, key, self.clusters, f"{images} or less, the images of a batch")


class NPIDCLD(NPID):
    """NPID of two views with CLD. The views' losses are averaged, and both enter the memory, one after the other.

    Args:
        clusters, cld_tau, weight, iterations: as in :class:`CrossLevel`.
        npid: as in :class:`NPID`.
    """

    views = 2

    def __init__(
        self,
        backbone: nn.Module,
        head: MLP,
        clusters: int,
        cld_tau: float | None,
        weight: float,
        iterations: int,
        **npid: Any,
    ) -> None:
        super().__init__(backbone, head, **npid)
        self.cld = CrossLevel(backbone, head, clusters, cld_tau, weight, iterations)
        self.further, self.lacks = self.cld.further, self.cld.lacks

    def trained_outputs(self, batch: Batch) -> Outputs:
        return self.cld.trained_outputs(self.encoder, batch.views[:2])

    def embed(self, outputs: Outputs, ids: Tensor) -> list[Term]:
        return super().embed(outputs, ids) + self.cld.terms(outputs, ids)

    def check(self, images: int) -> None:
        self.cld.check(images)


class MoCoCLD(Siamese):
    """MoCo with CLD: two views are queries, the key of a third view is the positive of both, CLD is of the queries.

    Args:
        momentum: momentum of the moving average that makes the keys.
        clusters, cld_tau, weight, iterations: as in :class:`CrossLevel`.
        norm, groups: as in :class:`ssl_bench.methods.siamese.Siamese`.
    """

    views = 3

    def __init__(
        self,
        backbone: nn.Module,
        head: MLP,
        momentum: float,
        clusters: int,
        cld_tau: float | None,
        weight: float,
        iterations: int,
        norm: Literal["sync", "shuffle", "local"],
        groups: int = 1,
    ) -> None:
        super().__init__(backbone, head, momentum, symmetric=False, views_forward="separate", norm=norm, groups=groups)
        self.cld = CrossLevel(backbone, head, clusters, cld_tau, weight, iterations)
        self.further, self.lacks = self.cld.further, self.cld.lacks

    def trained_outputs(self, batch: Batch) -> Outputs:
        return self.cld.trained_outputs(self.encoder, batch.views[:2])

    def momentum_outputs(self, batch: Batch) -> Outputs:
        return super().momentum_outputs(replace(batch, views=batch.views[1:3]))  # the key of the second of these

    def embed(self, outputs: Outputs, ids: Tensor) -> list[Term]:
        z = full_precision(outputs["z"])  # [2, B, D]
        q, key = unit(z), unit(full_precision(outputs["key"]))  # key [1, B, D], which enters a queue once
        return [Term(Embedded(q, key.expand_as(q), z, ids, stored=key)), *self.cld.terms(outputs, ids)]

    def check(self, images: int) -> None:
        self.cld.check(images)
