"""Cross-level instance-group discrimination: a term added to an instance loss (Wang et al. 2021, arXiv 2008.03813;
official code frank-xwang/CLD-UnsupervisedLearning).

A second linear head gives each of two views of an image a unit vector u. The vectors of each view are clustered. The
vector of an image in one view must find, among the means M of the clusters of the other view, the image's own cluster:

    loss = instance loss + weight * CLD
    CLD  = mean over the views v, w the other one, of   -log softmax(u_v M_w / tau)_label_w

The means are not normalised, and the gradient goes through them. The clusters are of the global batch, so that the
result does not depend on the number of ranks; in the official code they are those of each GPU.

Shapes: V views; B images on this rank; N images of all ranks; C clusters; D width.
"""

from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ssl_bench.data.batch import Batch
from ssl_bench.distributed import gather, rank
from ssl_bench.errors import require
from ssl_bench.methods.base import Method, Outputs, StepResult
from ssl_bench.methods.kmeans import kmeans
from ssl_bench.methods.npid import NPID
from ssl_bench.methods.siamese import Siamese
from ssl_bench.networks.encoder import full_precision, unit
from ssl_bench.networks.heads import MLP
from ssl_bench.objective.contrast import Contrast, Embedded
from ssl_bench.objective.diagnostics import diagnose
from ssl_bench.objective.losses import InfoNCE
from ssl_bench.objective.negatives import Queue
from ssl_bench.objective.schedule import Progress
from ssl_bench.objective.temperature import Fixed
from ssl_bench.precision import products


class CrossLevel(nn.Module):
    """The group head and the term.

    Args:
        inputs, dim: width of the backbone's features, and D.
        clusters: C, at least 1.
        cld_tau: temperature of the term, positive.
        weight: of the term.
        iterations: of k-means, at least 1.

    Raises:
        InvalidValue: clusters, iterations or cld_tau outside these ranges.
    """

    def __init__(self, inputs: int, dim: int, clusters: int, cld_tau: float, weight: float, iterations: int) -> None:
        super().__init__()
        require(clusters >= 1, "clusters", clusters, "1 or more")
        require(iterations >= 1, "iterations", iterations, "1 or more")
        require(cld_tau > 0, "cld_tau", cld_tau, "a positive number")
        self.clusters, self.tau, self.weight, self.iterations = clusters, cld_tau, weight, iterations
        self.head = nn.Linear(inputs, dim)

    def trained_outputs(self, encoder: nn.Module, views: list[Tensor]) -> Outputs:
        """Projections ``z`` and group vectors ``group``, [V, B, D] each, from one forward for each view."""
        outputs = [encoder(view) for view in views]
        z = torch.stack([each["projection"] for each in outputs])
        return {"z": z, "group": torch.stack([self.head(each["backbone"]) for each in outputs])}

    def forward(self, group: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted term [] for ``group`` [2, B, D], and its diagnostics."""
        with torch.autocast(group.device.type, enabled=False):
            u = unit(full_precision(group))
            all_u, share = gather(u, dim=1), u.shape[1]  # [2, N, D]
            clustered = [kmeans(view, self.clusters, self.iterations) for view in all_u]
            terms, correct = [], []
            for vectors, (labels, means) in zip(u, reversed(clustered), strict=True):
                local_labels = labels[rank() * share : (rank() + 1) * share]  # [B]
                logits = products(vectors, means) / self.tau  # [B, C]
                terms.append(cross_entropy(logits, local_labels))
                correct.append((logits.argmax(1) == local_labels).to(u.dtype).mean())
            term = torch.stack(terms).mean()
            top1 = gather(torch.stack(correct).mean()[None]).mean()
        return self.weight * term, {"cld/loss": gather(term.detach()[None]).mean(), "cld/top1": top1}

    def check(self, images: int) -> None:
        """Refuse a global batch of ``images`` that has fewer images than there are clusters.

        Raises:
            InvalidValue: naming the clusters.
        """
        require(self.clusters <= images, "clusters", self.clusters, f"{images} or less, the images of a batch")


class NPIDCLD(NPID):
    """NPID of two views with CLD. The views' losses are averaged, and both enter the memory, one after the other.

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

    def trained_outputs(self, batch: Batch) -> Outputs:
        return self.cld.trained_outputs(self.encoder, batch.views[:2])

    def objective(self, outputs: Outputs, batch: Batch, progress: Progress, diagnostics: bool) -> StepResult:
        loss, values, kept = super().objective(outputs, batch, progress, diagnostics)
        term, term_values = self.cld(outputs["group"])
        return StepResult(loss + term, values | (term_values if diagnostics else {}), kept)

    def facts(self, images: int) -> dict[str, Any]:
        self.cld.check(images)
        return super().facts(images)


class MoCoCLD(Method):
    """MoCo with CLD: two views are queries, the key of a third view is the positive of both, CLD is of the queries.

    Args:
        backbone, head: the networks.
        momentum: of the moving average that makes the keys.
        k: keys in the queue.
        tau: of InfoNCE, fixed.
        clusters, cld_tau, weight, iterations: as in :class:`CrossLevel`.
        seed: of the first keys.
        norm, groups: as in :class:`ssl_bench.methods.siamese.Siamese`.
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
        groups: int = 1,
    ) -> None:
        super().__init__()
        self.norm, self.groups = norm, groups
        self.moco = Siamese(
            backbone, head, momentum, symmetric=False, views_forward="separate", norm=norm, groups=groups
        )
        self.queue, self.temperature, self.loss = Queue(k, head.num_features, seed), Fixed(tau), InfoNCE()
        self.cld = CrossLevel(_width(backbone), head.num_features, clusters, cld_tau, weight, iterations)

    @property
    def encoder(self) -> nn.Module:  # type: ignore[override]
        return self.moco.encoder

    def networks(self) -> list[nn.Module]:
        return list(self.moco.children())

    def trained_outputs(self, batch: Batch) -> Outputs:
        return self.cld.trained_outputs(self.encoder, batch.views[:2])

    def momentum_outputs(self, batch: Batch) -> Outputs:
        return self.moco.momentum_outputs(replace(batch, views=batch.views[1:3]))  # the key of the second of these

    def objective(self, outputs: Outputs, batch: Batch, progress: Progress, diagnostics: bool) -> StepResult:
        with torch.autocast(batch.ids.device.type, enabled=False):
            z = full_precision(outputs["z"])  # [2, B, D]
            q, key = unit(z), unit(full_precision(outputs["key"]))  # key [1, B, D]
            e = Embedded(q, key.expand_as(q), z, batch.ids)
            contrast, tau = Contrast.of(e, self.queue.bank(e)), self.temperature.tau
            loss = self.loss(contrast, tau).mean()
            kept = Embedded(q[:1], key, z[:1], batch.ids).detach()  # a key enters the queue once
            values = diagnose(contrast, tau, self.loss) if diagnostics else {"tau": tau}
        term, term_values = self.cld(outputs["group"])
        return StepResult(loss + term, values | (term_values if diagnostics else {}), kept)

    @torch.no_grad()
    def update(self, kept: Embedded, progress: float) -> None:
        self.queue.update(kept, progress)
        self.moco.update(kept, progress)
        super().update(kept, progress)

    def facts(self, images: int) -> dict[str, Any]:
        self.cld.check(images)
        return {"negatives_per_anchor": self.queue.k}


def _width(backbone: nn.Module) -> int:
    width: int = backbone.num_features  # type: ignore[assignment]
    return width
