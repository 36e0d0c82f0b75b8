"""Which keys an anchor is contrasted with."""

from typing import ClassVar

from torch import nn

from ssl_bench.distributed import gather
from ssl_bench.objective.contrast import Bank, Contrast, Embedded


class Negatives(nn.Module):
    """Candidates for a batch, the choice among them, and what is kept for the next batch."""

    gives: ClassVar[frozenset[str]] = frozenset()  # what a Loss may list in its `needs`

    def count(self, images: int) -> int:
        """K, the negatives per anchor at a global batch of ``images``."""
        raise NotImplementedError

    def bank(self, e: Embedded) -> Bank | None:
        """The candidates; those that show the anchor's own image are told by their id and do not count."""
        raise NotImplementedError

    def select(self, contrast: Contrast) -> Contrast:
        """The contrast with the chosen negatives only."""
        return contrast

    def update(self, e: Embedded) -> None:
        """Called once per step after the loss, for negatives that outlive the batch."""


class InBatch(Negatives):
    """Both views of every other image of the global batch: K = 2N - 2 (SimCLR; DCL's U_i)."""

    gives = frozenset({"negatives"})

    def count(self, images: int) -> int:
        return 2 * images - 2

    def bank(self, e: Embedded) -> Bank:
        keys = gather(e.p, dim=1).flatten(0, 1)  # [V N, D]
        return Bank(keys, gather(e.ids).repeat(e.p.shape[0]))
