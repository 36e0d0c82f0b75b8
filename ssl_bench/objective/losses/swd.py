"""Alignment and the sliced Wasserstein distance of the batch to a prior.

    L = ||h_v - h_w||^2 / (2 D) + weight ||S' - h R||^2 / D

R is a random rotation, and h R are D one-dimensional samples of all anchors. S' has for each of their values the one of
equal rank in a sample of the prior, rotated by R too. R and that sample are drawn again at every step, the same on all
ranks. Intriguing properties of contrastive losses (Chen et al. 2021) algorithm 1 and table 1;
google-research/simclr, generalized_contrastive_loss.ipynb. The half is the code's: table 1 is written without it, so
its weight is twice ours, with scale = 2.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ssl_bench.distributed import gather, rank
from ssl_bench.errors import require
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss, unnormalised
from ssl_bench.objective.products import products
from ssl_bench.objective.sampling import StepGenerator


class SWD(Loss):
    """Alignment and the distance to a prior, from the unnormalised anchors; negatives and temperature are not used.

    Args:
        weight: of the distance to the prior (lambda), at least 0.
        prior: ``normal``: N(0, 1) in each coordinate; ``hypercube``: U(-1, 1) in each coordinate; ``hypersphere``:
            uniform on the unit sphere, to which the anchors are normalised too.
        scale: factor of the whole loss, positive; 1000 in the paper for normalised vectors, whose mean over D is small.
        seed: of the draws.
    """

    equation = "distance of the views + weight x sliced Wasserstein distance to the prior"
    code = "google-research/simclr"
    needs = frozenset({"two_views"})
    uses_tau = False

    def __init__(
        self,
        weight: float = 5.0,
        prior: Literal["normal", "hypercube", "hypersphere"] = "normal",
        scale: float = 1.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        require(weight >= 0, "weight", weight, "0 or more")
        require(prior in ("normal", "hypercube", "hypersphere"), "prior", prior, "normal, hypercube or hypersphere")
        require(scale > 0, "scale", scale, "a positive number")
        self.weight, self.prior, self.scale, self.draws = weight, prior, scale, StepGenerator("swd", seed)

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        h = unnormalised(contrast)  # [V, B, D]
        if self.prior == "hypersphere":
            h = normalize(h, dim=-1)
        alignment = (h - h.flip(0)).square().mean(-1) / 2
        rotation, target = self._target(h.detach())
        distance = (target - products(h, rotation.mT)).square().mean(-1)
        return self.scale * (alignment + self.weight * distance)  # [V, B]

    def draw(self, samples: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Draw this step's rotation [D, D] and sample of the prior [samples, D], in the type and width of ``like``."""
        width, generator = like.shape[-1], self.draws.generator(like.device)
        q, r = torch.linalg.qr(like.new_empty(width, width).normal_(generator=generator))
        rotation = q * r.diagonal().sign()  # uniform over the orthogonal matrices, which q alone is not
        sample = like.new_empty(samples, width)
        if self.prior == "hypercube":
            return rotation, sample.uniform_(-1, 1, generator=generator)
        sample.normal_(generator=generator)
        return rotation, normalize(sample, dim=-1) if self.prior == "hypersphere" else sample

    @torch.no_grad()
    def _target(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """The rotation [D, D] and S' [V, B, D], the prior's value of equal rank for each coordinate of h R.

        Ranks do not change under a small step, so the gradient goes through h R only, and S' is a constant.
        """
        all_anchors = gather(h, dim=1)  # [V, N, D]
        rotation, sample = self.draw(all_anchors[..., 0].numel(), h)
        order = products(all_anchors.flatten(0, 1), rotation.mT).mT.argsort(dim=-1, stable=True)  # [D, V N]
        sorted_sample = products(sample, rotation.mT).mT.sort(-1).values
        target = torch.empty_like(sorted_sample).scatter_(-1, order, sorted_sample)
        local_rows = slice(rank() * h.shape[1], (rank() + 1) * h.shape[1])
        return rotation, target.mT.unflatten(0, all_anchors.shape[:2])[:, local_rows]
