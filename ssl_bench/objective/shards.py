"""Memory spread over the ranks, for more images than fit on each of them.

    log sum over all images = log sum over ranks of exp(log sum over the images of the rank)

Every rank scores the queries of all ranks against its own images. Values and gradients are those of the whole memory,
and so is the checkpoint, which any number of ranks can read.

Shapes: N images of the dataset; W ranks; R queries on this rank; D width.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from ssl_bench.distributed import all_sum, gather, rank, world
from ssl_bench.objective.memory import Memory

LARGEST = 2**31  # bytes of a memory that every rank keeps whole under sharded=auto: an eighth of a V100


def memory(instances: int, dim: int, momentum: float, seed: int, sharded: bool | Literal["auto"]) -> Memory:
    """Make a :class:`Memory`, spread over the ranks if ``sharded``, or if it is ``auto`` and larger than LARGEST.

    ``instances``, ``dim``, ``momentum`` and ``seed`` are those of :class:`Memory`.
    """
    spread = 4 * instances * dim > LARGEST if sharded == "auto" else sharded
    return (Shards if spread and world() > 1 else Memory)(instances, dim, momentum, seed)


class Shards(Memory):
    """Memory of which rank r keeps the images N r // W to N (r + 1) // W.

    One more row takes the updates that belong to other ranks.
    """

    def _keep(self, vectors: Tensor) -> None:
        self.first, self.last = self._share(rank())
        # Not a buffer: DistributedDataParallel would send the one of rank 0 to all.
        self.vectors = pad(vectors[self.first : self.last], (0, 0, 0, 1))
        self._whole: Tensor | None = None

    def _share(self, r: int) -> tuple[int, int]:
        """First and last image of rank ``r``, the last one excluded."""
        return self.instances * r // world(), self.instances * (r + 1) // world()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Shards":
        self.vectors = fn(self.vectors)
        return self

    def rows(self, ids: Tensor) -> Tensor:
        all_ids = gather(ids)  # [W R]
        local = self.vectors[self._places(all_ids)] * self._is_local(all_ids)[:, None]
        return all_sum(local)[_local_rows(ids)]

    def lse(self, q: Tensor, tau: Tensor) -> Tensor:
        share = self._lse(self.vectors[:-1], gather(q), tau)  # [W R]
        return gather(share[None])[:, _local_rows(q)].logsumexp(0)

    def cosines(self, q: Tensor, index: Tensor) -> Tensor:
        all_index = gather(index)  # [W R, m]
        local = self._cosines(gather(q), self._places(all_index)) * self._is_local(all_index)
        return _Total.apply(local)[_local_rows(q)]  # type: ignore[no-any-return]

    def _is_local(self, ids: Tensor) -> Tensor:
        return (ids >= self.first) & (ids < self.last)

    def _places(self, ids: Tensor) -> Tensor:
        return torch.where(self._is_local(ids), ids - self.first, self.last - self.first)

    # ---- checkpoints

    def collect(self) -> None:
        """Bring the whole memory to rank 0's host memory, one share at a time; every rank must call it."""
        shares = []
        for r in range(world()):
            first, last = self._share(r)
            share = self.vectors[:-1] if r == rank() else self.vectors.new_empty(last - first, self.vectors.shape[1])
            dist.broadcast(share, r)
            shares += [share.cpu()] if rank() == 0 else []
        self._whole = torch.cat(shares) if shares else None

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}vectors"], self._whole = self._whole, None

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *_: Any) -> None:
        self.vectors[:-1].copy_(state_dict[f"{prefix}vectors"][self.first : self.last])


def _local_rows(local: Tensor) -> slice:
    """Rows of this rank among those of all ranks."""
    return slice(rank() * len(local), (rank() + 1) * len(local))


class _Total(torch.autograd.Function):
    """Sum over the ranks; the gradient is the sum of the ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return all_sum(x.clone())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return all_sum(grads[0].clone())
