"""The coupling multiplier against the objective itself and its formula; the same on two ranks."""

import inspect
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import yaml
from torch import nn

from ssl_bench.data.arrays import Images
from ssl_bench.data.views import Views
from ssl_bench.evaluate.artifacts import Curve, Histogram
from ssl_bench.evaluate.npc import NPC, multipliers
from ssl_bench.evaluate.target import Target
from ssl_bench.objective.contrast import Contrast, Embedded
from ssl_bench.objective.negatives import InBatch
from tests.evaluate.test_geometry import Halves, generator, split, target
from tests.ranks import on_two_ranks


@pytest.mark.parametrize("tau", [0.1, 0.5])
@pytest.mark.parametrize("n", [2, 9])
def test_multipliers_are_the_objective_s_and_the_paper_s(n: int, tau: float) -> None:
    z = torch.randn(2, n, 6, dtype=torch.float64, generator=generator(n))
    ids = torch.randperm(50, generator=generator())[:n]
    found = multipliers(z, ids, tau)
    unit = F.normalize(z, dim=2)
    e = Embedded(unit, unit.flip(0), z, ids)
    in_batch = InBatch()
    expected = in_batch.select(Contrast.of(e, in_batch.bank(e))).log_odds(z.new_tensor(tau)).sigmoid()
    assert torch.equal(found, expected)
    for view in range(2):
        for i in range(n):
            others = [unit[v, j] for v in range(2) for j in range(n) if j != i]
            assert len(others) == 2 * n - 2
            positive = math.exp(unit[view, i] @ unit[1 - view, i] / tau)
            negatives = sum(math.exp(unit[view, i] @ other / tau) for other in others)
            assert float(found[view, i]) == pytest.approx(1 - positive / (positive + negatives), rel=1e-12)


def test_evaluator_summarises_all_its_anchors() -> None:
    given, npc = target(Halves()), NPC(batch_sizes=(40, 8), batches=3, bins=10)
    found: dict[str, Any] = dict(npc.run(given))
    assert list(found) == ["n8_mean", "n8_cv", "n40_mean", "n40_cv", "multiplier", "by_batch_size"]
    histogram, curve = found["multiplier"], found["by_batch_size"]
    assert isinstance(histogram, Histogram) and isinstance(curve, Curve)
    assert {name: sum(counts) for name, counts in histogram.counts.items()} == {"8": 48, "40": 240}
    assert histogram.edges == pytest.approx([i / 10 for i in range(11)])
    assert curve.x == [8, 40] and next(iter(curve.lines.values())) == [found["n8_mean"], found["n40_mean"]]
    q = torch.cat([npc._multipliers(given, 8, i) for i in range(3)])
    assert found["n8_mean"] == pytest.approx(float(q.mean()))
    assert found["n8_cv"] == pytest.approx(float(q.std(correction=0) / q.mean()))
    assert histogram.counts["8"] == torch.histc(q, 10, 0, 1).long().tolist()
    assert found["n8_mean"] < found["n40_mean"]  # more negatives, nearer to 1: figure 1 of the paper


def test_a_constant_network_has_the_multiplier_of_chance() -> None:
    class Constant(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"backbone": x.flatten(1), "projection": torch.ones(len(x), 3)}

    found = dict(NPC(batch_sizes=(16,), batches=2).run(target(Constant())))
    assert found["n16_mean"] == pytest.approx(30 / 31) and found["n16_cv"] == pytest.approx(0, abs=1e-7)


def test_batches_are_of_different_images_and_the_seed_s() -> None:
    given, npc = target(Halves()), NPC()
    first, again = npc._multipliers(given, 16, 0), npc._multipliers(target(Halves()), 16, 0)
    assert torch.equal(first, again) and not torch.equal(first, npc._multipliers(given, 16, 1))
    assert not torch.equal(first, npc._multipliers(target(Halves(), seed=4), 16, 0))


def test_raw_pixels_have_no_projection() -> None:
    assert not list(NPC().run(target(None)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_sizes": []}, "batch_sizes must be one or more sizes"),
        ({"batch_sizes": [1]}, "batch_sizes must be one or more sizes of at least 2"),
        ({"batches": 0}, "batches and bins must be at least 1"),
        ({"tau": 0.0}, "tau must be above 0"),
    ],
)
def test_refusals(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NPC(**change)


def test_what_the_data_cannot_give_is_refused() -> None:
    with pytest.raises(ValueError, match=r"batch_sizes must be at most 70.*not 71: leave the larger ones out"):
        next(NPC(batch_sizes=[71]).run(target(Halves())))
    with pytest.raises(ValueError, match="augment must say how views are made"):
        next(NPC().run(target(Halves(), augment=())))


def test_configuration_names_every_setting() -> None:
    node = yaml.safe_load((Path(__file__).parents[2] / "conf/evaluate/npc.yaml").read_text())["npc"]
    assert node.pop("_target_") == "ssl_bench.evaluate.npc.NPC"
    defaults = {key: p.default for key, p in inspect.signature(NPC).parameters.items()}
    assert node == defaults | {"batch_sizes": list(defaults["batch_sizes"])}


def measure(rank: int = 0) -> dict[str, Any]:
    """Batches that two ranks cannot share equally, and one with an image for each."""
    torch.manual_seed(rank)  # nothing may come from the global generator
    given = target(Halves(), batch_size=4)
    images = Images([split(3).parts[0]], split(3).labels)
    few = Target(
        Halves(), images, images, num_classes=5, view=given.view, device="cpu", seed=0, augment=[Views(6, flip=0)] * 2
    )
    return {**dict(NPC((2, 9, 33), batches=2).run(given)), "few": dict(NPC((3,), batches=1).run(few))["n3_mean"]}


def test_two_ranks_measure_what_one_does() -> None:
    alone = measure()
    for measured in on_two_ranks(measure):
        assert measured["multiplier"].counts == alone["multiplier"].counts
        for name in (name for name, value in alone.items() if isinstance(value, float)):
            assert measured[name] == pytest.approx(alone[name], rel=1e-6), name
