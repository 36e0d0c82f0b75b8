"""Barlow Twins: a cross-correlation of the two views that is the identity.

    L = sum_i (1 - C_ii)^2 + weight sum_{i != j} C_ij^2

C_ij is the correlation of coordinate i in the first view with coordinate j in the second over the global batch, with
1e-5 added to the variances. L is a number of the batch, the same for all anchors. Barlow Twins (Zbontar et al. 2021)
eq. 1. The official code gives the same gradient divided by the number of devices, which LARS does not notice: its
all_reduce is unknown to autograd.
"""

from torch import Tensor

from ssl_bench.distributed import gather
from ssl_bench.errors import require
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss, squared_products, unnormalised

EPSILON = 1e-5  # of the variances


class BarlowTwins(Loss):
    """The cross-correlation of the unnormalised anchors; negatives and temperature are not used.

    On any number of ranks, value and gradient are exactly those of one process with the global batch.

    Args:
        weight: of the correlations between different coordinates (lambda), at least 0.
    """

    equation = "sum_i (1 - C_ii)^2 + weight sum_{i != j} C_ij^2"
    code = "facebookresearch/barlowtwins"
    needs = frozenset({"two_views"})
    uses_tau = False

    def __init__(self, weight: float = 0.0051) -> None:
        super().__init__()
        require(weight >= 0, "weight", weight, "0 or more")
        self.weight = weight

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        h = unnormalised(contrast)  # [2, B, D]
        x = gather(h, dim=1)  # [2, N, D]
        x = x - x.mean(1, keepdim=True)
        first, second = x * (x.square().mean(1, keepdim=True) + EPSILON).rsqrt()
        same = (first * second).mean(0)  # [D], C_ii
        different = squared_products(first, second) / len(first) ** 2 - same.square().sum()
        return ((1 - same).square().sum() + self.weight * different).expand(h.shape[:2])
