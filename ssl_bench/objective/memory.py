"""Memory of one vector for every training image (Wu et al. 2018, "Unsupervised feature learning via non-parametric
instance discrimination", arXiv 1805.01978).

    v_i <- unit(m v_i + (1 - m) f_i)        after each step, for the images i of the batch

Shapes: N images of the dataset; D width; V views; B images on this rank.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ssl_bench.distributed import gather
from ssl_bench.errors import require
from ssl_bench.objective.sampling import StepGenerator


class Memory(nn.Module):
    """The whole memory on every rank, without gradient.

    The initial vectors are uniform in a cube, as in the official code, and then normalised.

    Args:
        instances: N.
        dim: D.
        momentum: m in [0, 1], the share of the old vector.
        seed: seed of the initial vectors, which are the same on all ranks.
    """

    vectors: Tensor

    def __init__(self, instances: int, dim: int, momentum: float, seed: int) -> None:
        super().__init__()
        require(0 <= momentum <= 1, "momentum", momentum, "a number from 0 to 1")
        require(dim >= 1, "dim", dim, "1 or more")
        self.instances, self.momentum = instances, momentum
        side = math.sqrt(3 / dim)
        generator = StepGenerator("memory", seed).generator(torch.device("cpu"))
        start = torch.empty(instances, dim, device="cpu").uniform_(-side, side, generator=generator)
        self.register_buffer("vectors", normalize(start, dim=1))

    def rows(self, ids: Tensor) -> Tensor:
        """The vectors of the images ``ids`` [R]: [R, D]."""
        return self.vectors[ids]

    @torch.no_grad()
    def update(self, ids: Tensor, new: Tensor) -> None:
        """Update the vectors of the images of all ranks.

        Args:
            ids: [B] images of this rank, none of them on two ranks or twice on one.
            new: [V, B, D] unit vectors of V views, applied one after the other, the last view first: the order of the
                backward passes in CLD's code.
        """
        ids, new = gather(ids), gather(new, dim=1)
        for view in new.flip(0):
            moved = self.momentum * self.vectors[ids] + (1 - self.momentum) * view
            self.vectors.index_copy_(0, ids, normalize(moved, dim=1))
