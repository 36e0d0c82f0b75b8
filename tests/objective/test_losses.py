"""Every loss and its gradient against a naive loop in double precision (tests/formulas.py), and its extremes.

A new loss is one row of LOSSES.
"""

import contextlib
import copy
import inspect
import math
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

from ssl_bench.api.pair_loss import PairLoss
from ssl_bench.config.build import build
from ssl_bench.errors import InvalidValue
from ssl_bench.objective import losses
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.loss import Loss, squared_products
from ssl_bench.objective.sampling import StepGenerator
from tests import formulas
from tests.formulas import Anchor, Formula, anchors, per_anchor

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
from build_docs import every_loss

CONF = Path(__file__).parents[2] / "conf" / "loss"
WIDTH = 3  # of the anchors before normalisation
IDS = torch.arange(5)
SAME = torch.rand(5, 7, generator=torch.Generator().manual_seed(6)) < 0.4  # which negatives are of the anchor's class


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def seen(loss: losses.NCE) -> losses.NCE:
    """After a first batch with log Z = 3."""
    loss.log_z.fill_(3)
    return loss


SIGREG = losses.SIGReg(0.4, slices=3, seed=0)
LOSSES: dict[str, tuple[Loss, Formula]] = {
    "infonce": (losses.InfoNCE(), formulas.infonce),
    "eqco": (losses.EqCo(), formulas.eqco),
    "dcl": (losses.DCL(), formulas.dcl),
    "dclw": (losses.DCLW(), formulas.dclw),
    "flatnce": (losses.FlatNCE(), formulas.flatnce),
    "macl": (losses.MACL(), formulas.macl),
    "macl_w": (losses.MACLW(), formulas.macl_w),
    "dual_temperature": (losses.DualTemperature(), formulas.dual_temperature),
    "decoupled_nt_xent": (losses.DecoupledNTXent(0.3), partial(formulas.decoupled_nt_xent, weight=0.3)),
    "decoupled_official": (
        losses.DecoupledNTXent(0.3, "official", 1000),
        partial(formulas.decoupled_official, weight=0.3),
    ),
    "align_uniform": (losses.AlignUniform(0.7, 1.5), partial(formulas.align_uniform, weight=0.7, t=1.5)),
    "relic": (losses.ReLIC(2.5), partial(formulas.relic, weight=2.5)),
    "relic_detached": (losses.ReLIC(2.5, detach_target=True), partial(formulas.relic, weight=2.5, detach_target=True)),
    "relic_own_view": (losses.ReLIC(2.5, own_view=True), partial(formulas.relic, weight=2.5, own_view=True)),
    "siglip": (losses.SigLIP(-2.0), partial(formulas.siglip, bias=-2)),
    "spectral": (losses.Spectral(1.5), partial(formulas.spectral, mu=1.5)),
    "kcl": (losses.KCL(t=1.5, weight=3), partial(formulas.kcl, t=1.5, weight=3)),
    "kcl_imq": (losses.KCL("imq", 1.5, 3), partial(formulas.kcl, kernel="imq", t=1.5, weight=3)),
    "debiased": (losses.Debiased(0.2), partial(formulas.debiased, tau_plus=0.2)),
    "hcl": (losses.HCL(1.5, 0.05), partial(formulas.hcl, beta=1.5, tau_plus=0.05)),
    "hcl_biased": (losses.HCL(0.5, 0), partial(formulas.hcl, beta=0.5, tau_plus=0)),
    "dhel": (losses.DHEL(), formulas.dhel),
    "byol": (losses.BYOL(), formulas.byol),
    "vicreg": (losses.VICReg(3, 5, 0.7), partial(formulas.vicreg, invariance=3, variance=5, covariance=0.7)),
    "barlow_twins": (losses.BarlowTwins(0.3), partial(formulas.barlow_twins, weight=0.3)),
    "sigreg": (SIGREG, partial(formulas.sigreg, weight=0.4, directions=SIGREG.directions)),
    "sogclr": (losses.SogCLR(100, 0.7), formulas.SogCLR(0.7)),
    "isogclr": (losses.ISogCLR(100, tau=0.25), formulas.ISogCLR()),
    "nce": (seen(losses.NCE(100)), formulas.nce),
    "invariant_spread": (losses.InvariantSpread(), formulas.invariant_spread),
    "supcon": (losses.SupCon(), formulas.supcon),
    "sincere": (losses.SINCERE(), formulas.sincere),
}


def test_every_loss_has_a_row() -> None:
    """SWD, which draws random numbers, has tests of its own instead."""
    assert {type(loss) for loss, _ in LOSSES.values()} | {losses.SWD} == set(every_loss())


def case(masked: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor]:
    """Cosines of the positives, the negatives and the mirror, a mask of the negatives, and the unnormalised anchors."""
    valid = torch.rand(5, 7, generator=torch.Generator().manual_seed(2)) < 0.6 if masked else None
    assert valid is None or 0 < int(valid.sum(-1).min()) < int(valid.sum(-1).max()) < 7
    return draw(2, 5).tanh(), *draw(2, 2, 5, 7, seed=1).tanh(), valid, draw(2, 5, WIDTH, seed=5)


def alike(valid: Tensor | None) -> Tensor:
    return SAME if valid is None else SAME & valid


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("per_anchor_tau", [False, True])
def test_a_loss_and_its_gradient_are_those_of_its_formula(name: str, masked: bool, per_anchor_tau: bool) -> None:
    loss, formula = copy.deepcopy(LOSSES[name])
    *cosines, valid, raw = case(masked)
    tau = draw(2, 5, seed=3).exp() / 3 if per_anchor_tau else torch.tensor(0.13, dtype=torch.float64)
    inputs = pos, neg, mirror, raw, tau = [x.requires_grad_() for x in (*cosines, raw, tau)]
    t, rows = tau.expand(2, 5), [[c for c in range(7) if valid is None or valid[b, c]] for b in range(5)]
    views = [
        [
            Anchor(b, pos[v, b], neg[v, b, r], mirror[v, b, r], t[v, b], raw[v, b], raw[1 - v, b], SAME[b, r])
            for b, r in enumerate(rows)
        ]
        for v in (0, 1)
    ]
    expected = per_anchor(formula, [views])
    value = loss(Contrast.dense(pos, neg, valid, raw, mirror, IDS, alike(valid)), tau)
    same(value, expected)
    for found, wanted in zip(*(derivatives(x, inputs) for x in (value, expected)), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        contrast = Contrast.dense(pos, neg, valid, raw, mirror, IDS, alike(valid))
        same(loss(contrast, t.contiguous()), expected)  # a temperature for each anchor
        order = torch.randperm(7, generator=torch.Generator().manual_seed(4))
        valid, kind = None if valid is None else valid[:, order], alike(valid)[:, order]
        same(loss(Contrast.dense(pos, neg[..., order], valid, raw, mirror[..., order], IDS, kind), tau), expected)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_of_vectors_is_its_formula_in_later_batches_too(name: str) -> None:
    """By PairLoss; what it remembers of images moves with three batches, in which some are seen again."""
    loss, formula = copy.deepcopy(LOSSES[name])
    pair = PairLoss(loss, 0.25, reduction="none").double()
    negatives: Any = "cross" if "aligned" in loss.needs else "own" if "own_view" in loss.needs else "both"
    batches = [draw(2, 5, 4, seed=seed).requires_grad_() for seed in range(3 if hasattr(formula, "update") else 1)]
    ids = [torch.randperm(7, generator=torch.Generator().manual_seed(seed))[:5] for seed in range(3)]
    labels = {"labels": ids[0] % 2} if "labels" in loss.needs else {}
    views = [anchors(z, 0.25, negatives, numbers, ids[0] % 2) for z, numbers in zip(batches, ids, strict=False)]
    expected = per_anchor(formula, views)
    value = [pair(*z, ids=numbers, **labels) for z, numbers in zip(batches, ids, strict=False)][-1]
    same(value, expected)
    same(*(torch.autograd.grad(x.mean(), batches[-1])[0] for x in (value, expected)))


def derivatives(value: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    """Of a mean of the anchors with unequal weights."""
    weighted = (value * draw(2, 5, seed=7)).sum()
    return torch.autograd.grad(weighted, inputs, retain_graph=True, materialize_grads=True, allow_unused=True)


def test_the_information_bound_is_that_of_the_loss() -> None:
    """log(1 + alpha) - L for EqCo, which at alpha = K is InfoNCE's log(1 + K) - L."""
    pos, neg, *_ = case()
    contrast, tau = Contrast.dense(pos, neg), torch.tensor(0.2, dtype=torch.float64)
    same(losses.InfoNCE().information(contrast, tau), math.log(8) - losses.InfoNCE()(contrast, tau))
    same(losses.EqCo(7).information(contrast, tau), losses.InfoNCE().information(contrast, tau))
    same(losses.EqCo(512).information(contrast, tau), math.log(513) - losses.EqCo(512)(contrast, tau))


EXTREME = {name: loss for name, (loss, _) in LOSSES.items()} | {
    "dclw_narrow": losses.DCLW(0.001),
    "align_uniform_sharp": losses.AlignUniform(t=200),
    **{f"swd_{prior}": losses.SWD(prior=prior) for prior in ("normal", "hypercube", "hypersphere")},
}


@pytest.mark.parametrize("name", EXTREME)
@pytest.mark.parametrize("tau", [0.01, 0.07, 1.0])
@pytest.mark.parametrize("half", [None, torch.float16, torch.bfloat16])
def test_extreme_cosines_stay_finite(name: str, tau: float, half: torch.dtype | None) -> None:
    """In float32, with a learned temperature and masked candidates; and within autocast, from rounded vectors."""
    c = 1.0 if half is None else 1 + torch.finfo(half).eps  # a cosine of vectors rounded to half precision
    pos = torch.tensor([[c, -c, c], [c, c, -c]], requires_grad=True)
    neg = torch.tensor([[[c, c], [c, c], [-c, -c]], [[-c, -c]] * 3], requires_grad=True)
    mirror = torch.tensor([[[-c, c], [c, c], [c, -c]]] * 2, requires_grad=True)
    raw = torch.tensor([[[100.0, 0.0, 0.0], [0.0, 1e-4, 0.0], [1.0, 1.0, 1.0]]] * 2, requires_grad=True)
    temperature = torch.tensor(tau, requires_grad=True)
    valid = torch.tensor([[True, False], [True, True], [True, True]])
    kind = torch.tensor([[True, False], [True, False], [True, True]])  # two anchors have no negative of another class
    with torch.autocast("cpu", half) if half else contextlib.nullcontext():
        value = EXTREME[name](Contrast.dense(pos, neg, valid, raw, mirror, IDS[:3], kind), temperature)
    assert value.isfinite().all()
    found = torch.autograd.grad(value.sum(), [pos, neg, mirror, raw, temperature], allow_unused=True)
    assert all(gradient.isfinite().all() for gradient in found if gradient is not None)


INVALID = """
EqCo.alpha=0 EqCo.alpha=-1 DCLW.sigma=0 DualTemperature.ratio=0 AlignUniform.t=0 AlignUniform.weight=-1
DecoupledNTXent.weight=-1 DecoupledNTXent.scale=0 DecoupledNTXent.form=colab SWD.weight=-1 SWD.scale=0
SWD.prior=uniform ReLIC.weight=-1 BarlowTwins.weight=-1 Debiased.tau_plus=-0.1 Debiased.tau_plus=1 HCL.beta=-1
HCL.tau_plus=1 VICReg.invariance=-1 VICReg.variance=-1 VICReg.covariance=-1 SIGReg.weight=1.1 SIGReg.slices=0
SogCLR.gamma=0 SogCLR.gamma=1.1 ISogCLR.tau_min=0 ISogCLR.tau_max=0.01 ISogCLR.tau=2 ISogCLR.rho=-1 ISogCLR.eta=0
ISogCLR.beta=0
"""


def settings(loss: type[Loss]) -> dict[str, Any]:
    """The arguments of a loss with their defaults."""
    return {k: p.default for k, p in inspect.signature(loss).parameters.items() if p.default is not p.empty}


def required(loss: type[Loss]) -> dict[str, Any]:
    """The arguments that a loss has without a default."""
    return {"instances": 100} if "instances" in inspect.signature(loss).parameters else {}


def test_invalid_arguments_and_those_that_are_not_a_number_are_refused() -> None:
    cases = [(getattr(losses, name), key, yaml.safe_load(value)) for name, key, value in map(parts, INVALID.split())]
    for loss in every_loss():
        cases += [(loss, key, math.nan) for key, default in settings(loss).items() if isinstance(default, float)]
    for loss, key, value in cases:
        with pytest.raises(InvalidValue) as refusal:
            loss(**required(loss), **{key: value})
        assert refusal.value.key == key, (loss, key, value)


def parts(case: str) -> list[str]:
    return re.split(r"[.=]", case, maxsplit=2)


def test_every_loss_has_a_configuration_with_its_defaults() -> None:
    nodes = {path.stem: yaml.safe_load(path.read_text()) for path in CONF.glob("*.yaml")}
    targets = [f"{losses.__name__}.{loss.__name__}" for loss in every_loss()]
    assert sorted(node["_target_"] for node in nodes.values()) == sorted(targets)
    for name, node in nodes.items():
        extra = required(getattr(losses, node["_target_"].rpartition(".")[2]))
        loss = type(build({k: v for k, v in node.items() if not str(v).startswith("${")}, "loss", **extra))
        assert loss.__name__.lower() == name.replace("_", "")
        assert node | {"seed": 0} == {"seed": 0, "_target_": node["_target_"]} | settings(loss)


@pytest.mark.parametrize("prior", ["normal", "hypercube", "hypersphere"])
def test_swd_is_the_official_distance_of_sorted_samples(prior: Any) -> None:
    """With D = 3, n = 5 images and the same draws: the mean squared difference of the sorted [D, 2n] samples."""
    loss, raw = losses.SWD(4, prior, 10, seed=3), draw(2, 5, WIDTH, seed=5).requires_grad_()
    generator = StepGenerator("swd", 3).generator(torch.device("cpu"))
    q, r = torch.linalg.qr(torch.empty(3, 3, dtype=torch.float64).normal_(generator=generator))
    rotation, x = q * r.diagonal().sign(), torch.empty(10, 3, dtype=torch.float64)
    x = x.uniform_(-1, 1, generator=generator) if prior == "hypercube" else x.normal_(generator=generator)
    h = raw
    if prior == "hypersphere":
        x, h = nn.functional.normalize(x, dim=-1), nn.functional.normalize(raw, dim=-1)
    anchors, samples = ((y @ rotation).T.sort(-1).values for y in (h.flatten(0, 1), x))
    expected = 10 * ((h[0] - h[1]).square().mean() / 2 + 4 * (samples - anchors).square().mean())
    value = loss(Contrast(raw[..., 0], None, raw), torch.tensor(0.1)).mean()
    same(value, expected)
    same(*(torch.autograd.grad(v, raw, retain_graph=True)[0] for v in (value, expected)))


@pytest.mark.parametrize("images", [4, 9])  # fewer than the width, and more
def test_squared_products_are_those_of_all_columns(images: int) -> None:
    a, b = (draw(2, images, 6, seed=seed) for seed in (1, 2))
    same(squared_products(a, b), (a.mT @ b).square().sum((-2, -1)))
