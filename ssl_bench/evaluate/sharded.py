"""Features of a split of which each rank holds a part: those of ImageNet may not fit into the memory of every GPU.

Shapes: N images of all ranks, n of this one, D features.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ssl_bench.distributed import all_sum, gather, rank, world

COLUMNS = 256  # dimensions whose statistics are computed at a time
PIECE = 4096  # rows that pass from rank to rank at a time


def ends_of(count: int) -> list[int]:
    """0, and then the end of each rank's share of ``count`` rows, in order; shares differ by at most one row."""
    return [count * r // world() for r in range(world() + 1)]


@dataclass(frozen=True)
class Sharded:
    """Features [N, D] of which this rank holds some consecutive rows.

    Attributes:
        rows: [n, D], those from ``first`` on.
        first: number of the first row.
        count: N.
        shared: whether the ranks hold the shares of :func:`ends_of`, so that all of them call each method together;
            otherwise ``rows`` is everything, and no rank waits for another.
    """

    rows: Tensor
    first: int
    count: int
    shared: bool

    @classmethod
    def whole(cls, rows: Tensor) -> "Sharded":
        """All rows in this process."""
        return cls(rows, 0, len(rows), False)

    def take(self, ids: Tensor) -> Tensor:
        """The rows ``ids``, int64 [b] on the device, in this order: [b, D] on every rank."""
        if not self.shared:
            return self.rows.index_select(0, ids)
        index = ids - self.first
        here = (index >= 0) & (index < len(self.rows))
        taken = self.rows.new_zeros(len(ids), self.rows.shape[1])
        if len(self.rows):
            taken += torch.where(here[:, None], self.rows[index.clamp(0, len(self.rows) - 1)], 0)
        return all_sum(taken)  # exact: one rank adds the row to zeros

    def chosen(self, ids: Tensor) -> "Sharded":
        """The rows ``ids``, int64 [m], as features [m, D] of which each rank holds a part again."""
        if not self.shared:
            return Sharded.whole(self.take(ids))
        first, last = ends_of(len(ids))[rank() :][:2]
        rows = self.rows.new_empty(last - first, self.rows.shape[1])
        for start in range(0, len(ids), PIECE):
            piece = self.take(ids[start : start + PIECE])
            low, high = max(first, start), min(last, start + len(piece))
            rows[low - first : max(low, high) - first] = piece[low - start : max(low, high) - start]
        return Sharded(rows, first, len(ids), True)

    def joined(self) -> Tensor:
        """All rows, [N, D] on every rank."""
        if not self.shared:
            return self.rows
        longest, ends = -(-self.count // world()), ends_of(self.count)
        padding = self.rows.new_zeros(longest - len(self.rows), self.rows.shape[1])
        joined = gather(torch.cat([self.rows, padding]))
        for r in range(1, world()):  # moved within the tensor: a second copy of everything may not fit into memory
            joined[ends[r] : ends[r + 1]] = joined[r * longest :][: ends[r + 1] - ends[r]].clone()
        return joined[: self.count]

    def moments(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Standard deviation and mean [D] of each dimension over the rows ``ids``, int64 [m]."""
        parts = self.rows.split(COLUMNS, dim=1)  # no copy of all rows is made
        if not self.shared:
            moments = [torch.std_mean(columns[ids], dim=0, correction=0) for columns in parts]
        else:
            local = ids[(ids >= self.first) & (ids < self.first + len(self.rows))] - self.first
            moments = []
            for columns in parts:
                x = columns[local].double()
                mean = all_sum(x.sum(0)) / len(ids)
                moments.append(((all_sum((x - mean).square_().sum(0)) / len(ids)).sqrt(), mean))
        std, mean = map(torch.cat, zip(*moments, strict=True))
        return std.to(self.rows.dtype), mean.to(self.rows.dtype)
