"""Every loss and its gradient against a naive loop in double precision (tests/formulas.py), and its extremes.

A new loss is one row of LOSSES.
"""

import contextlib
import copy
import inspect
import itertools
import math
from decimal import Decimal, localcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ssl_bench.api.pair_loss import PairLoss
from ssl_bench.config.build import build
from ssl_bench.errors import InvalidValue
from ssl_bench.objective import losses
from ssl_bench.objective.contrast import Contrast, Embedded
from ssl_bench.objective.loss import Loss, squared_products
from ssl_bench.objective.negatives import CrossView, InBatch
from ssl_bench.objective.sampling import StepGenerator
from tests import formulas
from tests.formulas import Anchor, Formula, anchors, per_anchor
from tests.ranks import on_ranks

CONF = Path(__file__).parents[2] / "conf" / "loss"
WIDTH = 3  # of the anchors before normalisation
IDS = torch.arange(5)
FIXED_NAMES = "AlignUniform BYOL DCL DCLW DecoupledNTXent DualTemperature EqCo FlatNCE InfoNCE MACL MACLW ReLIC SWD"
FIXED_NAMES += " KCL SigLIP Spectral"
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
    "relic_detached": (
        losses.ReLIC(2.5, detach_target=True),
        partial(formulas.relic, weight=2.5, detach_target=True),
    ),
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
    assert {type(loss) for loss, _ in LOSSES.values()} | {losses.SWD} == set(losses.LOSSES.values())


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
    """By PairLoss; what it remembers of images moves with three batches of the same images."""
    loss, formula = copy.deepcopy(LOSSES[name])
    pair = PairLoss(loss, 0.25, reduction="none").double()
    negatives: Any = "cross" if "aligned" in loss.needs else "own" if "own_view" in loss.needs else "both"
    batches = [draw(2, 5, 4, seed=seed).requires_grad_() for seed in range(3 if hasattr(formula, "update") else 1)]
    ids = [torch.randperm(5, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
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


def gradients(loss: Loss, tau: float) -> list[Tensor]:
    """The value, and the gradients by the positives and by the negatives."""
    pos, neg, mirror, _, raw = case()
    pos, neg = pos.requires_grad_(), neg.requires_grad_()
    value = loss(Contrast.dense(pos, neg, None, raw, mirror, IDS), torch.tensor(tau, dtype=torch.float64))
    return [value.detach(), *torch.autograd.grad(value.sum(), [pos, neg])]


def visited(loss: losses.SogCLR) -> losses.SogCLR:
    loss.log_u[IDS] = draw(5, seed=6).float()
    return loss


def test_an_image_that_was_not_seen_starts_with_its_batch() -> None:
    """Whatever was seen of the others."""
    loss = visited(losses.SogCLR(100, 0.7))
    value, seen = gradients(losses.SogCLR(100, 0.7), 0.2)[0], gradients(loss, 0.2)[0]
    loss.log_u[2] = 0
    same(gradients(loss, 0.2)[0], torch.where(IDS == 2, value, seen))
    assert float((value - seen).abs().min()) > 0.01


def test_the_information_bound_is_that_of_the_loss() -> None:
    """log(1 + alpha) - L for EqCo, which at alpha = K is InfoNCE's log(1 + K) - L."""
    pos, neg, *_ = case()
    contrast, tau = Contrast.dense(pos, neg), torch.tensor(0.2, dtype=torch.float64)
    same(losses.InfoNCE().information(contrast, tau), math.log(8) - losses.InfoNCE()(contrast, tau))
    same(losses.EqCo(7).information(contrast, tau), losses.InfoNCE().information(contrast, tau))
    same(losses.EqCo(512).information(contrast, tau), math.log(513) - losses.EqCo(512)(contrast, tau))


def test_detached_parts_have_no_gradient() -> None:
    """The weights of MACL-w and DCLW: d loss / d s = -w / tau. With detach_target, ReLIC has none by the mirror."""
    pos, neg, mirror, *_ = case()
    by_pos, by_neg = gradients(losses.MACLW(), 0.2)[1:]
    same(by_pos, -(2 - pos) / 0.2)
    same(by_neg, (2 - pos)[..., None] * (neg / 0.2).softmax(-1) / 0.2)
    k = (pos / 0.5).exp()
    same(gradients(losses.DCLW(), 0.2)[1], -(2 - k / k.mean(1, keepdim=True)) / 0.2)
    contrast = Contrast.dense(pos, neg.requires_grad_(), mirror=mirror.requires_grad_())
    value = losses.ReLIC(detach_target=True)(contrast, torch.tensor(0.2)).sum()
    assert torch.autograd.grad(value, mirror, allow_unused=True) == (None,)
    value = losses.ReLIC(detach_target=True, own_view=True)(contrast, torch.tensor(0.2, dtype=torch.float64)).sum()
    logits = torch.cat([torch.ones_like(pos)[..., None], mirror], -1) / 0.2
    same(torch.autograd.grad(value, mirror)[0], logits.softmax(-1)[..., 1:] / 0.2)  # of the contrast in the own view


@pytest.mark.parametrize("own_view", [False, True])
def test_relic_is_the_printed_equation_with_the_sum_over_v_and_w(own_view: bool) -> None:
    """Equation 3 of "Less can be more" term by term: image i of view v, and all images m of view w against view v."""
    tau, weight = 0.3, 2.5
    raw = draw(2, 6, 4).requires_grad_()
    z = nn.functional.normalize(raw, dim=-1)
    e = Embedded(z, z.flip(0), raw, torch.arange(6))
    contrast = Contrast.of(e, CrossView().bank(e))
    terms = []
    for i, v, w in itertools.product(range(6), range(2), range(2)):
        if v == w and not own_view:
            continue
        images = [i, *(m for m in range(6) if m != i)]
        p, q = (torch.stack([z[a, i] @ z[w, m] / tau for m in images]).softmax(0) for a in (v, w))
        terms.append(-p[0].log() + weight * sum(a * (a / b).log() for a, b in zip(p, q, strict=True)))
    expected = torch.stack(terms).sum() / 6
    found = losses.ReLIC(weight, own_view=own_view)(contrast, torch.tensor(tau, dtype=torch.float64)).mean(1).sum()
    same(found, expected)
    same(*(torch.autograd.grad(value, raw, retain_graph=True)[0] for value in (found, expected)))


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


@pytest.mark.parametrize("tau", [0.01, 1.0])
@pytest.mark.parametrize(
    "angles",
    [
        [[0.0, 0.0, 1.5], [math.pi, 2.0, 1.5]],  # a negative is the anchor
        [[0.3, 0.3, 0.3], [0.3, 0.3, 0.3]],
        [[0.0, 1.0, 2.0], [math.pi, 1.0 + math.pi, 2.0 + math.pi]],  # the positive is opposite
        [[0.0, 0.0, 0.0], [math.pi, math.pi, 1.0]],
    ],
)
def test_inv_spread_at_cosines_of_one(angles: list[list[float]], tau: float) -> None:
    """In single precision against decimals of 120 digits; a naive log(1 - P) is infinite in half of these cases."""
    angle = torch.tensor(angles)
    u = torch.stack([angle.cos(), angle.sin()], 2)
    e = Embedded(u, u.flip(0), u, torch.arange(3))
    found = losses.InvariantSpread()(Contrast.of(e, InBatch().bank(e)), torch.tensor(tau)).mean()
    with localcontext() as context:
        context.prec = 120
        total = Decimal(0)
        for i, row in enumerate((u.flatten(0, 1) @ u.flatten(0, 1).T).tolist()):
            exps = [(Decimal(cosine) / Decimal(tau)).exp() for cosine in row]
            every = sum(exps, Decimal(0)) - exps[i]
            total -= (exps[(i + 3) % 6] / every).ln()
            total -= sum(((1 - exps[j] / every).ln() for j in range(6) if j not in (i, (i + 3) % 6)), Decimal(0))
    assert float(found) == pytest.approx(float(total / 6), rel=1e-4, abs=1e-5)


INVALID: list[tuple[type[Loss], str, Any]] = [
    *((losses.EqCo, "alpha", value) for value in (0, -1)),
    *((losses.DCLW, "sigma", value) for value in (0, -1)),
    (losses.DualTemperature, "ratio", 0),
    (losses.AlignUniform, "t", 0),
    *((losses.LOSSES[name], "weight", -1) for name in ("DecoupledNTXent", "AlignUniform", "SWD", "ReLIC")),
    (losses.BarlowTwins, "weight", -1),
    *((losses.LOSSES[name], "scale", 0) for name in ("DecoupledNTXent", "SWD")),
    *((losses.Debiased, "tau_plus", value) for value in (-0.1, 1)),
    (losses.HCL, "tau_plus", 1),
    (losses.HCL, "beta", -1),
    *((losses.VICReg, name, -1) for name in ("invariance", "variance", "covariance")),
    (losses.SIGReg, "weight", 1.1),
    (losses.SIGReg, "slices", 0),
    (losses.DecoupledNTXent, "form", "colab"),
    (losses.SWD, "prior", "uniform"),
    *((losses.SogCLR, "gamma", value) for value in (0, 1.1)),
    *((losses.ISogCLR, name, value) for name, value in {"tau_min": 0, "tau_max": 0.01, "tau": 2, "rho": -1}.items()),
    *((losses.ISogCLR, name, 0) for name in ("eta", "beta")),
]


def settings(loss: type[Loss]) -> dict[str, Any]:
    """The arguments of a loss with their defaults."""
    return {k: p.default for k, p in inspect.signature(loss).parameters.items() if p.default is not p.empty}


def required(loss: type[Loss]) -> dict[str, Any]:
    """The arguments that a loss has without a default."""
    return {"instances": 100} if "instances" in inspect.signature(loss).parameters else {}


@pytest.mark.parametrize(("loss", "argument", "value"), INVALID)
def test_invalid_arguments_are_refused(loss: type[Loss], argument: str, value: Any) -> None:
    with pytest.raises(InvalidValue, match=rf"^{argument}={value}: "):
        loss(**required(loss), **{argument: value})


@pytest.mark.parametrize("loss", losses.LOSSES.values())
def test_every_number_that_is_not_a_number_is_refused(loss: type[Loss]) -> None:
    for argument, default in settings(loss).items():
        if isinstance(default, float):
            with pytest.raises(InvalidValue, match=rf"^{argument}=nan: "):
                loss(**required(loss), **{argument: math.nan})


@pytest.mark.parametrize(
    "loss", [losses.DecoupledNTXent(form="official"), losses.SWD(), losses.VICReg(), losses.BarlowTwins(), SIGREG]
)
def test_a_loss_that_needs_raw_anchors_asks_for_them(loss: Loss) -> None:
    with pytest.raises(ValueError, match="raw"):
        loss(Contrast.dense(draw(2, 5).tanh(), draw(2, 5, 7).tanh()), torch.tensor(0.1))


def test_every_loss_has_a_configuration_with_its_defaults() -> None:
    nodes = {path.stem: yaml.safe_load(path.read_text()) for path in CONF.glob("*.yaml")}
    assert set(FIXED_NAMES.split()) <= set(losses.__all__)
    targets = [f"{losses.__name__}.{name}" for name in losses.__all__]
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


def test_swd_draws_a_new_uniform_rotation_at_each_step() -> None:
    loss, like, rotations = losses.SWD(), torch.zeros(4, dtype=torch.float64), []
    for loss.draws.step in range(400):
        rotation, sample = loss.draw(6, like)
        assert sample.shape == (6, 4)
        same(rotation.T @ rotation, torch.eye(4, dtype=torch.float64))
        rotations.append(rotation)
    assert float(torch.stack(rotations).mean(0).abs().max()) < 4 / math.sqrt(
        4 * 400
    )  # four standard deviations of a mean of 0
    assert len({float(rotation[0, 0]) for rotation in rotations}) == 400


@pytest.mark.parametrize("images", [4, 9])  # fewer than the width, and more
def test_squared_products_are_those_of_all_columns(images: int) -> None:
    a, b = (draw(2, images, 6, seed=seed) for seed in (1, 2))
    same(squared_products(a, b), (a.mT @ b).square().sum((-2, -1)))


class LargestProduct(TorchDispatchMode):
    """Number of elements of the largest matrix product."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func._schema.name in ("aten::mm", "aten::bmm"):
            self.elements = max(self.elements, out.numel())
        return out


def _squared_products(images: int, rank: int = 0) -> dict[str, Any]:
    pair = [draw(2, images, 6, seed=seed).requires_grad_() for seed in (1, 2)]
    with LargestProduct() as largest:
        value = squared_products(*pair)
    gradients = torch.autograd.grad(value.square().sum(), pair)
    return {"value": value.detach(), "gradients": torch.stack(gradients), "largest": largest.elements}


@pytest.mark.parametrize(("images", "largest"), [(4, 2 * 2 * 4), (9, 2 * 2 * 6)])
def test_each_rank_computes_a_share_of_the_squared_products(images: int, largest: int) -> None:
    """Of 4 rows two, one and one; of 6 columns two. The ranks' gradients are averaged."""
    expected, ranks = _squared_products(images), on_ranks(partial(_squared_products, images), 3)
    assert max(found["largest"] for found in ranks) == largest < expected["largest"]
    for found in ranks:
        torch.testing.assert_close(found["value"], expected["value"], rtol=1e-14, atol=0)
    mean = torch.stack([found["gradients"] for found in ranks]).mean(0)
    torch.testing.assert_close(mean, expected["gradients"], rtol=1e-12, atol=1e-12)
