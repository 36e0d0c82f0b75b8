"""Every loss against a naive loop in double precision, its gradient in closed form, its limits and its extremes.

A new loss is a row of LOSSES, and of GRADIENTS where its gradient is a factor times that of the log-odds u.
"""

import contextlib
import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
import yaml
from torch import Tensor, nn

from ssl_bench.config.build import build
from ssl_bench.objective import losses
from ssl_bench.objective.contrast import Contrast, Embedded
from ssl_bench.objective.loss import Loss
from ssl_bench.objective.negatives import CrossView, InBatch
from ssl_bench.objective.sampling import StepGenerator
from tests.ranks import on_two_ranks

CONF = Path(__file__).parents[2] / "conf" / "loss"
WIDTH = 3  # of the anchors before normalisation


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


class Anchor(NamedTuple):
    s: float  # cosine with the positive
    k: list[float]  # with each negative
    m: list[float]  # of the positive with each negative
    t: float  # temperature

    def top(self) -> float:
        return math.exp(self.s / self.t)

    def rest(self) -> float:
        return sum(math.exp(k / self.t) for k in self.k)

    def infonce(self, factor: float = 1.0) -> float:
        """-log(e^{s/t} / (e^{s/t} + factor sum_k e^{s_k/t}))."""
        return math.log1p(factor * self.rest() / self.top())

    def w(self, times: float = 1.0) -> float:
        """sum_k e^{s_k/t} / (e^{s/t} + sum_k e^{s_k/t}) at ``times`` the temperature."""
        a = self._replace(t=times * self.t)
        return a.rest() / (a.top() + a.rest())


def naive_dclw(a: Anchor, view: list[Anchor]) -> float:
    mean = sum(math.exp(b.s / 0.5) for b in view) / len(view)
    return math.log(a.rest()) - (2 - math.exp(a.s / 0.5) / mean) * a.s / a.t


def naive_official(a: Anchor, view: list[Anchor]) -> float:
    total = a.top() + a.rest() + math.exp(1 / a.t)
    return 1000 * ((1 - a.s) / WIDTH + 0.3 * (math.log(total) - math.log(WIDTH)))


def naive_align_uniform(a: Anchor, view: list[Anchor]) -> float:
    each = [sum(math.exp(-1.5 * (2 - 2 * k)) for k in b.k) / len(b.k) for b in view]
    return 2 - 2 * a.s + 0.7 * math.log(sum(each) / len(each))


def naive_relic(a: Anchor, view: list[Anchor]) -> float:
    p, q = ([math.exp(x / a.t) for x in row] for row in ([a.s, *a.k], [1.0, *a.m]))
    return a.infonce() + 2.5 * sum(x / sum(p) * math.log(x / sum(p) / (y / sum(q))) for x, y in zip(p, q, strict=True))


# of an anchor, and of the anchors of its view
LOSSES: dict[str, tuple[Loss, Callable[[Anchor, list[Anchor]], float]]] = {
    "infonce": (losses.InfoNCE(), lambda a, _: a.infonce()),
    "eqco": (losses.EqCo(), lambda a, _: a.infonce(256 / len(a.k))),
    "dcl": (losses.DCL(), lambda a, _: -a.s / a.t + math.log(a.rest())),
    "dclw": (losses.DCLW(), naive_dclw),
    "flatnce": (losses.FlatNCE(), lambda a, _: 1.0),
    "macl": (losses.MACL(), lambda a, _: a.infonce() / a.w()),
    "macl_w": (losses.MACLW(), lambda a, _: (2 - a.s) * a.infonce() / a.w()),
    "dual": (losses.DualTemperature(), lambda a, _: a.infonce() * a.w(10) / a.w()),
    "decoupled": (losses.DecoupledNTXent(0.3), lambda a, _: -a.s + 0.3 * math.log(a.top() + a.rest())),
    "decoupled_official": (losses.DecoupledNTXent(0.3, "official", 1000), naive_official),
    "align_uniform": (losses.AlignUniform(0.7, 1.5), naive_align_uniform),
    "relic": (losses.ReLIC(2.5), naive_relic),
    "relic_detached": (losses.ReLIC(2.5, detach_target=True), naive_relic),
    "byol": (losses.BYOL(), lambda a, _: 2 - 2 * a.s),
}
# d loss / d u of each that depends on u alone, as a function of u, of s and of u at 10 times the temperature
GRADIENTS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "infonce": lambda u, s, wide: u.sigmoid(),
    "eqco": lambda u, s, wide: (u + math.log(256 / 7)).sigmoid(),
    "dcl": lambda u, s, wide: torch.ones_like(u),
    "flatnce": lambda u, s, wide: torch.ones_like(u),
    "macl": lambda u, s, wide: torch.ones_like(u),
    "macl_w": lambda u, s, wide: 2 - s,
    "dual": lambda u, s, wide: wide.sigmoid(),
}


def case(masked: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor]:
    """Cosines of the positives, the negatives and the mirror, which of them count, and the anchors themselves."""
    valid = torch.rand(5, 7, generator=torch.Generator().manual_seed(2)) < 0.6 if masked else None
    assert valid is None or 0 < int(valid.sum(-1).min()) < int(valid.sum(-1).max()) < 7
    return draw(2, 5).tanh(), *draw(2, 2, 5, 7, seed=1).tanh(), valid, draw(2, 5, WIDTH, seed=5)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("per_anchor", [False, True])
def test_a_loss_is_its_formula(name: str, masked: bool, per_anchor: bool) -> None:
    loss, naive = LOSSES[name]
    pos, neg, mirror, valid, raw = case(masked)
    tau = draw(2, 5, seed=3).exp() / 3 if per_anchor else torch.tensor(0.13, dtype=torch.float64)
    t = tau.expand(2, 5)
    rows = [[[c for c in range(7) if valid is None or valid[b, c]] for b in range(5)]] * 2
    views = [
        [Anchor(float(pos[v, b]), neg[v, b, r].tolist(), mirror[v, b, r].tolist(), float(t[v, b])) for b, r in each]
        for v, each in enumerate(map(enumerate, rows))
    ]
    expected = torch.tensor([[naive(anchor, view) for anchor in view] for view in views], dtype=torch.float64)
    same(loss(Contrast.dense(pos, neg, valid, raw, mirror), tau), expected)
    same(loss(Contrast.dense(pos, neg, valid, raw, mirror), t.contiguous()), expected)  # one for each, if all alike
    order = torch.randperm(7, generator=torch.Generator().manual_seed(4))
    shuffled = Contrast.dense(pos, neg[..., order], None if valid is None else valid[:, order], raw, mirror[..., order])
    same(loss(shuffled, tau), expected)


@pytest.mark.parametrize("name", GRADIENTS)
def test_a_gradient_is_its_closed_form(name: str) -> None:
    """d loss / d s = -f / tau for the positive and f p_k / tau for negative k, p their softmax, f = d loss / d u."""
    pos, neg, *_ = case()
    by_pos, by_neg = gradients(LOSSES[name][0], 0.2)[1:]
    u, wide = ((neg / t).logsumexp(-1) - pos / t for t in (0.2, 2.0))
    slope = GRADIENTS[name](u, pos, wide)
    same(by_pos, -slope / 0.2)
    same(by_neg, slope[..., None] * (neg / 0.2).softmax(-1) / 0.2)


def gradients(loss: Loss, tau: float) -> list[Tensor]:
    """The value, and the gradients by the positives and by the negatives."""
    pos, neg, mirror, _, raw = case()
    pos, neg = pos.requires_grad_(), neg.requires_grad_()
    value = loss(Contrast.dense(pos, neg, None, raw, mirror), torch.tensor(tau, dtype=torch.float64))
    return [value.detach(), *torch.autograd.grad(value.sum(), [pos, neg])]


@pytest.mark.parametrize("name", ["align_uniform", "decoupled", "decoupled_official", "relic", "byol"])
def test_a_gradient_is_the_derivative_of_the_value(name: str) -> None:
    """Of those where nothing is detached, by finite differences."""
    loss, (*cosines, valid, raw) = LOSSES[name][0], case(masked=True)
    inputs = [x.requires_grad_() for x in (*cosines, torch.tensor(0.2, dtype=torch.float64))]
    evaluate = lambda pos, neg, mirror, tau: loss(Contrast.dense(pos, neg, valid, raw, mirror), tau)  # noqa: E731
    assert torch.autograd.gradcheck(evaluate, inputs, rtol=1e-6, atol=1e-6)


LIMITS: dict[str, tuple[Loss, Loss, float, int]] = {  # a loss, what it equals, times what, and from which entry on
    "eqco, alpha = K": (losses.EqCo(7), losses.InfoNCE(), 1, 0),
    "eqco, alpha = inf": (losses.EqCo(1e16), losses.DCL(), 1, 1),
    "dclw, sigma = inf": (losses.DCLW(1e16), losses.DCL(), 1, 0),
    "dual, ratio = 1": (losses.DualTemperature(1), losses.InfoNCE(), 1, 0),
    "dual, ratio = inf": (losses.DualTemperature(1e16), losses.MACL(), 7 / 8, 0),
    "decoupled, weight = tau": (losses.DecoupledNTXent(0.2), losses.InfoNCE(), 0.2, 0),
    "relic, weight = 0": (losses.ReLIC(0), losses.InfoNCE(), 1, 0),
    "flatnce": (losses.FlatNCE(), losses.DCL(), 1, 1),
    "macl": (losses.MACL(), losses.DCL(), 1, 1),
}


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_is_another_loss(name: str) -> None:
    loss, other, factor, first = LIMITS[name]
    for found, expected in zip(gradients(loss, 0.2)[first:], gradients(other, 0.2)[first:], strict=True):
        same(found, factor * expected)


def test_the_information_is_that_of_the_loss() -> None:
    """log(1 + alpha) - L under EqCo, which at alpha = K is InfoNCE's log(1 + K) - L."""
    pos, neg, *_ = case()
    contrast, tau = Contrast.dense(pos, neg), torch.tensor(0.2, dtype=torch.float64)
    same(losses.InfoNCE().information(contrast, tau), math.log(8) - losses.InfoNCE()(contrast, tau))
    same(losses.EqCo(7).information(contrast, tau), losses.InfoNCE().information(contrast, tau))
    same(losses.EqCo(512).information(contrast, tau), math.log(513) - losses.EqCo(512)(contrast, tau))


def test_what_is_detached_has_no_gradient() -> None:
    """DCLW's weights: d loss / d s = -w / tau. ReLIC's target, if asked for: the mirror has none."""
    pos, neg, mirror, *_ = case()
    k = (pos / 0.5).exp()
    same(gradients(losses.DCLW(), 0.2)[1], -(2 - k / k.mean(1, keepdim=True)) / 0.2)
    contrast = Contrast.dense(pos, neg.requires_grad_(), mirror=mirror.requires_grad_())
    value = losses.ReLIC(detach_target=True)(contrast, torch.tensor(0.2)).sum()
    assert torch.autograd.grad(value, mirror, allow_unused=True) == (None,)


def test_relic_is_its_equation_on_two_views() -> None:
    z = nn.functional.normalize(draw(2, 6, 4), dim=-1)
    e = Embedded(z, z.flip(0), z, torch.arange(6))
    found = losses.ReLIC(3)(Contrast.of(e, CrossView().bank(e)), torch.tensor(0.3, dtype=torch.float64))
    for v, w in (0, 1), (1, 0):
        vw, ww = (z[v] @ z[w].T / 0.3).log_softmax(-1), (z[w] @ z[w].T / 0.3).log_softmax(-1)
        same(found[v], -vw.diagonal() + 3 * nn.functional.kl_div(ww, vw, reduction="none", log_target=True).sum(-1))


EXTREME = {name: loss for name, (loss, _) in LOSSES.items()} | {
    "dclw_narrow": losses.DCLW(0.001),
    "align_uniform_sharp": losses.AlignUniform(t=200),
    **{f"swd_{prior}": losses.SWD(prior=prior) for prior in ("normal", "hypercube", "hypersphere")},
}


@pytest.mark.parametrize("name", EXTREME)
@pytest.mark.parametrize("tau", [0.01, 0.07, 1.0])
@pytest.mark.parametrize("half", [None, torch.float16, torch.bfloat16])
def test_extreme_cosines_stay_finite(name: str, tau: float, half: torch.dtype | None) -> None:
    """In float32, with a learned temperature and masked candidates; from vectors of half precision, inside autocast."""
    one = 1.0 if half is None else 1 + torch.finfo(half).eps  # a cosine of vectors rounded to half precision
    pos = torch.tensor([[one, -one, one], [one, one, -one]], requires_grad=True)
    neg = torch.tensor([[[one, one], [one, one], [-one, -one]], [[-one, -one]] * 3], requires_grad=True)
    mirror = torch.tensor([[[-one, one], [one, one], [one, -one]]] * 2, requires_grad=True)
    raw = torch.tensor([[[100.0, 0.0, 0.0], [0.0, 1e-4, 0.0], [1.0, 1.0, 1.0]]] * 2, requires_grad=True)
    temperature = torch.tensor(tau, requires_grad=True)
    valid = torch.tensor([[True, False], [True, True], [True, True]])
    with torch.autocast("cpu", half) if half else contextlib.nullcontext():
        value = EXTREME[name](Contrast.dense(pos, neg, valid, raw, mirror), temperature)
    assert value.isfinite().all()
    found = torch.autograd.grad(value.sum(), [pos, neg, mirror, raw, temperature], allow_unused=True)
    assert all(gradient.isfinite().all() for gradient in found if gradient is not None)


BAD: list[tuple[type[Loss], str, Any]] = [
    *((losses.EqCo, "alpha", value) for value in (0, -1, math.nan)),
    *((losses.DCLW, "sigma", value) for value in (0, -1, math.nan)),
    (losses.DualTemperature, "ratio", 0),
    (losses.AlignUniform, "t", 0),
    *((loss, "weight", -1) for loss in (losses.DecoupledNTXent, losses.AlignUniform, losses.SWD, losses.ReLIC)),
    *((loss, "scale", 0) for loss in (losses.DecoupledNTXent, losses.SWD)),
    (losses.DecoupledNTXent, "form", "colab"),
    (losses.SWD, "prior", "uniform"),
]


def test_bad_arguments_are_named() -> None:
    for loss, argument, value in BAD:
        with pytest.raises(ValueError, match=rf"^{argument}={value} must "):
            loss(**{argument: value})
    for official in (losses.DecoupledNTXent(form="official"), losses.SWD()):
        with pytest.raises(ValueError, match="raw"):
            official(Contrast.dense(draw(2, 5).tanh(), draw(2, 5, 7).tanh()), torch.tensor(0.1))


def test_every_loss_has_a_configuration_with_its_defaults() -> None:
    nodes = {path.stem: yaml.safe_load(path.read_text()) for path in CONF.glob("*.yaml")}
    targets = {f"{losses.__name__}.{name}" for name in losses.__all__}
    assert len(nodes) == 13 and {node["_target_"] for node in nodes.values()} == targets
    for name, node in nodes.items():
        loss = type(build({k: v for k, v in node.items() if not str(v).startswith("${")}, "loss"))
        assert loss.__name__.lower() == name.replace("_", "")
        defaults = {k: p.default for k, p in inspect.signature(loss).parameters.items() if p.default is not p.empty}
        assert node | {"seed": 0} == {"seed": 0, "_target_": node["_target_"]} | defaults


def train(loss: Loss, steps: int) -> Tensor:
    """The parameters of a small network after ``steps`` of plain gradient descent on two noisy views."""
    first, second = (draw(*shape).div(3).requires_grad_() for shape in ((8, 16), (16, 6)))
    negatives, tau = InBatch(), torch.tensor(0.2, dtype=torch.float64)
    for step in range(steps):
        x = draw(6, 8, seed=7) + 0.3 * draw(2, 6, 8, seed=100 + step)
        z = nn.functional.normalize(raw := (x @ first).tanh() @ second, dim=-1)
        e = Embedded(z, z.flip(0), raw, torch.arange(6))
        value = loss(Contrast.of(e, negatives.bank(e)), tau).mean()
        for weight, gradient in zip((first, second), torch.autograd.grad(value, [first, second]), strict=True):
            weight.data -= 0.3 * gradient
    return torch.cat([first.detach().flatten(), second.detach().flatten()])


def test_dcl_flatnce_and_macl_train_the_same_network() -> None:
    start, dcl = train(losses.DCL(), 0), train(losses.DCL(), 20)
    assert float((dcl - start).norm() / start.norm()) > 0.1
    for loss in (losses.FlatNCE(), losses.MACL()):
        assert float(((train(loss, 20) - dcl) / dcl).abs().max()) < 1e-10
    assert float((train(losses.InfoNCE(), 20) - dcl).norm() / dcl.norm()) > 0.01


@pytest.mark.parametrize("prior", ["normal", "hypercube", "hypersphere"])
def test_swd_is_the_official_sort_of_both(prior: Any) -> None:
    """With D = 3, n = 5 images and the same draws: the mean over [D, 2n] of the squared differences in order."""
    loss, raw = losses.SWD(4, prior, 10, seed=3), draw(2, 5, WIDTH, seed=5).requires_grad_()
    generator = StepGenerator("swd", 3).generator(torch.device("cpu"))
    q, r = torch.linalg.qr(torch.empty(3, 3, dtype=torch.float64).normal_(generator=generator))
    rotation, x = q * r.diagonal().sign(), torch.empty(10, 3, dtype=torch.float64)
    x = x.uniform_(-1, 1, generator=generator) if prior == "hypercube" else x.normal_(generator=generator)
    h = raw
    if prior == "hypersphere":
        x, h = nn.functional.normalize(x, dim=-1), nn.functional.normalize(raw, dim=-1)
    ours, theirs = ((y @ rotation).T.sort(-1).values for y in (h.flatten(0, 1), x))
    expected = 10 * ((h[0] - h[1]).square().mean() / 2 + 4 * (theirs - ours).square().mean())
    value = loss(Contrast(raw[..., 0], None, raw), torch.tensor(0.1)).mean()
    same(value, expected)
    same(*(torch.autograd.grad(v, raw, retain_graph=True)[0] for v in (value, expected)))


def test_swd_draws_a_fresh_uniform_rotation_at_each_step() -> None:
    loss, like, seen = losses.SWD(), torch.zeros(4, dtype=torch.float64), []
    for loss.draws.step in range(400):
        rotation, sample = loss.draw(6, like)
        assert sample.shape == (6, 4)
        same(rotation.T @ rotation, torch.eye(4, dtype=torch.float64))
        seen.append(rotation)
    assert float(torch.stack(seen).mean(0).abs().max()) < 4 / math.sqrt(4 * 400)  # four deviations of a mean of 0
    assert len({float(rotation[0, 0]) for rotation in seen}) == 400


# with a statistic of the whole batch
GLOBAL: list[Loss] = [losses.SWD(), losses.SWD(prior="hypersphere"), losses.DCLW(), losses.AlignUniform()]


def _mean_and_gradient(loss: Loss, mine: slice) -> Tensor:
    """Of the mean loss of a linear encoder on the images ``mine`` of two views."""
    weight, ids = draw(8, 4).requires_grad_(), torch.tensor([5, 3, 9, 0, 7, 1])[mine]
    z = nn.functional.normalize(raw := draw(2, 6, 8, seed=1)[:, mine] @ weight, dim=-1)  # [2, B, D]
    e = Embedded(z, z.flip(0), raw, ids)
    value = loss(Contrast.of(e, InBatch().bank(e)), torch.tensor(0.1, dtype=torch.float64)).mean()
    return torch.cat([value.detach()[None], torch.autograd.grad(value, weight)[0].flatten()])


def _rank_means_and_gradients(rank: int) -> list[Tensor]:
    found = [_mean_and_gradient(loss, slice(3 * rank, 3 * rank + 3)) for loss in GLOBAL]
    for values in found:
        dist.all_reduce(values)
    return [values / 2 for values in found]  # as DDP averages


def test_two_ranks_see_the_statistics_of_the_whole_batch() -> None:
    alone = [_mean_and_gradient(loss, slice(0, 6)) for loss in GLOBAL]
    for found in on_two_ranks(_rank_means_and_gradients):
        for values, expected in zip(found, alone, strict=True):
            assert float((values[0] / expected[0] - 1).abs()) < 1e-12
            assert float((values[1:] - expected[1:]).norm() / expected[1:].norm()) < 1e-12
