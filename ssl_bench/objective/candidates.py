"""Candidates of a batch of anchors, each kind with the cheapest way to compute its cosines.

Shapes: V anchor views; B images on this rank; D width; C candidates; K of them are negatives of an anchor.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ssl_bench.objective import tiles
from ssl_bench.objective.bits import unpack
from ssl_bench.objective.products import products


def masked_logits(similarities: Tensor, left_out: Tensor | None, tau: Tensor) -> Tensor:
    """Similarities [..., C] divided by ``tau``, minus infinity where ``left_out`` (booleans, None: nowhere)."""
    logits = similarities / tau
    # Divided first and masked second: inf / tau has a NaN gradient where tau is learned.
    return logits if left_out is None else logits.masked_fill(left_out, float("-inf"))


class Candidates:
    """The keys that the anchors are contrasted with."""

    @property
    def count(self) -> Tensor | int:
        """K, the number of negatives: [V or 1, B], or one number for all anchors."""
        raise NotImplementedError

    def lse(self, tau: Tensor, second_tau: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """log sum_k exp(s_k / tau) over the negatives [V, B], and the same at ``second_tau``."""
        raise NotImplementedError

    def reduce(self, f: tiles.Reduction, *values: Tensor) -> Tensor:
        """``f`` of each anchor's cosines [V, B], as in :func:`ssl_bench.objective.tiles.reduced`.

        Args:
            f: takes any dimensions before the last two.
            values: [] or [V, B], all tensors of which ``f`` has a gradient; or vectors [V, B, D], in whose place ``f``
                gets their cosines with the candidates.
        """
        raise NotImplementedError

    def detached_for(self, q: Tensor) -> "Candidates":
        """The same candidates, without gradient, for the anchors ``q`` [V, B, D]."""
        raise NotImplementedError


@dataclass(frozen=True)
class Cosines(Candidates):
    """Candidates of which only the cosines with the anchors are known.

    Attributes:
        neg: [V, B, C] with the anchors; in place of vectors :meth:`reduce` takes their cosines [V, B, C].
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

    def reduce(self, f: tiles.Reduction, *values: Tensor) -> Tensor:
        left_out = None if self.valid is None else ~self.valid
        return f(self.neg, left_out, *(value[..., None] if value.ndim == 2 else value for value in values))

    def _lse(self, tau: Tensor) -> Tensor:
        left_out = None if self.valid is None else ~self.valid
        return masked_logits(self.neg, left_out, tau[..., None] if tau.ndim else tau).logsumexp(-1)


@dataclass(frozen=True)
class Excluded:
    """Candidates that do not count.

    Attributes:
        bits: [V, B, ceil(C / 8)] packed booleans (:mod:`ssl_bench.objective.bits`).
        count: how many candidates of an anchor count, a tensor [] or a number.
    """

    bits: Tensor
    count: Tensor | int


@dataclass(frozen=True)
class Keyed(Candidates):
    """Candidates of which the vectors are known.

    Attributes:
        q: [V, B, D] anchors.
        keys: [C, D], or [V, C, D] where each view has its own.
    """

    q: Tensor
    keys: Tensor

    def choice(self, view: int | slice) -> tiles.Choice:
        """The choice of the keys for the anchors of a view, or for those of all views one after another."""
        raise NotImplementedError

    def in_panels(self) -> bool:
        """Whether the cosines of all anchors are never stored at once."""
        raise NotImplementedError

    def cosines(self, vectors: Tensor) -> tuple[Tensor, Tensor | None]:
        """Cosines [V, B, C] with ``vectors`` [V, B, D], and booleans, true where they count; None: all do."""
        raise NotImplementedError

    def lse(self, tau: Tensor, second_tau: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        if not self.in_panels():
            return Cosines(*self.cosines(self.q)).lse(tau, second_tau)
        first, second = self._by_view(tiles.lse, tau, second_tau)
        assert first is not None
        return first, second

    def reduce(self, f: tiles.Reduction, *values: Tensor) -> Tensor:
        if not self.in_panels():
            arguments = (self.cosines(value)[0] if value.ndim == 3 else value for value in values)
            return Cosines(*self.cosines(self.q)).reduce(f, *arguments)
        (result,) = self._by_view(lambda q, keys, choice, *rest: [tiles.reduced(q, keys, choice, f, *rest)], *values)
        assert result is not None
        return result

    def detached_for(self, q: Tensor) -> Candidates:
        return replace(self, q=q, keys=self.keys.detach())

    def _by_view(self, compute: Callable[..., Iterable[Tensor | None]], *values: Tensor | None) -> list[Tensor | None]:
        """Results [V, B] of a function of tiles.py that returns [R] each, with the ``values`` [] or [V, B (, D)]."""
        if self.keys.ndim == 2:  # the anchors of all views are rows of one matrix
            flat = (value.flatten(0, 1) if value is not None and value.ndim else value for value in values)
            rows = compute(self.q.flatten(0, 1), self.keys, self.choice(slice(None)), *flat)
            return [None if result is None else result.unflatten(0, self.q.shape[:2]) for result in rows]
        by_view = [
            compute(self.q[v], keys, self.choice(v), *(x[v] if x is not None and x.ndim else x for x in values))
            for v, keys in enumerate(self.keys)
        ]
        return [None if views[0] is None else torch.stack(views) for views in zip(*by_view, strict=True)]


@dataclass(frozen=True)
class Pool(Keyed):
    """All keys except those that show the anchor's own image.

    Attributes:
        image_ids: ids of the images of the anchors [B] and of the keys [C]; a key with the anchor's id is excluded.
            None: no key shows an anchor's image.
        excluded: keys that do not count, in place of ``image_ids``; None: only ``image_ids`` excludes keys.
        tiled: never store the cosines of all anchors at once; None: where they are many.
    """

    image_ids: tuple[Tensor, Tensor] | None
    excluded: Excluded | None = None
    tiled: bool | None = None

    @property
    def count(self) -> Tensor | int:
        if self.excluded is not None:
            count = self.excluded.count
            return count.expand(1, self.q.shape[1]) if isinstance(count, Tensor) else count
        if self.image_ids is None:
            return self.keys.shape[-2]
        anchor_ids, key_ids = self.image_ids[0], self.image_ids[1].sort().values
        same = torch.searchsorted(key_ids, anchor_ids, right=True) - torch.searchsorted(key_ids, anchor_ids)  # [B]
        return (len(key_ids) - same)[None]  # [1, B]

    def in_panels(self) -> bool:
        # A mask of random bits is faster in panels, which need no boolean for each cosine.
        return self.excluded is not None or _is_tiled(self.tiled, self.q, self.keys)

    def choice(self, view: int | slice) -> tiles.Choice:
        if self.excluded is not None:
            return tiles.Choice(excluded=self.excluded.bits[view].flatten(0, -2))
        if self.image_ids is None:
            return tiles.Choice()
        anchor_ids, key_ids = self.image_ids
        return tiles.Choice((anchor_ids if isinstance(view, int) else anchor_ids.repeat(len(self.q)), key_ids))

    def cosines(self, vectors: Tensor) -> tuple[Tensor, Tensor | None]:
        neg = products(vectors, self.keys)  # [V, B, C]
        if self.excluded is not None:
            return neg, ~unpack(self.excluded.bits, neg.shape[-1])
        return neg, None if self.image_ids is None else self.image_ids[0][:, None] != self.image_ids[1]  # [B, C]


@dataclass(frozen=True)
class Picks(Keyed):
    """The keys ``index`` [V, B, K] of each anchor; ``tiled`` as in :class:`Pool`."""

    index: Tensor
    tiled: bool | None = None

    @property
    def count(self) -> Tensor | int:
        return self.index.shape[-1]

    def in_panels(self) -> bool:
        return _is_tiled(self.tiled, self.q, self.keys)

    def choice(self, view: int | slice) -> tiles.Choice:
        return tiles.Choice(index=self.index[view].flatten(0, -2))

    def cosines(self, vectors: Tensor) -> tuple[Tensor, Tensor | None]:
        full = products(vectors, self.keys)  # [V, B, C]
        return full.gather(-1, self.index.long()), None


def _is_tiled(setting: bool | None, q: Tensor, keys: Tensor) -> bool:
    return setting if setting is not None else q[..., 0].numel() * keys.shape[-2] > tiles.panel(q)
