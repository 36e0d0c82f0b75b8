"""Base classes: a method is networks and an objective on their outputs, the one module that is trained.

Shapes: V anchor views; B images on this rank; D width; F features of the backbone.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ssl_bench.data.batch import Batch
from ssl_bench.errors import require
from ssl_bench.networks.norm import average_running_statistics, count_steps
from ssl_bench.objective.contrast import Contrast, Embedded
from ssl_bench.objective.diagnostics import diagnose
from ssl_bench.objective.loss import Loss
from ssl_bench.objective.negatives import Negatives
from ssl_bench.objective.positives import OtherView, Positives
from ssl_bench.objective.sampling import StepGenerator
from ssl_bench.objective.schedule import Progress
from ssl_bench.objective.shards import Shards
from ssl_bench.objective.similarity import Name
from ssl_bench.objective.temperature import Temperature

Norm = Literal["sync", "shuffle", "local"]
Outputs = dict[str, Tensor]  # each [V, B, ...], so that those of several chunks of a batch can be joined


class StepResult(NamedTuple):
    """The result of a forward pass."""

    loss: Tensor  # [], the mean over this rank
    diagnostics: dict[str, Tensor]
    kept: Any = None  # what update needs of this batch, detached; a dataclass, as DDP leaves it unchanged, or None


class Method(nn.Module, ABC):
    """Networks and the objective on their outputs.

    Forward and objective are separate, so that a batch can be processed in chunks: the networks see some images at a
    time, and the objective sees their outputs for all images.

    Attributes:
        encoder: maps views [B, channels, H, W] to ``{"backbone": [B, F], "projection": [B, D]}``; it is evaluated.
        norm: ``sync``: batch statistics are over the global batch; ``local``: over each of ``groups`` equal slices of
            it; ``shuffle``: as ``local``, with other images in a group for the momentum network.
        groups: G, 1 for ``sync``. It does not depend on the number of ranks, which must divide it unless it is 1.
        views: number of views of an image that the method takes.
    """

    encoder: nn.Module
    norm: Norm
    groups: int = 1
    views: ClassVar[int] = 2

    def networks(self) -> list[nn.Module]:
        """The networks, which may be compiled."""
        return [self.encoder]

    @abstractmethod
    def trained_outputs(self, batch: Batch) -> Outputs:
        """Outputs of the trained networks for a batch, with gradient."""
        raise NotImplementedError

    def momentum_outputs(self, batch: Batch) -> Outputs:
        """Outputs of the momentum network, and other constants made of the views: without gradient."""
        return {}

    @abstractmethod
    def objective(self, outputs: Outputs, batch: Batch, progress: Progress, diagnostics: bool) -> StepResult:
        """Compute the loss and, with ``diagnostics``, all diagnostics; ``batch`` may come without its views."""
        raise NotImplementedError

    def forward(self, batch: Batch, progress: Progress, diagnostics: bool = False) -> StepResult:
        """Run the networks and the objective at ``progress`` in [0, 1] of the training."""
        outputs = self.trained_outputs(batch) | self.momentum_outputs(batch)
        return self.objective(outputs, batch, progress, diagnostics)

    def update(self, kept: Any, progress: float) -> None:
        """Update what gradients do not train: queues, memories, momentum networks, counters.

        Called once after each optimiser step, also one that fp16 skips, and never recorded in a CUDA graph. A subclass
        calls this method of its base class last.

        Args:
            kept: from the step's StepResult.
            progress: of the training, as for the forward.
        """
        for module in self.modules():
            if isinstance(module, StepGenerator):
                module.step += 1
        count_steps(self)
        average_running_statistics(self, self.groups)

    def collect(self) -> None:
        """Bring memories that are spread over the ranks to rank 0; called on every rank before the state is saved."""
        for module in self.modules():
            if isinstance(module, Shards):
                module.collect()

    def check_groups(self, devices: int, images: int) -> None:
        """Refuse groups of batch statistics that do not fit the ranks, or the images that are processed at once.

        Args:
            devices: number of ranks.
            images: of the global batch, or of a chunk of it.

        Raises:
            InvalidValue: naming framework.groups.
        """
        key, groups = "framework.groups", self.groups
        require(groups >= 1, key, groups, "1 or more")
        require(groups == 1 or self.norm != "sync", key, groups, "1, or framework.norm to local or shuffle")
        require(groups == 1 or groups % devices == 0, key, groups, f"1 or a multiple of devices={devices}")
        fits = groups == 1 or (images % groups == 0 and images >= 2 * groups)
        remedy = f"a divisor of {images}, the images of a batch or chunk, with 2 images or more in a group"
        require(fits, key, groups, remedy)

    def facts(self, images: int) -> dict[str, Any]:
        """Facts about a run at a global batch of ``images``, for its record.

        Raises:
            InvalidValue: the method cannot work at that batch.
        """
        return {}


class Framework(nn.Module, ABC):
    """The networks of a contrastive method, and the choice of their outputs as anchors and positives.

    Attributes:
        encoder, norm, groups: as in :class:`Method`.
        gives: requirements of negatives and losses that it meets: ``both_views`` (keys of both views), ``two_views``
            (the anchors of the two views are each other's positives).
        views: smallest number of views of an image that it takes.
    """

    encoder: nn.Module
    norm: Norm
    groups: int = 1
    views: ClassVar[int] = 2
    gives: frozenset[str]

    @abstractmethod
    def trained_outputs(self, batch: Batch) -> Outputs:
        """As in :class:`Method`."""
        raise NotImplementedError

    @abstractmethod
    def momentum_outputs(self, batch: Batch) -> Outputs:
        """As in :class:`Method`."""
        raise NotImplementedError

    @abstractmethod
    def embed(self, outputs: Outputs, ids: Tensor) -> Embedded:
        """The anchors of a batch and their positives, from the outputs for it."""
        raise NotImplementedError

    def update(self, kept: Any, progress: float) -> None:
        """Move the momentum network, if there is one; called as the method's :meth:`Method.update`."""


@dataclass(frozen=True)
class Kept:
    """The part of a batch that negatives, positives and a loss keep."""

    e: Embedded
    fresh: dict[str, Tensor]


class Contrastive(Method):
    """A contrastive method, made of framework, negatives, temperature, loss and positives.

    Args:
        reduction: ``mean`` over the anchors of all views (most PyTorch codes); ``sum`` over the views of the mean over
            the images (Google's SimCLR, MACL's code), which is twice as much for two views.
        tiled: whether cosines are computed in panels that are never stored; None: where they are many.
        views: of an image; those after the second are positives of the first two, not anchors.
        similarity: what takes the place of the cosine in s / tau (:mod:`ssl_bench.objective.similarity`).
        positives: None: the other view.

    Raises:
        MissingNeed: a part needs something that the others do not give.
    """

    def __init__(
        self,
        framework: Framework,
        negatives: Negatives,
        temperature: Temperature,
        loss: Loss,
        reduction: Literal["mean", "sum"] = "mean",
        tiled: bool | None = None,
        views: int = 2,
        similarity: Name = "cosine",
        positives: Positives | None = None,
    ) -> None:
        super().__init__()
        positives = positives or OtherView()
        if views > 2 and "two_views" not in framework.gives:
            raise MissingNeed("augment", "two_views")
        if views > 2 and "two_views" in loss.needs:
            raise MissingNeed("loss", "no_more_views")
        gives = given(framework.gives, negatives, loss, positives)
        gives |= {"cosine"} if similarity == "cosine" else set()
        parts: dict[str, Any] = {"negatives": negatives, "temperature": temperature, "positives": positives}
        for group, part in ({"loss": loss} | parts).items():
            needs = needs_of_loss(loss) if group == "loss" else part.needs
            for need in sorted(needs - gives, key=list(NEEDS).index):
                raise MissingNeed(group, need)
        self.framework, self.negatives, self.temperature, self.loss = framework, negatives, temperature, loss
        self.norm, self.groups, self.reduction, self.tiled = framework.norm, framework.groups, reduction, tiled
        self.similarity: Name = similarity
        self.positives = positives

    @property
    def encoder(self) -> nn.Module:  # type: ignore[override]
        return self.framework.encoder

    def networks(self) -> list[nn.Module]:
        return list(self.framework.children())

    def trained_outputs(self, batch: Batch) -> Outputs:
        return self.framework.trained_outputs(batch)

    def momentum_outputs(self, batch: Batch) -> Outputs:
        return self.framework.momentum_outputs(batch)

    def objective(self, outputs: Outputs, batch: Batch, progress: Progress, diagnostics: bool) -> StepResult:
        # Half precision ends here: unit vectors, cosines and logits are float32 (or float64, where that was asked for).
        with torch.autocast(batch.ids.device.type, enabled=False):
            e = self.framework.embed(outputs, batch.ids)
            if "labels" in self.positives.gives:
                e = replace(e, labels=batch.labels)
            contrast = Contrast.of(self.positives.choose(e), self.negatives.bank(e), self.tiled, self.similarity)
            contrast = self.negatives.select(contrast, progress)
            tau = self.loss.temperature(contrast, self.temperature(progress, contrast))
            loss = self.loss(contrast, tau).mean(1)  # [V]
            with torch.no_grad():
                kept = Kept(e.detach(), self.loss.fresh(contrast, tau))
            values = (
                diagnose(contrast, tau, self.loss)
                if diagnostics
                else {"tau": tau.detach().mean() if tau.ndim else tau.detach()}
            )
            if diagnostics and self.negatives.varies:
                values["negatives_per_anchor"] = contrast.count.mean()
        return StepResult(loss.mean() if self.reduction == "mean" else loss.sum(), values, kept)

    @torch.no_grad()
    def update(self, kept: Kept, progress: float) -> None:
        self.negatives.update(kept.e, progress)
        self.positives.update(kept.e, progress)
        self.loss.update(kept.e.ids, kept.fresh)
        self.framework.update(kept, progress)
        super().update(kept, progress)

    def facts(self, images: int) -> dict[str, Any]:
        return {"negatives_per_anchor": self.negatives.count(images)}


def given(of_framework: frozenset[str], negatives: Negatives, loss: Loss, positives: Positives) -> frozenset[str]:
    """The requirements that the parts of a contrastive method meet for each other."""
    of_loss = {"tau"} if loss.uses_tau else set()
    of_loss |= {"several"} if "labels" in loss.needs else set()
    return (of_framework - positives.takes) | negatives.gives | positives.gives | of_loss


NEEDS: Mapping[str, tuple[str, str]] = {
    "negatives": ("negatives", "set negatives to an option other than none"),
    "aligned": ("candidates aligned across views", "set negatives=cross_view"),
    "own_view": ("candidates of the anchor's own view", "set negatives=own_view"),
    "both_views": ("keys of both views", "set framework.symmetric=true, or negatives=cross_view"),
    "two_views": (
        "two views of one network that are each other's positives",
        "set framework=simclr, or framework.symmetric=true with framework.momentum and framework.predictor null; and "
        "positives=view",
    ),
    "no_more_views": ("two views of an image and no more", "set augment to an option that makes two"),
    "labels": ("positives by labels", "set positives=label"),
    "labelled": ("candidates of the batch", "set negatives=in_batch or cross_view"),
    "several": ("a loss of several positives", "set loss=supcon or sincere, or positives=view"),
    "tau": ("a loss that depends on the temperature", "set temperature=fixed"),
    "cosine": ("the cosine as similarity", "set similarity=cosine"),
}


def needs_of_loss(loss: Loss) -> frozenset[str]:
    """The needs of a loss; one that has no s / tau needs the cosine, as no similarity can take its place."""
    return loss.needs if loss.uses_tau else loss.needs | {"cosine"}


class MissingNeed(ValueError):
    """A part of a method needs something that the others do not give.

    Attributes:
        group: group of the configuration whose part has the need.
    """

    def __init__(self, group: str, need: str) -> None:
        what, remedy = NEEDS[need]
        super().__init__(f"needs {what}: {remedy}")
        self.group = group
