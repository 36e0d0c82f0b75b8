"""Judgements by the spectrum: known spectra, closed forms and plain float64 references."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ssl_bench.evaluate.spectrum import Spectrum, effective_rank, eigenvalues, entropy_rank, lidar, power_law
from tests.evaluate.test_geometry import Halves, generator, make_target

F64 = torch.float64


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
    assert not dict(Spectrum().run(make_target(None)))


def test_isotropic_features_have_full_rank() -> None:
    assert entropy_rank(eigenvalues(rotation(40)).sqrt()) == pytest.approx(40, rel=1e-9)
