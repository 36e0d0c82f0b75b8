"""``PairLoss`` and ``chunked`` on two ranks, trained by DistributedDataParallel, against one process."""

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
from tests.ranks import on_two_ranks

IMAGES, WIDTH, STEPS = 8, 5, 3

CASES: dict[str, dict[str, Any]] = {
    # tests/test_invariances.py has every loss and all negatives
    **{name: {"loss": name, "temperature": "macl_a"} for name in ("dclw", "supcon")},
    "queue": {"loss": "eqco", "negatives": "queue", "k": 40},
    "memory_bank": {"loss": "dclw", "negatives": "memory_bank", "instances": 100, "k": 7},
    "learned": {"loss": "infonce", "temperature": "learned"},
    "one direction": {"loss": "dclw", "symmetric": False},
    "tiled": {"loss": "macl", "cosines": "tiled"},
    "nearest": {"loss": "infonce", "positives": {"name": "nearest", "k": 20}},
}


class Model(nn.Module):
    """A linear network and a loss, which may have a parameter."""

    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network, self.loss = nn.Linear(WIDTH, 4), PairLoss(**given)
        self.double()

    def forward(self, views: list[Tensor], ids: Tensor, progress: float) -> Tensor:
        labels = ids % 4 - 1 if "labels" in self.loss.loss.needs else None
        value: Tensor = self.loss([self.network(x) for x in views], ids=ids, progress=progress, labels=labels)
        return value


def share(images: int) -> slice:
    """Rows of this rank."""
    return slice(rank() * images // world(), (rank() + 1) * images // world())


def wrapped(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model) if world() > 1 else model


def trained(given: dict[str, Any], views: int = 2) -> Tensor:
    """All weights after some steps, with the default settings of DistributedDataParallel."""
    model = Model(given)
    parallel, optimizer = wrapped(model), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        x, ids = vectors(views, IMAGES, WIDTH, seed=step), torch.randperm(2 * IMAGES, generator=generator)[:IMAGES]
        optimizer.zero_grad()
        parallel([*x[:, share(IMAGES)]], ids[share(IMAGES)], step / STEPS).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def in_chunks() -> Tensor:
    """The gradient by :func:`chunked`, on top of one that was there."""
    torch.manual_seed(0)
    network = nn.Linear(WIDTH, 4).double()
    x = vectors(2, IMAGES, WIDTH)[:, share(IMAGES)]
    for _ in range(2):
        chunked(wrapped(network), PairLoss("dclw", 0.3), [*x], chunk=len(x[0]) // 2)
    return torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None])


def everything(_: int | None = None) -> dict[str, Tensor]:
    found = {name: trained(given) for name, given in CASES.items()}
    own = {"own images": trained({"loss": "dcl", "gather": False})}
    return found | own | {"four views": trained({"loss": "dcl"}, 4), "chunked": in_chunks()}


def own_images(_: int) -> tuple[Tensor, Tensor, str]:
    """Value without gathering, gradient of this rank, and the refusal of unequal batches."""
    z = vectors()[:, share(6)].requires_grad_()
    value = PairLoss("dclw", 0.3, gather=False)(*z)
    value.backward()
    assert z.grad is not None
    try:
        PairLoss("dcl")(*vectors(images=3 + rank()))
    except ConfigError as refusal:
        return value.detach(), z.grad, str(refusal)
    return value.detach(), z.grad, ""


@pytest.mark.slow
def test_two_ranks_train_as_one() -> None:
    alone = everything()
    for found in on_two_ranks(everything):
        apart = {name: float((found[name] - alone[name]).norm() / alone[name].norm()) for name in alone}
        assert apart.pop("own images") > 1e-3  # so the comparison detects negatives that are not gathered
        print(f"{len(apart)} cases, largest relative difference {max(apart.values()):.1e}")
        assert max(apart.values()) < 1e-12, apart


@pytest.mark.slow
def test_own_images_only_and_unequal_batches() -> None:
    z = vectors()
    for r, (value, gradient, refusal) in enumerate(on_two_ranks(own_images)):
        own = z[:, 3 * r : 3 * r + 3].clone().requires_grad_()
        expected = PairLoss("dclw", 0.3)(*own)
        expected.backward()
        assert torch.equal(value, expected.detach())
        assert torch.equal(gradient, own.grad)  # type: ignore[arg-type]
        sizes = "the same on all ranks: the smallest is 3, the largest 4 (drop_last=true of the loader)"
        assert refusal == f"batch size={3 + r}: set batch size to {sizes}"
