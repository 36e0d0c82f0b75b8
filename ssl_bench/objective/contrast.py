"""What a loss may see of a batch: cosines with the positives and with the negatives.

Shapes: V anchor views (2 symmetric, 1 one-directional), B images on this rank, D width, C candidates, N images over
all ranks.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    views: list[Tensor]  # global crops first, each [B, channels, height, width]; further crops may be smaller
    ids: Tensor  # [B] index of the image in the dataset
    labels: Tensor  # [B], -1 if unlabelled


@dataclass(frozen=True)
class Embedded:
    q: Tensor  # [V, B, D] unit anchors
    p: Tensor  # [V, B, D] unit positives of the anchors; without gradient when a momentum network made them
    raw: Tensor  # [V, B, D] the anchors before normalisation
    ids: Tensor  # [B]


@dataclass(frozen=True)
class Bank:
    keys: Tensor  # [C, D] candidates shared by the views, or [V, C, D]
    ids: Tensor  # [C] image of each candidate, -1: never the anchor's own


class Contrast:
    """The positives and the negatives of a batch of anchors as unscaled cosines.

    With s the cosine of an anchor and its positive and l = log sum_k exp(s_k / tau) over its K negatives, the log-odds
    u = l - s / tau against the positive carry most contrastive losses.
    """

    pos: Tensor  # [V, B]
    raw: Tensor | None  # [V, B, D]

    def __init__(self, pos: Tensor, neg: Tensor | None, valid: Tensor | None, raw: Tensor | None) -> None:
        self.pos, self.raw = pos, raw
        self._neg = neg  # [V, B, C]
        self._valid = valid  # bool, broadcasts to [V, B, C]; None: every candidate is a negative

    @classmethod
    def dense(cls, pos: Tensor, neg: Tensor, valid: Tensor | None = None, raw: Tensor | None = None) -> "Contrast":
        """From cosines.

        Args:
            pos: [V, B], in [-1, 1].
            neg: [V, B, C], in [-1, 1].
            valid: bool, broadcastable to [V, B, C]; False where a candidate is no negative of the anchor.
            raw: [V, B, D] anchors before normalisation, for losses that act on them.

        Raises:
            ValueError: shapes that do not fit together.
        """
        if pos.ndim != 2 or neg.ndim != 3 or neg.shape[:2] != pos.shape:
            raise ValueError(f"pos must be [V, B] and neg [V, B, C], got {tuple(pos.shape)} and {tuple(neg.shape)}")
        return cls(pos, neg, valid, raw)

    @classmethod
    def of(cls, e: Embedded, bank: Bank | None) -> "Contrast":
        """The anchors of ``e`` against its positives and the candidates of ``bank``.

        A candidate is a negative if it shows another image than the anchor: told by the image's id, so it holds for
        any number of ranks, any order and any padding.
        """
        pos = (e.q * e.p).sum(-1)  # [V, B]
        if bank is None:
            return cls(pos, None, None, e.raw)
        neg = e.q @ bank.keys.mT  # [V, B, C]
        return cls(pos, neg, e.ids[:, None] != bank.ids, e.raw)  # [B, C]

    def lse(self, tau: Tensor) -> Tensor:
        """log sum_k exp(s_k / tau) over the negatives, [V, B]; ``tau`` is [] or [V, B], positive."""
        if self._neg is None:
            raise ValueError("there are no negatives: set negatives to an option other than none")
        logits = self._neg / (tau[..., None] if tau.ndim else tau)  # [V, B, C]
        if self._valid is not None:
            # Scaled first and masked second: inf / tau has a NaN gradient where tau is learned.
            logits = logits.masked_fill(~self._valid, float("-inf"))
        return logits.logsumexp(-1)

    def log_odds(self, tau: Tensor) -> Tensor:
        """u = lse(tau) - pos / tau, [V, B]; sigmoid(u) is DCL's NPC multiplier q_B and MACL's W_i."""
        return self.lse(tau) - self.pos / tau

    @property
    def has_negatives(self) -> bool:
        return self._neg is not None

    @property
    def count(self) -> Tensor:
        """K, the number of negatives per anchor: [V or 1, B]."""
        if self._neg is None:
            return torch.zeros_like(self.pos[:1])
        if self._valid is None:
            return torch.full_like(self.pos[:1], self._neg.shape[-1])
        return self._valid.expand(*self._valid.shape[:-2], *self._neg.shape[1:]).sum(-1).view(-1, self.pos.shape[1])
