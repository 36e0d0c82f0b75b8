"""Cosines are never computed in TF32, forward or backward, whatever a run allows for its networks."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import normalize
from torch.torch_version import TorchVersion
from torch.utils._python_dispatch import TorchDispatchMode

from ssl_bench.objective import candidates, tiles
from ssl_bench.objective.bits import pack
from ssl_bench.objective.candidates import Candidates, Excluded, Picks, Pool
from ssl_bench.objective.products import products, without_tf32

V, B, C, D = 2, 5, 7, 8
TAU = torch.tensor(0.2)
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


def unit(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(math.prod(shape))
    return normalize(torch.randn(*shape, generator=generator), dim=-1).requires_grad_()


def index(seed: int, n: int) -> Tensor:
    drawn = torch.rand(V, B, C, generator=torch.Generator().manual_seed(seed)).argsort(-1)
    return drawn[..., :n]


def excluded() -> Excluded:
    """All candidates but two of each anchor."""
    kept = torch.ones(V, B, C, dtype=torch.bool).scatter_(-1, index(1, 2), False)
    return Excluded(pack(kept), 2)


Computation = Callable[[Tensor, Tensor], Candidates]
IDS = torch.arange(B), torch.arange(C)
COMPUTATIONS: dict[str, Computation] = {
    "pool": lambda q, keys: Pool(q, keys, IDS, tiled=False),
    "tiled pool": lambda q, keys: Pool(q, keys, IDS, tiled=True),
    "excluded": lambda q, keys: Pool(q, keys, None, excluded(), tiled=False),
    "tiled excluded": lambda q, keys: Pool(q, keys, None, excluded(), tiled=True),
    "picks": lambda q, keys: Picks(q, keys, index(2, 3), tiled=False),
    "tiled picks": lambda q, keys: Picks(q, keys, index(2, 3), tiled=True),
}


@pytest.mark.parametrize("name", COMPUTATIONS)
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "each"])
@pytest.mark.parametrize("read", [0, 10**6], ids=["read", "matrix"])  # how few candidates picks are read one by one
def test_no_cosine_of_the_objective_is_in_tf32(
    name: str, shared: bool, read: int, tf32: Allow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "READ", read)
    tf32(True)
    q, keys = unit(V, B, D), unit(C, D) if shared else unit(V, C, D)
    with Switches() as switches:
        COMPUTATIONS[name](q, keys).lse(TAU, 2 * TAU)[0].sum().backward()
    # At the least the cosines and the gradients of both factors; that of keys that are read one by one is no product.
    assert len(switches.seen) >= 3 - (name == "tiled picks" and read == 0) and not any(switches.seen)
    assert torch.backends.cuda.matmul.allow_tf32 and torch.get_float32_matmul_precision() == "high"


@pytest.mark.parametrize("shapes", [((V, B, D), (C, D)), ((V, B, D), (V, C, D)), ((B, D), (C, D)), ((0, D), (C, D))])
def test_products_are_those_of_torch(shapes: tuple[Any, Any]) -> None:
    a, b = (unit(*shape) for shape in shapes)
    found, expected = products(a, b), a @ b.mT
    assert torch.equal(found, expected)
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(3))
    for ours, theirs in zip(
        torch.autograd.grad(found, (a, b), weight), torch.autograd.grad(expected, (a, b), weight), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_a_constant_factor_costs_no_product(tf32: Allow) -> None:
    with Switches() as seen:
        products(unit(V, B, D), unit(C, D).detach()).sum().backward()
    assert len(seen.seen) == 2


@pytest.mark.parametrize("allowed", [True, False])
def test_the_switch_returns_to_what_it_was_even_after_an_error(allowed: bool, tf32: Allow) -> None:
    tf32(allowed)
    with pytest.raises(RuntimeError):
        products(unit(2, 3), unit(2, 4))
    with pytest.raises(ZeroDivisionError), without_tf32():
        raise ZeroDivisionError
    assert torch.backends.cuda.matmul.allow_tf32 == allowed


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # of torch itself
def test_compiled_products_run_without_tf32_too(tf32: Allow) -> None:
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    ran: list[tuple[bool, bool]] = []  # of each compiled graph when it runs: has it products, is TF32 allowed

    def record(graph: Any, inputs: Any) -> Any:
        has_products = any("mm" in str(node.target) for node in graph.graph.nodes)

        def run(*arguments: Any) -> Any:
            ran.append((has_products, torch.backends.cuda.matmul.allow_tf32))
            return graph.forward(*arguments)

        return make_boxed_func(run)

    def loss(q: Tensor, keys: Tensor) -> Tensor:
        return products(q * 2, keys * 3).logsumexp(-1).sum()

    tf32(True)
    q, keys = unit(B, D), unit(C, D)
    expected = torch.autograd.grad(loss(q, keys), (q, keys))
    try:
        found = torch.autograd.grad(
            torch.compile(loss, backend=aot_autograd(fw_compiler=record), fullgraph=True)(q, keys), (q, keys)
        )
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert (True, True) not in ran and (False, True) in ran
    finally:
        torch._dynamo.reset()


OLD = pytest.mark.skipif(TorchVersion(torch.__version__) < "2.15", reason="fake tensors of this torch ask for a driver")


@pytest.mark.parametrize(("device", "tiled"), [("cpu", True), pytest.param("cuda", False, marks=OLD)])
def test_a_gpu_stores_more_cosines_at_once(device: str, tiled: bool) -> None:
    """2^22 of them."""
    with FakeTensorMode():
        q, keys = torch.empty(2, 32, 4, device=device), torch.empty(65536, 4, device=device)
        assert candidates._is_tiled(None, q, keys) == tiled
