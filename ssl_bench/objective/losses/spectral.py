"""The spectral contrastive loss: squared cosines of the negatives.

    L = -2 mu s + mean_k (mu s_k)^2

for vectors of the length sqrt(mu). HaoChen et al. 2021 eq. 6, without the code's 1 / mu: the authors' code
(jhaochenz96/spectral_contrastive_learning) divides all of it by mu, so that a rate r there is r / mu here under SGD. It
shortens longer vectors to that length and leaves shorter ones as they are, where all of ours have it.
"""

from torch import Tensor

from ssl_bench.errors import require
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss


class Spectral(Loss):
    """Twice the inner product with the positive against the mean squared one with the negatives.

    The temperature is not used.

    Args:
        mu: the squared length of the vectors, positive.
    """

    equation = "-2 mu s + mean_k (mu s_k)^2"
    gradient = "-2 mu grad s + 2 mu^2 mean_k s_k grad s_k"
    code = "jhaochenz96/spectral_contrastive_learning"
    needs = frozenset({"negatives"})
    uses_tau = False

    def __init__(self, mu: float = 1.0) -> None:
        super().__init__()
        require(mu > 0, "mu", mu, "a positive number")
        self.mu = mu

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        return self.mu**2 * contrast.sum(lambda s: s * s) / contrast.count - 2 * self.mu * contrast.pos  # [V, B]
