"""What a loss may see of a batch: cosines with the positives and with the negatives.

Shapes: V anchor views (2 symmetric, 1 one-directional), B images on this rank, D width, C candidates, N images over
all ranks.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ssl_bench.objective.candidates import Candidates, Cosines, Picks, Pool


@dataclass(frozen=True)
class Embedded:
    q: Tensor  # [V, B, D] unit anchors
    p: Tensor  # [V, B, D] unit positives of the anchors; without gradient when a momentum network made them
    raw: Tensor  # [V, B, D] the anchors before normalisation
    ids: Tensor  # [B]
    # Where there are more than two views, an "anchor view" is a pair of them, anchor and positive:
    own: Tensor | None = None  # [V, B, D] keys of the anchors' own views; None: they are p of the other view

    @property
    def keys(self) -> Tensor:
        """[2 or 1, B, D] the keys of this batch that later ones may be contrasted with."""
        return self.p if self.own is None else self.own[:: len(self.own) // 2]


@dataclass(frozen=True)
class Bank:
    keys: Tensor  # [C, D] candidates shared by the views, or [V, C, D]
    ids: Tensor | None  # [C] image of each candidate, -1: never the anchor's own; None: all of them -1


class Contrast:
    """The positives and the negatives of a batch of anchors as unscaled cosines.

    With s the cosine of an anchor and its positive and l = log sum_k exp(s_k / tau) over its K negatives, the log-odds
    u = l - s / tau against the positive carry most contrastive losses.
    """

    pos: Tensor  # [V, B]
    raw: Tensor | None  # [V, B, D]

    def __init__(
        self,
        pos: Tensor,
        candidates: Candidates | None,
        raw: Tensor | None,
        q: Tensor | None = None,
        p: Tensor | None = None,
        mirror: Tensor | None = None,
    ) -> None:
        self.pos, self.candidates, self.raw = pos, candidates, raw
        self._q, self._p, self._mirror = q, p, mirror
        self._known: tuple[Tensor, Tensor] | None = None  # the last temperature asked for, and its answer

    @classmethod
    def dense(
        cls,
        pos: Tensor,
        neg: Tensor,
        valid: Tensor | None = None,
        raw: Tensor | None = None,
        mirror: Tensor | None = None,
    ) -> "Contrast":
        """From cosines.

        Args:
            pos: [V, B], in [-1, 1].
            neg: [V, B, C], in [-1, 1].
            valid: bool, broadcastable to [V, B, C]; False where a candidate is no negative of the anchor.
            raw: [V, B, D] anchors before normalisation, for losses that act on them.
            mirror: [V, B, C] cosines of the positives with the same candidates, for losses that compare the two.

        Raises:
            ValueError: shapes that do not fit together.
        """
        if pos.ndim != 2 or neg.ndim != 3 or neg.shape[:2] != pos.shape:
            raise ValueError(f"pos must be [V, B] and neg [V, B, C], got {tuple(pos.shape)} and {tuple(neg.shape)}")
        return cls(pos, Cosines(neg, valid), raw, mirror=mirror)

    @classmethod
    def of(cls, e: Embedded, bank: Bank | None, tiled: bool | None = None) -> "Contrast":
        """The anchors of ``e`` against its positives and the candidates of ``bank``.

        A candidate is a negative if it shows another image than the anchor: told by the image's id, so it holds for
        any number of ranks, any order and any padding.

        Args:
            e: anchors and positives.
            bank: None: no negatives.
            tiled: compute in panels that are never stored; None: where the cosines are many.
        """
        pos = (e.q * e.p).sum(-1)  # [V, B]
        own = None if bank is None or bank.ids is None else (e.ids, bank.ids)
        candidates = None if bank is None else Pool(e.q, bank.keys, own, tiled=tiled)
        return cls(pos, candidates, e.raw, e.q, e.p)

    def pick(self, index: Tensor) -> "Contrast":
        """With the candidates ``index`` [V, B, K] of each anchor as its only negatives."""
        pool = self._pool()
        picks = Picks(pool.q, pool.keys, index, pool.tiled)
        return Contrast(self.pos, picks, self.raw, self._q, self._p)

    def drop(self, index: Tensor) -> "Contrast":
        """Without the candidates ``index`` [V, B, n] of each anchor."""
        pool = self._pool()
        rest = Pool(pool.q, pool.keys, pool.own, index, pool.tiled)
        return Contrast(self.pos, rest, self.raw, self._q, self._p)

    def lse(self, tau: Tensor) -> Tensor:
        """log sum_k exp(s_k / tau) over the negatives, [V, B]; ``tau`` is [] or [V, B], positive."""
        if self._known is None or self._known[0] is not tau:
            self._known = tau, self._negatives().lse(self._fit(tau))[0]
        return self._known[1]

    def log_odds(self, tau: Tensor) -> Tensor:
        """u = lse(tau) - pos / tau, [V, B]; sigmoid(u) is DCL's NPC multiplier q_B and MACL's W_i."""
        return self.lse(tau) - self.pos / tau

    def log_odds_at(self, tau: Tensor, wide: Tensor) -> tuple[Tensor, Tensor]:
        """The log-odds at ``tau`` and, without gradient, at ``wide``, in one pass over the candidates."""
        first, second = self._negatives().lse(self._fit(tau), self._fit(wide).detach())
        assert second is not None
        self._known = tau, first
        return first - self.pos / tau, second - self.pos.detach() / wide.detach()

    @property
    def has_negatives(self) -> bool:
        return self.candidates is not None

    @property
    def count(self) -> Tensor:
        """K, the number of negatives per anchor: [V or 1, B]."""
        count = 0 if self.candidates is None else self.candidates.count
        return count.to(self.pos.dtype) if isinstance(count, Tensor) else torch.full_like(self.pos[:1], count)

    @property
    def neg(self) -> tuple[Tensor, Tensor | None]:
        """[V, B, C] cosines with the candidates and where they count, for losses that declare the need ``dense``."""
        return self._negatives().cosines()

    @property
    def mirror(self) -> Tensor:
        """[V, B, C] cosines of the positives with the same candidates, for losses that declare the need ``dense``."""
        if self._mirror is not None:
            return self._mirror
        if self._p is None:
            raise ValueError("mirror is not known: give Contrast.dense the positives' cosines with the candidates")
        return self._negatives().cosines(self._p)[0]

    def alone(self) -> tuple[Tensor, "Contrast"] | None:
        """The anchors as leaves of a new graph and the contrast on them, everything else constant; None: not known."""
        if self._q is None or self._p is None:
            return None
        q, p = self._q.detach().requires_grad_(), self._p.detach()
        candidates = None if self.candidates is None else self.candidates.facing(q)
        raw = None if self.raw is None else self.raw.detach()
        return q, Contrast((q * p).sum(-1), candidates, raw, q, p)

    def _negatives(self) -> Candidates:
        if self.candidates is None:
            raise ValueError("there are no negatives: set negatives to an option other than none")
        return self.candidates

    def _pool(self) -> Pool:
        if not isinstance(self.candidates, Pool) or self.candidates.drop is not None:
            raise ValueError("candidates can be chosen once, among the keys of a bank")
        return self.candidates

    def _fit(self, tau: Tensor) -> Tensor:
        return tau.to(self.pos.dtype)
