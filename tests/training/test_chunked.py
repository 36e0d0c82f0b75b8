"""A batch in chunks gives the gradient of the whole batch: with every loss, all negatives, other methods, on ranks."""

import contextlib
import copy
import functools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ssl_bench.config.build import build, has_argument
from ssl_bench.data.batch import Batch
from ssl_bench.methods.base import Method
from ssl_bench.methods.contrastive import Contrastive, MissingNeed
from ssl_bench.methods.exemplar import Exemplar
from ssl_bench.methods.siamese import Siamese
from ssl_bench.methods.vae import VAE
from ssl_bench.networks.heads import MLP
from ssl_bench.objective.losses import InfoNCE
from ssl_bench.objective.negatives import InBatch
from ssl_bench.objective.temperature import Fixed, MACLa
from ssl_bench.training import chunked
from tests.methods.test_contrastive import option, positives_of
from tests.methods.training import local_batches, options, select, train, train_in_chunks
from tests.ranks import on_two_ranks

IMAGES, SIZE = 8, 6
PROGRESS = [0.0, 1 / 3, 2 / 3]


def batches(steps: int = 3) -> list[Batch]:
    """This rank's share of each step's images, of which some are seen again."""
    seeded = torch.Generator().manual_seed(1)
    views = torch.rand(2, steps * IMAGES, 1, SIZE, SIZE, generator=seeded).double()
    views[1] += views[0]
    ids = torch.cat([torch.randperm(2 * IMAGES, generator=seeded)[:IMAGES] for _ in range(steps)])
    return local_batches(Batch([*views], ids, ids % 4 - 1), steps)


def test_both_passes_see_the_same_views_of_a_view_that_draws_from_the_global_generator() -> None:
    method, (batch, *_), seen = method_of("infonce", "in_batch", {}), batches(), list[Tensor]()

    def part(rows: slice) -> Batch:
        views = [view[rows] + torch.rand((), dtype=torch.float64) for view in batch.views]
        seen.append(torch.stack(views))
        return Batch(views, batch.ids[rows], batch.labels[rows])

    chunked.backward(method, part, IMAGES, 2, 0.0, False, contextlib.nullcontext, lambda loss: loss)
    first, second = seen[: IMAGES // 2], seen[IMAGES // 2 :]
    assert len(first) == len(second) == 4 and all(map(torch.equal, first, second))
    assert not torch.equal(first[0] - torch.stack(batch.views)[:, ::4], first[1] - torch.stack(batch.views)[:, 1::4])


# ---- with the objective of options


POOLS: list[tuple[str, dict[str, Any]]] = [
    ("in_batch", {}),
    ("cross_view", {}),
    ("own_view", {}),
    ("random_k", {"k": 3}),
    ("random_k", {"k": 9}),  # marks the candidates that are left out instead of listing the chosen ones
    ("random_k", {"k": 3, "views": "cross", "shared": True}),
    ("queue", {"k": 5}),
    ("queue", {"k": 40}),
    ("random_k", {"k": 2, "final": 11, "schedule": "linear"}),
    ("queue", {"k": 37, "final": 3, "schedule": "cosine"}),
    ("memory_bank", {"instances": 100}),
    ("memory_bank", {"instances": 100, "k": 7}),
    ("none", {}),
]


def method_of(loss: str, negatives: str, settings: dict[str, Any], positives: str = "", norm: bool = False) -> Any:
    """SimCLR with the temperature of MACL-a, in double precision; None if the parts do not fit."""
    torch.manual_seed(0)
    instances = {"instances": 100} if has_argument(option("loss", loss), "loss", "instances") else {}
    kind = option("positives", positives or positives_of(loss))
    nodes = {"loss": option("loss", loss) | instances, "negatives": option("negatives", negatives) | settings}
    objective, pool, chosen = (build(node, group) for group, node in (nodes | {"positives": kind}).items())
    norms = [nn.BatchNorm1d(12)] if norm else []
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(SIZE**2, 12), *norms, nn.Tanh())
    framework = Siamese(backbone, MLP(12, 2, None, 6, norm=norm, final_norm="scale" if norm else "none"))
    try:
        return Contrastive(framework, pool, MACLa(0.2, 2.0), objective, positives=chosen).double()
    except MissingNeed:
        return None


LOSSES = options("loss")


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("loss", LOSSES)
def test_chunks_give_the_weights_of_whole_batches(loss: str, every: bool) -> None:
    """With InfoNCE of all pools, with each other loss of two kinds, which go round; with ``every`` of all kinds."""
    kinds = [*{name: (name, settings) for name, settings in reversed(POOLS)}.values()]
    place = LOSSES.index(loss) % len(kinds)
    pools: Iterable[tuple[Any, ...]] = POOLS if loss == "infonce" else [*kinds[place:], *kinds[:place]]
    nearest = [(*pool, "nearest") for pool in POOLS[:1] if loss == "dcl"]
    made = [(pool, whole) for pool in [*nearest, *pools] if (whole := method_of(loss, *pool)) is not None]
    assert made
    for pool, whole in made if every or loss == "infonce" else made[:2]:
        in_chunks = method_of(loss, *pool)
        found = train_in_chunks(in_chunks, batches(), 2, PROGRESS)
        torch.testing.assert_close(found, train(whole, batches(), None, PROGRESS), rtol=1e-12, atol=1e-13)


def _chunked_on_a_rank(norm: bool, rank: int) -> Tensor:
    return train_in_chunks(method_of("dclw", "random_k", {"k": 3}, norm=norm), batches(), 2)


@pytest.mark.parametrize("norm", [False, True])
def test_chunks_on_two_ranks_give_the_weights_of_one_process(norm: bool) -> None:
    """Without batch statistics those of whole batches; with them, those of chunks of the same images."""
    method = method_of("dclw", "random_k", {"k": 3}, norm=norm)
    expected = train_in_chunks(method, batches(), 4) if norm else train(method, batches())
    for found in on_two_ranks(functools.partial(_chunked_on_a_rank, norm)):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


def test_chunks_move_running_statistics_once_and_repeat_dropout() -> None:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(SIZE**2, 12), nn.BatchNorm1d(12), nn.Dropout(0.5))
    framework = Siamese(backbone, MLP(12, 1, None, 6, final_norm="none"), momentum=0.9)
    method = Contrastive(framework, InBatch(), Fixed(0.2), InfoNCE()).double()
    (batch,) = batches(1)
    masks: list[Tensor] = []
    backbone[3].register_forward_hook(lambda module, inputs, output: masks.append(output.detach() != 0))
    linear, norm = backbone[1], backbone[2]
    once = copy.deepcopy(norm)
    for half in (select(batch, rows) for rows in (slice(0, None, 2), slice(1, None, 2))):
        once(linear(torch.cat(half.views).flatten(1)))
    part = functools.partial(select, batch)
    chunked.backward(method, part, IMAGES, 4, 0.0, False, contextlib.nullcontext, lambda loss: loss)
    torch.testing.assert_close(norm.running_mean, once.running_mean)
    torch.testing.assert_close(norm.running_var, once.running_var)
    assert torch.equal(masks[0], masks[2]) and torch.equal(masks[1], masks[3]) and not torch.equal(masks[0], masks[1])


# ---- methods with an objective of their own


def networks() -> tuple[nn.Module, MLP]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(SIZE**2, 7), nn.Tanh()), MLP(7, 1, None, 6, False, "none")


MAKERS: dict[str, Callable[[], Method]] = {
    "exemplar": lambda: Exemplar(*networks(), 2 * IMAGES, "sync"),
    "vae": lambda: VAE(*networks(), 2, 1, SIZE, (0.0,), (1.0,), 1.0, "once", 0),
}


@pytest.mark.parametrize("name", MAKERS)
def test_chunks_of_a_method_with_its_own_objective(name: str) -> None:
    """These networks have no batch statistics; the decoder of the VAE sees the whole batch."""
    found, expected = (
        run(MAKERS[name]().double(), batches(1)) for run in (functools.partial(train_in_chunks, chunk=2), train)
    )
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)
