"""Histograms of representations along random orthogonal directions (Chen et al., Intriguing Properties of Contrastive
Losses, figure A.1).

If the projections are Gaussian, or uniform on the sphere, every histogram is bell-shaped: the picture shows how well
the representations match the prior.

Shapes: N test images, P projection width, d directions.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ssl_bench.errors import require
from ssl_bench.evaluate.artifacts import Artifact, Histogram
from ssl_bench.evaluate.target import Evaluator, Target
from ssl_bench.seeding import stream


class Projections(Evaluator):
    """Histograms of the test images' projections, from test-time views, along seeded orthonormal directions.

    Yields one Histogram (``histograms``) with the directions as groups. Its bins divide [-m, m], where m is the largest
    absolute value. Yields nothing for raw pixels, which have no projection.

    Args:
        directions: d; at most P directions can be orthogonal, so a larger number is reduced to P.
        bins: of each histogram.
        normalize: l2-normalise the projections, as contrastive losses do; false: use the output of the head.
    """

    needs_projection = True

    def __init__(self, directions: int = 8, bins: int = 40, normalize: bool = True) -> None:
        require(directions >= 1, "directions", directions, "1 or more")
        require(bins >= 1, "bins", bins, "1 or more")
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
    """Draw d = min(directions, width) orthonormal directions uniformly, [width, d] float64."""
    gauss = torch.randn(width, min(directions, width), dtype=torch.float64, generator=generator)
    q, r = torch.linalg.qr(gauss)
    return q * r.diagonal().sign()  # removes the preference of QR for some signs
