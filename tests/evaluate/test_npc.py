"""The coupling multiplier compared with the objective and with its formula."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ssl_bench.errors import InvalidValue
from ssl_bench.evaluate.artifacts import Curve, Histogram
from ssl_bench.evaluate.npc import NPC, multipliers
from ssl_bench.objective.contrast import Contrast, Embedded
from ssl_bench.objective.negatives import InBatch
from tests.evaluate.test_geometry import Halves, generator, make_target


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
    for view in range(2):
        for i in range(n):
            others = [unit[v, j] for v in range(2) for j in range(n) if j != i]
            assert len(others) == 2 * n - 2
            positive = math.exp(unit[view, i] @ unit[1 - view, i] / tau)
            negatives = sum(math.exp(unit[view, i] @ other / tau) for other in others)
            assert float(results[view, i]) == pytest.approx(1 - positive / (positive + negatives), rel=1e-12)


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


def test_batches_differ_and_depend_on_the_seed_only() -> None:
    target, npc = make_target(Halves()), NPC()
    first, again = npc._multipliers(target, 16, 0), npc._multipliers(make_target(Halves()), 16, 0)
    assert torch.equal(first, again) and not torch.equal(first, npc._multipliers(target, 16, 1))
    assert not torch.equal(first, npc._multipliers(make_target(Halves(), seed=4), 16, 0))
    assert not list(npc.run(make_target(None)))  # raw pixels have no projection


def test_a_target_with_too_few_images_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"^batch_sizes=\[71\]: .*\b70\b"):
        next(NPC(batch_sizes=[71]).run(make_target(Halves())))
