"""Geometry, projections and spectra compared with naive loops, closed forms and scikit-learn."""

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import silhouette_score
from torch import Tensor, nn

from ssl_bench.data.source import Images
from ssl_bench.data.views import Views
from ssl_bench.evaluate.artifacts import Artifact, Distribution, Histogram
from ssl_bench.evaluate.geometry import (
    Geometry,
    Projections,
    Spectrum,
    effective_rank,
    eigenvalues,
    lidar,
    orthonormal,
    pair_statistics,
    power_law,
)
from ssl_bench.evaluate.target import Target

CLASSES = 5
F64 = torch.float64


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def points(n: int = 60, width: int = 7) -> tuple[Tensor, Tensor]:
    """Features with a common direction, like those of a backbone, and labels; class 4 has one image."""
    labels = torch.randint(0, CLASSES - 1, (n,), generator=generator(1))
    labels[n // 2] = CLASSES - 1
    return torch.randn(n, width, generator=generator()) + 0.7 + labels[:, None] * torch.eye(CLASSES, width)[
        labels
    ], labels


def naive(x: Tensor, labels: Tensor, t: float) -> dict[str, Any]:
    """The statistics from every ordered pair of different rows, one by one, in float64."""
    unit = F.normalize(x.double(), dim=1)
    tolerance, sensitivity, uniformity = 0.0, 0.0, 0.0
    distances: dict[int, list[float]] = {}
    pairs = list(itertools.permutations(range(len(x)), 2))
    for i, j in pairs:
        cosine = float(unit[i] @ unit[j])
        same = bool(labels[i] == labels[j])
        tolerance += cosine * same
        sensitivity += math.exp(-(((1 if same else -1) - cosine) ** 2))
        uniformity += math.exp(-t * float((unit[i] - unit[j]).norm()) ** 2)
        if same:
            distances.setdefault(int(labels[i]), []).append(float((unit[i] - unit[j]).norm()))
    means = [sum(d) / len(d) for _, d in sorted(distances.items())]
    return {
        "tolerance": tolerance / len(pairs),
        "semantic_sensitivity": sensitivity / len(pairs),
        "uniformity": math.log(uniformity / len(pairs)),
        "intra_distance": sum(means) / len(means),
        "intra_distance_median": (sorted(means)[1] + sorted(means)[2]) / 2,  # of four classes
        "intra_distances": means,
    }


def plain(value: float | Artifact) -> Any:
    return value.values["test"] if isinstance(value, Distribution) else value


@pytest.mark.parametrize("t", [2.0, 0.5])
@pytest.mark.parametrize("tile", [1000, 7])
def test_pair_statistics_equal_a_double_loop_for_any_tile(tile: int, t: float) -> None:
    x, labels = points()
    results = {name: plain(value) for name, value in pair_statistics(x, labels, CLASSES, t, tile)}
    expected = naive(x, labels, t)
    assert list(results) == list(expected)
    for name, value in expected.items():
        assert results[name] == pytest.approx(value, rel=1e-9), name


class Halves(nn.Module):
    """The first half of the pixels, negative values set to 0, as backbone features; the second half as projection."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        first, second = x.flatten(1).chunk(2, dim=1)
        return {"backbone": first.relu(), "projection": second}


def split(n: int, seed: int = 0) -> Images:
    labels = torch.randint(0, CLASSES, (n,), generator=generator(seed))
    images = torch.randint(0, 160, (n, 1, 6, 6), generator=generator(seed), dtype=torch.uint8)
    images[torch.arange(n), 0, labels] += 90
    return Images([images], labels)


def make_target(network: nn.Module | None, n: int = 90, **change: Any) -> Target:
    augment = [Views(6, scale=(0.5, 1), flip=0, mean=[0.4], std=[0.2])] * 2
    settings: dict[str, Any] = {"num_classes": CLASSES, "device": "cpu", "seed": 3, "augment": augment}
    return Target(network, split(70, 1), split(n), view=lambda x: (x / 255 - 0.4) / 0.2, **(settings | change))


def test_evaluator_yields_the_results_of_its_functions() -> None:
    target = make_target(Halves())
    results = dict(Geometry(gamma=3.0).run(target))
    x, labels = target.features("test")["backbone"], target.labels("test")
    for name, value in naive(x, labels, 2.0).items():
        if name != "intra_distance_median":  # five classes here
            assert plain(results[name]) == pytest.approx(value, rel=1e-6)
    unit = F.normalize(x, dim=1).numpy()
    assert results["silhouette"] == pytest.approx(silhouette_score(unit, labels.numpy()), abs=1e-6)
    assert results["effective_rank"] == pytest.approx(effective_rank(x))
    projected = dict(Geometry("projection").run(target))
    assert projected["tolerance"] != results["tolerance"] and "projection_alignment" not in projected


def test_silhouette_of_a_seeded_subsample() -> None:
    first, again = (dict(Geometry(silhouette_samples=40).run(make_target(Halves())))["silhouette"] for _ in range(2))
    assert first == again != dict(Geometry().run(make_target(Halves())))["silhouette"]
    one = Images([split(9).parts[0]], torch.zeros(9, dtype=torch.int64))
    target = Target(None, one, one, num_classes=1, view=lambda x: x, device="cpu", seed=0)
    assert "silhouette" not in dict(Geometry().run(target))


@pytest.mark.parametrize("gamma", [2.0, 3.0])
def test_alignment_of_known_views(gamma: float) -> None:
    """Without randomness the two views are equal; mirrored, they differ as an image and its mirror image do."""
    settings: dict[str, Any] = {"scale": (1, 1), "ratio": (1, 1), "mean": [0.4], "std": [0.2]}
    still, turned = Views(6, flip=0, **settings), Views(6, flip=1, **settings)
    target = make_target(Halves(), augment=[still, still])
    assert dict(Geometry(gamma=gamma).run(target))["alignment"] == pytest.approx(0, abs=1e-9)
    target = make_target(Halves(), augment=[still, turned])
    results = dict(Geometry(gamma=gamma).run(target))
    images = target.view(target.test.take(torch.arange(90)))
    both = Halves()(images), Halves()(images.flip(3))
    for prefix, space in {"": "backbone", "projection_": "projection"}.items():
        f, g = (F.normalize(outputs[space].double(), dim=1) for outputs in both)
        assert results[f"{prefix}alignment"] == pytest.approx(float((f - g).norm(dim=1).pow(gamma).mean()), rel=1e-5)


def test_raw_pixels_have_no_views_and_no_projection() -> None:
    assert "alignment" not in (results := dict(Geometry().run(make_target(None)))) and "tolerance" in results
    assert not dict(Geometry("projection").run(make_target(None)))
    assert "alignment" not in dict(Geometry().run(make_target(Halves(), augment=())))


@pytest.mark.parametrize("normalize", [True, False])
def test_histograms_count_every_image_along_every_direction(normalize: bool) -> None:
    target = make_target(Halves())
    (name, histogram) = next(Projections(directions=6, bins=11, normalize=normalize).run(target))
    assert name == "histograms" and isinstance(histogram, Histogram)
    assert [sum(counts) for counts in histogram.counts.values()] == [90] * 6
    assert len(histogram.edges) == 12 and histogram.edges[0] == -histogram.edges[-1]
    assert (histogram.edges[-1] <= 1) == normalize
    many = dict(Projections(directions=99).run(target))["histograms"]
    assert isinstance(many, Histogram) and len(many.counts) == 18


def test_directions_are_orthonormal_and_uniform() -> None:
    directions = orthonormal(20, 6, generator())
    torch.testing.assert_close(directions.T @ directions, torch.eye(6, dtype=torch.float64))
    firsts = torch.stack([orthonormal(3, 1, generator(seed))[:, 0] for seed in range(2000)])
    assert firsts.mean(0).abs().max() < 0.05 and (firsts.square().mean(0) - 1 / 3).abs().max() < 0.03


# ---- spectra


def rotation(width: int) -> Tensor:
    return torch.linalg.qr(torch.randn(width, width, dtype=F64, generator=generator()))[0]


@pytest.mark.parametrize(("k", "count"), [(1, 48), (3, 48), (8, 5)])
def test_effective_rank_of_known_spectra(k: int, count: int) -> None:
    """The rows are the first k axes, equally often: k equal singular values, with more and fewer rows than columns."""
    k = min(k, count)
    rows = torch.eye(8)[torch.arange(count // k * k) % k]
    assert effective_rank(3 * rows.double() @ rotation(8)) == pytest.approx(k, rel=1e-6)
    x = torch.randn(count, 8, dtype=F64, generator=generator(k))
    s = torch.linalg.svdvals(F.normalize(x, dim=1))
    p = s / s.sum()
    assert effective_rank(x) == pytest.approx(math.exp(-(p * p.log()).sum()), rel=1e-9)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.3])
def test_alpha_of_features_with_a_power_law(alpha: float) -> None:
    """The covariance is diag(j^-alpha), whose first three entries may be anything; rotated, and off the origin."""
    j = torch.arange(1, 121, dtype=F64)
    axes = torch.linalg.qr(torch.randn(300, 120, dtype=F64, generator=generator(1)))[0]
    axes = torch.linalg.qr(axes - axes.mean(0))[0]  # orthonormal columns of mean 0
    scale = j.pow(-alpha / 2)
    scale[:3] *= 50
    x = axes * scale @ rotation(120) + 0.5
    centre = x.mean(0)
    assert power_law(eigenvalues(x, lambda rows: rows - centre)) == pytest.approx(alpha, rel=1e-6)
    assert power_law(torch.ones(5, dtype=F64)) is None and power_law(torch.ones(6, dtype=F64)) == pytest.approx(0)


def test_lidar_of_a_constructed_covariance() -> None:
    """Means with the covariance diag(b) and views with diag(w) around each, exactly: lambda = b / (w + delta)."""
    b, w, delta = torch.tensor([9.0, 1.0, 0.0], dtype=F64), torch.tensor([2.0, 0.25, 1.0], dtype=F64), 0.5
    signs = torch.tensor([[1, 1, 1], [-1, 1, -1], [1, -1, -1], [-1, -1, 1]], dtype=F64)  # covariance 1
    views = (signs * w.sqrt())[:, None] + (signs * b.sqrt())[None]  # [4, 4, 3]
    p = b / (w + delta) / (b / (w + delta)).sum()
    expected = math.exp(-sum(q * math.log(q) for q in p.tolist() if q))
    assert lidar(views @ rotation(3) + 7, delta) == pytest.approx(expected, rel=1e-9)
    same = (signs * w.sqrt())[:, None] + (signs * (w + delta).sqrt())[None]  # all directions alike
    assert lidar(same, delta) == pytest.approx(3, rel=1e-9)


def test_the_evaluator_yields_the_results_of_plain_references() -> None:
    target = make_target(Halves())
    found: dict[str, Any] = dict(Spectrum(groups=30, views=5).run(target))
    assert list(found) == ["rankme", "alpha", "lidar"]
    x = {name: features.double() for name, features in target.features("train").items()}
    s = torch.linalg.svdvals(x["projection"])
    assert found["rankme"] == pytest.approx(float(torch.special.entr(s / s.sum()).sum().exp()), rel=1e-6)
    variances = torch.linalg.eigvalsh(torch.cov(x["backbone"].T)).flip(0)[3:].tolist()
    weighted = [(1 / j, math.log(j), math.log(v)) for j, v in enumerate(variances, 4)]
    total = sum(weight for weight, _, _ in weighted)
    u, v = (sum(each[0] * each[i] for each in weighted) / total for i in (1, 2))
    slope = sum(w * (a - u) * (b - v) for w, a, b in weighted) / sum(w * (a - u) ** 2 for w, a, _ in weighted)
    assert found["alpha"] == pytest.approx(-slope, rel=1e-4)
    assert 1 < found["lidar"] < 18 and found == dict(Spectrum(groups=30, views=5).run(make_target(Halves())))
