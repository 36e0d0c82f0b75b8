"""The memory spread over the ranks, for more images than fit on each of them.

    log sum over all images = log sum over ranks of exp(log sum over the rank's own images)

Every rank scores the queries of all ranks against its own share. What comes back is what the whole memory gives, in
value and gradient, and so is a checkpoint: it can be read by any number of ranks.

N images of the dataset   W ranks   R queries on this rank   D width
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from ssl_bench.distributed import all_sum, gather, rank, world
from ssl_bench.objective.memory import Memory

LARGEST = 2**31  # bytes of a memory that every rank keeps whole where it may choose: an eighth of a V100


def memory(instances: int, dim: int, momentum: float, seed: int, sharded: bool | Literal["auto"]) -> Memory:
    """As :class:`Memory` says; ``sharded`` over the ranks, or (``auto``) where it is larger than LARGEST."""
    spread = 4 * instances * dim > LARGEST if sharded == "auto" else sharded
    return (Shards if spread and world() > 1 else Memory)(instances, dim, momentum, seed)


class Shards(Memory):
    """Rank r has the images from N r // W to N (r + 1) // W; a row more takes what is written for other ranks."""

    def _keep(self, vectors: Tensor) -> None:
        self.first, self.last = self._share(rank())
        # No buffer: DistributedDataParallel would send rank 0's to all.
        self.vectors = pad(vectors[self.first : self.last], (0, 0, 0, 1))
        self._whole: Tensor | None = None

    def _share(self, of: int) -> tuple[int, int]:
        return self.instances * of // world(), self.instances * (of + 1) // world()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Shards":
        self.vectors = fn(self.vectors)
        return self

    def rows(self, ids: Tensor) -> Tensor:
        every = gather(ids)  # [W R]
        found = self.vectors[self._places(every)] * self._mine(every)[:, None]
        return all_sum(found)[_own(ids)]

    def lse(self, q: Tensor, tau: Tensor) -> Tensor:
        share = self._lse(self.vectors[:-1], gather(q), tau)  # [W R]
        return gather(share[None])[:, _own(q)].logsumexp(0)

    def cosines(self, q: Tensor, index: Tensor) -> Tensor:
        every = gather(index)  # [W R, m]
        found = self._cosines(gather(q), self._places(every)) * self._mine(every)
        return _Total.apply(found)[_own(q)]  # type: ignore[no-any-return]

    def _mine(self, ids: Tensor) -> Tensor:
        return (ids >= self.first) & (ids < self.last)

    def _places(self, ids: Tensor) -> Tensor:
        return torch.where(self._mine(ids), ids - self.first, self.last - self.first)

    # ---- checkpoints

    def collect(self) -> None:
        """Brings the whole to rank 0's host memory, a share at a time; every rank takes part."""
        shares = []
        for of in range(world()):
            first, last = self._share(of)
            share = self.vectors[:-1] if of == rank() else self.vectors.new_empty(last - first, self.vectors.shape[1])
            dist.broadcast(share, of)
            shares += [share.cpu()] if rank() == 0 else []
        self._whole = torch.cat(shares) if shares else None

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}vectors"], self._whole = self._whole, None

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *_: Any) -> None:
        self.vectors[:-1].copy_(state_dict[f"{prefix}vectors"][self.first : self.last])


def _own(local: Tensor) -> slice:
    """This rank's rows among those of all ranks."""
    return slice(rank() * len(local), (rank() + 1) * len(local))


class _Total(torch.autograd.Function):
    """The sum of every rank's tensor; on the way back that of every rank's gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return all_sum(x.clone())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return all_sum(grads[0].clone())
