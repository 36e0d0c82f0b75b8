"""Measures of features without labels, from their spectrum: effective rank, RankMe, alpha-ReQ and LiDAR.

Shapes: N images, D features, Q views of an image.

All sums and eigenvalues are float64.
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ssl_bench.distributed import all_sum, rank, world
from ssl_bench.errors import require
from ssl_bench.evaluate.target import Evaluator, Target
from ssl_bench.seeding import stream

TILE = 512
WIDEST = 4096  # largest min(N, D): the eigenvalues of so many rows take about 10 s
FIRST, LAST = 4, 100  # ranks of the eigenvalues to which alpha-ReQ's authors fit a power law


class Spectrum(Evaluator):
    """RankMe, alpha-ReQ and LiDAR of a network, without labels.

    Yields the following for images of the train split; nothing for raw pixels:

    rankme  exp of the entropy of the singular values of the projections divided by their sum, in [1, min(N, D)]; the
            projections are neither centred nor normalised (Garrido et al., 2023, equation 2)
    alpha   the exponent of the power law that the eigenvalues of the covariance of the backbone's features follow;
            near 1 is best according to Agrawal et al. (2022). Left out with fewer than six eigenvalues.
    lidar   exp of the entropy of the eigenvalues of W^-1/2 B W^-1/2 divided by their sum, in [1, D], of projections: B
            is the covariance of the images' means over Q training views of each, W = delta I + the mean covariance of
            the views of an image (Thilak et al., 2024, equations 1 to 4)

    Args:
        samples: N of rankme and alpha, at most; a larger split is subsampled by the seed.
        groups: images of lidar, at most.
        views: Q, 2 or more.
        delta: positive.
    """

    needs_projection = True

    def __init__(self, samples: int = 25600, groups: int = 1000, views: int = 50, delta: float = 1e-4) -> None:
        require(samples >= 2, "samples", samples, "2 or more")
        require(groups >= 2, "groups", groups, "2 or more")
        require(views >= 2, "views", views, "2 or more")
        require(delta > 0, "delta", delta, "a positive number")
        self.samples, self.groups, self.views, self.delta = samples, groups, views, delta

    def run(self, target: Target) -> Iterator[tuple[str, float]]:
        if target.network is None:
            return
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
