"""Cosines in panels against the whole matrix of cosines: values, gradients, and sizes of the stored tensors."""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from ssl_bench.objective import tiles
from ssl_bench.objective.bits import pack
from ssl_bench.objective.contrast import Bank, Contrast, Embedded
from ssl_bench.objective.loss import Loss
from ssl_bench.objective.losses import SINCERE, ReLIC, SupCon
from ssl_bench.objective.positives import NearestKey
from ssl_bench.objective.similarity import Name
from tests.objective.test_losses import draw
from tests.objective.test_negatives import unit
from tests.operations import Largest

V, B, C, D = 2, 7, 80, 40
PANEL = 250  # three anchors per panel, fewer in the last one of 14 or 7
FEW, MANY = 2, 5  # chosen keys per anchor: few enough at C to be read one by one, and too many for that


def places(n: int) -> Tensor:
    """[V, B, n] different candidates of each anchor, none of them of the anchor's image."""
    allowed = torch.rand(V, B, C, generator=torch.Generator().manual_seed(6)).masked_fill(IDS[:, None] == KEY_IDS, -1)
    return allowed.topk(n).indices.int()


def left_out(n: int) -> Tensor:
    """[V, B, C] booleans: all candidates but 70, those of the anchor's image and ``places(n)`` among the others."""
    order = torch.rand(V, B, C, generator=torch.Generator().manual_seed(7))
    order = order.masked_fill(IDS[:, None] == KEY_IDS, 2).scatter(-1, places(n).long(), 2)
    return torch.ones(V, B, C, dtype=torch.bool).scatter_(-1, order.topk(70, largest=False).indices, False)


IDS = torch.arange(B) * 3  # of the anchors' images; keys show these images too, some twice, and other images
KEY_IDS = torch.arange(C) % 25
CHOICES: dict[str, Callable[[Contrast], Contrast]] = {
    "all": lambda c: c,
    "excluded": lambda c: c.excluding(pack(left_out(4)), 70),
    "few": lambda c: c.pick(places(FEW)),
    "many": lambda c: c.pick(places(MANY)),
}


class Leaves(NamedTuple):
    q: Tensor
    p: Tensor
    keys: Tensor
    tau: Tensor

    def contrast(self, choice: str, ids: bool, tiled: bool) -> Contrast:
        """The contrast with a choice of the candidates; ``ids``: candidates of the anchor's image are excluded."""
        bank = Bank(self.keys, KEY_IDS if ids else None)
        return CHOICES[choice](Contrast.of(Embedded(self.q, self.p, self.q, IDS), bank, tiled))

    def gradients(self, value: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(value, [x for x in self if x.requires_grad]))


def leaves(shared: bool = True, per_anchor: bool = False, trained_keys: bool = True) -> Leaves:
    tau = draw(V, B, seed=4).exp() / 4 if per_anchor else torch.tensor(0.2, dtype=torch.float64)
    keys = unit(C, D, seed=2) if shared else unit(V, C, D, seed=2)
    q, p = unit(V, B, D), unit(V, B, D, seed=1)
    return Leaves(q.requires_grad_(), p.requires_grad_(), keys.requires_grad_(trained_keys), tau.requires_grad_())


def same(found: Tensor, expected: Tensor) -> None:
    assert found.shape == expected.shape
    assert float((found - expected).detach().abs().max()) < 1e-12 * float(expected.detach().abs().max())


@pytest.fixture(autouse=True)
def several_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "PANEL", PANEL)
    monkeypatch.setattr(tiles, "ROWS", 1)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_view"])
@pytest.mark.parametrize("ids", [True, False], ids=["ids", "no_ids"])
@pytest.mark.parametrize("per_anchor", [True, False], ids=["taus", "tau"])
@pytest.mark.parametrize("trained_keys", [True, False], ids=["keys", "queue"])
def test_panels_equal_the_matrix(choice: str, shared: bool, ids: bool, per_anchor: bool, trained_keys: bool) -> None:
    """The log-odds and their gradients by anchors, positives, keys and temperature."""
    x = leaves(shared, per_anchor, trained_keys)
    weight = draw(V, B, seed=5)
    whole, panels = (x.contrast(choice, ids, tiled).log_odds(x.tau) for tiled in (False, True))
    same(panels, whole)
    expected = x.gradients((weight * whole).sum())
    assert len(expected) == 3 + trained_keys
    for found, gradient in zip(x.gradients((weight * panels).sum()), expected, strict=True):
        same(found, gradient)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_view"])
@pytest.mark.parametrize("per_anchor", [True, False], ids=["taus", "tau"])
def test_a_second_temperature_in_the_same_pass(choice: str, shared: bool, per_anchor: bool) -> None:
    """Values and gradients are those of separate passes, for both temperatures and where a loss uses only one."""
    learned = leaves(shared, per_anchor)
    fixed = learned._replace(tau=learned.tau.detach())
    for tiled, used, x in itertools.product((False, True), ([0], [1], [0, 1]), (learned, fixed)):
        together = x.contrast(choice, True, tiled).log_odds_at(x.tau, 10 * x.tau)
        apart = [x.contrast(choice, True, False).log_odds(t) for t in (x.tau, 10 * x.tau)]
        found, expected = (
            [*us, *x.gradients(torch.stack([(1 - 3 * i) * us[i].sum() for i in used]).sum())]
            for us in (together, apart)
        )
        for one, other in zip(found, expected, strict=True):
            same(one, other)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_view"])
@pytest.mark.parametrize("trained_keys", [True, False], ids=["keys", "queue"])
def test_a_sum_in_panels_is_that_of_the_matrix(choice: str, shared: bool, trained_keys: bool) -> None:
    """With its gradients by anchors, positives, keys, a number per anchor and one for all."""
    x = leaves(shared, per_anchor=True, trained_keys=trained_keys)
    bias, weight = torch.tensor(-1.5, dtype=torch.float64, requires_grad=True), draw(V, B, seed=5)

    def found(tiled: bool) -> list[Tensor]:
        contrast = x.contrast(choice, True, tiled)
        phi = lambda s, tau, bias, mirror: (s / tau + bias).sigmoid() * mirror.square()  # noqa: E731
        value = contrast.sum(phi, x.tau, bias, contrast.mirror)
        inputs = [t for t in (x.q, x.p, x.keys, x.tau, bias) if t.requires_grad]
        return [value, *torch.autograd.grad((weight * value).sum(), inputs)]

    for panels, whole in zip(found(True), found(False), strict=True):
        same(panels, whole)


@pytest.mark.parametrize("loss", [ReLIC(2.0), ReLIC(2.0, detach_target=True, own_view=True), SupCon(), SINCERE()])
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_view"])
@pytest.mark.parametrize("per_anchor", [True, False], ids=["taus", "tau"])
@pytest.mark.parametrize("trained_positives", [True, False], ids=["positives", "nearest"])
def test_losses_of_whole_rows_are_the_same_in_panels(
    loss: Loss, shared: bool, per_anchor: bool, trained_positives: bool
) -> None:
    """Keys have a gradient through the cosines of positives that have none themselves, such as the nearest keys."""
    x = leaves(shared, per_anchor)
    x = x if trained_positives else x._replace(p=x.p.detach())
    given, bank = Embedded(x.q, x.p, x.q, IDS, labels=IDS % 4), Bank(x.keys, KEY_IDS, labels=KEY_IDS % 4)

    def found(tiled: bool) -> list[Tensor]:
        value = loss(Contrast.of(given, bank, tiled), x.tau)
        return [value, *x.gradients((draw(V, B, seed=5) * value).sum())]

    for panels, whole in zip(found(True), found(False), strict=True):
        same(panels, whole)


MAPS: dict[Name, Callable[[Tensor], Tensor]] = {
    "arctanh": lambda s: ((1 + s) / (1 - s)).log() / 2,
    "student": lambda s: -(1 + (2 - 2 * s)).log(),
}


@pytest.mark.parametrize("similarity", MAPS)
@pytest.mark.parametrize("choice", ["all", "few"])
@pytest.mark.parametrize("tiled", [False, True])
def test_a_similarity_takes_the_place_of_the_cosine(similarity: Name, choice: str, tiled: bool) -> None:
    """In positives, log-odds at two temperatures and sums, with their gradients; ``cosine`` stays what it is."""
    x = leaves(per_anchor=True)
    cosine, neg = (x.q * x.p).sum(-1), x.q @ x.keys.T
    given, bank = Embedded(x.q, x.p, x.q, IDS), Bank(x.keys, KEY_IDS)
    contrast = CHOICES[choice](Contrast.of(given, bank, tiled, similarity))
    same(contrast.cosine, cosine)
    chosen, valid = (neg, IDS[:, None] != KEY_IDS) if choice == "all" else (neg.gather(-1, places(FEW).long()), None)
    naive = Contrast.dense(MAPS[similarity](cosine), MAPS[similarity](chosen), valid)
    found, expected = (
        torch.stack([*c.log_odds_at(x.tau, 2 * x.tau), c.lse(3 * x.tau), c.sum(torch.square)])
        for c in (contrast, naive)
    )
    same(found, expected)
    for one, other in zip(*(x.gradients(y.square().sum()) for y in (found, expected)), strict=True):
        same(one, other)


@pytest.mark.parametrize("choice", CHOICES)
def test_lse_is_a_sum_over_the_negatives(choice: str) -> None:
    """Both forms, and the sum of the exponentials, against a loop."""
    x = Leaves(*(t.detach() for t in leaves(shared=False, per_anchor=True)))
    for tiled in (False, True):
        contrast = x.contrast(choice, True, tiled)
        found, total = contrast.lse(x.tau), contrast.sum(lambda s, tau: (s / tau).exp(), x.tau)
        for v, b in itertools.product(range(V), range(B)):
            kept = [c for c in range(C) if KEY_IDS[c] != IDS[b]]
            if choice == "excluded":
                kept = [c for c in kept if not left_out(4)[v, b, c]]
                assert len(kept) == 70
            elif choice != "all":
                kept = places(FEW if choice == "few" else MANY)[v, b].tolist()
            terms = [math.exp(float(x.q[v, b] @ x.keys[v, c]) / float(x.tau[v, b])) for c in kept]
            assert float(found[v, b]) == pytest.approx(math.log(sum(terms)), rel=1e-12)
            assert float(total[v, b]) == pytest.approx(sum(terms), rel=1e-12)


TABLE = (256, 8)  # the penalties of a byte of booleans, for any number of candidates


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_view"])
def test_panels_never_store_the_matrix(choice: str, shared: bool) -> None:
    width = 3
    x = leaves(shared)
    x = x._replace(**{name: getattr(x, name)[..., :width].detach().requires_grad_() for name in ("q", "p", "keys")})
    bound = max(PANEL, V * C * width, V * B * (MANY + 4))  # the sizes of a panel, the keys and the chosen keys
    for tiled in (False, True):
        contrast = x.contrast(choice, True, tiled)
        with Largest(TABLE) as largest:
            first, _ = contrast.log_odds_at(x.tau, 2 * x.tau)
            x.gradients((first + contrast.sum(lambda s, tau: (s / tau).sigmoid(), x.tau)).sum())
        never = tiled or choice == "excluded"
        assert largest.elements <= bound < V * B * C if never else largest.elements >= V * B * C


def test_the_nearest_keys_are_found_without_the_matrix() -> None:
    width = 3
    queue, p = NearestKey(C, width, 0).double(), unit(V, B, width, seed=1)
    e = Embedded(p, p, p, IDS)
    with Largest(TABLE) as largest:
        found = queue.choose(e).p
    assert torch.equal(found, queue.queue.keys[(e.p @ queue.queue.keys.T).argmax(-1)])
    assert largest.elements <= max(PANEL, C * width) < V * B * C


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_extreme_cosines_stay_finite_in_single_precision(choice: str, sign: float) -> None:
    """|cosine| = 1 at tau = 0.01: exp(100), which overflows in float32."""
    vector = unit(1, D).float()
    tau = torch.tensor(0.01, requires_grad=True)
    q, p = (vector.expand(V, B, D).clone().requires_grad_() for _ in range(2))
    x = Leaves(q, p, (sign * vector).expand(C, D).clone().requires_grad_(), tau)
    contrast = x.contrast(choice, True, True)
    found = contrast.lse(tau)
    torch.testing.assert_close(found, sign * 100 + contrast.count.log().expand(V, B), rtol=1e-5, atol=0)
    for gradient in x.gradients(contrast.log_odds(tau).sum()):
        assert gradient.isfinite().all()
