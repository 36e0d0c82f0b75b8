"""Evaluation of frozen features: nearest neighbours, a linear probe, alignment and uniformity.

Features and labels are tensors on one device, arrays of numpy or lists of numbers. The computation is in float32 also
inside ``torch.autocast`` and of features in half precision, or in float64 where that is said. On several ranks every
rank passes the same features and gets the same result.

Shapes: N training images; Q queries; D width; C classes; B images with two views.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ssl_bench.api import options as conf
from ssl_bench.api.arguments import integers, require_one_device, tensor
from ssl_bench.errors import require
from ssl_bench.evaluate.accuracy import top_accuracies
from ssl_bench.evaluate.geometry import pair_statistics
from ssl_bench.evaluate.knn import knn_predict, require_finite
from ssl_bench.evaluate.linear import LinearProbe
from ssl_bench.evaluate.sharded import Sharded
from ssl_bench.evaluate.target import SplitName, Target
from ssl_bench.networks.encoder import full_precision


@dataclass(frozen=True)
class Classified:
    """The classes of some queries.

    Attributes:
        ranking: [Q, R] classes, the best first: all of them by kNN, up to five by a linear probe.
        chosen: the settings: ``k`` and ``temperature``, or ``lr``, with the accuracy ``val_top1`` that chose it.
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
    features: Any,
    labels: Any,
    queries: Any,
    query_labels: Any = None,
    *,
    k: int = 200,
    temperature: float = 0.1,
    num_classes: int | None = None,
) -> Classified:
    """Classify queries by their k nearest neighbours, as :func:`ssl_bench.evaluate.knn.knn_predict` does.

        top1 = ssl_bench.knn(features, labels, queries, query_labels).top1

    A neighbour at cosine s votes for its class with exp(s / temperature) (Wu et al. 2018, arXiv 1805.01978, section
    3.4, where it is 0.07). Memory does not grow with Q N. Cosines are float32.

    Args:
        features: [N, D], of any length, finite; zeros have cosine 0 with everything.
        labels: [N] integers from 0 to C - 1, of two classes or more.
        queries: [Q, D], likewise.
        query_labels: [Q] from 0 to C - 1; None: there is no accuracy.
        k: number of neighbours, from 1 to N.
        temperature: of the votes, positive.
        num_classes: C; None: the largest label plus one.

    Raises:
        InvalidValue: shapes, devices or numbers that do not fit.
    """
    given = {"features": features, "labels": labels, "queries": queries}
    bank, classes, asked, count, *test_y = _read(num_classes, query_labels, given)
    settings = conf.checked(knn, k=k, temperature=temperature)
    return _classified(knn_predict(asked, bank, classes, **settings, num_classes=count), settings, count, test_y)


def linear_probe(
    features: Any,
    labels: Any,
    queries: Any,
    query_labels: Any = None,
    *,
    num_classes: int | None = None,
    seed: int = 0,
    **options: Any,
) -> Classified:
    """Fit linear classifiers on frozen features, and classify queries by the one that a held-out tenth chooses.

    The protocol is that of :class:`ssl_bench.evaluate.linear.LinearProbe`: standardised features, SGD with momentum and
    cosine decay for several learning rates at once. Nothing is chosen on the queries. In float64 if the features are.

    Args:
        features, labels, queries, query_labels, num_classes: as of :func:`knn`.
        seed: of the held-out tenth and of the order of the images.
        options: ``lrs``, ``epochs``, ``batch_size``, ``momentum`` and ``weight_decay`` (one or several) of LinearProbe.

    Raises:
        ConfigError: shapes, devices or numbers that do not fit, or an unknown option.
    """
    given = {"features": features, "labels": labels, "queries": queries}
    x, y, test_x, count, *test_y = _read(num_classes, query_labels, given)
    kind = torch.promote_types(x.dtype, test_x.dtype)
    x, test_x = (full_precision(features.to(kind)) for features in (x, test_x))
    node = {"_target_": f"{LinearProbe.__module__}.{LinearProbe.__name__}"}
    settings = sorted({*conf.arguments(node, "evaluate")} - {"features", "per_class"})
    conf.check_known(options, settings, "linear_probe")
    probe: LinearProbe = conf.make(node, "evaluate", options)
    target = _Features(x, y, test_x, count, conf.checked(linear_probe, seed=seed)["seed"])
    with torch.autocast(x.device.type, enabled=False):
        ranking, chosen = probe.rank(target)
    return _classified(ranking, chosen, count, test_y)


def _classified(ranking: Tensor, chosen: dict[str, float], classes: int, labels: list[Tensor]) -> Classified:
    accuracies = dict(top_accuracies(ranking, labels[0], classes)) if labels else {}
    return Classified(ranking, chosen, *(float(accuracies[n]) if n in accuracies else None for n in ("top1", "top5")))


def alignment_uniformity(z1: Any, z2: Any, gamma: float = 2.0, t: float = 2.0) -> tuple[float, float]:
    """Alignment and uniformity of the unit vectors of two views (Wang & Isola 2020, arXiv 2005.10242).

    Args:
        z1, z2: [B, D], of any length, finite, two views of B >= 2 images.
        gamma: power of the distance of positives, positive (alpha in the paper).
        t: of the Gaussian kernel, in (0, 100].

    Returns:
        E |f - g|^gamma over the positives, in [0, 2^gamma]; and log E exp(-t |f - f'|^2) over the pairs of distinct
        images, in [-4 t, 0], the mean of the two views. Lower is better for both. In float64.

    Raises:
        InvalidValue: shapes that differ, or gamma or t out of range.
    """
    views = {name: tensor(name, z) for name, z in {"z1": z1, "z2": z2}.items()}
    shapes = [list(z.shape) for z in views.values()]
    fits = len(shapes[0]) == 2 and shapes[0][0] >= 2 and shapes[0][1] >= 1 and shapes[0] == shapes[1]
    require(fits, "views", shapes, "two tensors of one shape [B, D] with B of 2 or more")
    require_one_device(**views)
    require_finite(**views)
    number = conf.checked(alignment_uniformity, gamma=gamma, t=t)
    require(number["gamma"] > 0, "gamma", gamma, "a positive number")
    require(0 < number["t"] <= 100, "t", t, "a positive number up to 100")
    f, g = (normalize(z.double(), dim=1, eps=1e-100) for z in views.values())
    alignment = float((f - g).norm(dim=1).pow(number["gamma"]).mean())
    no_labels = torch.empty(0, dtype=torch.int64, device=f.device)
    uniformities = [dict(pair_statistics(z, no_labels, 0, number["t"]))["uniformity"] for z in (f, g)]
    return alignment, sum(value for value in uniformities if isinstance(value, float)) / 2


def _read(num_classes: int | None, query_labels: Any, given: dict[str, Any]) -> list[Any]:
    """Check what is given: features [N, D], labels [N], queries [Q, D], C and, if there are any, query_labels [Q]."""
    given = given | ({} if query_labels is None else {"query_labels": query_labels})
    read = {name: tensor(name, value) for name, value in given.items()}
    shapes, names = [list(x.shape) for x in read.values()], ", ".join(read)
    fits = [len(shape) for shape in shapes] == [2, 1, 2, 1][: len(shapes)]
    fits = fits and shapes[0][:1] == shapes[1] and shapes[0][1] == shapes[2][1] and shapes[2][:1] == shapes[-1][:1]
    fits = fits and all(size >= 1 for shape in shapes for size in shape)
    wanted = "[N, D], [N] and [Q, D]" if len(read) == 3 else "[N, D], [N], [Q, D] and [Q]"
    require(fits, names, shapes, f"shapes {wanted}")
    of_torch = [name for name in read if isinstance(given[name], Tensor)]
    if of_torch:  # arrays of numpy and lists go where the tensors are
        read |= {name: x.to(read[of_torch[0]].device) for name, x in read.items() if name not in of_torch}
    require_one_device(**read)
    require_finite(features=read["features"], queries=read["queries"])
    of_classes = {name: integers(name, x, len(x)) for name, x in read.items() if name.endswith("labels")}
    ends = {name: [*map(int, x.aminmax())] for name, x in of_classes.items()}
    least, most = ends["labels"]
    require(least < most, "labels", f"{most} for all images", "those of two classes or more")
    count = conf.checked(knn, num_classes=num_classes)["num_classes"]
    count = most + 1 if count is None else count
    require(count >= 2, "num_classes", num_classes, "2 or more")
    for name, (least, most) in ends.items():
        remedy = f"classes from 0 to {count - 1}: leave out images without one (-1), or set num_classes"
        require(least >= 0 and most < count, name, f"{least} to {most}", remedy)
    return [read["features"], of_classes["labels"], read["queries"], count, *[*of_classes.values()][1:]]


class _Features(Target):
    """Features that are known already, as the target of an evaluator."""

    def __init__(self, features: Tensor, labels: Tensor, queries: Tensor, count: int, seed: int):
        self.num_classes, self.seed, self.device = count, seed, features.device
        self._of_split, self._labels = {"train": features, "test": queries}, labels

    def shards(self, name: SplitName) -> dict[str, Sharded]:
        return {"backbone": Sharded.whole(self._of_split[name])}

    def features(self, name: SplitName) -> dict[str, Tensor]:
        return {"backbone": self._of_split[name]}

    def twins(self, name: SplitName) -> None:
        return None

    def labels(self, name: SplitName) -> Tensor:
        return self._labels
