"""Geometry and projections against naive loops, closed forms and scikit-learn; the same on two ranks."""

import inspect
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from sklearn.metrics import silhouette_score
from torch import Tensor, nn

from ssl_bench.data.arrays import Images
from ssl_bench.data.views import Views
from ssl_bench.evaluate.artifacts import Artifact, Distribution, Histogram
from ssl_bench.evaluate.geometry import Geometry, effective_rank, pair_statistics
from ssl_bench.evaluate.projections import Projections, orthonormal
from ssl_bench.evaluate.target import Target
from tests.ranks import on_two_ranks

CLASSES = 5
CONF = Path(__file__).parents[2] / "conf/evaluate"


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def points(n: int = 60, width: int = 7) -> tuple[Tensor, Tensor]:
    """Features with a common direction, as a backbone's have, and labels; class 4 has one image."""
    labels = torch.randint(0, CLASSES - 1, (n,), generator=generator(1))
    labels[n // 2] = CLASSES - 1
    return torch.randn(n, width, generator=generator()) + 0.7 + labels[:, None] * torch.eye(CLASSES, width)[
        labels
    ], labels


def naive(x: Tensor, labels: Tensor, t: float) -> dict[str, Any]:
    """Every ordered pair of different rows, one by one, in float64."""
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
@pytest.mark.parametrize("tile", [1000, 60, 16, 7, 1])
def test_pairs_are_those_of_a_double_loop_whatever_the_tile(tile: int, t: float) -> None:
    x, labels = points()
    found = {name: plain(value) for name, value in pair_statistics(x, labels, CLASSES, t, tile)}
    expected = naive(x, labels, t)
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-9), name


def test_closed_forms() -> None:
    """Two classes at opposite poles; then everything in one place, which tolerance takes for the best."""
    poles, labels = torch.tensor([[2.0, 0.0]] * 3 + [[-1.0, 0.0]] * 3), torch.tensor([0] * 3 + [1] * 3)
    found = dict(pair_statistics(poles, labels, 2, 2.0))
    assert found["semantic_sensitivity"] == pytest.approx(1) and found["tolerance"] == pytest.approx(6 / 15)
    assert found["uniformity"] == pytest.approx(math.log((6 + 9 * math.exp(-8)) / 15))
    assert found["intra_distance"] == pytest.approx(0, abs=1e-7)
    found = dict(pair_statistics(torch.ones(6, 3), labels, 2, 2.0))
    assert found["semantic_sensitivity"] == pytest.approx((6 + 9 * math.exp(-4)) / 15)
    assert found["uniformity"] == pytest.approx(0)


@pytest.mark.parametrize("k", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [48, 5])
def test_effective_rank_of_known_spectra(count: int, k: int) -> None:
    """Rows that are the first k axes, each as often: k equal singular values, in more and in fewer rows than width."""
    k = min(k, count)
    rows = torch.eye(8)[torch.arange(count // k * k) % k]
    rotation = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64, generator=generator()))[0]
    assert effective_rank(3 * rows.double() @ rotation) == pytest.approx(k, rel=1e-6)
    x = torch.randn(count, 8, dtype=torch.float64, generator=generator(k))
    s = torch.linalg.svdvals(F.normalize(x, dim=1))
    p = s / s.sum()
    assert effective_rank(x) == pytest.approx(math.exp(-(p * p.log()).sum()), rel=1e-9)


class Halves(nn.Module):
    """The first half of the pixels, without negative ones, as backbone features, the second half as projection."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        first, second = x.flatten(1).chunk(2, dim=1)
        return {"backbone": first.relu(), "projection": second}


def split(n: int, seed: int = 0) -> Images:
    labels = torch.randint(0, CLASSES, (n,), generator=generator(seed))
    images = torch.randint(0, 160, (n, 1, 6, 6), generator=generator(seed), dtype=torch.uint8)
    images[torch.arange(n), 0, labels] += 90
    return Images([images], labels)


def target(network: nn.Module | None, n: int = 90, **change: Any) -> Target:
    augment = [Views(6, scale=(0.5, 1), flip=0, mean=[0.4], std=[0.2])] * 2
    settings: dict[str, Any] = {"num_classes": CLASSES, "device": "cpu", "seed": 3, "augment": augment}
    return Target(network, split(70, 1), split(n), view=lambda x: (x / 255 - 0.4) / 0.2, **(settings | change))


def test_evaluator_is_its_parts() -> None:
    given = target(Halves())
    found = dict(Geometry(gamma=3.0).run(given))
    x, labels = given.features("test")["backbone"], given.labels("test")
    for name, value in naive(x, labels, 2.0).items():
        if name != "intra_distance_median":  # five classes here
            assert plain(found[name]) == pytest.approx(value, rel=1e-6)
    unit = F.normalize(x, dim=1).numpy()
    assert found["silhouette"] == pytest.approx(silhouette_score(unit, labels.numpy()), abs=1e-6)
    assert found["effective_rank"] == pytest.approx(effective_rank(x))
    projected = dict(Geometry("projection").run(given))
    assert projected["tolerance"] != found["tolerance"] and "projection_alignment" not in projected


def test_silhouette_of_a_seeded_choice() -> None:
    given = target(Halves(), 90)
    capped = dict(Geometry(silhouette_samples=40).run(given))["silhouette"]
    assert capped != dict(Geometry().run(given))["silhouette"]
    assert capped == dict(Geometry(silhouette_samples=40).run(target(Halves(), 90)))["silhouette"]
    one = Images([split(9).parts[0]], torch.zeros(9, dtype=torch.int64))
    assert "silhouette" not in dict(
        Geometry().run(Target(None, one, one, num_classes=1, view=lambda x: x, device="cpu", seed=0))
    )


@pytest.mark.parametrize("gamma", [2.0, 1.0, 3.0])
def test_alignment_of_views_that_are_known(gamma: float) -> None:
    """Without randomness the two views are equal; mirrored, they differ as an image and its mirror image do."""
    settings: dict[str, Any] = {"scale": (1, 1), "ratio": (1, 1), "mean": [0.4], "std": [0.2]}
    still, turned = Views(6, flip=0, **settings), Views(6, flip=1, **settings)
    given = target(Halves(), augment=[still, still])
    assert dict(Geometry(gamma=gamma).run(given))["alignment"] == pytest.approx(0, abs=1e-9)
    given = target(Halves(), augment=[still, turned])
    found = dict(Geometry(gamma=gamma).run(given))
    images = given.view(given.test.take(torch.arange(90)))
    both = Halves()(images), Halves()(images.flip(3))
    for prefix, space in {"": "backbone", "projection_": "projection"}.items():
        f, g = (F.normalize(outputs[space].double(), dim=1) for outputs in both)
        assert found[f"{prefix}alignment"] == pytest.approx(float((f - g).norm(dim=1).pow(gamma).mean()), rel=1e-5)


def test_raw_pixels_have_no_views_and_no_projection() -> None:
    assert "alignment" not in (found := dict(Geometry().run(target(None)))) and "tolerance" in found
    assert not dict(Geometry("projection").run(target(None))) and not dict(Projections().run(target(None)))
    assert "alignment" not in dict(Geometry().run(target(Halves(), augment=())))


@pytest.mark.parametrize("normalize", [True, False])
def test_histograms_count_every_image_along_every_direction(normalize: bool) -> None:
    given = target(Halves())
    (name, histogram) = next(Projections(directions=6, bins=11, normalize=normalize).run(given))
    assert name == "histograms" and isinstance(histogram, Histogram)
    assert [sum(counts) for counts in histogram.counts.values()] == [90] * 6
    assert len(histogram.edges) == 12 and histogram.edges[0] == -histogram.edges[-1]
    assert (histogram.edges[-1] <= 1) == normalize
    many = dict(Projections(directions=99).run(given))["histograms"]
    assert isinstance(many, Histogram) and len(many.counts) == 18


def test_directions_are_orthonormal_and_uniform() -> None:
    directions = orthonormal(20, 6, generator())
    torch.testing.assert_close(directions.T @ directions, torch.eye(6, dtype=torch.float64))
    firsts = torch.stack([orthonormal(3, 1, generator(seed))[:, 0] for seed in range(2000)])
    assert firsts.mean(0).abs().max() < 0.05 and (firsts.square().mean(0) - 1 / 3).abs().max() < 0.03


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"t": 0.0}, r"t must be in \(0, 100\]"),
        ({"gamma": 0.0}, "gamma must be above 0"),
        ({"silhouette_samples": 1}, "silhouette_samples must be at least 2"),
    ],
)
def test_refusals(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Geometry(**change)
    with pytest.raises(ValueError, match="directions and bins must be at least 1, not 0 and 40"):
        Projections(directions=0)


@pytest.mark.parametrize(("name", "evaluator"), [("geometry", Geometry), ("projections", Projections)])
def test_configuration_names_every_setting(name: str, evaluator: type) -> None:
    node = yaml.safe_load((CONF / f"{name}.yaml").read_text())[name]
    assert node.pop("_target_") == f"ssl_bench.evaluate.{name}.{evaluator.__name__}"
    assert node == {key: p.default for key, p in inspect.signature(evaluator).parameters.items()}


def measure(rank: int = 0) -> dict[str, Any]:
    given = target(Halves(), 91)
    found = {**dict(Geometry().run(given)), **dict(Projections().run(given))}
    x, labels = points()
    return found | {f"tiled/{name}": value for name, value in pair_statistics(x, labels, CLASSES, 2.0, 8)}


def test_two_ranks_measure_what_one_does() -> None:
    alone = measure()
    for measured in on_two_ranks(measure):
        assert list(measured) == list(alone)
        for name, value in alone.items():
            if isinstance(value, Histogram):
                assert measured[name].counts == value.counts
                assert measured[name].edges == pytest.approx(value.edges, rel=1e-6)
            else:
                assert plain(measured[name]) == pytest.approx(plain(value), rel=1e-6), name
