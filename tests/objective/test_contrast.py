"""The contrast, the contrastive method with more than two views, temperatures, and diagnostics of an objective."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ssl_bench.data.batch import Batch
from ssl_bench.errors import InvalidValue
from ssl_bench.methods.base import Framework, Outputs, Term
from ssl_bench.methods.contrastive import Contrastive, MissingNeed
from ssl_bench.methods.siamese import Siamese
from ssl_bench.networks.heads import MLP
from ssl_bench.objective.contrast import Bank, Contrast, Embedded
from ssl_bench.objective.diagnostics import BINS, diagnose
from ssl_bench.objective.loss import Loss
from ssl_bench.objective.losses import BYOL, DCL, DHEL, SWD, EqCo, InfoNCE, ReLIC, SigLIP
from ssl_bench.objective.negatives import CrossView, InBatch, Negatives, NoNegatives, OwnView, Queue
from ssl_bench.objective.temperature import Cosine, Fixed, Learned, Linear, MACLa, MACLb, Temperature
from ssl_bench.training.snr import GradientSNR
from tests.door.door import refused
from tests.objective.test_losses import draw
from tests.objective.test_negatives import unit
from tests.ranks import on_two_ranks


def test_candidates_without_an_image_are_never_excluded() -> None:
    e = Embedded(unit(1, 3, 4), unit(1, 3, 4, seed=1), draw(1, 3, 4), torch.tensor([0, 1, 2]))
    bank = Bank(unit(5, 4, seed=2), torch.tensor([-1, 0, 1, 1, -1]))
    assert Contrast.of(e, bank).count.tolist() == [[4, 3, 5]]


def test_a_contrast_refuses_unknown_quantities() -> None:
    with pytest.raises(ValueError, match=r"\(3,\).*\(3, 4\)"):
        Contrast.dense(torch.zeros(3), torch.zeros(3, 4))
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


class Plain(Framework):
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
    method = Contrastive(Plain(), queue, Fixed(0.2), InfoNCE())
    (term,) = method.framework.embed(method.trained_outputs(batch()), batch().ids)
    keys = term.e.p.detach().flatten(0, 1)  # [10, 4]
    before = queue.keys.clone()
    loss, _, kept = method(batch(), 0.0)
    loss.backward()  # before the queue is written to
    assert torch.equal(queue.keys, before)
    method.update(kept, 0.0)
    assert queue.draws.step == 1 and len(queue.keys) == 7
    assert bool((queue.keys[:, None] == keys).all(-1).any(-1).all())


@pytest.mark.parametrize(
    ("make", "group", "remedy"),
    [
        (lambda: (Plain(), NoNegatives(), Fixed(0.1), InfoNCE()), "loss", "negatives"),
        (lambda: (Plain(), InBatch(), Fixed(0.1), ReLIC()), "loss", "negatives=cross_view"),
        (lambda: (Plain(), InBatch(), Fixed(0.1), DHEL()), "loss", "negatives=own_view"),
        (lambda: (Plain(frozenset()), NoNegatives(), Fixed(0.1), SWD()), "loss", ""),
        (lambda: (Plain(frozenset()), InBatch(), Fixed(0.1), InfoNCE()), "negatives", "negatives=cross_view"),
        (lambda: (Plain(), NoNegatives(), Learned(0.1, 0.01), BYOL()), "temperature", "temperature=fixed"),
        (lambda: (siamese(momentum=0.9), InBatch(), Fixed(0.1), InfoNCE(), "mean", None, 8), "augment", ""),
        (lambda: (siamese(), InBatch(), Fixed(0.1), SWD(), "mean", None, 8), "loss", "two views"),
    ],
)
def test_parts_that_do_not_fit_are_refused(make: Callable[[], Any], group: str, remedy: str) -> None:
    with pytest.raises(MissingNeed, match=remedy or ".") as refusal:
        Contrastive(*make())
    assert refusal.value.group == group


def siamese(**settings: Any) -> Siamese:
    return Siamese(nn.Identity(), MLP(5, 1, None, 5), **settings)


# ---- more than two views


@pytest.mark.parametrize("pool", [InBatch(), CrossView(), OwnView()])
def test_each_of_the_first_two_views_is_contrasted_with_every_other_view(pool: Negatives) -> None:
    """Mean over anchors g in {0, 1} and views v != g; negatives are the views g and v (or one) of the other images."""
    views, images, tau = 4, 3, 0.3
    z = unit(views, images, 5)
    framework = siamese()
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


def test_crops_of_two_sizes_are_embedded_as_alone() -> None:
    class Moments(nn.Module):
        num_features = 2

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([x.mean((1, 2, 3)), x.amax((1, 2, 3))], 1)

    framework = Siamese(Moments(), MLP(2, 1, None, 3, final_norm="none"))
    views = [draw(2, 1, side, side, seed=s).float() for s, side in enumerate((8, 8, 4, 4, 4))]
    z = framework.trained_outputs(Batch(views, torch.arange(2), torch.arange(2)))["z"]
    torch.testing.assert_close(z, torch.stack([framework.encoder(view)["projection"] for view in views]))


# ---- temperatures; test_official.py has MACL's

COSINES = torch.tensor([[0.9, -0.2, 0.4, 1.0], [0.3, 0.8, -0.7, 0.1]], dtype=torch.float64)  # [V, N]


def positives(pos: Tensor = COSINES) -> Contrast:
    return Contrast.dense(pos, torch.zeros(*pos.shape, 3, dtype=pos.dtype))


@pytest.mark.parametrize("progress", [0.0, 0.1, 0.25, 0.5, 0.8, 1.0])
@pytest.mark.parametrize(
    ("temperature", "formula"),
    [
        (Fixed(0.2), lambda p: 0.2),
        (Linear(0.07, 1.4e-4, 500), lambda p: 0.07 + 1.4e-4 * 500 * p),
        (Linear(0.5, -2e-3, 200), lambda p: 0.5 - 0.4 * p),
        (Cosine(0.5, 0.1, 0.5), lambda p: 0.1 + 0.4 * math.cos(math.pi * p / 2) ** 2),
        # Kukleva et al. 2023, eq. 4: (tau_max - tau_min) (1 + cos(2 pi t / T)) / 2 + tau_min, T a fifth of the epochs
        (Cosine(1.0, 0.1, 5), lambda p: 0.9 * (1 + math.cos(2 * math.pi * 200 * p / 40)) / 2 + 0.1),
    ],
    ids=["fixed", "linear", "falling", "half_a_cosine", "cycles"],
)
def test_schedules(temperature: Temperature, formula: Callable[[float], float], progress: float) -> None:
    assert float(temperature(progress, positives())) == pytest.approx(formula(progress), rel=1e-14)


def test_a_learned_temperature_is_trained_with_the_network() -> None:
    """d u / d theta = d u / d tau (tau - minimum)."""
    temperature = Learned(0.2, 0.01).double()
    tau = temperature(0.0, positives())
    assert float(tau.detach()) == pytest.approx(0.2, rel=1e-6)
    neg = torch.linspace(-1, 1, 24, dtype=torch.float64).view(2, 4, 3)
    (found,) = torch.autograd.grad(Contrast.dense(COSINES, neg).log_odds(tau).sum(), temperature.theta)
    t = float(tau.detach())
    mean_cosine = ((neg / t).softmax(-1) * neg).sum(-1)
    expected = ((COSINES - mean_cosine) / t**2).sum() * (t - 0.01)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: Fixed(0), "tau=0 1e-6 1e6"),
        (lambda: Linear(0.1, -0.01, 10), "slope=-0.01 tau=0.1 10"),
        (lambda: Cosine(0.5, 0.0, 1), "final=0.0 1e-6 1e6"),
        (lambda: Cosine(0.5, 0.1, 0), "cycles=0 1e-6 1e6"),
        (lambda: MACLa(0.1, 0), "alpha=0 1e-6 1e6"),
        (lambda: MACLb(0.1, -1.0), "beta=-1.0 -1 1"),
        (lambda: Learned(0.2, 0), "minimum=0 1e-6 1e6"),
        (lambda: Learned(0.1, 0.1), "tau=0.1 minimum=0.1"),
    ],
)
def test_invalid_temperatures_are_refused(make: Callable[[], Temperature], names: str) -> None:
    with refused(names, InvalidValue):
        make()


# ---- diagnostics

TAU = torch.tensor(0.5, dtype=torch.float64)


def close(found: Tensor, expected: Any) -> None:
    assert float(found) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.parametrize("loss", [InfoNCE(), DCL()])
def test_diagnostics_of_cosines_are_their_formulas(loss: Loss) -> None:
    """q_B = 1 - exp(s / tau) / (exp(s / tau) + sum_k exp(s_k / tau)) (DCL, eq. 3); log(1 + K) - InfoNCE; Kish."""
    pos, neg = draw(2, 40).tanh(), draw(2, 40, 7, seed=1).tanh()
    valid = torch.rand(40, 7, generator=torch.Generator().manual_seed(2)) < 0.7
    valid[:, 0] = True
    found = diagnose(Contrast.dense(pos, neg, valid), TAU, loss)
    top, each = (pos / TAU).exp(), (neg / TAU).exp() * valid
    q = (1 - top / (top + each.sum(-1))).flatten().numpy()
    close(found["npc/mean"], q.mean())
    close(found["npc/std"], q.std())
    close(found["npc/cv"], q.std() / q.mean())
    close(found["positive"], pos.mean())
    close(found["tau"], 0.5)
    close(found["information"], ((1 + valid.sum(-1)).double().log() - ((top + each.sum(-1)) / top).log()).mean())
    close(found["negatives/effective"], (each.sum(-1) ** 2 / each.square().sum(-1)).mean())
    counts, _ = np.histogram(q, BINS, (0, 1))
    torch.testing.assert_close(found["npc/histogram"], torch.tensor(counts / q.size).float())
    close(diagnose(Contrast.dense(pos, neg), TAU, SigLIP(-3.0))["loss/bias"], -3)  # what a loss learns


def test_the_histogram_includes_both_ends() -> None:
    pos, neg = torch.tensor([[1.0, -1.0]], dtype=torch.float64), torch.tensor([[[-1.0], [1.0]]], dtype=torch.float64)
    found = diagnose(Contrast.dense(pos, neg), torch.tensor(0.01), InfoNCE())["npc/histogram"]
    assert found.tolist() == [0.5, *[0.0] * (BINS - 2), 0.5]


def test_without_negatives_only_the_positives_have_diagnostics() -> None:
    e = Embedded(unit(2, 3, 4), unit(2, 3, 4, seed=1), draw(2, 3, 4), torch.arange(3))
    found = diagnose(Contrast.of(e, None), TAU, BYOL())
    assert set(found) == {"positive", "tau", "query_grad/mean", "query_grad/var"}
    close(found["query_grad/mean"], 2)  # of 2 - 2 q . p


@pytest.mark.parametrize("loss", [InfoNCE(), EqCo(64.0)])
def test_the_query_gradient_is_that_of_autograd_with_all_else_constant(loss: Loss) -> None:
    """For each anchor alone; the keys are constants, although they come from the same network."""
    z = unit(2, 5, 8).requires_grad_()
    e = Embedded(z, z.flip(0), z, torch.arange(5))
    found = diagnose(Contrast.of(e, InBatch().bank(e)), TAU, loss)
    factor = loss.alpha / 8 if isinstance(loss, EqCo) else 1
    flat, norms = z.detach().flatten(0, 1), []
    for anchor in range(10):
        q = flat[anchor].clone().requires_grad_()
        top = (q @ flat[(anchor + 5) % 10] / TAU).exp()
        rest = sum((q @ flat[other] / TAU).exp() for other in range(10) if other % 5 != anchor % 5)
        norms.append(float(torch.autograd.grad(-(top / (top + factor * rest)).log(), q)[0].norm()))
    close(found["query_grad/mean"], np.mean(norms))
    close(found["query_grad/var"], np.var(norms))


def test_diagnostics_do_not_change_the_gradient_of_the_loss() -> None:
    z = unit(2, 5, 8).requires_grad_()
    gradients: list[Tensor] = []
    for diagnostics in (False, True):
        e = Embedded(z, z.flip(0), z, torch.arange(5))
        contrast = Contrast.of(e, InBatch().bank(e))
        loss = InfoNCE()(contrast, TAU).mean()
        if diagnostics:
            assert not any(value.requires_grad for value in diagnose(contrast, TAU, InfoNCE()).values())
        gradients += torch.autograd.grad(loss, z)
    assert torch.equal(*gradients)


def _diagnostics(rows: slice) -> dict[str, Tensor]:
    z = unit(2, 8, 6).requires_grad_()
    local = z[:, rows]
    e = Embedded(local, local.flip(0), local, torch.tensor([5, 3, 9, 0, 7, 1, 2, 4])[rows])
    tau = torch.linspace(0.1, 0.3, 16, dtype=torch.float64).view(2, 8)[:, rows]
    return diagnose(Contrast.of(e, InBatch().bank(e)), tau, EqCo(64.0))


def _rank_diagnostics(rank: int) -> dict[str, Tensor]:
    return _diagnostics(slice(4 * rank, 4 * rank + 4))


def test_two_ranks_have_the_diagnostics_of_one_process() -> None:
    alone = _diagnostics(slice(None))
    for found in on_two_ranks(_rank_diagnostics):
        assert set(found) == set(alone)
        for name, value in alone.items():
            torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12)


# ---- the gradient's signal-to-noise ratio


def snr_of(gradients: Tensor, decay: float, state: Any = None) -> tuple[dict[str, Tensor], GradientSNR]:
    """Add the gradients [T, weights], split over two parameters, next to a parameter that is not trained."""
    parameters = [nn.Parameter(torch.zeros(n, dtype=gradients.dtype)) for n in (2, gradients.shape[1] - 2, 3)]
    parameters[2].requires_grad_(False)
    snr = GradientSNR(parameters, decay)
    if state:
        snr.load_state_dict(state)
    for step in gradients:
        parameters[0].grad, parameters[1].grad = step[:2].clone(), step[2:].clone()
        snr.add()
    return snr.read(), snr


@pytest.mark.parametrize("steps", [2, 50])
def test_snr_is_of_bias_corrected_moments(steps: int) -> None:
    gradients, decay = draw(steps, 6) + torch.arange(6), 0.9
    found, _ = snr_of(gradients, decay)
    weight = decay ** np.arange(steps - 1, -1, -1.0)[:, None]
    weight /= weight.sum()  # (1 - b) b^(t - i) / (1 - b^t)
    g = gradients.numpy()
    mean = (weight * g).sum(0)
    ratio = np.abs(mean) / np.sqrt((weight * (g - mean) ** 2).sum(0))
    assert float(found["gradient_snr/mean"]) == pytest.approx(ratio.mean(), rel=1e-10)
    assert float(found["gradient_snr/std"]) == pytest.approx(ratio.std(), rel=1e-10)


def test_snr_ignores_a_step_that_the_loss_scaler_skips_and_continues_from_its_state() -> None:
    gradients = draw(20, 6) + torch.arange(6)
    overflown = gradients.clone()
    overflown[0, 1], overflown[7, 5] = torch.inf, torch.nan
    expected, _ = snr_of(gradients[[i for i in range(20) if i not in (0, 7)]], 0.9)
    found, _ = snr_of(overflown, 0.9)
    _, first = snr_of(overflown[:11], 0.9)
    state = {"steps": first.steps, **{k: [t.clone() for t in first.state_dict()[k]] for k in ("first", "second")}}
    again, rest = snr_of(overflown[11:], 0.9, state)
    assert int(rest.steps) == 18
    for name, value in expected.items():
        close(found[name], value)
        assert torch.equal(again[name], found[name])
