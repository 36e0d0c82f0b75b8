"""VICReg: close views, a standard deviation of at least 1 in each coordinate, and no correlation of two coordinates.

    L_v = invariance ||h_v - h_w||^2 / D + variance mean_j max(0, 1 - sqrt(C_jj + 1e-4))
          + 2 covariance sum_{i != j} C_ij^2 / D

C is the covariance of the global batch in the anchor's view v, with N - 1 in its denominator. Its two terms are one
number for all anchors of the view. The mean over both views is the loss of the official code, which takes the mean of
the views' variance terms, but the sum of their covariance terms. VICReg (Bardes et al. 2022) eq. 6, written for sums.
"""

from torch import Tensor
from torch.nn.functional import relu

from ssl_bench.distributed import gather
from ssl_bench.errors import require
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss, squared_products, unnormalised

EPSILON = 1e-4  # of the variances


class VICReg(Loss):
    """Invariance, variance and covariance of the unnormalised anchors; negatives and temperature are not used.

    On any number of ranks, value and gradient are exactly those of one process with the global batch.

    Args:
        invariance, variance, covariance: weights of the three terms, at least 0.
    """

    equation = "invariance (distance of the views)^2 / D + variance hinge(C) + 2 covariance sum_{i != j} C_ij^2 / D"
    code = "facebookresearch/vicreg"
    needs = frozenset({"two_views"})
    uses_tau = False

    def __init__(self, invariance: float = 25.0, variance: float = 25.0, covariance: float = 1.0) -> None:
        super().__init__()
        self.invariance, self.variance, self.covariance = invariance, variance, covariance
        for name in ("invariance", "variance", "covariance"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        h = unnormalised(contrast)  # [2, B, D]
        distance = (h - h.flip(0)).square().mean(-1)  # [2, B]
        x = gather(h, dim=1)  # [2, N, D]
        x = x - x.mean(1, keepdim=True)
        others, width = x.shape[1] - 1, x.shape[2]
        variances = x.square().sum(1) / others  # [2, D]
        narrow = relu(1 - (variances + EPSILON).sqrt()).mean(1)  # [2]
        correlated = (squared_products(x, x) / others**2 - variances.square().sum(1)) / width  # [2]
        of_view = self.variance * narrow + 2 * self.covariance * correlated
        return self.invariance * distance + of_view[:, None]
