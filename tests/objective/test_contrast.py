"""The contrast, the contrastive method, its gradient on two ranks against one process, and more than two views."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ssl_bench.data.batch import Batch
from ssl_bench.methods.base import Framework, Outputs, Term
from ssl_bench.methods.contrastive import Contrastive, MissingNeed
from ssl_bench.methods.siamese import Siamese
from ssl_bench.networks.heads import MLP
from ssl_bench.objective.contrast import Bank, Contrast, Embedded
from ssl_bench.objective.losses import BYOL, DHEL, SWD, InfoNCE, ReLIC
from ssl_bench.objective.negatives import CrossView, InBatch, Negatives, NoNegatives, OwnView, Queue
from ssl_bench.objective.temperature import Fixed, Learned
from tests.objective.test_losses import draw
from tests.objective.test_negatives import unit


def test_candidates_without_an_image_are_never_excluded() -> None:
    e = Embedded(unit(1, 3, 4), unit(1, 3, 4, seed=1), draw(1, 3, 4), torch.tensor([0, 1, 2]))
    bank = Bank(unit(5, 4, seed=2), torch.tensor([-1, 0, 1, 1, -1]))
    assert Contrast.of(e, bank).count.tolist() == [[4, 3, 5]]


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(3,\).*\(3, 4\)"):
        Contrast.dense(torch.zeros(3), torch.zeros(3, 4))


def test_a_contrast_refuses_unknown_quantities() -> None:
    given = Contrast.dense(torch.zeros(1, 3), torch.zeros(1, 3, 4))
    with pytest.raises(ValueError, match="mirror"):
        _ = given.mirror
    e = Embedded(unit(1, 3, 4), unit(1, 3, 4, seed=1), draw(1, 3, 4), torch.arange(3))
    index, bits = torch.zeros(1, 3, 1, dtype=torch.int32), torch.ones(1, 3, 1, dtype=torch.uint8)
    from_bank = Contrast.of(e, Bank(unit(5, 4), None))
    for contrast in (given, from_bank.pick(index), from_bank.excluding(bits, 4)):
        with pytest.raises(ValueError, match="bank"):
            contrast.pick(index)


@pytest.mark.parametrize("tiled", [False, True])
def test_the_mirror_stands_for_the_cosines_of_the_positives_with_the_candidates(tiled: bool) -> None:
    e = Embedded(unit(2, 3, 4), unit(2, 3, 4, seed=1), draw(2, 3, 4), torch.arange(3))
    keys, index = unit(2, 5, 4, seed=2), torch.tensor([[[0, 2], [1, 4], [3, 3]]] * 2)
    contrast, cosines = Contrast.of(e, Bank(keys, None), tiled), torch.einsum("vbd,vcd->vbc", e.p, keys)
    torch.testing.assert_close(contrast.sum(lambda s, mirror: mirror, contrast.mirror), cosines.sum(-1))
    chosen = contrast.pick(index)
    torch.testing.assert_close(chosen.sum(lambda s, mirror: mirror, chosen.mirror), cosines.gather(-1, index).sum(-1))


# ---- the contrastive method


class Linear(Framework):
    """A linear map of each view, as a framework with the attribute ``gives`` of choice."""

    norm = "local"

    def __init__(self, gives: frozenset[str] = frozenset({"both_views", "two_views"})) -> None:
        super().__init__()
        self.gives, self.encoder = gives, nn.Linear(6, 4, bias=False, dtype=torch.float64)

    def trained_outputs(self, batch: Batch) -> Outputs:
        return {"z": torch.stack([self.encoder(view) for view in batch.views])}

    def embed(self, outputs: Outputs, ids: Tensor) -> list[Term]:
        q = nn.functional.normalize(outputs["z"], dim=-1)
        return [Term(Embedded(q, q.flip(0), outputs["z"], ids))]


def batch() -> Batch:
    return Batch([draw(5, 6), draw(5, 6, seed=1)], torch.arange(5), torch.zeros(5))


def test_a_step_fills_the_queue_and_advances_the_draws() -> None:
    queue = Queue(7, 4, 0).double()
    method = Contrastive(Linear(), queue, Fixed(0.2), InfoNCE())
    (term,) = method.framework.embed(method.trained_outputs(batch()), batch().ids)
    keys = term.e.p.detach().flatten(0, 1)  # [10, 4]
    before = queue.keys.clone()
    loss, _, kept = method(batch(), 0.0)
    loss.backward()  # before the queue is written to
    assert torch.equal(queue.keys, before)
    method.update(kept, 0.0)
    assert queue.draws.step == 1 and len(queue.keys) == 7
    assert bool((queue.keys[:, None] == keys).all(-1).any(-1).all())


def test_all_diagnostics_are_computed_on_request_only() -> None:
    method = Contrastive(Linear(), InBatch(), Fixed(0.2), InfoNCE())
    assert set(method(batch(), 0.0)[1]) == {"tau"}
    diagnostics = method(batch(), 0.0, True).diagnostics
    assert {"tau", "npc/mean", "information", "query_grad/mean"} < set(diagnostics)
    assert method.facts(32) == {"negatives_per_anchor": 62}


@pytest.mark.parametrize(
    ("make", "group", "remedy"),
    [
        (lambda: (Linear(), NoNegatives(), Fixed(0.1), InfoNCE()), "loss", "negatives"),
        (lambda: (Linear(), InBatch(), Fixed(0.1), ReLIC()), "loss", "negatives=cross_view"),
        (lambda: (Linear(), InBatch(), Fixed(0.1), DHEL()), "loss", "negatives=own_view"),
        (lambda: (Linear(frozenset()), NoNegatives(), Fixed(0.1), SWD()), "loss", "one network"),
        (lambda: (Linear(frozenset()), InBatch(), Fixed(0.1), InfoNCE()), "negatives", "negatives=cross_view"),
        (lambda: (Linear(), NoNegatives(), Learned(0.1, 0.01), BYOL()), "temperature", "temperature=fixed"),
    ],
)
def test_parts_that_do_not_fit_are_refused(make: Callable[[], Any], group: str, remedy: str) -> None:
    with pytest.raises(MissingNeed, match=remedy) as refused:
        Contrastive(*make())
    assert refused.value.group == group


# ---- more than two views


@pytest.mark.parametrize("pool", [InBatch(), CrossView(), OwnView()])
def test_each_of_the_first_two_views_is_contrasted_with_every_other_view(pool: Negatives) -> None:
    """Mean over anchors g in {0, 1} and views v != g; negatives are the views g and v (or one) of the other images."""
    views, images, tau = 4, 3, 0.3
    z = unit(views, images, 5)
    framework = Siamese(nn.Identity(), MLP(5, 1, None, 5))
    e = framework.embed({"z": z}, torch.tensor([7, 3, 9]))[0].e
    loss = InfoNCE()(Contrast.of(e, pool.bank(e)), torch.tensor(tau, dtype=torch.float64)).mean()
    total, pairs = 0.0, [(g, v) for g in range(2) for v in range(views) if v != g]
    for (g, v), i in itertools.product(pairs, range(images)):
        others = {InBatch: (g, v), CrossView: (v,), OwnView: (g,)}[type(pool)]
        negatives = sum(math.exp(float(z[g, i] @ z[w, j]) / tau) for w in others for j in range(images) if j != i)
        positive = math.exp(float(z[g, i] @ z[v, i]) / tau)
        total -= math.log(positive / (positive + negatives))
    assert float(loss) == pytest.approx(total / len(pairs) / images, rel=1e-12)
    torch.testing.assert_close(e.keys, z[:2])


def test_crops_of_one_size_share_a_forward() -> None:
    class Recorder(nn.Module):
        num_features = 2

        def __init__(self) -> None:
            super().__init__()
            self.shapes: list[tuple[int, ...]] = []

        def forward(self, x: Tensor) -> Tensor:
            self.shapes.append(tuple(x.shape))
            return torch.stack([x.mean((1, 2, 3)), x.amax((1, 2, 3))], 1)

    backbone = Recorder()
    framework = Siamese(backbone, MLP(2, 1, None, 3, final_norm="none"))
    views = [draw(2, 1, side, side, seed=s).float() for s, side in enumerate((8, 8, 4, 4, 4))]
    z = framework.trained_outputs(Batch(views, torch.arange(2), torch.arange(2)))["z"]
    assert backbone.shapes == [(4, 1, 8, 8), (6, 1, 4, 4)] and z.shape == (5, 2, 3)
    alone = torch.stack([framework.encoder(view)["projection"] for view in views])
    torch.testing.assert_close(z, alone)


def test_more_than_two_views_need_one_symmetric_network() -> None:
    moving = Siamese(nn.Identity(), MLP(4, 1, None, 3), momentum=0.9)
    with pytest.raises(MissingNeed) as refused:
        Contrastive(moving, InBatch(), Fixed(0.1), InfoNCE(), views=8)
    assert refused.value.group == "augment"
    with pytest.raises(MissingNeed, match="two views"):
        Contrastive(Siamese(nn.Identity(), MLP(4, 1, None, 3)), InBatch(), Fixed(0.1), SWD(), views=8)
