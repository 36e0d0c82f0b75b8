"""Cosines of anchors with their positives and with their negatives: all that a loss may see of a batch.

Shapes: V anchor views (2 symmetric, 1 one-directional), B images on this rank, D width, C candidates, N images over
all ranks.
"""

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ssl_bench.objective.candidates import Candidates, Cosines, Excluded, Picks, Pool, masked_logits
from ssl_bench.objective.similarity import SIMILARITIES, Name


@dataclass(frozen=True)
class Embedded:
    """Anchors and positives of a batch. With more than two views, an anchor view is a pair (view, view of positive).

    Attributes:
        q: [V, B, D] unit anchors.
        p: [V, B, D] unit positives of the anchors; without gradient when a momentum network made them.
        raw: [V, B, D] the anchors before normalisation.
        ids: [B] index of each image in the dataset.
        anchor_keys: [V, B, D] keys of the anchors' views; None: p of the other view.
        labels: [B] class of each image, -1 if it is not known; None: the classes play no role.
        stored: [n, B, D] keys that later batches may have as negatives; None: those of both views.
    """

    q: Tensor
    p: Tensor
    raw: Tensor
    ids: Tensor
    anchor_keys: Tensor | None = None
    labels: Tensor | None = None
    stored: Tensor | None = None

    @property
    def keys(self) -> Tensor:
        """[n, B, D] keys of this batch that may be negatives of later batches."""
        if self.stored is not None:
            return self.stored
        return self.p if self.anchor_keys is None else self.anchor_keys[:: max(1, len(self.anchor_keys) // 2)]

    def detach(self) -> "Embedded":
        """The same embeddings without gradient."""
        q, p, raw, *others = (
            None if vectors is None else vectors.detach()
            for vectors in (self.q, self.p, self.raw, self.anchor_keys, self.stored)
        )
        assert q is not None and p is not None and raw is not None
        return Embedded(q, p, raw, self.ids, others[0], stored=others[1])


@dataclass(frozen=True)
class Bank:
    """Candidates of a batch, before a choice among them.

    Attributes:
        keys: [C, D] candidates shared by the views, or [V, C, D].
        ids: [C] image of each candidate, -1: never the anchor's own image; None: all of them -1.
        labels: [C] class of each candidate, where those of the anchors are known.
        index: [V, B, K] the candidates that are negatives of an anchor, none of them of its class; None: all but those
            of its own image.
    """

    keys: Tensor
    ids: Tensor | None
    labels: Tensor | None = None
    index: Tensor | None = None


@dataclass(frozen=True)
class Classes:
    """Classes and images of anchors and candidates, to find the candidates of an anchor's class.

    Attributes:
        labels, ids: [B] class, -1 if it is not known, and image of each anchor.
        key_labels, key_ids: [C] those of each candidate.
    """

    labels: Tensor
    ids: Tensor
    key_labels: Tensor
    key_ids: Tensor

    def same(self, labels: Tensor, ids: Tensor) -> Tensor:
        """Whether candidates show another image of the anchor's class: [..., C] for ``labels`` and ``ids`` [..., 1]."""
        return (labels == self.key_labels) & (labels >= 0) & (ids != self.key_ids)


class Contrast:
    """Similarities, not divided by the temperature, of anchors with their positives and their negatives.

    With s the similarity of an anchor and its positive, in general their cosine, and l = log sum_k exp(s_k / tau) over
    its K negatives, most losses are functions of u = l - s / tau, the log-odds against the positive.

    :meth:`of` makes one from vectors, :meth:`dense` from cosines.

    Attributes:
        pos: [V, B] similarities with the positives.
        cosine: [V, B] cosines with the positives, in [-1, 1], for what measures how far they agree.
        raw: [V, B, D] anchors before normalisation; None if they are not known.
        ids: [B] image of each anchor; None if they are not known.
    """

    pos: Tensor
    raw: Tensor | None
    ids: Tensor | None

    def __init__(
        self,
        pos: Tensor,
        candidates: Candidates | None,
        raw: Tensor | None,
        q: Tensor | None = None,
        p: Tensor | None = None,
        mirror: Tensor | None = None,
        similarity: Callable[[Tensor], Tensor] | None = None,
        ids: Tensor | None = None,
        classes: Classes | Tensor | None = None,
    ) -> None:
        self.cosine, self.candidates, self.raw, self.ids = pos, candidates, raw, ids
        self.pos, self._similarity = pos if similarity is None else similarity(pos), similarity
        self._q, self._p, self._mirror, self._classes = q, p, mirror, classes
        self._last_lse: tuple[Tensor, Tensor] | None = None  # the last temperature and lse at it

    @classmethod
    def dense(
        cls,
        pos: Tensor,
        neg: Tensor,
        valid: Tensor | None = None,
        raw: Tensor | None = None,
        mirror: Tensor | None = None,
        ids: Tensor | None = None,
        same_label: Tensor | None = None,
    ) -> "Contrast":
        """Make a contrast from cosines.

        Args:
            pos: [V, B], in [-1, 1].
            neg: [V, B, C], in [-1, 1].
            valid: bool, broadcastable to [V, B, C]; False where a candidate is no negative of the anchor.
            raw: [V, B, D] anchors before normalisation, for losses that act on them.
            mirror: [V, B, C] cosines of the positives with the same candidates, for losses that compare the two.
            ids: [B] image of each anchor, for losses that remember numbers of images.
            same_label: bool [B, C], true for negatives that show another image of the anchor's class.

        Raises:
            ValueError: shapes that do not fit together.
        """
        if pos.ndim != 2 or neg.ndim != 3 or neg.shape[:2] != pos.shape:
            raise ValueError(f"pos must be [V, B] and neg [V, B, C], got {tuple(pos.shape)} and {tuple(neg.shape)}")
        return cls(pos, Cosines(neg, valid), raw, mirror=mirror, ids=ids, classes=same_label)

    @classmethod
    def of(cls, e: Embedded, bank: Bank | None, tiled: bool | None = None, similarity: Name = "cosine") -> "Contrast":
        """Contrast the anchors of ``e`` with its positives and with the candidates of ``bank``.

        A candidate is a negative if the id of its image is not the anchor's, which holds for any number of ranks, any
        order and any padding.

        Args:
            e: anchors and positives.
            bank: None: no negatives.
            tiled: compute in panels that are never stored; None: where the cosines are many.
            similarity: a function of the cosine (:mod:`ssl_bench.objective.similarity`).
        """
        pos = (e.q * e.p).sum(-1)  # [V, B]
        image_ids = None if bank is None or bank.ids is None else (e.ids, bank.ids)
        candidates = None if bank is None else Pool(e.q, bank.keys, image_ids, tiled=tiled)
        classes = None
        if e.labels is not None and bank is not None and bank.labels is not None and bank.ids is not None:
            classes = Classes(e.labels, e.ids, bank.labels, bank.ids)
        mapped = SIMILARITIES[similarity]
        if bank is None or bank.index is None:
            return cls(pos, candidates, e.raw, e.q, e.p, similarity=mapped, ids=e.ids, classes=classes)
        none = torch.zeros(bank.index.shape[-1], dtype=torch.bool, device=pos.device)
        return cls(pos, candidates, e.raw, e.q, e.p, similarity=mapped, ids=e.ids, classes=none).pick(bank.index)

    def pick(self, index: Tensor) -> "Contrast":
        """The same contrast with the candidates ``index`` [V, B, K] as the only negatives of each anchor."""
        pool = self._pool()
        return self._with(Picks(pool.q, pool.keys, index, pool.tiled))

    def excluding(self, left_out: Tensor, count: Tensor | int) -> "Contrast":
        """The same contrast with ``count`` of the candidates as the negatives of each anchor.

        Args:
            left_out: [V, B, ceil(C / 8)] packed booleans, true for the other candidates, those of the anchor's own
                image among them.
        """
        pool = self._pool()
        return self._with(Pool(pool.q, pool.keys, None, Excluded(left_out, count), pool.tiled))

    def lse(self, tau: Tensor) -> Tensor:
        """log sum_k exp(s_k / tau) over the negatives, [V, B]; ``tau`` is [] or [V, B], positive.

        Raises:
            ValueError: there are no negatives. The methods below that need some raise it too.
        """
        if self._last_lse is None or self._last_lse[0] is not tau:
            self._last_lse = tau, self._lse(tau)[0]
        return self._last_lse[1]

    def sum(self, phi: Callable[..., Tensor], *values: Tensor) -> Tensor:
        """sum_k phi(s_k, *values) over the negatives, [V, B], of which no matrix is stored where they are many.

        Args:
            phi: an elementwise function, finite everywhere, of similarities [..., C] and of values [] or [..., 1].
            values: [] or [V, B], all tensors of which phi has a gradient: it must not take them from elsewhere.
        """
        return self.reduce(functools.partial(_sum, phi), *values)

    def reduce(self, f: Callable[..., Tensor], *values: Tensor) -> Tensor:
        """Apply ``f`` to the similarities of each anchor with all candidates: [V, B]. Many are never stored at once.

        Args:
            f: maps similarities [..., C], booleans that broadcast to them, true where a candidate is no negative of the
                anchor (None: nowhere), and values [] or [..., 1] to [...].
            values: [] or [V, B], all tensors of which ``f`` has a gradient, or :attr:`mirror`, in whose place ``f``
                gets cosines [..., C].
        """
        if (similarity := self._similarity) is None:
            return self._negatives().reduce(f, *map(self._cast, values))
        return self._negatives().reduce(lambda s, *rest: f(similarity(s), *rest), *map(self._cast, values))

    def reduce_by_class(self, f: Callable[..., Tensor], *values: Tensor) -> Tensor:
        """Do as :meth:`reduce`; ``f`` is also given which candidates are positives beside ``pos``.

        Args:
            f: takes after the first two arguments booleans that broadcast to [..., C], true where a candidate shows
                another image of the anchor's class.

        Raises:
            ValueError: the classes are not known.
        """
        if (classes := self._classes) is None:
            raise ValueError("the classes are not known: set positives=label, or give same_label to Contrast.dense")
        if isinstance(classes, Tensor):
            return self.reduce(lambda s, left_out, *rest: f(s, left_out, classes, *rest), *values)
        of_anchors = (numbers.expand_as(self.pos) for numbers in (classes.labels, classes.ids))
        return self.reduce(
            lambda s, left_out, labels, ids, *rest: f(s, left_out, classes.same(labels, ids), *rest),
            *of_anchors,
            *values,
        )

    def log_odds(self, tau: Tensor) -> Tensor:
        """u = lse(tau) - pos / tau, [V, B]; sigmoid(u) is DCL's NPC multiplier q_B and MACL's W_i."""
        return self.lse(tau) - self.pos / tau

    def log_odds_at(self, tau: Tensor, second_tau: Tensor) -> tuple[Tensor, Tensor]:
        """The log-odds [V, B] at ``tau`` and at ``second_tau``, in one pass over the candidates.

        Both temperatures are [] or [V, B], positive.
        """
        first, second = self._lse(tau, second_tau)
        self._last_lse = tau, first
        return first - self.pos / tau, second - self.pos / second_tau

    @property
    def count(self) -> Tensor:
        """K, the number of negatives per anchor: [V or 1, B]."""
        count = 0 if self.candidates is None else self.candidates.count
        return count.to(self.pos.dtype) if isinstance(count, Tensor) else torch.full_like(self.pos[:1], count)

    @property
    def mirror(self) -> Tensor:
        """A value of :meth:`reduce` that stands for the cosines of the positives with the same candidates.

        Raises:
            ValueError: the contrast was made from cosines without them.
        """
        mirror = self._p if self._mirror is None else self._mirror
        if mirror is None:
            raise ValueError("mirror is not known: give Contrast.dense the positives' cosines with the candidates")
        return mirror

    def with_leaf_anchors(self) -> tuple[Tensor, "Contrast"] | None:
        """The anchors [V, B, D] as leaves of a new graph and the contrast of them, all else constant.

        None for a contrast that was made from cosines.
        """
        if self._q is None or self._p is None:
            return None
        q, p = self._q.detach().requires_grad_(), self._p.detach()
        candidates = None if self.candidates is None else self.candidates.detached_for(q)
        raw = None if self.raw is None else self.raw.detach()
        mapped, ids, classes = self._similarity, self.ids, self._classes
        return q, Contrast((q * p).sum(-1), candidates, raw, q, p, similarity=mapped, ids=ids, classes=classes)

    def _with(self, candidates: Candidates) -> "Contrast":
        """The same contrast with other candidates."""
        other = copy.copy(self)
        other.candidates, other._last_lse = candidates, None
        return other

    def _lse(self, *taus: Tensor) -> Sequence[Any]:
        """[V, B] at each of one or two temperatures."""
        if self._similarity is None:
            return self._negatives().lse(*map(self._cast, taus))
        return [self.reduce(_logsumexp, tau) for tau in taus]

    def _negatives(self) -> Candidates:
        if self.candidates is None:
            raise ValueError("there are no negatives: set negatives to an option other than none")
        return self.candidates

    def _pool(self) -> Pool:
        if not isinstance(self.candidates, Pool) or self.candidates.excluded is not None:
            raise ValueError("candidates can be chosen once, among the keys of a bank")
        return self.candidates

    def _cast(self, value: Tensor) -> Tensor:
        return value.to(self.pos.dtype) if value.is_floating_point() else value


def _logsumexp(similarities: Tensor, left_out: Tensor | None, tau: Tensor) -> Tensor:
    return masked_logits(similarities, left_out, tau).logsumexp(-1)


def _sum(phi: Callable[..., Tensor], similarities: Tensor, left_out: Tensor | None, *values: Tensor) -> Tensor:
    terms = phi(similarities, *values)
    # A product: to fill where random bits are set takes a CPU three times as long.
    return (terms if left_out is None else terms * ~left_out).sum(-1)
