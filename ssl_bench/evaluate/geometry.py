"""Geometry of features on the unit sphere: alignment, uniformity, tolerance, semantic sensitivity, class compactness.

Shapes: N test images, D features, C classes, b x b a tile of the matrix of all pairs.

Expectations over pairs x, y of test images are over distinct images, x != y. MACL's equations 5 to 7 draw x and y
independently, which adds N self pairs to the N (N - 1) others: a value v becomes (v (N - 1) + 1) / N, at most 1e-4 more
for 10,000 images.

Cosines and sums are float64, because distances of nearly equal features would lose digits and the sums are long.
"""

import math
from collections.abc import Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ssl_bench.distributed import all_sum, broadcast, rank, world
from ssl_bench.errors import require
from ssl_bench.evaluate.artifacts import Artifact, Distribution
from ssl_bench.evaluate.spectrum import WIDEST, effective_rank
from ssl_bench.evaluate.target import Evaluator, Target
from ssl_bench.seeding import stream

TILE = 512
POSITIVES = 4096  # images per call of Target.positives


class Geometry(Evaluator):
    """Statistics of the l2-normalised features of the test split, from test-time views.

    Yields the following, with f the features of x, g those of y and E over distinct pairs:

    tolerance             E[f.g 1(same class)], in [-1, 1] (Wang & Liu, 2021; MACL eq. 6)
    semantic_sensitivity  S = E exp(-(H - f.g)^2), H = 1 in the same class, else -1; in [e^-4, 1] (MACL eq. 7)
    uniformity            log E exp(-t |f - g|^2), in [-4 t, 0]; lower is more uniform (Wang & Isola, 2020; MACL eq. 5)
    intra_distance        mean over the classes of the mean of |f - g| within a class, in [0, 2]
    intra_distance_median the median over the classes ("Less can be more", figure 2); classes of one image are left out
    intra_distances       the class means themselves, a Distribution
    effective_rank        exp of the entropy of the singular values divided by their sum, in [1, min(N, D)] (Roy &
                          Vetterli, 2007); not centred; left out if both N and D exceed 4096 (possible for raw pixels)
    silhouette            mean of (b - a) / max(a, b), in [-1, 1], scikit-learn's, Euclidean ("Less ...", figure 3)
    alignment             E |f - g|^gamma of two random training views of each image, in [0, 2^gamma] (MACL eq. 5)
    projection_alignment  the alignment of the projections if ``features`` is backbone; both are for networks only

    Without classes, whatever compares them is left out, and the uniformity, the rank and the alignment are yielded.

    The papers report S below 1/e, its value for cosines around 0. That needs features with positive entries, as the
    backbone's are.

    Args:
        features: the space. Raw pixels have no projection, and nothing is yielded for it.
        t: in (0, 100].
        gamma: above 0.
        silhouette_samples: the largest number of images for the silhouette; a larger split is subsampled by the seed.
    """

    def __init__(
        self,
        features: Literal["backbone", "projection"] = "backbone",
        t: float = 2.0,
        gamma: float = 2.0,
        silhouette_samples: int = 10000,
    ) -> None:
        require(0 < t <= 100, "t", t, "a number in (0, 100]")
        require(gamma > 0, "gamma", gamma, "a positive number")
        require(silhouette_samples >= 2, "silhouette_samples", silhouette_samples, "2 or more")
        self.features, self.t, self.gamma, self.silhouette_samples = features, t, gamma, silhouette_samples
        self.needs_projection = features == "projection"

    def check(self, target: Target) -> None:
        if target.num_classes:
            target.labels("test")

    def run(self, target: Target) -> Iterator[tuple[str, float | Artifact]]:
        features = target.features("test").get(self.features)
        labels = target.labels("test") if target.num_classes else target.test.labels.to(target.device)
        if features is None:
            return
        if len(features) > 1:
            yield from pair_statistics(features, labels, target.num_classes, self.t)
        if min(features.shape) <= WIDEST:
            yield "effective_rank", effective_rank(features)
        score = self._silhouette(features, labels, target.seed)
        if score is not None:
            yield "silhouette", score
        if target.network is not None and target.augment:
            yield from self._alignment(target)

    def _silhouette(self, features: Tensor, labels: Tensor, seed: int) -> float | None:
        """The silhouette; None if there is one class only, or every class has one image."""
        if len(features) > self.silhouette_samples:
            generator = torch.Generator().manual_seed(stream("silhouette", seed))
            chosen = torch.randperm(len(features), generator=generator)[: self.silhouette_samples].to(features.device)
            features, labels = features[chosen], labels[chosen]
        if not 1 < len(labels.unique()) < len(labels):
            return None
        score = 0.0
        if rank() == 0:  # it runs on the CPU, and other ranks would only repeat it
            from sklearn import config_context
            from sklearn.metrics import silhouette_score

            with config_context(working_memory=64):  # MB, for a block of distances
                unit = F.normalize(features, dim=1).cpu().numpy()
                score = float(silhouette_score(unit, labels.cpu().numpy()))
        return broadcast(score)

    def _alignment(self, target: Target) -> Iterator[tuple[str, float]]:
        generator = torch.Generator().manual_seed(stream("alignment", target.seed))
        sums: dict[str, Tensor] = {}
        for ids in torch.arange(len(target.test)).split(POSITIVES):
            for name, pair in target.positives("test", ids, generator).items():
                f, g = F.normalize(pair.double(), dim=2)
                sums[name] = sums.get(name, 0) + (f - g).norm(dim=1).pow(self.gamma).sum()
        for name in dict.fromkeys([self.features, "projection"]):
            if name in sums:
                prefix = "" if name == self.features else f"{name}_"
                yield f"{prefix}alignment", float(sums[name]) / len(target.test)


def pair_statistics(
    features: Tensor, labels: Tensor, num_classes: int, t: float, tile: int = TILE
) -> Iterator[tuple[str, float | Artifact]]:
    """Yield the statistics of pairs (see :class:`Geometry`) for features [N, D] and labels [N].

    First every pair counts as one of different classes, as most are; then the pairs within a class are corrected. The
    tiles are divided over the ranks.

    Args:
        num_classes: labels are in [0, num_classes); 0: there are no classes.
        t: sharpness of the kernel of the uniformity, positive.
        tile: b; the result does not depend on it. Memory beside the features: a few b x max(b, D).
    """
    device, count = features.device, len(features)
    sums = torch.zeros(3, dtype=torch.float64, device=device)  # for sensitivity, uniformity and tolerance
    distances = torch.zeros(num_classes, dtype=torch.float64, device=device)
    for i, j in _tiles(count, tile)[rank() :: world()]:
        cosines = _cosines(features, i, j, tile)
        sums[0] += _sensitivity(cosines, -1)
        sums[1] += cosines.sub_(1).mul_(2 * t).exp_().sum()  # |f - g|^2 = 2 - 2 f.g
    for label in range(rank(), num_classes, world()):
        members = features[labels == label]
        for i, j in _tiles(len(members), tile):
            cosines = _cosines(members, i, j, tile)
            sums[0] += _sensitivity(cosines, 1) - _sensitivity(cosines, -1)
            sums[2] += cosines.sum()
            distances[label] += (2 - 2 * cosines).clamp_min_(0).sqrt_().sum()
    sensitivity, uniformity, tolerance = (all_sum(sums) / (count * (count - 1) / 2)).tolist()
    if not num_classes:
        yield "uniformity", math.log(uniformity)
        return
    sizes = labels.bincount(minlength=num_classes)
    means = (all_sum(distances) / (sizes * (sizes - 1) / 2))[sizes > 1].cpu()
    yield "tolerance", tolerance
    yield "semantic_sensitivity", sensitivity
    yield "uniformity", math.log(uniformity)
    if len(means):
        yield "intra_distance", float(means.mean())
        yield "intra_distance_median", float(means.quantile(0.5))
        axis = "mean distance of two images of a class (unit features)"
        yield "intra_distances", Distribution({"test": means.tolist()}, axis, "classes")


def _tiles(count: int, tile: int) -> list[tuple[int, int]]:
    """First row and first column of the tiles that hold every pair once; of a diagonal tile only one half counts."""
    starts = range(0, count, tile)
    return [(i, j) for i in starts for j in starts if i <= j]


def _cosines(features: Tensor, i: int, j: int, tile: int) -> Tensor:
    """Cosines of the pairs of a tile, as one float64 vector."""
    f, g = (F.normalize(features[k : k + tile].double(), dim=1) for k in (i, j))  # [b, D]
    cosines = f @ g.T
    return cosines[torch.ones_like(cosines, dtype=torch.bool).triu_(1)] if i == j else cosines.flatten()


def _sensitivity(cosines: Tensor, h: int) -> Tensor:
    """Sum of exp(-(H - f.g)^2) over pairs with the same H: 1 for equal classes, else -1."""
    return (cosines - h).square_().neg_().exp_().sum()
