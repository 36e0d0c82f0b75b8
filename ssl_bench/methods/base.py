"""A method is networks and an objective on what they give: the one module that trains.

V anchor views   B images on this rank   D width
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ssl_bench.data.batch import Batch
from ssl_bench.objective.contrast import Contrast, Embedded
from ssl_bench.objective.diagnostics import diagnose
from ssl_bench.objective.loss import Loss
from ssl_bench.objective.negatives import Negatives
from ssl_bench.objective.sampling import StepGenerator
from ssl_bench.objective.shards import Shards
from ssl_bench.objective.temperature import Temperature

Norm = Literal["sync", "shuffle", "local"]
Outputs = dict[str, Tensor]  # each [V, B, ...], so that those of several chunks of a batch can be put together


class Method(nn.Module):
    """``forward(batch, progress) -> (loss [], diagnostics)``; the loss is this rank's mean.

    The way to the loss is cut in two, for batches too large to go it at once: what the networks give for some images,
    and the objective on what they gave for all.

    Attributes:
        encoder: maps views [B, channels, H, W] to ``{"backbone": [B, F], "projection": [B, D]}``; it is what is judged.
        norm: batch statistics over all ranks (``sync``) or each rank's own (``local``, ``shuffle``).
        views: of an image that it takes.
    """

    encoder: nn.Module
    norm: Norm
    views: ClassVar[int] = 2

    def networks(self) -> list[nn.Module]:
        """What can be compiled."""
        return [self.encoder]

    def trained(self, batch: Batch) -> Outputs:
        """What the trained networks give for a batch, with gradient."""
        raise NotImplementedError

    def followed(self, batch: Batch) -> Outputs:
        """What other networks give, without gradient."""
        return {}

    def objective(
        self, outputs: Outputs, batch: Batch, progress: float, diagnostics: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss and what is to be told of it; ``batch`` may come without its views."""
        raise NotImplementedError

    def forward(self, batch: Batch, progress: float, diagnostics: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
        return self.objective(self.trained(batch) | self.followed(batch), batch, progress, diagnostics)

    def after_step(self, progress: float) -> None:
        """Called after each optimiser step."""
        for module in self.modules():
            if isinstance(module, StepGenerator):
                module.step += 1

    def collect(self) -> None:
        """Called on every rank before one of them saves the state: what is spread over the ranks comes together."""
        for module in self.modules():
            if isinstance(module, Shards):
                module.collect()

    def facts(self, images: int) -> dict[str, Any]:
        """What a run at a global batch of ``images`` amounts to, for its record.

        Raises:
            ValueError: the method cannot work at that batch.
        """
        return {}


class Framework(nn.Module):
    """The networks of a contrastive method, and which of their outputs are anchors and positives.

    Attributes:
        encoder, norm: as in :class:`Method`.
        gives: what negatives and losses may need of it: ``both_views`` (keys of both views), ``two_views`` (the anchors
            of the two views are each other's positives).
        views: of an image that it takes, at least.
    """

    encoder: nn.Module
    norm: Norm
    views: ClassVar[int] = 2
    gives: frozenset[str]

    def trained(self, batch: Batch) -> Outputs:
        raise NotImplementedError

    def followed(self, batch: Batch) -> Outputs:
        raise NotImplementedError

    def embed(self, outputs: Outputs, ids: Tensor) -> Embedded:
        """The anchors of a batch and their positives, from the outputs for it."""
        raise NotImplementedError

    def after_step(self, progress: float) -> None:
        """Called after each optimiser step, for networks that follow another one."""


class Contrastive(Method):
    """Framework, negatives, temperature and loss put together.

    Args:
        reduction: ``mean`` over the anchors of all views (most PyTorch codes); ``sum`` over the views of the mean over
            the images (Google's SimCLR, MACL's code), which is twice as much for two views.
        tiled: whether cosines are computed in panels that are never stored; None: where they are many.
        views: of an image; those after the second are positives of the first two, not anchors.

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
    ) -> None:
        super().__init__()
        if views > 2 and "two_views" not in framework.gives:
            raise MissingNeed("augment", "two_views")
        if views > 2 and "two_views" in loss.needs:
            raise MissingNeed("loss", "no_more_views")
        gives = framework.gives | negatives.gives
        gives |= {"tau"} if loss.uses_tau else set()
        gives |= set() if tiled else {"dense"}
        wanted = {"loss": loss.needs, "negatives": negatives.needs, "temperature": temperature.needs}
        for group, needs in wanted.items():
            for need in sorted(needs - gives, key=list(NEEDS).index):
                raise MissingNeed(group, need)
        self.framework, self.negatives, self.temperature, self.loss = framework, negatives, temperature, loss
        self.norm, self.reduction, self.tiled = framework.norm, reduction, tiled

    @property
    def encoder(self) -> nn.Module:  # type: ignore[override]
        return self.framework.encoder

    def networks(self) -> list[nn.Module]:
        return list(self.framework.children())

    def trained(self, batch: Batch) -> Outputs:
        return self.framework.trained(batch)

    def followed(self, batch: Batch) -> Outputs:
        return self.framework.followed(batch)

    def objective(
        self, outputs: Outputs, batch: Batch, progress: float, diagnostics: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        # Half precision ends here: unit vectors, cosines and logits are float32 (or float64, where that was asked for).
        with torch.autocast(batch.ids.device.type, enabled=False):
            e = self.framework.embed(outputs, batch.ids)
            contrast = self.negatives.select(Contrast.of(e, self.negatives.bank(e), self.tiled))
            tau = self.temperature(progress, contrast)
            loss = self.loss(contrast, tau).mean(1)  # [V]
            own = None if e.own is None else e.own.detach()
            self._last = Embedded(e.q.detach(), e.p.detach(), e.raw.detach(), e.ids, own)
            found = diagnose(contrast, tau, self.loss) if diagnostics else {"tau": tau.detach().mean()}
        return loss.mean() if self.reduction == "mean" else loss.sum(), found

    @torch.no_grad()
    def after_step(self, progress: float) -> None:
        self.negatives.update(self._last)
        self.framework.after_step(progress)
        super().after_step(progress)

    def facts(self, images: int) -> dict[str, Any]:
        return {"negatives_per_anchor": self.negatives.count(images)}


NEEDS: Mapping[str, tuple[str, str]] = {
    "negatives": ("negatives", "set negatives to an option other than none"),
    "aligned": ("candidates aligned across views", "set negatives=cross_view"),
    "both_views": ("keys of both views", "set framework.symmetric=true, or negatives=cross_view"),
    "two_views": (
        "two views of one network that are each other's positives",
        "set framework=simclr, or framework.symmetric=true with framework.momentum and framework.predictor null",
    ),
    "no_more_views": ("two views of an image and no more", "set augment to an option that makes two"),
    "tau": ("a loss that depends on the temperature", "set temperature=fixed"),
    "dense": ("all cosines at once", "set cosines to auto or dense"),
}


class MissingNeed(ValueError):
    """A part of a method needs what the others do not give.

    Attributes:
        group: of the configuration, the one in need.
    """

    def __init__(self, group: str, need: str) -> None:
        what, remedy = NEEDS[need]
        super().__init__(f"needs {what}: {remedy}")
        self.group = group
