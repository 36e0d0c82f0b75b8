"""Statistics over the number of negatives compared with loops over queries, draws, anchors and negatives."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssl_bench.data.pixels import sizes
from ssl_bench.errors import InvalidValue
from ssl_bench.evaluate.artifacts import Curve, Histogram
from ssl_bench.evaluate.contrast_statistics import (
    BLOCK,
    NPC,
    ContrastStatistics,
    EncoderGradients,
    expected,
    multipliers,
    other_keys,
    other_views,
)
from ssl_bench.evaluate.target import Target
from ssl_bench.objective.contrast import Contrast, Embedded
from ssl_bench.objective.negatives import InBatch
from ssl_bench.seeding import stream
from tests.evaluate.test_geometry import Halves, generator, make_target

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
    assert [results["eqco_k2_gradient"], results["eqco_k60_gradient"]] in [*curve.lines.values()]


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


# ---- the multiplier


@pytest.mark.parametrize(("n", "tau"), [(2, 0.1), (9, 0.5)])
def test_multipliers_equal_those_of_the_objective_and_of_the_paper(n: int, tau: float) -> None:
    z = torch.randn(2, n, 6, dtype=torch.float64, generator=generator(n))
    ids = torch.randperm(50, generator=generator())[:n]
    results = multipliers(z, ids, tau)
    unit = F.normalize(z, dim=2)
    e = Embedded(unit, unit.flip(0), z, ids)
    in_batch = InBatch()
    expected = in_batch.select(Contrast.of(e, in_batch.bank(e)), 0.0).log_odds(z.new_tensor(tau)).sigmoid()
    assert torch.equal(results, expected)


def test_evaluator_summarises_all_its_anchors() -> None:
    target, npc = make_target(Halves()), NPC(batch_sizes=(40, 8), batches=3, bins=10)
    results: dict[str, Any] = dict(npc.run(target))
    assert list(results) == ["n8_mean", "n8_cv", "n40_mean", "n40_cv", "multiplier", "by_batch_size"]
    histogram, curve = results["multiplier"], results["by_batch_size"]
    assert isinstance(histogram, Histogram) and isinstance(curve, Curve)
    assert {name: sum(counts) for name, counts in histogram.counts.items()} == {"8": 48, "40": 240}
    assert histogram.edges == pytest.approx([i / 10 for i in range(11)])
    assert curve.x == [8, 40] and next(iter(curve.lines.values())) == [results["n8_mean"], results["n40_mean"]]
    q = torch.cat([npc._multipliers(target, 8, i) for i in range(3)])
    assert results["n8_mean"] == pytest.approx(float(q.mean()))
    assert results["n8_cv"] == pytest.approx(float(q.std(correction=0) / q.mean()))
    assert histogram.counts["8"] == torch.histc(q, 10, 0, 1).long().tolist()
    assert results["n8_mean"] < results["n40_mean"]  # with more negatives it is closer to 1: figure 1 of the paper


# ---- the encoder's gradients


N, TAU, BATCHES = 5, 0.4, 4


class Linear(nn.Module):
    """A projection of the pixels to three numbers, in double precision, and a weight that nothing depends on."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(3, 6 * 6, generator=generator, dtype=torch.float64))
        self.idle = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"backbone": x.flatten(1), "projection": x.flatten(1) @ self.weight.T}


def loop_gradients(target: Target, weight: Tensor, ms: tuple[int, ...]) -> dict[int, list[Tensor]]:
    """The gradient of the mean loss of each batch by M, from the chosen negatives of each anchor, one by one."""
    found: dict[int, list[Tensor]] = {m: [] for m in ms}
    for batch in range(BATCHES):
        generator = torch.Generator().manual_seed(stream("encoder_gradients", target.seed, batch))
        ids = torch.randperm(len(target.train), generator=generator)[:N]
        images = target.load(target.train, ids)
        draws = [augment.uniform(N, generator) for augment in target.augment]
        pairs = zip(target.augment, draws, strict=True)
        views = [augment.apply(images, augment.parameters(u, *sizes(images))) for augment, u in pairs]
        index = other_views(N, generator)
        leaf = weight.detach().clone().requires_grad_()
        z = F.normalize(torch.cat(views).double().flatten(1) @ leaf.T, dim=1)
        for m in ms:
            total = z.new_zeros(())
            for a in range(2 * N):
                positive = (z[a] @ z[(a + N) % (2 * N)] / TAU).exp()
                negatives = sum((z[a] @ z[j] / TAU).exp() for j in index[a // N, a % N, :m].tolist())
                total = total - (positive / (positive + negatives)).log() / (2 * N)
            found[m].append(torch.autograd.grad(total, leaf, retain_graph=True)[0].flatten())
    return found


def test_ratios_equal_loops_and_dcl_has_the_gradients_of_its_relatives() -> None:
    network, ms = Linear(), (1, 4, 2 * N - 2)
    target = make_target(network)
    results: dict[str, Any] = dict(EncoderGradients(ms, TAU, N, BATCHES).run(target))
    pooled = {}
    for m, gradients in loop_gradients(target, network.weight, ms).items():
        columns = [[float(value) for value in column] for column in torch.stack(gradients).T]
        means = [sum(c) / BATCHES for c in columns]
        variances = [sum((v - mean) ** 2 for v in c) / (BATCHES - 1) for c, mean in zip(columns, means, strict=True)]
        ratios = [abs(mean) / math.sqrt(v) for mean, v in zip(means, variances, strict=True) if v > 1e-20]
        assert results[f"m{m}_snr"] == pytest.approx(sum(ratios) / (len(columns) + 1), rel=1e-6)  # idle counts as 0
        signal = sum(mean**2 - v / BATCHES for mean, v in zip(means, variances, strict=True))
        pooled[m] = math.sqrt(max(signal, 0) / sum(variances))
        assert results[f"m{m}_pooled"] == pytest.approx(pooled[m], rel=1e-6)
    low, high = (1 / pooled[m] ** 2 for m in (1, 8))  # = A + C and A + C / 8
    c = (low - high) / (1 - 1 / 8)
    assert results["m4_pooled_theory"] == pytest.approx(1 / math.sqrt(low - c + c / 4), rel=1e-6)
    for name in ("infonce", "macl", "flatnce"):
        assert 0 <= results[f"difference_{name}"] < 1e-13
    assert results["by_negatives"].lines["pooled ratio"] == [results[f"m{m}_pooled"] for m in ms]


def test_negatives_are_the_views_of_the_other_images_in_any_order() -> None:
    order = other_views(4, torch.Generator().manual_seed(0))
    for anchor in order.flatten(0, 1)[:4], order[1]:
        for image, row in enumerate(anchor.tolist()):
            assert sorted(row) == [place for place in range(8) if place % 4 != image]
    assert order[0, 0].tolist() != order[1, 0].tolist()


def test_numbers_that_do_not_fit_the_batch_or_the_images_are_refused() -> None:
    for key, evaluator in (
        ("keys", ContrastStatistics(queries=2, keys=71)),
        ("batch_sizes", NPC(batch_sizes=[71])),
        ("batch_size", EncoderGradients(batch_size=71)),
    ):
        with pytest.raises(InvalidValue, match=rf"^{key}=\[?71\]?: .*\b70\b"):
            evaluator.check(make_target(Halves()))
    with pytest.raises(InvalidValue, match=r"^ms=\[1,9\]: .* 1 to 8"):
        EncoderGradients((1, 9), batch_size=N)
