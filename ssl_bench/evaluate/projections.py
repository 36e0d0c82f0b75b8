"""Histograms of representations along random orthogonal directions (Chen et al., Intriguing Properties of Contrastive
Losses, figure A.1).

Where the projection head's outputs are Gaussian, or uniform on the sphere, each of them is bell-shaped: a picture of
how well the representations match the prior.

Shapes: N test images, P projection width, d directions.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ssl_bench.evaluate.artifacts import Artifact, Histogram
from ssl_bench.evaluate.target import Target
from ssl_bench.seeding import stream


class Projections:
    """The test images' projections, from their test-time views, on seeded orthonormal directions.

    Yields one Histogram (``histograms``) with the directions as groups; its bins divide [-m, m] with m the largest
    absolute value. Nothing for raw pixels, which have no projection.

    Args:
        directions: d; at most P of them are orthogonal, so no more than P are taken.
        bins: of each histogram.
        normalize: l2-normalise the projections, as contrastive losses do; false: as the head gives them.
    """

    def __init__(self, directions: int = 8, bins: int = 40, normalize: bool = True) -> None:
        if directions < 1 or bins < 1:
            raise ValueError(f"directions and bins must be at least 1, not {directions} and {bins}")
        self.directions, self.bins, self.normalize = directions, bins, normalize

    def run(self, target: Target) -> Iterator[tuple[str, float | Artifact]]:
        if "projection" not in target.features("test"):
            return
        x = target.features("test")["projection"].double()
        x = F.normalize(x, dim=1) if self.normalize else x
        generator = torch.Generator().manual_seed(stream("projections", target.seed))
        along = (x @ orthonormal(x.shape[1], self.directions, generator).to(x.device)).T.cpu()  # [d, N]
        bound = float(along.abs().max()) or 1.0
        counts = {str(i + 1): values.histc(self.bins, -bound, bound).long().tolist() for i, values in enumerate(along)}
        edges = [bound * (2 * i / self.bins - 1) for i in range(self.bins + 1)]
        label = f"{'unit' if self.normalize else 'raw'} projections along a direction"
        yield "histograms", Histogram(counts, edges, label, "test images", "direction")


def orthonormal(width: int, directions: int, generator: torch.Generator) -> Tensor:
    """min(directions, width) random orthonormal directions in width dimensions, [width, d] float64, uniform."""
    gauss = torch.randn(width, min(directions, width), dtype=torch.float64, generator=generator)
    q, r = torch.linalg.qr(gauss)
    return q * r.diagonal().sign()  # without the signs that QR prefers
