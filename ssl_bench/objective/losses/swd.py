"""Alignment and the sliced Wasserstein distance of the batch to a prior.

    L = ||h_v - h_w||^2 / (2 D) + weight ||S' - h R||^2 / D

R is a random rotation, h R are D one-dimensional samples of all anchors, and S' holds for each value the one of equal
rank among as many values of the prior, rotated by R too. R and the prior's sample are drawn anew at every step, the
same on all ranks. Intriguing properties of contrastive losses (Chen et al. 2021) algorithm 1 and table 1;
google-research/simclr, generalized_contrastive_loss.ipynb. The half is the code's: table 1 is written without it, so
its weight is twice ours, with scale = 2.
"""

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ssl_bench.distributed import gather, rank
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss
from ssl_bench.objective.sampling import StepGenerator


class SWD(Loss):
    """Acts on the anchors themselves: neither negatives nor the temperature are used.

    Args:
        weight: at least 0, of the distance to the prior (lambda).
        prior: ``normal``: N(0, 1) in each coordinate; ``hypercube``: U(-1, 1) in each coordinate; ``hypersphere``:
            uniform on the unit sphere, with the anchors normalised to it.
        scale: of the whole loss; the paper's is 1000 for normalised vectors, whose mean over D is small.
        seed: of the draws.
    """

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
        if not weight >= 0:
            raise ValueError(f"weight={weight} must not be negative")
        if prior not in ("normal", "hypercube", "hypersphere"):
            raise ValueError(f"prior={prior} must be normal, hypercube or hypersphere")
        if not scale > 0:
            raise ValueError(f"scale={scale} must be positive")
        self.weight, self.prior, self.scale, self.draws = weight, prior, scale, StepGenerator("swd", seed)

    def forward(self, contrast: Contrast, tau: Tensor) -> Tensor:
        h = contrast.raw  # [V, B, D]
        if h is None:
            raise ValueError("raw is not known: give Contrast.dense the anchors before normalisation")
        if self.prior == "hypersphere":
            h = normalize(h, dim=-1)
        alignment = (h - h.flip(0)).square().mean(-1) / 2
        rotation, target = self._target(h.detach())
        distance = (target - h @ rotation).square().mean(-1)
        return self.scale * (alignment + self.weight * distance)  # [V, B]

    def draw(self, samples: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """This step's rotation [D, D] and sample of the prior [samples, D], in the type and width of ``like``."""
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
        """The rotation, and for each coordinate of each rotated anchor the prior's value of its rank: [V, B, D].

        Ranks do not change under a small step, so only the anchor's own value has a gradient, and it is local.
        """
        everyone = gather(h, dim=1)  # [V, N, D]
        rotation, sample = self.draw(everyone[..., 0].numel(), h)
        order = (everyone.flatten(0, 1) @ rotation).mT.argsort(dim=-1, stable=True)  # [D, V N]
        sorted_sample = (sample @ rotation).mT.sort(-1).values
        target = torch.empty_like(sorted_sample).scatter_(-1, order, sorted_sample)
        mine = slice(rank() * h.shape[1], (rank() + 1) * h.shape[1])
        return rotation, target.mT.unflatten(0, everyone.shape[:2])[:, mine]
