"""Statistics over K compared with a loop over queries, draws and negatives."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ssl_bench.errors import InvalidValue
from ssl_bench.evaluate.artifacts import Curve
from ssl_bench.evaluate.contrast_statistics import BLOCK, ContrastStatistics, expected, other_keys
from ssl_bench.evaluate.target import Target
from ssl_bench.seeding import stream
from tests.evaluate.test_geometry import Halves, make_target

METRICS = ("gradient", "gradient_std", "gradient_noise", "positive", "information", "information_std")
THEORY = ("positive_theory", "information_theory", "gradient_ratio")


def embedded(target: Target, keys: int) -> tuple[Tensor, Tensor]:
    """Unit queries and keys of the images that the evaluator chooses, by its own draws."""
    generator = torch.Generator().manual_seed(stream("contrast_statistics", target.seed))
    ids = torch.randperm(len(target.train), generator=generator)[:keys]
    first, second = F.normalize(target.positives("train", ids, generator)["projection"].double(), dim=2)
    return first, second


def naive(q: Tensor, keys: Tensor, chosen: Tensor, own: int, tau: float, weight: float) -> tuple[float, float, float]:
    """Norm of the gradient, probability of the positive and loss of one query; negatives weighted by ``weight``."""
    positive = math.exp(float(q @ keys[own]) / tau)
    terms = [weight * math.exp(float(q @ keys[j]) / tau) for j in chosen.tolist()]
    total = positive + sum(terms)
    gradient = -keys[own] * (1 - positive / total) / tau
    for j, term in zip(chosen.tolist(), terms, strict=True):
        gradient = gradient + keys[j] * term / total / tau
    return float(gradient.square().sum().sqrt()), positive / total, -math.log(positive / total)


def spread(values: list[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / len(values))


def test_metrics_equal_a_loop_over_queries_draws_and_negatives() -> None:
    target, tau, alpha = make_target(Halves()), 0.3, 50.0
    queries, keys, draws = BLOCK + 3, 41, 3
    evaluator = ContrastStatistics((60, 2), alpha, tau, queries, keys, draws)
    results: dict[str, Any] = dict(evaluator.run(target))
    names = [f"{loss}_k{k}_{metric}" for k in (2, 60) for loss in ("infonce", "eqco") for metric in METRICS + THEORY]
    assert list(results) == [*names, "by_negatives"]
    q, all_keys = embedded(target, keys)
    for k in (2, 60):
        for loss, weight, largest in (("infonce", 1.0, math.log1p(k)), ("eqco", alpha / k, math.log1p(alpha))):
            norms, positives, bounds = ([[0.0] * queries for _ in range(draws)] for _ in range(3))
            for draw in range(draws):
                for start in (0, BLOCK):
                    rows = slice(start, min(start + BLOCK, queries))
                    index = other_keys(rows, k, keys, stream("negatives", target.seed, k, draw, start))
                    for i, chosen in zip(range(rows.start, rows.stop), index, strict=True):
                        norm, positive, value = naive(q[i], all_keys, chosen, i, tau, weight)
                        norms[draw][i], positives[draw][i], bounds[draw][i] = norm, positive, largest - value
            weighted = weight * k
            expected_positives, expected_bounds, ratios = [], [], []
            for i in range(queries):
                r = [math.exp(float(q[i] @ (all_keys[j] - all_keys[i])) / tau) for j in range(keys) if j != i]
                mean = sum(r) / len(r)
                share, variation = weighted * mean / (1 + weighted * mean), (spread(r) / mean) ** 2
                expected_positives.append((1 - share) * (1 + share**2 * variation / k))
                expected_bounds.append(largest + math.log(1 - share) + share**2 * variation / (2 * k))
                ratios.append(sum(each[i] for each in norms) / draws / (2 * share / tau))
            flat = [norm for each in norms for norm in each]
            variances = [spread([each[i] for each in norms]) ** 2 for i in range(queries)]
            wanted = {
                "gradient": sum(flat) / len(flat),
                "gradient_std": spread(flat),
                "gradient_noise": math.sqrt(sum(variances) / queries),
                "positive": sum(map(sum, positives)) / len(flat),
                "information": sum(map(sum, bounds)) / len(flat),
                "information_std": spread([sum(each) / queries for each in bounds]),
                "positive_theory": sum(expected_positives) / queries,
                "information_theory": sum(expected_bounds) / queries,
                "gradient_ratio": max(ratios),
            }
            for metric, number in wanted.items():
                assert results[f"{loss}_k{k}_{metric}"] == pytest.approx(number, rel=1e-10), (loss, k, metric)
    curve = results["by_negatives"]
    assert isinstance(curve, Curve) and curve.x == [2, 60] and len(curve.lines) == 4
    assert curve.lines["eqco: mean of |dL/dq|"] == [results["eqco_k2_gradient"], results["eqco_k60_gradient"]]
    assert not list(evaluator.run(make_target(None)))  # raw pixels have no projection


def test_the_expectations_are_those_of_many_draws() -> None:
    """50,000 draws of K log-normal ratios, whose mean and variation are known."""
    k, alpha, sigma, draws = 200, 30.0, 0.7, 50_000
    r = torch.randn(draws, k, generator=torch.Generator().manual_seed(0), dtype=torch.float64).mul(sigma).exp() * 0.1
    mean, variation = torch.tensor([0.1 * math.exp(sigma**2 / 2)]), torch.tensor([math.exp(sigma**2) - 1])
    share, positive, information = expected(mean, variation, alpha, k)
    drawn = 1 / (1 + alpha * r.mean(1))
    assert float(drawn.mean()) == pytest.approx(float(positive), rel=8e-4)
    assert math.log1p(alpha) + float(drawn.log().mean()) == pytest.approx(float(information), rel=8e-4)
    assert abs(float(drawn.mean() / (1 - share)) - 1) > 1e-3  # what the term of 1 / K adds


def test_negatives_are_uniform_over_the_other_keys_and_independent() -> None:
    index = other_keys(slice(2, 5), 20_000, 5, 0)
    assert index.shape == (3, 20_000)
    for own, row in zip((2, 3, 4), index, strict=True):
        counts = torch.bincount(row, minlength=5)
        others = [j for j in range(5) if j != own]
        assert counts[own] == 0 and counts[others].sum() == 20_000
        assert (counts[others] - 5_000).abs().max() < 5 * math.sqrt(20_000 * 0.25 * 0.75)
    assert not torch.equal(index[0], other_keys(slice(2, 5), 20_000, 5, 1)[0])


def test_a_target_with_too_few_images_is_refused() -> None:
    evaluator = ContrastStatistics(queries=2, keys=71)
    with pytest.raises(InvalidValue, match=r"^keys=71: .*\b70\b"):
        evaluator.check(make_target(Halves()))
