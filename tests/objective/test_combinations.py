"""Everything with everything: the full product of the groups, two ranks against one, and chunks against the whole."""

import contextlib
import copy
import functools
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ssl_bench import distributed
from ssl_bench import parts as assemble
from ssl_bench.config.build import build
from ssl_bench.config.compose import directory, load
from ssl_bench.data.batch import Batch
from ssl_bench.distributed import average_gradients, parallel, rank, world
from ssl_bench.errors import ConfigError
from ssl_bench.methods.base import Contrastive, Method, MissingNeed
from ssl_bench.methods.siamese import Siamese
from ssl_bench.networks.heads import MLP
from ssl_bench.networks.norm import synchronise
from ssl_bench.objective.losses import align_uniform, dclw
from ssl_bench.objective.temperature import Fixed, MACLa
from ssl_bench.training import chunked
from tests.methods.training import some
from tests.ranks import on_two_ranks

IMAGES, SIZE = 8, 8


def options(group: str) -> list[str]:
    return sorted(path.stem for path in (directory() / group).glob("*.yaml"))


@functools.cache
def option(group: str, name: str) -> Any:
    """The node that an option makes, small where it has a size."""
    small = {"queue": ["negatives.k=24"], "random_k": ["negatives.k=3"], "memory_bank": ["negatives.k=9"]}.get(name, [])
    return load([f"{group}={name}", *small, "head.out=6", "epochs=3"])[group]


# ---- the product

ONE_WAY = {"trained": 215, "negatives": 66, "aligned": 12, "both_views": 132, "two_views": 36, "tau": 7}
BOTH_WAYS = {"trained": 373, "negatives": 66, "aligned": 12, "tau": 17}
EXPECTED = {
    "simclr": BOTH_WAYS,
    "relic": BOTH_WAYS,
    "byol": {"trained": 343, "negatives": 66, "aligned": 12, "two_views": 36, "tau": 11},
    "moco_v1": ONE_WAY,
    "moco_v2": ONE_WAY,
    "simo": ONE_WAY,
}

REFUSALS = {
    "negatives": "needs negatives: set negatives to an option other than none",
    "aligned": "loss=relic needs candidates aligned across views: set negatives=cross_view",
    "both_views": "needs keys of both views: set framework.symmetric=true, or negatives=cross_view",
    "two_views": "loss=swd needs two views of one network that are each other's positives: set framework=simclr",
    "tau": "temperature=learned needs a loss that depends on the temperature: set temperature=fixed",
    "own": " has no ",
}


@pytest.mark.parametrize("framework", options("framework"))
def test_the_product_trains_or_says_why_not(framework: str) -> None:
    """Every negatives x temperature x loss: three steps with gradients in every weight, or a sentence."""
    base = load([f"framework={framework}", "backbone.width=2", "head.out=6", "batch_size.size=8", "seed=1"])
    if base["head"]["hidden"] is not None:
        base["head"] |= {"layers": 2, "hidden": 8}
    if base["framework"].get("predictor"):
        base["framework"]["predictor"] = 8
    images = [torch.randn(2, IMAGES, 1, SIZE, SIZE, generator=torch.Generator().manual_seed(s)) for s in range(3)]
    counts: Counter[str] = Counter()
    for names in itertools.product(*(options(group) for group in assemble.OBJECTIVE)):
        chosen = dict(zip(assemble.OBJECTIVE, names, strict=True))
        config = base | {group: option(group, name) for group, name in chosen.items()}
        config["choices"] = base["choices"] | chosen
        torch.manual_seed(0)
        try:
            method = assemble.method(config)
        except ConfigError as error:
            (reason,) = (need for need, sentence in REFUSALS.items() if sentence in str(error))
            counts[reason] += 1
            continue
        counts["trained"] += 1
        optimizer = torch.optim.SGD(method.parameters(), 0.01)
        for step, views in enumerate(images):
            batch = Batch([*views], torch.arange(IMAGES), torch.arange(IMAGES))
            loss, _ = method(batch, step / 3)
            optimizer.zero_grad()
            loss.backward()
            assert loss.isfinite(), config["choices"]
            for name, p in method.named_parameters():
                if p.requires_grad:
                    assert p.grad is not None and p.grad.isfinite().all(), (config["choices"], name)
            assert any(p.grad.any() for p in method.parameters() if p.grad is not None), config["choices"]
            optimizer.step()
            method.after_step(step / 3)
    print(framework, dict(counts))
    everything = 6 * 6 * 13
    assert sum(counts.values()) == everything
    assert counts == EXPECTED.get(framework, {"own": everything})  # a method that has an objective of its own


# ---- two ranks against one

SEVERAL: list[tuple[str, dict[str, Any]]] = [
    ("in_batch", {}),
    ("cross_view", {}),
    ("random_k", {"k": 3}),
    ("random_k", {"k": 9}),  # names the rest
    ("random_k", {"k": 3, "views": "cross", "shared": True}),
    ("queue", {"k": 5}),
    ("queue", {"k": 40}),
    ("memory_bank", {"instances": 100}),
    ("memory_bank", {"instances": 100, "k": 7}),
    ("none", {}),
]


def encoder(norm: bool = True) -> Siamese:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(9, 12), *([nn.BatchNorm1d(12)] if norm else []), nn.Tanh())
    return Siamese(backbone, MLP(12, 2, None, 6, norm=norm, final_norm="scale" if norm else "none"))


def method_of(loss: str, negatives: str, settings: dict[str, Any], norm: bool = True) -> Contrastive | None:
    """On a small network with the temperature of MACL-a, in double precision; None where the parts do not fit."""
    parts = build(option("negatives", negatives) | settings, "negatives"), build(option("loss", loss), "loss")
    try:
        return Contrastive(encoder(norm), parts[0], MACLa(0.2, 2.0), parts[1]).double()
    except MissingNeed:
        return None


def batches(steps: int, images: int = IMAGES) -> Iterator[Batch]:
    """This rank's share of each step's images."""
    generator = torch.Generator().manual_seed(3)
    share = images // world()
    mine = slice(rank() * share, (rank() + 1) * share)
    for _ in range(steps):
        views = torch.randn(2, images, 1, 3, 3, generator=generator, dtype=torch.float64)
        views[1] += views[0]
        ids = torch.randperm(100, generator=generator)[:images]
        yield Batch([*views[:, mine]], ids[mine], torch.full((share,), -1))


def weights(method: Method) -> Tensor:
    return torch.cat([p.detach().flatten() for p in method.parameters()])


def trained(method: Contrastive, steps: int = 6) -> Tensor:
    """All weights after some steps of SGD."""
    if world() > 1:
        synchronise(method, torch.device("cpu"))
    network = parallel(method, torch.device("cpu"))
    optimizer = torch.optim.SGD(method.parameters(), 0.1, momentum=0.9)
    for batch in batches(steps):
        optimizer.zero_grad()
        network(batch, 0.0)[0].backward()
        optimizer.step()
        method.after_step(0.0)
    return weights(method)


def all_trained(combinations: list[tuple[str, str, dict[str, Any]]]) -> dict[str, Tensor]:
    made = {f"{loss} {n} {s}": method_of(loss, n, s) for loss, n, s in combinations}
    return {name: trained(method) for name, method in made.items() if method is not None}


EVERY = [(loss, *several) for loss in options("loss") for several in SEVERAL]
TELLING: list[tuple[str, str, dict[str, Any]]] = [
    ("infonce", "in_batch", {}),
    ("dclw", "cross_view", {}),
    ("align_uniform", "in_batch", {}),
]


def _every(rank: int) -> dict[str, Tensor]:
    return all_trained(EVERY)


def _telling(mutation: str, rank: int) -> dict[str, Tensor]:
    with MUTATIONS[mutation]():
        return all_trained(TELLING)


def errors(ranks: list[dict[str, Tensor]], alone: dict[str, Tensor]) -> dict[str, float]:
    return {
        name: max(float((found[name] - expected).norm() / expected.norm()) for found in ranks)
        for name, expected in alone.items()
    }


def test_two_ranks_train_as_one_with_every_loss_and_negatives() -> None:
    alone = all_trained(EVERY)
    found = errors(on_two_ranks(_every), alone)
    print(f"{len(found)} combinations, largest relative difference {max(found.values()):.1e}")
    assert len(found) == 116 and max(found.values()) < 1e-12, found


@contextlib.contextmanager
def _no_reduction() -> Iterator[None]:
    """gather's backward keeps this rank's slice without adding the other ranks'."""

    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0].narrow(ctx.dim, rank() * ctx.size, ctx.size), None

    distributed._Gather.backward = staticmethod(backward)  # type: ignore[method-assign, assignment]
    yield


@contextlib.contextmanager
def _detached() -> Iterator[None]:
    """Gathered keys are constants."""
    distributed._Gather.backward = staticmethod(lambda ctx, *grads: (None, None))  # type: ignore[method-assign, assignment]
    yield


@contextlib.contextmanager
def _local_mean() -> Iterator[None]:
    """The batch statistics inside a loss are this rank's own."""
    dclw.gather = align_uniform.gather = lambda x, dim=0: x  # type: ignore[attr-defined]
    yield


MUTATIONS = {"no reduction": _no_reduction, "detached": _detached, "local mean": _local_mean}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_comparison_notices(mutation: str) -> None:
    """What the test above is worth: with the gather broken in any of three ways, ranks disagree with one process."""
    found = errors(on_two_ranks(functools.partial(_telling, mutation)), all_trained(TELLING))
    print(mutation, found)
    touched = [name for name in found if mutation != "local mean" or "infonce" not in name]
    assert min(found[name] for name in touched) > 1e-4


# ---- chunks against the whole batch


def _chunked(method: Contrastive, chunk: int) -> Tensor:
    optimizer = torch.optim.SGD(method.parameters(), 0.1, momentum=0.9)
    for batch in batches(3):
        optimizer.zero_grad()
        part = functools.partial(some, batch)
        chunked.backward(method, part, len(batch.ids), chunk, 0.0, True, contextlib.nullcontext, lambda loss: loss)
        average_gradients(method)
        optimizer.step()
        method.after_step(0.0)
    return weights(method)


def _chunked_on_a_rank(norm: bool, rank: int) -> Tensor:
    method = method_of("dclw", "random_k", {"k": 3}, norm=norm)
    assert method is not None
    if norm:
        synchronise(method, torch.device("cpu"))
    return _chunked(method, 2)


@pytest.mark.parametrize("loss", options("loss"))
def test_chunks_give_the_gradient_of_the_batch(loss: str) -> None:
    for negatives, settings in SEVERAL:
        pair = [method_of(loss, negatives, settings, norm=False) for _ in range(2)]
        if pair[0] is not None and pair[1] is not None:
            torch.testing.assert_close(_chunked(pair[0], 2), trained(pair[1], 3), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("norm", [False, True])
def test_chunks_on_two_ranks_give_the_gradient_of_one(norm: bool) -> None:
    """Without batch statistics that of the whole batch; with them, that of chunks of the same images."""
    method = method_of("dclw", "random_k", {"k": 3}, norm=norm)
    assert method is not None
    expected = _chunked(method, 4) if norm else trained(method, 3)
    for found in on_two_ranks(functools.partial(_chunked_on_a_rank, norm)):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


def test_chunks_move_running_statistics_once_and_repeat_dropout() -> None:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(9, 12), nn.BatchNorm1d(12), nn.Dropout(0.5))
    framework = Siamese(backbone, MLP(12, 1, None, 6, final_norm="none"), momentum=0.9)
    parts = build(option("negatives", "in_batch"), "negatives"), build(option("loss", "infonce"), "loss")
    method = Contrastive(framework, parts[0], Fixed(0.2), parts[1]).double()
    (batch,) = batches(1)
    halves = [some(batch, rows) for rows in (slice(0, None, 2), slice(1, None, 2))]
    seen: list[Tensor] = []
    backbone[3].register_forward_hook(lambda *x: seen.append(x[2].detach() != 0))
    linear, norm = backbone[1], backbone[2]
    once = copy.deepcopy(norm)
    for half in halves:
        once(linear(torch.cat(half.views).flatten(1)))
    part = functools.partial(some, batch)
    chunked.backward(method, part, 8, 4, 0.0, False, contextlib.nullcontext, lambda loss: loss)
    torch.testing.assert_close(norm.running_mean, once.running_mean)
    torch.testing.assert_close(norm.running_var, once.running_var)
    assert torch.equal(seen[0], seen[2]) and torch.equal(seen[1], seen[3]) and not torch.equal(seen[0], seen[1])
