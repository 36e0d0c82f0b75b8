"""Pairs of Gaussian vectors: moments in closed form, and no images."""

import math

import pytest
import torch

from ssl_bench.data.gaussians import Gaussians, Pairs
from ssl_bench.errors import ConfigError
from ssl_bench.training.parts import Parts
from tests.composed import load


def test_the_correlation_of_a_pair_gives_its_mutual_information() -> None:
    """-d/2 log(1 - rho^2) nats; different coordinates are independent, and both vectors have variance 1."""
    dataset = Parts(load(["dataset=gaussians", "dataset.information=3", "dataset.dimensions=2"])).dataset
    assert isinstance(dataset, Gaussians) and dataset.check() == len(dataset.pretrain()) > 0
    source = dataset.split("train")
    x, y = source.draw(200_000, torch.Generator().manual_seed(0))
    assert x.shape == y.shape == (200_000, 2) and x.dtype == y.dtype == torch.float32
    covariance = torch.cat([x, y], 1).double().T.cov()
    rho = math.sqrt(1 - math.exp(-3))
    expected = torch.eye(4) + rho * torch.eye(2).repeat(2, 2).fill_diagonal_(0)
    assert (covariance - expected).abs().max() < 0.01
    assert source.information == 3 == pytest.approx(-2 / 2 * math.log(1 - rho**2))


def test_a_seed_draws_the_same_pairs_and_a_pair_is_no_image() -> None:
    source = Pairs(2.0, 20)
    first, again, other = (source.draw(8, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1]) and not torch.equal(first[0], other[0])
    with pytest.raises(ConfigError, match="dataset=gaussians"):
        source.take(torch.arange(2))
