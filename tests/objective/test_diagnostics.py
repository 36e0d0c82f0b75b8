"""Diagnostics of an objective against naive formulas, autograd for each anchor, and two processes against one."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ssl_bench.objective.contrast import Contrast, Embedded
from ssl_bench.objective.diagnostics import BINS, diagnose
from ssl_bench.objective.loss import Loss
from ssl_bench.objective.losses import BYOL, DCL, EqCo, InfoNCE, SigLIP
from ssl_bench.objective.negatives import InBatch
from ssl_bench.training.snr import GradientSNR
from tests.objective.test_losses import draw
from tests.objective.test_negatives import unit
from tests.ranks import on_two_ranks

TAU = torch.tensor(0.5, dtype=torch.float64)


def cosines(images: int = 40) -> tuple[Tensor, Tensor]:
    return draw(2, images).tanh(), draw(2, images, 7, seed=1).tanh()


def close(found: Tensor, expected: Any) -> None:
    assert float(found) == pytest.approx(float(expected), rel=1e-12)


# ---- from the cosines


def test_the_multiplier_is_the_share_of_the_negatives() -> None:
    """q_B = 1 - exp(s / tau) / (exp(s / tau) + sum_k exp(s_k / tau)) (DCL, eq. 3)."""
    pos, neg = cosines()
    found = diagnose(Contrast.dense(pos, neg), TAU, InfoNCE())
    top = (pos / TAU).exp()
    q = (1 - top / (top + (neg / TAU).exp().sum(-1))).flatten().numpy()
    close(found["npc/mean"], q.mean())
    close(found["npc/std"], q.std())
    close(found["npc/cv"], q.std() / q.mean())
    close(found["positive"], pos.mean())
    close(found["tau"], 0.5)
    counts, _ = np.histogram(q, BINS, (0, 1))
    torch.testing.assert_close(found["npc/histogram"], torch.tensor(counts / q.size).float())
    assert (counts > 0).sum() > 5  # they are spread


def test_the_histogram_includes_both_ends() -> None:
    pos, neg = torch.tensor([[1.0, -1.0]], dtype=torch.float64), torch.tensor([[[-1.0], [1.0]]], dtype=torch.float64)
    found = diagnose(Contrast.dense(pos, neg), torch.tensor(0.01), InfoNCE())["npc/histogram"]
    assert found.tolist() == [0.5, *[0.0] * (BINS - 2), 0.5]


def test_what_a_loss_learns_is_a_diagnostic() -> None:
    found = diagnose(Contrast.dense(*cosines()), TAU, SigLIP(-3.0))["loss/bias"]
    close(found, -3)
    assert not found.requires_grad


@pytest.mark.parametrize("loss", [InfoNCE(), DCL()])
def test_the_bound_on_the_mutual_information_counts_each_anchors_own_negatives(loss: Loss) -> None:
    """log(1 + K) - InfoNCE, for other losses too."""
    pos, neg = cosines(2)
    valid = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 0, 1, 0, 0]], dtype=torch.bool)
    found = diagnose(Contrast.dense(pos, neg, valid), TAU, loss)["information"]
    top, rest = (pos / TAU).exp(), ((neg / TAU).exp() * valid).sum(-1)
    close(found, (torch.tensor([8.0, 3.0], dtype=torch.float64).log() - ((top + rest) / top).log()).mean())


def test_effective_negatives_are_kishs_number() -> None:
    pos, neg = cosines()
    found = diagnose(Contrast.dense(pos, neg), TAU, InfoNCE())["negatives/effective"]
    weight = (neg / TAU).exp()
    close(found, (weight.sum(-1) ** 2 / (weight**2).sum(-1)).mean())


def test_without_negatives_only_the_positives_have_diagnostics() -> None:
    e = Embedded(unit(2, 3, 4), unit(2, 3, 4, seed=1), draw(2, 3, 4), torch.arange(3))
    found = diagnose(Contrast.of(e, None), TAU, BYOL())
    assert set(found) == {"positive", "tau", "query_grad/mean", "query_grad/var"}
    close(found["query_grad/mean"], 2)  # of 2 - 2 q . p
    assert float(found["query_grad/var"]) < 1e-28


# ---- from the gradient


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


# ---- two processes


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


def snr_of(gradients: Tensor, decay: float) -> tuple[dict[str, Tensor], GradientSNR]:
    """Add the gradients [T, weights], split over two parameters, next to a parameter that is not trained."""
    parameters = [nn.Parameter(torch.zeros(n, dtype=gradients.dtype)) for n in (2, gradients.shape[1] - 2, 3)]
    parameters[2].requires_grad_(False)
    snr = GradientSNR(parameters, decay)
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


def test_snr_ignores_a_step_that_the_loss_scaler_skips() -> None:
    gradients = draw(20, 6) + torch.arange(6)
    overflown = gradients.clone()
    overflown[0, 1], overflown[7, 5] = torch.inf, torch.nan
    found, snr = snr_of(overflown, 0.9)
    expected, _ = snr_of(gradients[[i for i in range(20) if i not in (0, 7)]], 0.9)
    assert int(snr.steps) == 18
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(float(value), rel=1e-12)


def test_snr_continues_from_its_state() -> None:
    gradients = draw(9, 6)
    expected, _ = snr_of(gradients, 0.9)
    _, first = snr_of(gradients[:5], 0.9)
    state = {"steps": first.steps, **{k: [t.clone() for t in first.state_dict()[k]] for k in ("first", "second")}}
    _, rest = snr_of(gradients[:0], 0.9)
    rest.load_state_dict(state)
    for step in gradients[5:]:
        rest.parameters[0].grad, rest.parameters[1].grad = step[:2].clone(), step[2:].clone()
        rest.add()
    assert all(torch.equal(value, expected[name]) for name, value in rest.read().items())
