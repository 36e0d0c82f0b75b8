"""SIGReg, the loss of LeJEPA: close views whose distribution is the standard normal one along random directions.

    L_v = (1 - weight) ||h_v - m||^2 / D + weight mean_a T({a h}),   m = (h_v + h_w) / 2
    T({y}) = N int |mean_n exp(i t y_n) - exp(-t^2 / 2)|^2 exp(-t^2 / 2) dt   from -3 to 3, by trapezoids

T is the statistic of Epps and Pulley for the N images of the global batch in the anchor's view, one number for all its
anchors. The directions a, which are uniform on the sphere, are drawn again at every step, the same on all ranks. LeJEPA
(Balestriero and LeCun 2025); rbalestr-lab/lejepa, MINIMAL.md. T grows with N, so that weight has more of it at a larger
batch.
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils.checkpoint import checkpoint

from ssl_bench.distributed import gather, world
from ssl_bench.errors import require
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss, unnormalised
from ssl_bench.objective.products import products
from ssl_bench.objective.sampling import StepGenerator

LIMIT, KNOTS = 3.0, 17  # of the integral, whose negative half mirrors the positive one


class SIGReg(Loss):
    """Alignment and a test of normality of the unnormalised anchors; negatives and temperature are not used.

    On any number of ranks, value and gradient are exactly those of one process with the global batch.

    Args:
        weight: of the statistic (lambda), in [0, 1]; the alignment has the rest.
        slices: directions drawn in each step, at least 1.
        seed: of the draws.
    """

    equation = "(1 - weight) (distance to the mean of the views)^2 / D + weight x Epps-Pulley statistic of projections"
    code = "rbalestr-lab/lejepa"
    needs = frozenset({"two_views"})
    uses_tau = False

    def __init__(self, weight: float = 0.02, slices: int = 256, seed: int = 0) -> None:
        super().__init__()
        require(0 <= weight <= 1, "weight", weight, "a number from 0 to 1")
        require(slices >= 1, "slices", slices, "1 or more")
        self.weight, self.slices, self.draws = weight, slices, StepGenerator("sigreg", seed)

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        h = unnormalised(contrast)  # [2, B, D]
        distance = ((h - h.flip(0)) / 2).square().mean(-1)  # [2, B]
        y = products(h, self.directions(h))  # [2, B, A]
        t = torch.linspace(0, LIMIT, KNOTS, dtype=h.dtype, device=h.device)
        # The backward pass computes the waves again: all of them would be 17 times y.
        waves = [checkpoint(_mean_wave, y, knot, use_reentrant=False, preserve_rng_state=False) for knot in t]
        real, imaginary = gather(torch.stack(waves, -1)[None]).mean(0)  # [2, A, KNOTS] each
        normal = (-t.square() / 2).exp()
        error = (real - normal).square() + imaginary.square()
        images = h.shape[1] * world()
        statistic = 2 * images * torch.trapezoid(error * normal, dx=LIMIT / (KNOTS - 1)).mean(1, keepdim=True)
        return (1 - self.weight) * distance + self.weight * statistic  # [2, B]

    def directions(self, like: Tensor) -> Tensor:
        """Draw this step's unit vectors [A, D], in the type and width of ``like``."""
        drawn = like.new_empty(self.slices, like.shape[-1]).normal_(generator=self.draws.generator(like.device))
        return normalize(drawn, dim=-1)


def _mean_wave(y: Tensor, t: Tensor) -> Tensor:
    """The mean over the images of cos(t y) and of sin(t y), for y [2, B, A]: [2, 2, A]."""
    angle = t * y
    return torch.stack([angle.cos().mean(1), angle.sin().mean(1)])
