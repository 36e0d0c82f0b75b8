"""Cosines in panels that are never stored against the whole matrix of them: values, gradients, and what is stored."""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ssl_bench.objective import tiles
from ssl_bench.objective.contrast import Bank, Contrast, Embedded

V, B, C, D = 2, 7, 80, 40
PANEL = 250  # three anchors at a time, and of the 14 or 7 there are a last panel is smaller
FEW, MANY = 2, 5  # keys of an anchor that are read one by one, and too many for that at C


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unit(*shape: int, seed: int = 0) -> Tensor:
    return normalize(draw(*shape, seed=seed), dim=-1)


def places(n: int) -> Tensor:
    """[V, B, n] different candidates of each anchor, none of its own image."""
    allowed = torch.rand(V, B, C, generator=torch.Generator().manual_seed(6)).masked_fill(IDS[:, None] == KEY_IDS, -1)
    return allowed.topk(n).indices.int()


IDS = torch.arange(B) * 3  # of the anchors; the keys show them too, some twice, and images that no anchor shows
KEY_IDS = torch.arange(C) % 25
CHOICES: dict[str, Callable[[Contrast], Contrast]] = {
    "all": lambda c: c,
    "drop": lambda c: c.drop(places(4)),
    "few": lambda c: c.pick(places(FEW)),
    "many": lambda c: c.pick(places(MANY)),
}


class Leaves(NamedTuple):
    q: Tensor
    p: Tensor
    keys: Tensor
    tau: Tensor

    def contrast(self, choice: str, own: bool, tiled: bool) -> Contrast:
        bank = Bank(self.keys, KEY_IDS if own else None)
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


def test_of_very_many_candidates_a_panel_still_has_several_anchors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "ROWS", 4)
    taken, x = [], leaves(True)
    monkeypatch.setattr(tiles, "_cosines", lambda *a, f=tiles._cosines: taken.append(a[-1]) or f(*a))  # type: ignore[func-returns-value]
    x.contrast("all", True, True).lse(x.tau)
    assert [rows.stop - rows.start for rows in taken[:-1]] == [4] * (len(taken) - 1) and PANEL // C < 4


def test_the_choices_take_both_ways_to_the_keys() -> None:
    keys = torch.zeros(C, D)
    assert tiles._reads(keys, places(FEW)[0]) and not tiles._reads(keys, places(MANY)[0])
    anchors = torch.zeros(V * B, D)
    assert len(list(tiles._panels(anchors, C))) == 5 and len(list(tiles._panels(anchors, FEW * D))) == 5


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_view"])
@pytest.mark.parametrize("own", [True, False], ids=["own", "no_own"])
@pytest.mark.parametrize("per_anchor", [True, False], ids=["taus", "tau"])
@pytest.mark.parametrize("trained_keys", [True, False], ids=["keys", "queue"])
def test_panels_give_what_the_matrix_gives(
    choice: str, shared: bool, own: bool, per_anchor: bool, trained_keys: bool
) -> None:
    """The log-odds and their gradients by anchors, positives, keys and temperature."""
    x = leaves(shared, per_anchor, trained_keys)
    weight = draw(V, B, seed=5)
    whole, panels = (x.contrast(choice, own, tiled).log_odds(x.tau) for tiled in (False, True))
    same(panels, whole)
    expected = x.gradients((weight * whole).sum())
    assert len(expected) == 3 + trained_keys
    for found, theirs in zip(x.gradients((weight * panels).sum()), expected, strict=True):
        same(found, theirs)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_view"])
@pytest.mark.parametrize("per_anchor", [True, False], ids=["taus", "tau"])
def test_a_second_temperature_in_the_same_pass(choice: str, shared: bool, per_anchor: bool) -> None:
    """Its value is what a pass of its own gives; the gradient is that of the first alone."""
    x = leaves(shared, per_anchor)
    wide = (10 * x.tau).requires_grad_()
    once, other = (x.contrast(choice, True, False).log_odds(t) for t in (x.tau, wide))
    expected = x.gradients(once.sum())
    for tiled in (False, True):
        first, second = x.contrast(choice, True, tiled).log_odds_at(x.tau, wide)
        same(first, once)
        same(second, other)
        assert not second.requires_grad
        for found, theirs in zip(x.gradients(first.sum()), expected, strict=True):
            same(found, theirs)


@pytest.mark.parametrize("choice", CHOICES)
def test_lse_is_a_sum_over_the_negatives(choice: str) -> None:
    """Both forms against a loop."""
    x = Leaves(*(t.detach() for t in leaves(shared=False, per_anchor=True)))
    for tiled in (False, True):
        found = x.contrast(choice, True, tiled).lse(x.tau)
        for v, b in itertools.product(range(V), range(B)):
            kept = [c for c in range(C) if KEY_IDS[c] != IDS[b]]
            if choice == "drop":
                kept = [c for c in kept if c not in places(4)[v, b]]
            elif choice != "all":
                kept = places(FEW if choice == "few" else MANY)[v, b].tolist()
            terms = [math.exp(float(x.q[v, b] @ x.keys[v, c]) / float(x.tau[v, b])) for c in kept]
            assert float(found[v, b]) == pytest.approx(math.log(sum(terms)), rel=1e-12)


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that an operation gave."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.elements = max([self.elements, *(t.numel() for t in tree_leaves(out) if isinstance(t, Tensor))])
        return out


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_view"])
def test_panels_never_hold_the_matrix(choice: str, shared: bool) -> None:
    width = 3
    x = leaves(shared)
    x = x._replace(**{name: getattr(x, name)[..., :width].detach().requires_grad_() for name in ("q", "p", "keys")})
    smaller = max(PANEL, V * C * width, V * B * (MANY + 4))  # than the largest that is wanted
    for tiled in (False, True):
        contrast = x.contrast(choice, True, tiled)
        with Largest() as largest:
            first, _ = contrast.log_odds_at(x.tau, 2 * x.tau)
            x.gradients(first.sum())
        # In panels nothing outgrows the keys and a panel.
        assert largest.elements <= smaller < V * B * C if tiled else largest.elements >= V * B * C


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_extreme_cosines_stay_finite_in_single_precision(choice: str, sign: float) -> None:
    """|cosine| = 1 at tau = 0.01: exp(100), which float32 does not have."""
    one = unit(1, D).float()
    tau = torch.tensor(0.01, requires_grad=True)
    q, p = (one.expand(V, B, D).clone().requires_grad_() for _ in range(2))
    x = Leaves(q, p, (sign * one).expand(C, D).clone().requires_grad_(), tau)
    contrast = x.contrast(choice, True, True)
    found = contrast.lse(tau)
    torch.testing.assert_close(found, sign * 100 + contrast.count.log().expand(V, B), rtol=1e-5, atol=0)
    for gradient in x.gradients(contrast.log_odds(tau).sum()):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("tiled", [False, True])
def test_count(tiled: bool) -> None:
    x = leaves()
    others = [sum(int(k) != int(i) for k in KEY_IDS) for i in IDS]  # of each image
    assert set(others) == {76, 77}
    assert x.contrast("all", True, tiled).count.tolist() == [others]
    assert x.contrast("drop", True, tiled).count.tolist() == [[n - 4 for n in others]]
    assert x.contrast("all", False, tiled).count.tolist() == [[C] * B]
    assert x.contrast("drop", False, tiled).count.tolist() == [[C - 4] * B]
    assert x.contrast("few", True, tiled).count.tolist() == [[FEW] * B]
    assert x.contrast("all", True, tiled).count.dtype == torch.float64


def test_count_of_given_cosines() -> None:
    pos, neg = torch.zeros(2, 3), torch.zeros(2, 3, 4)
    valid = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 1]], dtype=torch.bool)  # [B, C]
    assert Contrast.dense(pos, neg).count.tolist() == [[4, 4, 4]]
    assert Contrast.dense(pos, neg, valid).count.tolist() == [[4, 2, 1]]
    assert Contrast.dense(pos, neg, valid[2]).count.tolist() == [[1, 1, 1]]
    assert Contrast.dense(pos, neg, torch.stack([valid, ~valid])).count.tolist() == [[4, 2, 1], [0, 2, 3]]
    assert Contrast(pos, None, None).count.tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_view"])
def test_panels_are_taken_where_one_would_not_do(choice: str, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "pooled_lse" if choice in ("all", "drop") else "picked_lse"
    taken = Mock(wraps=getattr(tiles, name))
    monkeypatch.setattr(tiles, name, taken)
    x = leaves(shared)
    for panel, expected in ((V * B * C, False), (V * B * C - 1, True)):
        monkeypatch.setattr(tiles, "PANEL", panel)
        taken.reset_mock()
        contrast = CHOICES[choice](Contrast.of(Embedded(x.q, x.p, x.q, IDS), Bank(x.keys, KEY_IDS)))
        contrast.lse(x.tau)
        assert taken.called == expected
