"""The weight of the positive in the gradient of a loss, at given cosines (Huang et al., MACL, arXiv 2207.07874).

W = -tau dL / ds for the cosine s of the positive and K negatives of equal cosine. For InfoNCE it is 1 minus the
positive's probability, the factor of the gradient that vanishes at small tau (figure 3).
"""

from typing import ClassVar

import torch

from ssl_bench.errors import require
from ssl_bench.evaluate.metric import Declared, Metric
from ssl_bench.evaluate.of_loss import Objective, OfLoss
from ssl_bench.evaluate.target import Target
from ssl_bench.objective.contrast import Contrast


class GradientWeight(OfLoss):
    """Yields ``weight``, computed in float64.

    Args:
        objective: as for the base.
        positive: cosine of the positive.
        negative: cosine of each negative.
        k: number of negatives.
    """

    gives = frozenset({"negatives", "cosine"})
    metrics: ClassVar[Declared] = {"weight": Metric(better="high")}

    def __init__(self, objective: Objective, positive: float = 1.0, negative: float = -1.0, k: int = 256) -> None:
        for name, cosine in (("positive", positive), ("negative", negative)):
            require(-1 <= cosine <= 1, name, cosine, "a cosine, -1 to 1")
        require(k >= 1, "k", k, "1 or more negatives")
        self.positive, self.negative, self.k = positive, negative, k
        super().__init__(objective)

    def measure(self, target: Target) -> dict[str, float]:
        loss, temperature = self.built()
        positive = torch.full((1, 1), self.positive, dtype=torch.float64, requires_grad=True)
        contrast = Contrast.dense(positive, torch.full((1, 1, self.k), self.negative, dtype=torch.float64))
        tau = temperature(0.0, contrast).double()
        (slope,) = torch.autograd.grad(loss(contrast, tau).sum(), positive)
        return {"weight": -float(tau * slope)}
