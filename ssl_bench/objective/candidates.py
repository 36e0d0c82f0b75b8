"""The candidates of a batch of anchors, in the form in which their cosines are cheapest.

V anchor views   B images on this rank   D width   C candidates   K of them an anchor's negatives
"""

from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from ssl_bench.objective import tiles


class Candidates:
    """What an anchor is contrasted with."""

    @property
    def count(self) -> Tensor | int:
        """K: [V or 1, B], or the number that all anchors have."""
        raise NotImplementedError

    def lse(self, tau: Tensor, wide: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """log sum_k exp(s_k / tau) over the negatives [V, B], and the same at ``wide`` without gradient."""
        raise NotImplementedError

    def cosines(self, of: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """[V, B, C] with the anchors, or with ``of`` [V, B, D] in their place; and where they count, or None: all."""
        raise NotImplementedError

    def facing(self, q: Tensor) -> "Candidates":
        """The same candidates, as constants, for the anchors ``q`` [V, B, D]."""
        raise NotImplementedError


@dataclass(frozen=True)
class Cosines(Candidates):
    """Given as cosines.

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

    def lse(self, tau: Tensor, wide: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        if wide is None:
            return self._lse(tau), None
        with torch.no_grad():
            second = self._lse(wide)
        return self._lse(tau), second

    def cosines(self, of: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        if of is not None:
            raise ValueError("these candidates are known by their cosines with the anchors only")
        return self.neg, self.valid

    def _lse(self, tau: Tensor) -> Tensor:
        logits = self.neg / (tau[..., None] if tau.ndim else tau)  # [V, B, C]
        if self.valid is not None:
            # Scaled first and masked second: inf / tau has a NaN gradient where tau is learned.
            logits = logits.masked_fill(~self.valid, float("-inf"))
        return logits.logsumexp(-1)


@dataclass(frozen=True)
class Pool(Candidates):
    """All keys but those of the anchor's own image.

    Attributes:
        q: [V, B, D] anchors.
        keys: [C, D], or [V, C, D] where each view has its own.
        own: ids of the anchors [B] and of the keys [C]: equal ids exclude. None: no key shows an anchor's image.
        drop: [V, B, n] further keys, by index, that do not count.
        tiled: never store the cosines of all anchors at once; None: where they are many.
    """

    q: Tensor
    keys: Tensor
    own: tuple[Tensor, Tensor] | None
    drop: Tensor | None = None
    tiled: bool | None = None

    @property
    def count(self) -> Tensor | int:
        dropped = 0 if self.drop is None else self.drop.shape[-1]
        if self.own is None:
            return self.keys.shape[-2] - dropped
        ids, known = self.own[0], self.own[1].sort().values
        excluded = torch.searchsorted(known, ids, right=True) - torch.searchsorted(known, ids)  # [B]
        return (len(known) - dropped - excluded)[None]  # [1, B]

    def lse(self, tau: Tensor, wide: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        if not _is_tiled(self.tiled, self.q, self.keys):
            return Cosines(*self.cosines()).lse(tau, wide)
        if self.keys.ndim == 2:  # the anchors of all views are rows of one matrix
            views = len(self.q)
            own = None if self.own is None else (self.own[0].repeat(views), self.own[1])
            drop = None if self.drop is None else self.drop.flatten(0, 1)
            found = tiles.pooled_lse(self.q.flatten(0, 1), self.keys, _rows(tau), _rows(wide), own, drop)
            return _views(found, views)
        each = [
            tiles.pooled_lse(self.q[v], key, _row(tau, v), _row(wide, v), self.own, _row(self.drop, v))
            for v, key in enumerate(self.keys)
        ]
        return _stack(each)

    def cosines(self, of: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        neg = (self.q if of is None else of) @ self.keys.mT  # [V, B, C]
        valid = None if self.own is None else self.own[0][:, None] != self.own[1]  # [B, C]
        if self.drop is not None:
            everything = torch.ones_like(neg, dtype=torch.bool) if valid is None else valid.expand(neg.shape)
            valid = everything.scatter(-1, self.drop.long(), False)
        return neg, valid

    def facing(self, q: Tensor) -> Candidates:
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

    def lse(self, tau: Tensor, wide: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        if not _is_tiled(self.tiled, self.q, self.keys):
            return Cosines(*self.cosines()).lse(tau, wide)
        if self.keys.ndim == 2:
            index = self.index.flatten(0, 1)
            found = tiles.picked_lse(self.q.flatten(0, 1), self.keys, _rows(tau), _rows(wide), index)
            return _views(found, len(self.q))
        each = [
            tiles.picked_lse(self.q[v], key, _row(tau, v), _row(wide, v), self.index[v])
            for v, key in enumerate(self.keys)
        ]
        return _stack(each)

    def cosines(self, of: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        full = (self.q if of is None else of) @ self.keys.mT  # [V, B, C]
        return full.gather(-1, self.index.long()), None

    def facing(self, q: Tensor) -> Candidates:
        return replace(self, q=q, keys=self.keys.detach())


def _is_tiled(setting: bool | None, q: Tensor, keys: Tensor) -> bool:
    return setting if setting is not None else q[..., 0].numel() * keys.shape[-2] > tiles.PANEL


Maybe = TypeVar("Maybe", Tensor, Tensor | None)


def _rows(tau: Maybe) -> Maybe:
    """[V, B] as [V B]; a scalar as it is."""
    return tau.flatten() if tau is not None and tau.ndim else tau


def _row(values: Maybe, view: int) -> Maybe:
    return values[view] if values is not None and values.ndim else values


def _views(found: tuple[Tensor, Tensor | None], views: int) -> tuple[Tensor, Tensor | None]:
    first, second = found
    return first.unflatten(0, (views, -1)), None if second is None else second.unflatten(0, (views, -1))


def _stack(each: list[tuple[Tensor, Tensor | None]]) -> tuple[Tensor, Tensor | None]:
    firsts, seconds = zip(*each, strict=True)
    return torch.stack(firsts), None if seconds[0] is None else torch.stack(seconds)
