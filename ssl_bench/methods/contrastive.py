"""A contrastive method: terms of a framework, on each of which loss, negatives, positives and temperature act.

Shapes: V anchor views; B images on this rank.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from ssl_bench.distributed import gather
from ssl_bench.errors import InvalidValue
from ssl_bench.methods.base import Framework, Method, Outputs, StepResult, Term
from ssl_bench.objective.contrast import Bank, Contrast, Embedded
from ssl_bench.objective.diagnostics import diagnose
from ssl_bench.objective.loss import Loss
from ssl_bench.objective.negatives import Negatives
from ssl_bench.objective.positives import OtherView, Positives
from ssl_bench.objective.schedule import Progress
from ssl_bench.objective.similarity import Name
from ssl_bench.objective.temperature import Temperature

if TYPE_CHECKING:
    from ssl_bench.data.batch import Batch


@dataclass(frozen=True)
class ForUpdate:
    """The part of a batch that framework, negatives, positives and losses keep, by the name of the term."""

    e: dict[str, Embedded]
    of_losses: dict[str, dict[str, Tensor]]


class FurtherTerm(nn.Module):
    """The loss, negatives and positives of a term after the first.

    Args:
        negatives, positives: None where the term has candidates of its own.
    """

    def __init__(self, loss: Loss, negatives: Negatives | None, positives: Positives | None) -> None:
        super().__init__()
        self.loss, self.negatives, self.positives = loss, negatives, positives


class Contrastive(Method):
    """A contrastive method, made of framework, negatives, temperature, loss and positives.

    The loss is the weighted sum of the framework's terms. They share the temperature; a term after the first has a copy
    of the rest, with a queue or memory of its own.

    Args:
        reduction: ``mean`` over the anchors of all views (most PyTorch codes); ``sum`` over the views of the mean over
            the images (Google's SimCLR, MACL's code), which is twice as much for two views.
        tiled: whether cosines are computed in panels that are never stored; None: where they are many.
        views: number of views of an image; views that the framework does not take are positives of the first two, and
            no anchors.
        similarity: function of the cosine that is s in s / tau (:mod:`ssl_bench.objective.similarity`).
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
        if views > max(2, framework.views) and "two_views" not in framework.gives:
            raise MissingNeed("augment", "two_views")
        if views > max(2, framework.views) and "two_views" in loss.needs:
            raise MissingNeed("loss", "no_more_views")
        parts = {"loss": loss, "negatives": negatives, "temperature": temperature, "positives": positives}
        check_needs(framework.gives, parts, similarity, framework.lacks)
        self.framework, self.negatives, self.temperature, self.loss = framework, negatives, temperature, loss
        self.norm, self.groups, self.reduction, self.tiled = framework.norm, framework.groups, reduction, tiled
        self.similarity: Name = similarity
        self.positives, self.views = positives, framework.views
        if framework.further:
            copied = (negatives, positives)
            self.further = nn.ModuleDict(
                {
                    name: FurtherTerm(*copy.deepcopy((loss, *(copied if both else (None, None)))))
                    for name, both in framework.further.items()
                }
            )

    @property
    def encoder(self) -> nn.Module:  # type: ignore[override]
        return self.framework.encoder

    def networks(self) -> list[nn.Module]:
        return list(self.framework.children())

    def trained_outputs(self, batch: "Batch") -> Outputs:
        return self.framework.trained_outputs(batch)

    def momentum_outputs(self, batch: "Batch") -> Outputs:
        return self.framework.momentum_outputs(batch)

    def objective(self, outputs: Outputs, batch: "Batch", progress: Progress, diagnostics: bool) -> StepResult:
        losses, values, for_update = [], dict[str, Tensor](), ForUpdate({}, {})
        # Half precision ends here: unit vectors, cosines and logits are float32 (or float64, where that was asked for).
        with torch.autocast(batch.ids.device.type, enabled=False):
            for term in self.framework.embed(outputs, batch.ids):
                loss, of_term = self._of_term(term, batch, progress, diagnostics, for_update)
                losses.append(loss if term.weight == 1 else term.weight * loss)
                values |= of_term
        return StepResult(losses[0] if len(losses) == 1 else torch.stack(losses).sum(), values, for_update)

    def _of_term(
        self, term: Term, batch: "Batch", progress: Progress, diagnostics: bool, for_update: ForUpdate
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a term [] and its diagnostics; add to ``for_update`` what :meth:`update` needs of it."""
        part, e = self._part(term.name), term.e
        if "labels" in self.positives.gives:
            e = replace(e, labels=batch.labels)
        selection = (part.negatives, part.positives) if term.bank is None else None
        bank = part.negatives.bank(e) if term.bank is None else term.bank
        temperature, form = term.temperature or self.temperature, (self.tiled, self.similarity)
        of_anchors, contrast, tau = apply_loss(part.loss, temperature, e, bank, selection, progress, *form)
        by_view = of_anchors.mean(1)  # [V]
        loss = by_view.mean() if self.reduction == "mean" else by_view.sum() / term.cells
        with torch.no_grad():
            for_update.e[term.name], for_update.of_losses[term.name] = e.detach(), part.loss.for_update(contrast, tau)
            if not diagnostics:
                return loss, {} if term.name else {"tau": tau.detach().mean() if tau.ndim else tau.detach()}
        values = diagnose(contrast, tau, part.loss)
        if not term.name:
            return loss, values | ({"negatives_per_anchor": contrast.count.mean()} if self.negatives.varies else {})
        values["loss"] = gather(loss.detach()[None]).mean()
        return loss, {f"{term.name}/{name}": value for name, value in values.items() if value.ndim == 0}

    def _part(self, name: str) -> Any:
        """The module with the loss, the negatives and the positives of a term: this one for the first term."""
        return self.further[name] if name else self

    @torch.no_grad()
    def update(self, for_update: ForUpdate, progress: float) -> None:
        for name, e in for_update.e.items():
            part = self._part(name)
            for module in (part.negatives, part.positives):
                if module is not None:
                    module.update(e, progress)
            part.loss.update(e.ids, for_update.of_losses[name])
        self.framework.update(for_update.e[""], progress)
        super().update(for_update, progress)

    def facts(self, images: int) -> dict[str, Any]:
        self.framework.check(images)
        try:
            return {"negatives_per_anchor": self.negatives.count(images)}
        except InvalidValue as refusal:
            raise refusal.within("negatives") from refusal


def apply_loss(
    loss: Loss,
    temperature: Temperature,
    e: Embedded,
    bank: Bank | None,
    selection: tuple[Negatives, Positives] | None,
    progress: Progress,
    tiled: bool | None,
    similarity: Name,
) -> tuple[Tensor, Contrast, Tensor]:
    """The loss of each anchor [V, B], with its contrast and temperature.

    Args:
        bank: the candidates.
        selection: chooses the positives, and the negatives among the candidates; None: those of ``e``, and all.
    """
    if selection is None:
        contrast = Contrast.of(e, bank, tiled, similarity)
    else:
        negatives, positives = selection
        contrast = negatives.select(Contrast.of(positives.choose(e), bank, tiled, similarity), progress)
    tau = loss.temperature(contrast, temperature(progress, contrast))
    return loss(contrast, tau), contrast, tau


def check_needs(
    views: frozenset[str],
    parts: Mapping[str, Any],
    similarity: Name,
    lacks: Mapping[str, str] = MappingProxyType({}),
    remedies: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Refuse parts of which one needs something that the others do not give.

    Args:
        views: the requirements that the views meet, as :attr:`Framework.gives`.
        parts: loss, negatives, temperature and positives, by these names.
        lacks: those that are not met whatever the negatives, with what to set, as :attr:`Framework.lacks`.
        remedies: for other needs the settings to change, in place of those that ``NEEDS`` names.

    Raises:
        MissingNeed: naming the part.
    """
    loss, negatives, positives = parts["loss"], parts["negatives"], parts["positives"]
    gives = (views - positives.takes) | negatives.gives | positives.gives
    gives |= {"tau"} if loss.uses_tau else set()
    gives |= {"several"} if "labels" in loss.needs else set()
    gives |= {"cosine"} if similarity == "cosine" else set()
    without_tau = {"loss": set() if loss.uses_tau else {"cosine"}}  # no other similarity is defined without s / tau
    for group in ("loss", "negatives", "temperature", "positives"):
        needs = parts[group].needs | without_tau.get(group, set())
        for need in sorted(needs - (gives - lacks.keys()), key=list(NEEDS).index):
            raise MissingNeed(group, need, (lacks if need in gives else remedies).get(need))


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


class MissingNeed(ValueError):
    """A part of a method needs something that the others do not give.

    Attributes:
        group: group of the configuration whose part has the need.
        remedy: the setting to change; None: the one that ``NEEDS`` names.
    """

    def __init__(self, group: str, need: str, remedy: str | None = None) -> None:
        super().__init__(f"needs {NEEDS[need][0]}: {remedy or NEEDS[need][1]}")
        self.group = group
