"""Geometry of features on the unit sphere, histograms of projections, and measures of the spectrum without labels.

Shapes: N images, D features, C classes, b x b a tile of the matrix of all pairs, P projection width, d directions, Q
views of an image.

Expectations over pairs x, y of test images are over distinct images, x != y. MACL's equations 5 to 7 draw x and y
independently, which adds N self pairs to the N (N - 1) others: a value v becomes (v (N - 1) + 1) / N, at most 1e-4 more
for 10,000 images.

Cosines and sums are float64, because distances of nearly equal features would lose digits and the sums are long.
"""

import math
from collections.abc import Callable, Iterator
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor

from ssl_bench.config.ranges import Count, Positive, TwoOrMore
from ssl_bench.distributed import all_sum, broadcast, rank, world
from ssl_bench.evaluate.artifacts import Artifact, Distribution, Histogram
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
    intra_distance_median the median over the classes ("Less can be more", figure 2); classes of one image do not count
    intra_distances       the class means themselves, a Distribution
    effective_rank        exp of the entropy of the singular values divided by their sum, in [1, min(N, D)] (Roy &
                          Vetterli, 2007); not centred; skipped if both N and D exceed 4096 (possible for raw pixels)
    silhouette            mean of (b - a) / max(a, b), in [-1, 1], scikit-learn's, Euclidean ("Less ...", figure 3)
    alignment             E |f - g|^gamma of two random training views of each image, in [0, 2^gamma] (MACL eq. 5)
    projection_alignment  the alignment of the projections if ``features`` is backbone; both are for networks only

    For images without classes, only uniformity, effective_rank, alignment and projection_alignment are yielded.

    The papers report S below 1/e, its value for cosines around 0. That needs features with positive entries, as the
    backbone's are.

    Args:
        features: whose statistics are computed. Nothing is yielded for the projection of raw pixels, which have none.
        t: of the uniformity, in (0, 100].
        gamma: exponent of the alignment, above 0.
        silhouette_samples: the largest number of images for the silhouette; a larger split is subsampled by the seed.
    """

    features: Literal["backbone", "projection"] = "backbone"
    t: Annotated[float, Meta(gt=0, le=100)] = 2.0
    gamma: Positive = 2.0
    silhouette_samples: TwoOrMore = 10000

    def __post_init__(self) -> None:
        self.needs_projection = self.features == "projection"

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
            from sklearn.metrics import silhouette_score

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

    All pairs are first computed as pairs of different classes, as most are; then those within a class are corrected.
    The tiles are divided over the ranks.

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


class Projections(Evaluator):
    """Histograms of the test images' projections, from test-time views, along seeded orthonormal directions.

    If the projections are Gaussian, or uniform on the sphere, every histogram is bell-shaped: the picture shows how
    well the representations match the prior (Chen et al., Intriguing Properties of Contrastive Losses, figure A.1).

    Yields one Histogram (``histograms``) with the directions as groups. Its bins divide [-m, m], where m is the largest
    absolute value. Yields nothing for raw pixels, which have no projection.

    Args:
        directions: d; at most P directions can be orthogonal, so a larger number is reduced to P.
        bins: of each histogram.
        normalize: l2-normalise the projections, as contrastive losses do; false: use the output of the head.
    """

    directions: Count = 8
    bins: Count = 40
    normalize: bool = True
    needs_network = True
    needs_projection = True

    def run(self, target: Target) -> Iterator[tuple[str, float | Artifact]]:
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


WIDEST = 4096  # largest min(N, D): the eigenvalues of so many rows take about 10 s
FIRST, LAST = 4, 100  # ranks of the eigenvalues to which alpha-ReQ's authors fit a power law


class Spectrum(Evaluator):
    """RankMe, alpha-ReQ and LiDAR of a network, without labels.

    Yields the following for images of the train split; nothing for raw pixels:

    rankme  exp of the entropy of the singular values of the projections divided by their sum, in [1, min(N, D)]; the
            projections are neither centred nor normalised (Garrido et al., 2023, equation 2)
    alpha   the exponent of the power law that the eigenvalues of the covariance of the backbone's features follow;
            near 1 is best according to Agrawal et al. (2022). Skipped with fewer than six eigenvalues.
    lidar   exp of the entropy of the eigenvalues of W^-1/2 B W^-1/2 divided by their sum, in [1, D], of projections: B
            is the covariance of the images' means over Q training views of each, W = delta I + the mean covariance of
            the views of an image (Thilak et al., 2024, equations 1 to 4)

    Args:
        samples: N of rankme and alpha, at most; a larger split is subsampled by the seed.
        groups: images of lidar, at most.
        views: Q, 2 or more.
        delta: positive.
    """

    samples: TwoOrMore = 25600
    groups: TwoOrMore = 1000
    views: TwoOrMore = 50
    delta: Positive = 1e-4
    needs_network = True
    needs_projection = True

    def run(self, target: Target) -> Iterator[tuple[str, float]]:
        generator = torch.Generator().manual_seed(stream("spectrum", target.seed))
        order = torch.randperm(len(target.train), generator=generator)
        outputs = target.outputs(target.train, order[: self.samples])
        yield "rankme", entropy_rank(eigenvalues(outputs["projection"]).sqrt())
        centre = outputs["backbone"].double().mean(0)
        alpha = power_law(eigenvalues(outputs["backbone"], lambda rows: rows - centre))
        if alpha is not None:
            yield "alpha", alpha
        views = target.positives("train", order[: self.groups], generator, self.views)["projection"]
        yield "lidar", lidar(views, self.delta)


def eigenvalues(features: Tensor, transform: Callable[[Tensor], Tensor] = lambda rows: rows) -> Tensor:
    """Eigenvalues of X^T X, ascending, as many as the smaller of N and D, for X = transform(features) [N, D], row-wise.

    Those below 1e-14 of the largest are noise and count as 0. The rows are divided over the ranks.
    """
    count, width = features.shape
    if width <= count:
        gram = features.new_zeros(width, width, dtype=torch.float64)
        for rows in features.split(TILE)[rank() :: world()]:
            x = transform(rows.double())
            gram.addmm_(x.T, x)
        all_sum(gram)
    else:
        x = transform(features.double())
        gram = x @ x.T
    values = torch.linalg.eigvalsh(gram)
    return torch.where(values > 1e-14 * values.max(), values, 0)


def entropy_rank(values: Tensor) -> float:
    """exp(-sum_k p_k log p_k) with p = values / their sum, from values that are not negative: 1 to their number."""
    return float(torch.special.entr(values / values.sum()).sum().exp())


def effective_rank(features: Tensor) -> float:
    """The entropy's rank of the singular values of the normalised features [N, D] (Roy & Vetterli, 2007)."""
    return entropy_rank(eigenvalues(features, lambda rows: F.normalize(rows, dim=1)).sqrt())


def power_law(values: Tensor) -> float | None:
    """The exponent alpha of lambda_j ~ j^-alpha, from ascending eigenvalues; None if there are too few.

    It is a line through log lambda over log j by least squares with weights 1 / j, as in the authors' code, for j from
    4 to 100, as far as lambda_j is positive.
    """
    spectrum = values[values > 0].flip(0)[FIRST - 1 : LAST].log()
    if len(spectrum) < 3:
        return None
    j = torch.arange(FIRST, FIRST + len(spectrum), dtype=torch.float64, device=values.device)
    weights = (1 / j) / (1 / j).sum()
    x = j.log() - weights @ j.log()
    return float(-(weights * x) @ spectrum / ((weights * x) @ x))


def lidar(views: Tensor, delta: float) -> float:
    """LiDAR of [Q, N, D], Q views of each of N images; ``delta`` is added to the covariance of an image's views."""
    x = views.double()
    means = x.mean(0)  # [N, D]
    centred = means - means.mean(0)
    between = centred.T @ centred / len(means)
    deviations = (x - means).flatten(0, 1)  # [Q N, D]
    within = deviations.T @ deviations / len(deviations)
    within.diagonal().add_(delta)
    # W^-1/2 B W^-1/2 has the eigenvalues of L^-1 B L^-T, where W = L L^T.
    lower = torch.linalg.cholesky(within)
    half = torch.linalg.solve_triangular(lower, between, upper=False)
    whitened = torch.linalg.solve_triangular(lower, half.T, upper=False)
    return entropy_rank(torch.linalg.eigvalsh((whitened + whitened.T) / 2).clamp_min(0))
