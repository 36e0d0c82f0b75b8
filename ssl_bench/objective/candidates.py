"""Candidates of a batch of anchors, in the form in which their cosines are cheapest.

Shapes: V anchor views; B images on this rank; D width; C candidates; K of them are negatives of an anchor.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from ssl_bench.objective import tiles
from ssl_bench.objective.bits import unpack
from ssl_bench.precision import products


class Candidates:
    """The keys that the anchors are contrasted with."""

    @property
    def count(self) -> Tensor | int:
        """K, the number of negatives: [V or 1, B], or one number for all anchors."""
        raise NotImplementedError

    def lse(self, tau: Tensor, second_tau: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """log sum_k exp(s_k / tau) over the negatives [V, B], and the same at ``second_tau``."""
        raise NotImplementedError

    def cosines(self, anchors: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Cosines [V, B, C] with the anchors, or with ``anchors`` [V, B, D] in their place; which count, None: all."""
        raise NotImplementedError

    def detached_for(self, q: Tensor) -> "Candidates":
        """The same candidates, without gradient, for the anchors ``q`` [V, B, D]."""
        raise NotImplementedError


@dataclass(frozen=True)
class Cosines(Candidates):
    """Candidates of which only the cosines with the anchors are known.

    Attributes:
        neg: [V, B, C] with the anchors.
        valid: bool, broadcasts to [V, B, C]; None: every candidate is a negative.
    """

    neg: Tensor
    valid: Tensor | None

    @property
    def count(self) -> Tensor | int:
        if self.valid is None:
            return self.neg.shape[-1]
        rows = self.valid.expand(*self.valid.shape[:-2], *self.neg.shape[1:])  # [(V,) B, C]
        return rows.sum(-1).view(-1, self.neg.shape[1])

    def lse(self, tau: Tensor, second_tau: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return self._lse(tau), None if second_tau is None else self._lse(second_tau)

    def cosines(self, anchors: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        if anchors is not None:
            raise ValueError("only the cosines with the original anchors are known, not those with other vectors")
        return self.neg, self.valid

    def _lse(self, tau: Tensor) -> Tensor:
        logits = self.neg / (tau[..., None] if tau.ndim else tau)  # [V, B, C]
        if self.valid is not None:
            # Scaled first and masked second: inf / tau has a NaN gradient where tau is learned.
            logits = logits.masked_fill(~self.valid, float("-inf"))
        return logits.logsumexp(-1)


@dataclass(frozen=True)
class Excluded:
    """Candidates that do not count.

    Attributes:
        bits: [V, B, ceil(C / 8)] packed booleans (:mod:`ssl_bench.objective.bits`).
        left: how many candidates of an anchor count.
    """

    bits: Tensor
    left: int


@dataclass(frozen=True)
class Pool(Candidates):
    """All keys except those that show the anchor's own image.

    Attributes:
        q: [V, B, D] anchors.
        keys: [C, D], or [V, C, D] where each view has its own.
        image_ids: ids of the images of the anchors [B] and of the keys [C]; a key with the anchor's id is excluded.
            None: no key shows an anchor's image.
        excluded: keys that do not count, in place of ``image_ids``; None: only ``image_ids`` excludes keys.
        tiled: never store the cosines of all anchors at once; None: where they are many.
    """

    q: Tensor
    keys: Tensor
    image_ids: tuple[Tensor, Tensor] | None
    excluded: Excluded | None = None
    tiled: bool | None = None

    @property
    def count(self) -> Tensor | int:
        if self.excluded is not None:
            return self.excluded.left
        if self.image_ids is None:
            return self.keys.shape[-2]
        anchor_ids, key_ids = self.image_ids[0], self.image_ids[1].sort().values
        same = torch.searchsorted(key_ids, anchor_ids, right=True) - torch.searchsorted(key_ids, anchor_ids)  # [B]
        return (len(key_ids) - same)[None]  # [1, B]

    def lse(self, tau: Tensor, second_tau: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        # A mask of random bits is faster in panels, which need no boolean for each cosine.
        if self.excluded is None and not _is_tiled(self.tiled, self.q, self.keys):
            return Cosines(*self.cosines()).lse(tau, second_tau)
        if self.keys.ndim == 2:  # the anchors of all views are rows of one matrix
            views = len(self.q)
            ids = None if self.image_ids is None else (self.image_ids[0].repeat(views), self.image_ids[1])
            excluded = None if self.excluded is None else self.excluded.bits.flatten(0, 1)
            rows = tiles.pooled_lse(self.q.flatten(0, 1), self.keys, _flat(tau), _flat(second_tau), ids, excluded)
            return _split(rows, views)
        each = [
            tiles.pooled_lse(
                self.q[v], keys, _of_view(tau, v), _of_view(second_tau, v), self.image_ids, self._excluded_of(v)
            )
            for v, keys in enumerate(self.keys)
        ]
        return _stack(each)

    def cosines(self, anchors: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        neg = products(self.q if anchors is None else anchors, self.keys)  # [V, B, C]
        if self.excluded is not None:
            return neg, ~unpack(self.excluded.bits, neg.shape[-1])
        return neg, None if self.image_ids is None else self.image_ids[0][:, None] != self.image_ids[1]  # [B, C]

    def _excluded_of(self, view: int) -> Tensor | None:
        return None if self.excluded is None else self.excluded.bits[view]

    def detached_for(self, q: Tensor) -> Candidates:
        return replace(self, q=q, keys=self.keys.detach())


@dataclass(frozen=True)
class Picks(Candidates):
    """The keys ``index`` [V, B, K] of each anchor; ``q``, ``keys`` and ``tiled`` as in :class:`Pool`."""

    q: Tensor
    keys: Tensor
    index: Tensor
    tiled: bool | None = None

    @property
    def count(self) -> Tensor | int:
        return self.index.shape[-1]

    def lse(self, tau: Tensor, second_tau: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        if not _is_tiled(self.tiled, self.q, self.keys):
            return Cosines(*self.cosines()).lse(tau, second_tau)
        if self.keys.ndim == 2:
            index = self.index.flatten(0, 1)
            rows = tiles.picked_lse(self.q.flatten(0, 1), self.keys, _flat(tau), _flat(second_tau), index)
            return _split(rows, len(self.q))
        each = [
            tiles.picked_lse(self.q[v], keys, _of_view(tau, v), _of_view(second_tau, v), self.index[v])
            for v, keys in enumerate(self.keys)
        ]
        return _stack(each)

    def cosines(self, anchors: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        full = products(self.q if anchors is None else anchors, self.keys)  # [V, B, C]
        return full.gather(-1, self.index.long()), None

    def detached_for(self, q: Tensor) -> Candidates:
        return replace(self, q=q, keys=self.keys.detach())


def _is_tiled(setting: bool | None, q: Tensor, keys: Tensor) -> bool:
    return setting if setting is not None else q[..., 0].numel() * keys.shape[-2] > tiles.panel(q)


Maybe = TypeVar("Maybe", Tensor, Tensor | None)


def _flat(tau: Maybe) -> Maybe:
    """[V, B] as [V B]; a scalar as it is."""
    return tau.flatten() if tau is not None and tau.ndim else tau


def _of_view(values: Maybe, view: int) -> Maybe:
    """Values of one view; a scalar as it is."""
    return values[view] if values is not None and values.ndim else values


def _split(rows: tuple[Tensor, Tensor | None], views: int) -> tuple[Tensor, Tensor | None]:
    """[V B] as [V, B], for both temperatures."""
    first, second = rows
    return first.unflatten(0, (views, -1)), None if second is None else second.unflatten(0, (views, -1))


def _stack(each: list[tuple[Tensor, Tensor | None]]) -> tuple[Tensor, Tensor | None]:
    """[B] of each view as [V, B], for both temperatures."""
    firsts, seconds = zip(*each, strict=True)
    return torch.stack(firsts), None if seconds[0] is None else torch.stack(seconds)
