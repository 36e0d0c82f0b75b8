"""Evaluation of frozen features: nearest neighbours, a linear probe, alignment and uniformity.

On several ranks every rank passes the same tensors and gets the same result.

Shapes: N training images; Q queries; D width; C classes; B images with two views.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ssl_bench.errors import require
from ssl_bench.evaluate.geometry import pair_statistics
from ssl_bench.evaluate.knn import knn_predict
from ssl_bench.evaluate.linear import LinearProbe
from ssl_bench.evaluate.target import SplitName, Target


def knn(
    features: Tensor,
    labels: Tensor,
    queries: Tensor,
    k: int = 200,
    temperature: float = 0.07,
    num_classes: int | None = None,
) -> Tensor:
    """Rank the classes of each query by its k nearest neighbours, as :func:`ssl_bench.evaluate.knn.knn_predict` does.

        top1 = (ssl_bench.knn(features, labels, queries)[:, 0] == query_labels).float().mean()

    A neighbour at cosine s votes for its class with exp(s / temperature) (Wu et al. 2018, arXiv 1805.01978, section
    3.4). Memory does not grow with Q N.

    Args:
        features: [N, D], of any length.
        labels: [N] integers from 0 to C - 1.
        queries: [Q, D], of any length.
        k: number of neighbours, from 1 to N.
        temperature: of the votes, positive.
        num_classes: C; None: the largest label plus one.

    Returns:
        [Q, C] classes, the best first.

    Raises:
        ValueError: k, temperature or a label out of range.
    """
    _check(features, labels, queries)
    classes = int(labels.max()) + 1 if num_classes is None else num_classes
    return knn_predict(queries, features, labels, k=k, temperature=temperature, num_classes=classes)


def linear_probe(
    features: Tensor,
    labels: Tensor,
    queries: Tensor,
    query_labels: Tensor,
    *,
    seed: int = 0,
    **options: Any,
) -> dict[str, float]:
    """Fit linear classifiers on frozen features and test the one that a held-out tenth chooses.

    The protocol is that of :class:`ssl_bench.evaluate.linear.LinearProbe`: standardised features, SGD with momentum and
    cosine decay for several learning rates at once. Nothing is chosen on the queries.

    Args:
        features: [N, D] floating point; labels: [N] integers from 0 to C - 1.
        queries: [Q, D]; query_labels: [Q].
        seed: of the held-out tenth and of the order of the images.
        options: ``lrs``, ``epochs``, ``batch_size``, ``momentum``, ``weight_decay`` (one or several) and ``per_class``
            of LinearProbe.

    Returns:
        ``top1`` on the queries, in [0, 1]; ``top5`` with more than five classes; ``val_top1`` on the held-out tenth and
        the ``lr`` that it chose.

    Raises:
        InvalidValue: an argument out of range.
    """
    _check(features, labels, queries)
    probe = LinearProbe(**options)
    return {name: float(value) for name, value in probe.run(_Features(features, labels, queries, query_labels, seed))}


def alignment_uniformity(z1: Tensor, z2: Tensor, gamma: float = 2.0, t: float = 2.0) -> tuple[float, float]:
    """Alignment and uniformity of the unit vectors of two views (Wang & Isola 2020, arXiv 2005.10242).

    Args:
        z1, z2: [B, D], of any length, two views of B >= 2 images.
        gamma: power of the distance of positives, positive (alpha in the paper).
        t: of the Gaussian kernel, positive.

    Returns:
        E |f - g|^gamma over the positives, in [0, 2^gamma]; and log E exp(-t |f - f'|^2) over the pairs of distinct
        images, in [-4 t, 0], the mean of the two views. Lower is better for both. In float64.

    Raises:
        InvalidValue: shapes that differ, or gamma or t that are not positive.
    """
    shapes = [list(z1.shape), list(z2.shape)]
    fits = z1.ndim == 2 and len(z1) >= 2 and z1.shape == z2.shape
    require(fits, "views", shapes, "two tensors of one shape [B, D] with B of 2 or more")
    require(gamma > 0, "gamma", gamma, "a positive number")
    require(t > 0, "t", t, "a positive number")
    f, g = (normalize(z.double(), dim=1) for z in (z1, z2))
    alignment = float((f - g).norm(dim=1).pow(gamma).mean())
    no_labels = torch.empty(0, dtype=torch.int64, device=z1.device)
    each = [dict(pair_statistics(z, no_labels, 0, t))["uniformity"] for z in (f, g)]
    return alignment, sum(value for value in each if isinstance(value, float)) / 2


def _check(features: Tensor, labels: Tensor, queries: Tensor) -> None:
    shapes = [list(x.shape) for x in (features, labels, queries)]
    fits = features.ndim == queries.ndim == 2 and features.shape[1] == queries.shape[1]
    fits = fits and list(labels.shape) == shapes[0][:1] and not labels.is_floating_point()
    require(fits, "features, labels, queries", shapes, "shapes [N, D], [N] and [Q, D]")


class _Features(Target):
    """Features that are known already, as the target of an evaluator."""

    def __init__(self, features: Tensor, labels: Tensor, queries: Tensor, query_labels: Tensor, seed: int) -> None:
        self.num_classes, self.seed, self.device = int(labels.max()) + 1, seed, features.device
        self._known = {"train": ({"backbone": features}, labels), "test": ({"backbone": queries}, query_labels)}

    def features(self, name: SplitName) -> dict[str, Tensor]:
        return self._known[name][0]

    def labels(self, name: SplitName) -> Tensor:
        return self._known[name][1]
