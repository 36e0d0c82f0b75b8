"""``ssl_bench.chunked`` against whole batches, and losses under DistributedDataParallel on two ranks."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ssl_bench.api.chunked import chunked
from ssl_bench.api.pair_loss import PairLoss
from ssl_bench.distributed import rank, world
from ssl_bench.errors import ConfigError
from tests.api.cases import vectors
from tests.door.door import refused
from tests.ranks import on_two_ranks


def network(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), *layers, nn.Tanh(), nn.Linear(7, 4)).double()


def gradient(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_any_function_of_the_vectors_can_be_the_loss() -> None:
    """Three views, a scaled loss, and a gradient that was there before."""
    x = [*vectors(3)]
    whole, parts = network(), network()

    def loss(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return (a @ b.T).logsumexp(1).mean() - (a * c).sum(1).mean()

    for _ in range(2):
        (8 * loss(*map(whole, x))).backward()
        chunked(parts, loss, x, 2, scale=lambda value: 8 * value)
    torch.testing.assert_close(gradient(parts), gradient(whole), rtol=1e-12, atol=1e-12)


def test_a_queue_takes_in_the_whole_batch_once_also_under_autocast() -> None:
    """The weights are cast with gradient, although the first pass has none."""
    losses = [PairLoss("dcl", negatives="queue", k=9) for _ in range(2)]
    for seed in range(3):
        x = [*vectors(seed=seed)]
        expected = losses[0](*map(network(), x))
        torch.testing.assert_close(chunked(network(), losses[1], x, 2), expected.detach(), rtol=1e-12, atol=0)
    for found, wanted in zip(losses[1].buffers(), losses[0].buffers(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    models = [network().float() for _ in range(2)]
    with torch.autocast("cpu", torch.bfloat16):
        chunked(models[0], PairLoss("infonce"), [*vectors().float()], 2)
        value = PairLoss("infonce")(*map(models[1], vectors().float()))
    value.backward()
    found, expected = map(gradient, models)
    assert (found - expected).norm() < 0.01 * expected.norm()  # bfloat16 has 8 bits


@pytest.mark.parametrize("chunk", [0, 4, 7])
def test_a_chunk_that_does_not_divide_the_batch_is_refused(chunk: int) -> None:
    with refused(f"chunk={chunk} 6"):
        chunked(network(), PairLoss("dcl"), [*vectors()], chunk)
    with refused("encoder=Sequential"):
        chunked(network().requires_grad_(False), PairLoss("dcl"), [*vectors()], 2)


# ---- two ranks; tests/test_invariances.py has every loss and all negatives

CASES: dict[str, dict[str, Any]] = {
    "queue": {"loss": "eqco", "negatives": "queue", "k": 40},
    "learned": {"loss": "infonce", "temperature": "learned"},
    "one direction": {"loss": "dclw", "symmetric": False, "cosines": "tiled"},
    "own images": {"loss": "dcl", "gather": False},
}


class Model(nn.Module):
    """A network and a loss, which may have a parameter."""

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__()
        self.network, self.loss = network(), PairLoss(**given).double()

    def forward(self, views: Tensor) -> Tensor:
        value: Tensor = self.loss([*self.network(views)])
        return value


def wrapped(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model) if world() > 1 else model


def trained(_: int | None = None) -> tuple[dict[str, Tensor], str]:
    """All weights after three steps, the gradient by ``chunked``, and the refusal of unequal batches."""
    found, mine = dict[str, Tensor](), slice(rank() * 8 // world(), (rank() + 1) * 8 // world())
    for name, given in CASES.items():
        model = Model(given)
        parallel, optimizer = wrapped(model), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for step in range(3):
            optimizer.zero_grad()
            parallel(vectors(2, 8, seed=step)[:, mine]).backward()
            optimizer.step()
        found[name] = torch.cat([p.detach().flatten() for p in model.parameters()])
    encoder = network()
    for _ in range(2):
        chunked(wrapped(encoder), PairLoss("dclw", 0.3), [*vectors(2, 8)[:, mine]], chunk=2)
    found["chunked"] = gradient(encoder)
    try:
        PairLoss("dcl")(*vectors(images=3 + rank()))
    except ConfigError as refusal:
        return found, str(refusal)
    return found, ""


@pytest.mark.slow
def test_two_ranks_train_as_one() -> None:
    alone, _ = trained()
    for number, (found, refusal) in enumerate(on_two_ranks(trained)):
        apart = {name: float((found[name] - alone[name]).norm() / alone[name].norm()) for name in alone}
        assert apart.pop("own images") > 1e-3  # so the comparison detects negatives that are not gathered
        assert max(apart.values()) < 1e-12, apart
        assert refusal.startswith(f"batch size={3 + number}: ") and " 3, " in refusal and " 4 " in refusal
