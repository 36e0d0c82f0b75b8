"""Cross-level instance-group discrimination: a term beside an instance loss (Wang et al. 2021, arXiv 2008.03813;
official code frank-xwang/CLD-UnsupervisedLearning).

A second linear head gives each of two views of an image a unit vector u. The vectors of a view are clustered, and what
one view says of an image must find the cluster that the other view put it in, among the means M of the clusters:

    loss = instance loss + weight * CLD
    CLD  = mean over the views v, w the other one, of   -log softmax(u_v M_w / tau)_label_w

The means are not made unit, and the gradient goes through them. The clusters are of the global batch, so that any
number of ranks does the same; in the official code they are each GPU's own.

V views   B images on this rank   N images of all ranks   C clusters   D width
"""

from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from ssl_bench.data.batch import Batch
from ssl_bench.distributed import gather, rank
from ssl_bench.methods.base import Method, Outputs
from ssl_bench.methods.kmeans import kmeans
from ssl_bench.methods.npid import NPID
from ssl_bench.methods.siamese import Siamese
from ssl_bench.networks.encoder import full_precision
from ssl_bench.networks.heads import MLP
from ssl_bench.objective.contrast import Contrast, Embedded
from ssl_bench.objective.diagnostics import diagnose
from ssl_bench.objective.losses import InfoNCE
from ssl_bench.objective.negatives import Queue
from ssl_bench.objective.temperature import Fixed


class CrossLevel(nn.Module):
    """The group head and the term.

    Args:
        inputs, dim: width of the backbone's features, and D.
        clusters: C.
        cld_tau: its temperature.
        weight: of the term.
        iterations: of k-means.
    """

    def __init__(self, inputs: int, dim: int, clusters: int, cld_tau: float, weight: float, iterations: int) -> None:
        super().__init__()
        for name, value in {"clusters": clusters, "iterations": iterations}.items():
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1")
        if not cld_tau > 0:
            raise ValueError(f"cld_tau={cld_tau} must be positive")
        self.clusters, self.tau, self.weight, self.iterations = clusters, cld_tau, weight, iterations
        self.head = nn.Linear(inputs, dim)

    def trained(self, encoder: nn.Module, views: list[Tensor]) -> Outputs:
        """One forward for each view: the projections ``z`` and the group vectors ``group``, [V, B, D] each."""
        outputs = [encoder(view) for view in views]
        z = torch.stack([each["projection"] for each in outputs])
        return {"z": z, "group": torch.stack([self.head(each["backbone"]) for each in outputs])}

    def forward(self, group: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted term [] for ``group`` [2, B, D], and the share of images that find their cluster."""
        with torch.autocast(group.device.type, enabled=False):
            u = normalize(full_precision(group), dim=-1)
            every, share = gather(u, dim=1), u.shape[1]  # [2, N, D]
            found = [kmeans(view, self.clusters, self.iterations) for view in every]
            terms, right = [], []
            for one, (labels, means) in zip(u, reversed(found), strict=True):
                own = labels[rank() * share : (rank() + 1) * share]  # [B]
                logits = one @ means.T / self.tau  # [B, C]
                terms.append(cross_entropy(logits, own))
                right.append((logits.argmax(1) == own).to(u.dtype).mean())
            term = torch.stack(terms).mean()
            top1 = gather(torch.stack(right).mean()[None]).mean()
        return self.weight * term, {"cld/loss": gather(term.detach()[None]).mean(), "cld/top1": top1}

    def check(self, images: int) -> None:
        """Raises ValueError if a global batch of ``images`` has fewer than there are clusters."""
        if self.clusters > images:
            raise ValueError(f"clusters={self.clusters} is more than a batch of {images} images: set {images} or less")


class NPIDCLD(NPID):
    """NPID of two views, whose losses are averaged and which enter the memory one after the other, with CLD.

    Args:
        clusters, cld_tau, weight, iterations: as in :class:`CrossLevel`.
        npid: as in :class:`NPID`.
    """

    views: ClassVar[int] = 2

    def __init__(
        self,
        backbone: nn.Module,
        head: MLP,
        clusters: int,
        cld_tau: float,
        weight: float,
        iterations: int,
        **npid: Any,
    ) -> None:
        super().__init__(backbone, head, **npid)
        self.cld = CrossLevel(_width(backbone), head.num_features, clusters, cld_tau, weight, iterations)

    def trained(self, batch: Batch) -> Outputs:
        return self.cld.trained(self.encoder, batch.views[:2])

    def objective(
        self, outputs: Outputs, batch: Batch, progress: float, diagnostics: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        loss, found = super().objective(outputs, batch, progress, diagnostics)
        term, more = self.cld(outputs["group"])
        return loss + term, found | (more if diagnostics else {})

    def facts(self, images: int) -> dict[str, Any]:
        self.cld.check(images)
        return super().facts(images)


class MoCoCLD(Method):
    """MoCo with two views as queries and a third one's key as the positive of both, with CLD between the queries.

    Args:
        backbone, head: the networks.
        momentum: of the moving average that makes the keys.
        k: keys in the queue.
        tau: of InfoNCE, fixed.
        clusters, cld_tau, weight, iterations: as in :class:`CrossLevel`.
        seed: of the first keys.
        norm: as in :class:`ssl_bench.methods.siamese.Siamese`.
    """

    views: ClassVar[int] = 3

    def __init__(
        self,
        backbone: nn.Module,
        head: MLP,
        momentum: float,
        k: int,
        tau: float,
        clusters: int,
        cld_tau: float,
        weight: float,
        iterations: int,
        seed: int,
        norm: Literal["sync", "shuffle", "local"],
    ) -> None:
        super().__init__()
        self.moco = Siamese(backbone, head, momentum, symmetric=False, views_forward="separate", norm=norm)
        self.queue, self.temperature, self.loss = Queue(k, head.num_features, seed), Fixed(tau), InfoNCE()
        self.cld = CrossLevel(_width(backbone), head.num_features, clusters, cld_tau, weight, iterations)
        self.norm = norm

    @property
    def encoder(self) -> nn.Module:  # type: ignore[override]
        return self.moco.encoder

    def networks(self) -> list[nn.Module]:
        return list(self.moco.children())

    def trained(self, batch: Batch) -> Outputs:
        return self.cld.trained(self.encoder, batch.views[:2])

    def followed(self, batch: Batch) -> Outputs:
        return self.moco.followed(replace(batch, views=batch.views[1:3]))  # the key of the second of these

    def objective(
        self, outputs: Outputs, batch: Batch, progress: float, diagnostics: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        with torch.autocast(batch.ids.device.type, enabled=False):
            z = full_precision(outputs["z"])  # [2, B, D]
            q, key = normalize(z, dim=-1), normalize(full_precision(outputs["key"]), dim=-1)  # key [1, B, D]
            e = Embedded(q, key.expand_as(q), z, batch.ids)
            contrast, tau = Contrast.of(e, self.queue.bank(e)), self.temperature.tau
            loss = self.loss(contrast, tau).mean()
            self._last = Embedded(q[:1].detach(), key, z[:1].detach(), batch.ids)  # a key enters the queue once
            found = diagnose(contrast, tau, self.loss) if diagnostics else {"tau": tau}
        term, more = self.cld(outputs["group"])
        return loss + term, found | (more if diagnostics else {})

    @torch.no_grad()
    def after_step(self, progress: float) -> None:
        self.queue.update(self._last)
        self.moco.after_step(progress)
        super().after_step(progress)

    def facts(self, images: int) -> dict[str, Any]:
        self.cld.check(images)
        return {"negatives_per_anchor": self.queue.k}


def _width(backbone: nn.Module) -> int:
    width: int = backbone.num_features  # type: ignore[assignment]
    return width
