"""Inv. Spread and Exemplar: their losses and gradients against naive loops and closed forms."""

import math
from decimal import Decimal, localcontext

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ssl_bench.data.batch import Batch
from ssl_bench.methods.contrastive import Contrastive
from ssl_bench.methods.exemplar import Exemplar
from ssl_bench.methods.siamese import Siamese
from ssl_bench.networks.heads import MLP
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.losses import InvariantSpread
from ssl_bench.objective.negatives import InBatch
from ssl_bench.objective.temperature import Fixed
from ssl_bench.training.parts import Parts
from tests.composed import load

WIDTH, INSTANCES = 5, 24


def batch_of(views: Tensor) -> Batch:
    """Views [2, B, ...] of images 0 to B - 1."""
    return Batch([*views], torch.arange(views.shape[1]), torch.full(views.shape[1:2], -1))


def spread(z: Tensor, tau: float) -> Tensor:
    """The loss of vectors [2, B, D], without a network."""
    framework = Siamese(nn.Identity(), MLP(z.shape[2], 1, None, z.shape[2]), stop_gradient=True)
    method = Contrastive(framework, InBatch(), Fixed(tau), InvariantSpread())
    return method.objective({"z": z}, batch_of(z), 0.0, False).loss


# ---- Inv. Spread


def naive(z: Tensor, tau: float) -> Tensor:
    """The formula, term by term; the columns are constants."""
    x = normalize(z, dim=2).flatten(0, 1)
    constant, n = x.detach(), len(x)
    total = torch.zeros((), dtype=z.dtype)
    for i in range(n):
        p = (i + n // 2) % n
        e = [((x[i] * constant[j]).sum() / tau).exp() for j in range(n)]
        every = torch.stack([e[k] for k in range(n) if k != i]).sum()
        total = total - (e[p] / every).log()
        for j in range(n):
            if j not in (i, p):
                total = total - (1 - e[j] / every).log()
    return total / n


@pytest.mark.parametrize(("images", "tau"), [(2, 0.5), (5, 0.1)])
def test_inv_spread_is_its_formula(images: int, tau: float) -> None:
    z = torch.randn(2, images, WIDTH, generator=torch.Generator().manual_seed(images), dtype=torch.float64)
    z.requires_grad_()
    found, expected = spread(z, tau), naive(z, tau)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    gradients = [torch.autograd.grad(loss, z)[0] for loss in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("tau", [0.01, 1.0])
@pytest.mark.parametrize("kind", ["negative is the anchor", "all alike", "positive opposite", "two at once"])
def test_inv_spread_at_cosines_of_one(kind: str, tau: float) -> None:
    """In single precision against decimals of 120 digits; a naive log(1 - P) is infinite in half of these cases."""
    angles = {
        "negative is the anchor": [[0.0, 0.0, 1.5], [math.pi, 2.0, 1.5]],
        "all alike": [[0.3, 0.3, 0.3], [0.3, 0.3, 0.3]],
        "positive opposite": [[0.0, 1.0, 2.0], [math.pi, 1.0 + math.pi, 2.0 + math.pi]],
        "two at once": [[0.0, 0.0, 0.0], [math.pi, math.pi, 1.0]],
    }[kind]
    angle = torch.tensor(angles)
    z = torch.stack([angle.cos(), angle.sin()], 2).requires_grad_()
    loss = spread(z, tau)
    (gradient,) = torch.autograd.grad(loss, z)
    assert loss.isfinite() and gradient.isfinite().all()
    x = normalize(z.detach(), dim=2).flatten(0, 1)
    cosines = (x @ x.T).tolist()
    with localcontext() as context:
        context.prec = 120
        total = Decimal(0)
        for i, row in enumerate(cosines):
            e = [(Decimal(c) / Decimal(tau)).exp() for c in row]
            every = sum((e[k] for k in range(6) if k != i), Decimal(0))
            total -= (e[(i + 3) % 6] / every).ln()
            total -= sum(((1 - e[j] / every).ln() for j in range(6) if j not in (i, (i + 3) % 6)), Decimal(0))
        expected = float(total / 6)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_inv_spread_is_its_loss_with_keys_without_gradient() -> None:
    method = Parts(load(["framework=inv_spread"])).method
    assert isinstance(method, Contrastive) and isinstance(method.loss, InvariantSpread)
    assert isinstance(method.framework, Siamese) and method.framework.stop_gradient
    assert float(method.temperature(0.0, Contrast.dense(torch.zeros(1, 1), torch.zeros(1, 1, 1)))) == 0.1


# ---- Exemplar


def network() -> tuple[nn.Module, MLP]:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(9, 12), nn.Tanh())
    return backbone, MLP(12, 1, None, WIDTH, norm=False, final_norm="none")


def exemplar() -> Exemplar:
    return Exemplar(*network(), INSTANCES, "sync").double()


def test_exemplar_is_a_classifier_of_images() -> None:
    method = exemplar()
    generator = torch.Generator().manual_seed(2)
    ids = torch.randperm(INSTANCES, generator=generator)[:6]
    views = torch.randn(2, 6, 1, 3, 3, generator=generator, dtype=torch.float64)
    loss, diagnostics, _ = method(Batch([*views], ids, ids), 0.0, True)
    weight = method.classifier.weight
    assert weight.shape == (INSTANCES, WIDTH)
    values, correct = [], 0
    for v in range(2):
        for b in range(6):
            z = method.encoder(views[v, b : b + 1])["projection"][0]
            scores = torch.stack([(w * z).sum() for w in weight])
            values.append(scores.exp().sum().log() - scores[ids[b]])
            correct += int(scores.argmax()) == int(ids[b])
    expected = torch.stack(values).mean()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    assert float(diagnostics["train/top1"]) == pytest.approx(correct / 12)
    parameters = list(method.parameters())
    for pair in zip(*(torch.autograd.grad(each, parameters) for each in (loss, expected)), strict=True):
        torch.testing.assert_close(*pair, rtol=1e-10, atol=1e-14)


def test_exemplar_has_a_vector_for_every_image_of_the_dataset() -> None:
    method = Parts(load(["framework=exemplar"])).method
    assert isinstance(method, Exemplar) and method.classifier.weight.shape == (1347, 128)
    assert "classifier.weight" in method.state_dict()
    assert not any("classifier" in name for name in method.encoder.state_dict())
