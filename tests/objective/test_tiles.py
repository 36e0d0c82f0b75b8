"""Cosines in panels against the whole matrix of cosines: values, gradients, the sizes of tensors, and no TF32."""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ssl_bench.objective import tiles
from ssl_bench.objective.bits import pack
from ssl_bench.objective.contrast import Bank, Contrast, Embedded
from ssl_bench.objective.losses import SINCERE, ReLIC, SupCon
from ssl_bench.objective.positives import NearestKey
from ssl_bench.objective.products import products, without_tf32
from ssl_bench.objective.similarity import Name
from tests.objective.test_losses import draw
from tests.objective.test_negatives import unit

V, B, C, D = 2, 7, 80, 40
PANEL = 250  # three anchors per panel, fewer in the last one of 14 or 7
FEW, MANY = 2, 5  # chosen keys per anchor: few enough at C to be read one by one, and too many for that
IDS = torch.arange(B) * 3  # of the anchors' images; keys show these images too, some twice, and other images
KEY_IDS = torch.arange(C) % 25
PER_VIEW = pytest.mark.parametrize("shared", [True, False], ids=["shared", "per_view"])


def places(n: int) -> Tensor:
    """[V, B, n] different candidates of each anchor, none of them of the anchor's image."""
    allowed = torch.rand(V, B, C, generator=torch.Generator().manual_seed(6)).masked_fill(IDS[:, None] == KEY_IDS, -1)
    return allowed.topk(n).indices.int()


def left_out(n: int) -> Tensor:
    """[V, B, C] booleans: all candidates but 70, those of the anchor's image and ``places(n)`` among the others."""
    order = torch.rand(V, B, C, generator=torch.Generator().manual_seed(7))
    order = order.masked_fill(IDS[:, None] == KEY_IDS, 2).scatter(-1, places(n).long(), 2)
    return torch.ones(V, B, C, dtype=torch.bool).scatter_(-1, order.topk(70, largest=False).indices, False)


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

    def contrast(self, choice: str, tiled: bool, ids: bool = True, similarity: Name = "cosine") -> Contrast:
        """The contrast with a choice of the candidates; ``ids``: candidates of the anchor's image are excluded."""
        bank = Bank(self.keys, KEY_IDS if ids else None, labels=KEY_IDS % 4)
        given = Embedded(self.q, self.p, self.q, IDS, labels=IDS % 4)
        return CHOICES[choice](Contrast.of(given, bank, tiled, similarity))

    def with_gradients(self, value: Tensor, *more: Tensor) -> list[Tensor]:
        """A value with its gradients."""
        inputs = [x for x in (*self, *more) if x.requires_grad]
        total = (draw(V, B, seed=5) * value).sum()
        return [value, *torch.autograd.grad(total, inputs, retain_graph=True, materialize_grads=True)]


def leaves(shared: bool = True, per_anchor: bool = True, trained_keys: bool = True) -> Leaves:
    tau = draw(V, B, seed=4).exp() / 4 if per_anchor else torch.tensor(0.2, dtype=torch.float64)
    keys = unit(C, D, seed=2) if shared else unit(V, C, D, seed=2)
    q, p = unit(V, B, D), unit(V, B, D, seed=1)
    return Leaves(q.requires_grad_(), p.requires_grad_(), keys.requires_grad_(trained_keys), tau.requires_grad_())


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert float((one - other).detach().abs().max()) <= 1e-12 * float(other.detach().abs().max())


@pytest.fixture(autouse=True)
def several_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "COSINES_PER_PANEL", PANEL)
    monkeypatch.setattr(tiles, "FEWEST_ANCHORS", 1)


@pytest.mark.parametrize("choice", CHOICES)
@PER_VIEW
@pytest.mark.parametrize("ids", [True, False], ids=["ids", "no_ids"])
@pytest.mark.parametrize("per_anchor", [True, False], ids=["taus", "tau"])
@pytest.mark.parametrize("trained_keys", [True, False], ids=["keys", "queue"])
def test_panels_equal_the_matrix(choice: str, shared: bool, ids: bool, per_anchor: bool, trained_keys: bool) -> None:
    """The log-odds, also at a second temperature in the same pass, and a sum, with their gradients."""
    x = leaves(shared, per_anchor, trained_keys)
    bias = torch.tensor(-1.5, dtype=torch.float64, requires_grad=True)

    def found(tiled: bool, together: bool = True) -> list[Tensor]:
        contrast = x.contrast(choice, tiled, ids)
        phi = lambda s, tau, bias, mirror: (s / tau + bias).sigmoid() * mirror.square()  # noqa: E731
        both = contrast.log_odds_at(x.tau, 10 * x.tau) if together else map(contrast.log_odds, (x.tau, 10 * x.tau))
        total = contrast.sum(phi, x.tau, bias, contrast.mirror)
        one_by_one = [x.with_gradients(value) for value in both]
        return [*one_by_one[0], *one_by_one[1], *x.with_gradients(total, bias)]

    expected = found(False, False)
    assert len(expected) == 3 * (4 + trained_keys) + 1
    assert_same(found(False), expected)
    assert_same(found(True), expected)


@pytest.mark.parametrize("loss", [ReLIC(2.0), ReLIC(2.0, detach_target=True, own_view=True), SupCon(), SINCERE()])
@PER_VIEW
@pytest.mark.parametrize("per_anchor", [True, False], ids=["taus", "tau"])
@pytest.mark.parametrize("trained_positives", [True, False], ids=["positives", "nearest"])
def test_losses_of_whole_rows_are_the_same_in_panels(
    loss: Any, shared: bool, per_anchor: bool, trained_positives: bool
) -> None:
    """Keys have a gradient through the cosines of positives that have none themselves, such as the nearest keys."""
    x = leaves(shared, per_anchor)
    x = x if trained_positives else x._replace(p=x.p.detach())
    assert_same(*(x.with_gradients(loss(x.contrast("all", tiled), x.tau)) for tiled in (True, False)))


MAPS: dict[Name, Callable[[Tensor], Tensor]] = {
    "arctanh": lambda s: ((1 + s) / (1 - s)).log() / 2,
    "student": lambda s: -(1 + (2 - 2 * s)).log(),
}


@pytest.mark.parametrize("similarity", MAPS)
@pytest.mark.parametrize("choice", ["all", "few"])
@pytest.mark.parametrize("tiled", [False, True])
def test_a_similarity_takes_the_place_of_the_cosine(similarity: Name, choice: str, tiled: bool) -> None:
    """In positives, log-odds at two temperatures and sums, with their gradients; ``cosine`` stays what it is."""
    x = leaves()
    cosine, neg = (x.q * x.p).sum(-1), x.q @ x.keys.T
    contrast = x.contrast(choice, tiled, similarity=similarity)
    assert_same([contrast.cosine], [cosine])
    chosen, valid = (neg, IDS[:, None] != KEY_IDS) if choice == "all" else (neg.gather(-1, places(FEW).long()), None)
    naive = Contrast.dense(MAPS[similarity](cosine), MAPS[similarity](chosen), valid)
    values = ((*c.log_odds_at(x.tau, 2 * x.tau), c.lse(3 * x.tau), c.sum(torch.square)) for c in (contrast, naive))
    for found, expected in zip(*values, strict=True):
        assert_same(x.with_gradients(found), x.with_gradients(expected))


@pytest.mark.parametrize("choice", CHOICES)
def test_lse_is_a_sum_over_the_negatives(choice: str) -> None:
    """Both forms, and the sum of the exponentials, against a loop."""
    x = Leaves(*(t.detach() for t in leaves(shared=False)))
    for tiled in (False, True):
        contrast = x.contrast(choice, tiled)
        found, total = contrast.lse(x.tau), contrast.sum(lambda s, tau: (s / tau).exp(), x.tau)
        for v, b in itertools.product(range(V), range(B)):
            kept = [c for c in range(C) if KEY_IDS[c] != IDS[b]]
            if choice == "excluded":
                kept = [c for c in kept if not left_out(4)[v, b, c]]
            elif choice != "all":
                kept = places(FEW if choice == "few" else MANY)[v, b].tolist()
            terms = [math.exp(float(x.q[v, b] @ x.keys[v, c]) / float(x.tau[v, b])) for c in kept]
            assert float(found[v, b]) == pytest.approx(math.log(sum(terms)), rel=1e-12)
            assert float(total[v, b]) == pytest.approx(sum(terms), rel=1e-12)


TABLE = (256, 8)  # the penalties of a byte of booleans, for any number of candidates


class Largest(TorchDispatchMode):
    """Number of elements of the largest tensor that an operation returns, apart from those of the shape ``TABLE``."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        made = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor) and leaf.shape != TABLE]
        self.elements = max([self.elements, *made])
        return out


@pytest.mark.parametrize("choice", CHOICES)
@PER_VIEW
def test_panels_never_store_the_matrix(choice: str, shared: bool) -> None:
    width = 3
    x = leaves(shared, per_anchor=False)
    x = x._replace(**{name: getattr(x, name)[..., :width].detach().requires_grad_() for name in ("q", "p", "keys")})
    bound = max(PANEL, V * C * width, V * B * (MANY + 4))  # the sizes of a panel, the keys and the chosen keys
    for tiled in (False, True):
        contrast = x.contrast(choice, tiled)
        with Largest() as largest:
            first, _ = contrast.log_odds_at(x.tau, 2 * x.tau)
            x.with_gradients(first + contrast.sum(lambda s, tau: (s / tau).sigmoid(), x.tau))
        never = tiled or choice == "excluded"
        assert largest.elements <= bound < V * B * C if never else largest.elements >= V * B * C
    queue, p = NearestKey(C, width, 0).double(), unit(V, B, width, seed=1)
    with Largest() as largest:
        found = queue.choose(Embedded(p, p, p, IDS)).p
    assert torch.equal(found, queue.queue.keys[(p @ queue.queue.keys.T).argmax(-1)]) and largest.elements <= bound


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_extreme_cosines_stay_finite_in_single_precision(choice: str, sign: float) -> None:
    """|cosine| = 1 at tau = 0.01: exp(100), which overflows in float32."""
    vector = unit(1, D).float()
    q, p, keys = (x.clone().requires_grad_() for x in (*2 * [vector.expand(V, B, D)], (sign * vector).expand(C, D)))
    x = Leaves(q, p, keys, torch.tensor(0.01, requires_grad=True))
    contrast = x.contrast(choice, True)
    found = contrast.lse(x.tau)
    torch.testing.assert_close(found, sign * 100 + contrast.count.log().expand(V, B), rtol=1e-5, atol=0)
    assert all(gradient.isfinite().all() for gradient in x.with_gradients(contrast.log_odds(x.tau).double())[1:])


# ---- cosines are never computed in TF32, forward or backward, whatever a run allows for its networks

Allow = Callable[[bool], None]


class Switches(TorchDispatchMode):
    """Record for each matrix product whether TF32 is allowed at that moment."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__.strip("_") in ("mm", "bmm", "addmm", "baddbmm", "mv", "dot"):
            self.seen.append(torch.backends.cuda.matmul.allow_tf32)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("choice", CHOICES)
@PER_VIEW
@pytest.mark.parametrize("tiled", [False, True])
def test_no_cosine_of_the_objective_is_in_tf32(choice: str, shared: bool, tiled: bool, tf32: Allow) -> None:
    tf32(True)
    x = leaves(shared)
    with Switches() as switches:
        x.contrast(choice, tiled).log_odds_at(x.tau, 2 * x.tau)[0].sum().backward()  # type: ignore[no-untyped-call]
    # At the least the cosines and the gradients of both factors; that of keys that are read one by one is no product.
    assert len(switches.seen) >= 3 - (choice == "few" and tiled) and not any(switches.seen)
    assert torch.backends.cuda.matmul.allow_tf32 and torch.get_float32_matmul_precision() == "high"


def test_a_constant_factor_costs_no_product_and_the_switch_returns_after_an_error(tf32: Allow) -> None:
    for allowed in (True, False):
        tf32(allowed)
        with Switches() as switches:
            products(leaves().q, unit(C, D)).sum().backward()  # type: ignore[no-untyped-call]
        assert len(switches.seen) == 2
        with pytest.raises(ZeroDivisionError), without_tf32():
            raise ZeroDivisionError
        assert torch.backends.cuda.matmul.allow_tf32 == allowed
