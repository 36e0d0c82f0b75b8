"""BYOL's loss: the squared distance of unit vectors, without negatives.

    L = ||f - g||^2 = 2 - 2 s

BYOL (Grill et al. 2020) eq. 2.
"""

from torch import Tensor

from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss


class BYOL(Loss):
    """The squared distance of anchor and positive; the temperature is not used."""

    equation = "2 - 2 s"
    gradient = "-2 grad s"
    code = "google-deepmind/deepmind-research"
    uses_tau = False

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        return 2 - 2 * contrast.pos  # [V, B]
