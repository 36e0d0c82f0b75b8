"""Weights from elsewhere, and evaluation of frozen features: nearest neighbours, a linear probe, alignment, uniformity.

Features and labels are tensors or arrays of numpy; all go to the device of the first. The computation is in float32,
also inside ``torch.autocast`` and for features in half precision; a function that computes in float64 says so. On
several ranks every rank passes the same features and gets the same result.

Shapes: N training images; Q queries; D width; C classes; B images with two views.
"""

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ssl_bench import files
from ssl_bench.api import options as conf
from ssl_bench.api.arguments import integers, tensor
from ssl_bench.config.from_disk import weights_in
from ssl_bench.config.labelled import held_out
from ssl_bench.distributed import alone
from ssl_bench.errors import require
from ssl_bench.evaluate.accuracy import top_accuracies
from ssl_bench.evaluate.geometry import pair_statistics
from ssl_bench.evaluate.knn import knn_predict, require_finite
from ssl_bench.evaluate.linear import LinearProbe
from ssl_bench.evaluate.target import SplitName, Target
from ssl_bench.networks import weights
from ssl_bench.networks.encoder import full_precision
from ssl_bench.networks.weights import Which


@dataclass(frozen=True)
class Classified:
    """The classes of some queries.

    Attributes:
        ranking: [Q, R] classes, the best first: all of them by kNN, up to five by a linear probe.
        chosen: the settings: ``k`` and ``temperature``, or ``lr``, with the accuracy ``val_top1`` that chose it; the
            ``penalty`` of a linear probe of few labels.
        top1, top5: accuracies in [0, 1]; None: there are no labels of the queries, or no more than five classes.
    """

    ranking: Tensor
    chosen: dict[str, float]
    top1: float | None
    top5: float | None

    @property
    def predictions(self) -> Tensor:
        """[Q] classes."""
        return self.ranking[:, 0]


def knn(
    features: Any, labels: Any, queries: Any, query_labels: Any = None, *, k: int = 200, temperature: float = 0.1
) -> Classified:
    """Classify queries by their k nearest neighbours, as :func:`ssl_bench.evaluate.knn.knn_predict` does.

        top1 = ssl_bench.knn(features, labels, queries, query_labels).top1

    A neighbour at cosine s votes for its class with exp(s / temperature) (Wu et al. 2018, arXiv 1805.01978, section
    3.4, where it is 0.07). Memory does not grow with Q N. Cosines are float32.

    Args:
        features: [N, D], of any length, finite; zeros have cosine 0 with everything.
        labels: [N] integers from 0 to C - 1, of two classes or more; C - 1 is the largest that occurs.
        queries: [Q, D], likewise.
        query_labels: [Q] from 0 to C - 1; None: there is no accuracy.
        k: number of neighbours, from 1 to N.
        temperature: the temperature of the votes, positive.

    Raises:
        InvalidValue: shapes or numbers that do not fit.
    """
    bank, classes, vectors, count, *test_y = _read(features, labels, queries, query_labels)
    settings = conf.checked(knn, k=k, temperature=temperature)
    return _classified(knn_predict(vectors, bank, classes, **settings, num_classes=count), settings, count, test_y)


def linear_probe(
    features: Any, labels: Any, queries: Any, query_labels: Any = None, *, seed: int = 0, **options: Any
) -> Classified:
    """Fit linear classifiers on frozen features, and classify queries by the one that a held-out tenth chooses.

    The protocol is that of :class:`ssl_bench.evaluate.linear.LinearProbe`: standardised features, SGD with momentum and
    cosine decay for several learning rates at once. With fewer than 20 labels a class all are fitted with an L2
    penalty; with fewer than 5 of one of the classes a tenth of each class is held out
    (:func:`ssl_bench.config.labelled.held_out`). Nothing is chosen on the queries. In float64 if the features are.

    Args:
        features, labels, queries, query_labels: as of :func:`knn`.
        seed: the seed of the held-out tenth and of the order of the images.
        options: ``lrs``, ``epochs``, ``batch_size``, ``momentum``, ``weight_decay`` (one or several) and ``hold_out``
            of LinearProbe.

    Raises:
        ConfigError: shapes or numbers that do not fit, or an unknown option.
    """
    x, y, test_x, count, *test_y = _read(features, labels, queries, query_labels)
    kind = torch.promote_types(x.dtype, test_x.dtype)
    x, test_x = (full_precision(features.to(kind)) for features in (x, test_x))
    node = {"_target_": f"{LinearProbe.__module__}.{LinearProbe.__name__}"}
    by_labels = held_out(len(y), count, int(y.unique(return_counts=True)[1].min()))
    probe: LinearProbe = conf.make(node, "evaluate", {"hold_out": by_labels} | options)
    target = _Features(x, y, test_x, count, conf.checked(linear_probe, seed=seed)["seed"])
    probe.check(target)
    with torch.autocast(x.device.type, enabled=False), alone():
        ranking, chosen = probe.predict(target)
    return _classified(ranking, chosen, count, test_y)


def _classified(ranking: Tensor, chosen: dict[str, float], classes: int, labels: list[Tensor]) -> Classified:
    accuracies = dict(top_accuracies(ranking, labels[0], classes)) if labels else {}
    return Classified(ranking, chosen, *(float(accuracies[n]) if n in accuracies else None for n in ("top1", "top5")))


def alignment_uniformity(z1: Any, z2: Any, gamma: float = 2.0, t: float = 2.0) -> tuple[float, float]:
    """Alignment and uniformity of the unit vectors of two views (Wang & Isola 2020, arXiv 2005.10242).

    Args:
        z1, z2: [B, D], of any length, finite, two views of B >= 2 images.
        gamma: power of the distance of positives, positive (alpha in the paper).
        t: the factor t of the Gaussian kernel exp(-t |f - f'|^2), in (0, 100].

    Returns:
        E |f - g|^gamma over the positives, in [0, 2^gamma]; and log E exp(-t |f - f'|^2) over the pairs of distinct
        images, in [-4 t, 0], the mean of the two views. Lower is better for both. In float64.

    Raises:
        InvalidValue: shapes that differ, or gamma or t out of range.
    """
    views = {"z1": tensor(z1), "z2": tensor(z2)}
    shapes = [list(z.shape) for z in views.values()]
    fits = len(shapes[0]) == 2 and shapes[0][0] >= 2 and shapes[0] == shapes[1]
    require(fits, "views", shapes, "two tensors of one shape [B, D] with B of 2 or more")
    require_finite(**views)
    require(gamma > 0, "gamma", gamma, "a positive number")
    require(0 < t <= 100, "t", t, "a positive number up to 100")
    f, g = (normalize(z.double(), dim=1, eps=1e-100) for z in views.values())
    alignment = float((f - g).norm(dim=1).pow(gamma).mean())
    no_labels = torch.empty(0, dtype=torch.int64, device=f.device)
    uniformities = [dict(pair_statistics(z, no_labels, 0, t))["uniformity"] for z in (f, g)]
    return alignment, sum(value for value in uniformities if isinstance(value, float)) / 2


def _read(features: Any, labels: Any, queries: Any, query_labels: Any) -> list[Any]:
    """Check what is given: features [N, D], labels [N], queries [Q, D], C and, if there are any, query_labels [Q]."""
    x = tensor(features)
    queries = tensor(queries).to(x.device)
    fits = x.ndim == queries.ndim == 2 and x.shape[1] == queries.shape[1] and len(x) >= 1 and len(queries) >= 1
    require(fits, "features, queries", [list(x.shape), list(queries.shape)], "shapes [N, D] and [Q, D], none empty")
    require_finite(features=x, queries=queries)
    of_images = {"labels": integers("labels", labels, len(x)).to(x.device)}
    if query_labels is not None:
        of_images["query_labels"] = integers("query_labels", query_labels, len(queries)).to(x.device)
    for name, classes in of_images.items():
        require(bool((classes >= 0).all()), name, int(classes.min()), "classes from 0 on: leave out images without one")
    y = of_images["labels"]
    require(bool((y != y[0]).any()), "labels", f"{int(y[0])} for all images", "those of two classes or more")
    count = 1 + max(int(classes.max()) for classes in of_images.values())
    return [x, y, queries, count, *[*of_images.values()][1:]]


class _Features(Target):
    """Features that are known already, as the target of an evaluator."""

    def __init__(self, features: Tensor, labels: Tensor, queries: Tensor, count: int, seed: int):
        self.num_classes, self.seed, self.device = count, seed, features.device
        self._of_split, self._labels = {"train": features, "test": queries}, labels

    def features(self, name: SplitName) -> dict[str, Tensor]:
        return {"backbone": self._of_split[name]}

    def twins(self, name: SplitName) -> None:
        return None

    def labels(self, name: SplitName) -> Tensor:
        return self._labels


def load_weights(network: nn.Module, file: str | os.PathLike[str], which: Which | None = None) -> str:
    """Load a file of weights into a network, as ``ssl-bench evaluate --weights`` and ``init`` do.

        print(ssl_bench.load_weights(torchvision.models.resnet50(), "moco_v2_800ep_pretrain.pth.tar"))

    All tensors of the network must be there in their shapes, under any prefix; a classifier may be missing, and stays
    as it is then. Position embeddings of another square of patches are resampled as timm does. No code of the file is
    run.

    Args:
        network: a network of timm or of torchvision, or your own.
        file: .safetensors, or one of ``torch.save``, or a folder that timm has written.
        which: ``trained`` or ``momentum``, if a file has both; None: the one that its method evaluates.

    Returns:
        A sentence that names the tensors that were loaded and those that were not; for the export of a run that was
        trained on images of another type than uint8, also how the images must be normalised.

    Raises:
        ConfigError: the file cannot be read, or does not have this network; nothing is loaded.
    """
    path = weights_in(files.given_path(file))
    line = weights.load_weights(network, weights.read_weights(path), str(path), which)
    images = weights.trained_on(path)
    if images is None or images["image_dtype"] == weights.UINT8:
        return line
    return f"{line}; for images of {images['image_dtype']} as they are, minus {images['mean']}, over {images['std']}"
