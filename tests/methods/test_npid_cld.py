"""NPID, NPID + CLD and MoCo + CLD against plain loops in double precision; two processes, chunks, resume, refusals."""

import contextlib
import functools
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ssl_bench.data.batch import Batch
from ssl_bench.distributed import average_gradients, parallel, rank, world
from ssl_bench.errors import ConfigError
from ssl_bench.methods.cld import NPIDCLD, CrossLevel, MoCoCLD
from ssl_bench.methods.kmeans import kmeans
from ssl_bench.methods.npid import NPID
from ssl_bench.networks.heads import MLP
from ssl_bench.networks.norm import group_statistics
from ssl_bench.objective.memory import Memory
from ssl_bench.training import chunked
from ssl_bench.training.parts import Parts
from tests.composed import load
from tests.conftest import SMALL, only_run
from tests.methods.training import select
from tests.ranks import on_two_ranks, train_on_two_ranks

IMAGES, INSTANCES, DIM = 8, 30, 5
NPID_: dict[str, Any] = {"instances": INSTANCES, "tau": 0.1, "memory_momentum": 0.5, "seed": 0, "norm": "sync"}
CLD: dict[str, Any] = {"clusters": 3, "cld_tau": 0.2, "weight": 0.7, "iterations": 5}


class Backbone(nn.Sequential):
    num_features = 12


def parts(norm: bool = True) -> dict[str, Any]:
    torch.manual_seed(0)
    norms = [nn.BatchNorm1d(12)] if norm else []
    backbone = Backbone(nn.Flatten(), nn.Linear(9, 12), *norms, nn.Tanh())
    return {"backbone": backbone, "head": MLP(12, 1, None, DIM, norm=False, final_norm="none")}


def npid(noise: int = 0, sharded: bool = False, norm: bool = True) -> Any:
    return NPID(**parts(norm), noise=noise, sharded=sharded, **NPID_).double()


def npid_cld(noise: int = 0, sharded: bool = False, norm: bool = True) -> Any:
    return NPIDCLD(**parts(norm), noise=noise, sharded=sharded, **NPID_, **CLD).double()


def moco_cld(k: int = 11, norm: bool = True) -> Any:
    return MoCoCLD(**parts(norm), momentum=0.9, k=k, tau=0.1, seed=0, norm="sync", **CLD).double()


METHODS: dict[str, Callable[..., Any]] = {
    "npid": npid,
    "npid noise": functools.partial(npid, noise=7),
    "npid_cld": npid_cld,
    "npid_cld noise": functools.partial(npid_cld, noise=7),
    "moco_cld": moco_cld,
    "moco_cld small queue": functools.partial(moco_cld, k=3),
}


def batches(steps: int) -> Iterator[Batch]:
    """This rank's share of each step's images, with three views: at least as many as any method takes."""
    generator = torch.Generator().manual_seed(3)
    share = IMAGES // world()
    rows = slice(rank() * share, (rank() + 1) * share)
    for _ in range(steps):
        views = torch.randn(3, IMAGES, 1, 3, 3, generator=generator, dtype=torch.float64)
        views[1:] += views[0]
        ids = torch.randperm(INSTANCES, generator=generator)[:IMAGES]
        yield Batch([*views[:, rows]], ids[rows], torch.full((share,), -1))


def trained(method: Any, steps: int = 6) -> dict[str, Tensor]:
    """The tensors of the state after some steps of SGD, and the losses of this rank."""
    group_statistics(method, 1)
    network = parallel(method, torch.device("cpu"))
    optimizer, losses = torch.optim.SGD(method.parameters(), 0.1, momentum=0.9), []
    for batch in batches(steps):
        optimizer.zero_grad()
        loss, _, kept = network(batch, 0.0, True)
        loss.backward()
        losses.append(loss.detach())
        optimizer.step()
        method.update(kept, 0.0)
    method.collect()
    state = {name: value for name, value in method.state_dict().items() if isinstance(value, Tensor)}
    return state | {"losses": torch.stack(losses)}


# ---- losses


def dot(a: Any, b: Any) -> float:
    return sum(float(x) * float(y) for x, y in zip(a, b, strict=True))


def outputs_of(method: Any, batch: Batch) -> dict[str, Tensor]:
    outputs = method.trained_outputs(batch) | method.momentum_outputs(batch)
    return {name: value.detach() for name, value in outputs.items()}


@pytest.mark.parametrize("make", [npid, npid_cld])
def test_npid_is_the_softmax_over_all_images(make: Callable[..., Any]) -> None:
    method = make()
    (batch,) = batches(1)
    outputs = outputs_of(method, batch)
    loss, found, _ = NPID.objective(method, outputs, batch, 0.0, True)
    vectors = method.get_submodule("encoder.memory").vectors
    each, positives = [], []
    for view in normalize(outputs["z"], dim=-1):
        for f, i in zip(view, batch.ids.tolist(), strict=True):
            logits = [dot(f, v) / 0.1 for v in vectors]
            each.append(math.log(sum(map(math.exp, logits))) - logits[i])
            positives.append(logits[i] * 0.1)
    assert len(each) == method.views * IMAGES
    assert float(loss) == pytest.approx(sum(each) / len(each), rel=1e-12)
    assert float(found["positive"]) == pytest.approx(sum(positives) / len(each), rel=1e-12)
    assert float(found["npc/mean"]) == pytest.approx(sum(1 - math.exp(-x) for x in each) / len(each), rel=1e-9)


@pytest.mark.parametrize("make", [npid, npid_cld])
def test_nce_separates_the_image_from_noise_with_the_z_of_the_first_batch(make: Callable[..., Any]) -> None:
    method, m = make(noise=7), 7
    z = 0.0
    for step, batch in enumerate(batches(3)):
        outputs = outputs_of(method, batch)
        loss, _, kept = NPID.objective(method, outputs, batch, 0.0, False)
        vectors, f = method.get_submodule("encoder.memory").vectors, normalize(outputs["z"], dim=-1).flatten(0, 1)
        drawn = method._drawn(len(f))
        ids = batch.ids.tolist() * method.views
        scores = [[math.exp(dot(f[r], vectors[j]) / 0.1) for j in [ids[r], *drawn[r].tolist()]] for r in range(len(f))]
        if step == 0:
            z = INSTANCES * sum(map(sum, scores)) / (len(f) * (m + 1))
        expected = 0.0
        for positive, *noise in scores:
            expected -= math.log(positive / z / (positive / z + m / INSTANCES))
            expected -= sum(math.log(m / INSTANCES / (p / z + m / INSTANCES)) for p in noise)
        assert float(loss) == pytest.approx(expected / len(f), rel=1e-12)
        method.update(kept, 0.0)
    assert math.exp(float(method.log_z)) == pytest.approx(z, rel=1e-12)


def test_noise_is_drawn_from_all_images_for_each_view_query_and_step() -> None:
    method = npid_cld(noise=200)
    first = method._drawn(2 * IMAGES)
    assert first.shape == (2 * IMAGES, 200) and set(first.flatten().tolist()) == set(range(INSTANCES))
    assert len({tuple(row) for row in first.tolist()}) == 2 * IMAGES
    assert torch.equal(first, method._drawn(2 * IMAGES))
    method.draws.step += 1
    assert not torch.equal(first, method._drawn(2 * IMAGES))


def cross_level(group: Tensor) -> float:
    """The term without its weight, by loops."""
    u, total = normalize(group, dim=-1), 0.0
    for v, w in ((0, 1), (1, 0)):
        labels, means = kmeans(u[w], CLD["clusters"], CLD["iterations"])
        for vector, label in zip(u[v], labels.tolist(), strict=True):
            logits = [dot(vector, mean) / CLD["cld_tau"] for mean in means]
            total += math.log(sum(map(math.exp, logits))) - logits[label]
    return total / (2 * u.shape[1])


@pytest.mark.parametrize("name", ["npid_cld", "moco_cld"])
def test_cld_finds_the_cluster_of_the_other_view(name: str) -> None:
    method = METHODS[name]()
    (batch,) = batches(1)
    outputs = outputs_of(method, batch)
    loss, found, _ = method.objective(outputs, batch, 0.0, True)
    if name == "npid_cld":
        instance = NPID.objective(method, outputs, batch, 0.0, False)[0]
    else:
        keys = [*method.queue.keys]
        q, key = normalize(outputs["z"], dim=-1), normalize(outputs["key"], dim=-1)[0]
        each = []
        for view in q:
            for query, positive in zip(view, key, strict=True):
                logits = [dot(query, k) / 0.1 for k in [positive, *keys]]
                each.append(math.log(sum(map(math.exp, logits))) - logits[0])
        instance = torch.tensor(sum(each) / len(each), dtype=torch.float64)
    expected = cross_level(outputs["group"])
    assert float(found["cld/loss"]) == pytest.approx(expected, rel=1e-12)
    assert float(loss) == pytest.approx(float(instance) + 0.7 * expected, rel=1e-9)
    assert 0 <= float(found["cld/top1"]) <= 1


def test_the_gradient_of_cld_is_its_slope() -> None:
    term = CrossLevel(12, DIM, 3, 0.2, 0.7, 5).double()
    generator = torch.Generator().manual_seed(1)
    group = torch.randn(2, IMAGES, DIM, generator=generator, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: term(x)[0], group)


def test_the_key_of_moco_is_that_of_the_third_view_and_enters_the_queue_once() -> None:
    method = moco_cld()
    (batch,) = batches(1)
    target = method.get_submodule("moco.target")
    expected = normalize(target(batch.views[2])["projection"], dim=-1)
    loss, _, kept = method(batch, 0.0)
    loss.backward()
    assert all(p.grad is None for p in target.parameters())
    method.update(kept, 0.0)
    torch.testing.assert_close(method.get_submodule("queue").keys[:IMAGES], expected)
    assert int(method.get_submodule("queue").place) == IMAGES


def test_no_gradient_reaches_the_memory_and_both_views_enter_it() -> None:
    method, expected = npid_cld(), Memory(INSTANCES, DIM, 0.5, 0).double()
    (batch,) = batches(1)
    f = normalize(outputs_of(method, batch)["z"], dim=-1)
    loss, _, kept = method(batch, 0.0)
    loss.backward()
    memory = method.get_submodule("encoder.memory")
    assert not memory.vectors.requires_grad and torch.equal(memory.vectors, expected.vectors)
    method.update(kept, 0.0)
    expected.update(batch.ids, f)
    torch.testing.assert_close(memory.vectors, expected.vectors)


# ---- ranks, chunks, resume


def _ranks(rank: int) -> dict[str, dict[str, Tensor]]:
    sharded = {name: functools.partial(make, sharded=True) for name, make in METHODS.items() if "moco" not in name}
    methods = METHODS | {f"{name} sharded": make for name, make in sharded.items()}
    return {name: trained(make()) for name, make in methods.items()}


@pytest.mark.slow
def test_two_ranks_have_the_losses_and_the_state_of_one() -> None:
    first, second = on_two_ranks(_ranks)
    alone = {name: trained(make()) for name, make in METHODS.items()}
    worst = 0.0
    for name, found in first.items():
        expected = alone[name.removesuffix(" sharded")]
        losses = (found.pop("losses") + second[name].pop("losses")) / 2
        torch.testing.assert_close(losses, expected["losses"], rtol=1e-12, atol=1e-13, msg=name)
        assert found.keys() == expected.keys() - {"losses"}
        for key, value in found.items():
            if value.is_floating_point() and value.numel():
                worst = max(worst, float((value - expected[key]).norm() / expected[key].norm().clamp(min=1e-3)))
            torch.testing.assert_close(value, expected[key], rtol=1e-11, atol=1e-12, msg=f"{name} {key}")
    print(f"{len(first)} methods, largest relative difference of a tensor {worst:.1e}")
    assert worst < 1e-12


@pytest.mark.parametrize("name", METHODS)
def test_chunks_give_the_gradient_of_the_batch(name: str) -> None:
    method, whole = (METHODS[name](norm=False) for _ in range(2))
    optimizer = torch.optim.SGD(method.parameters(), 0.1, momentum=0.9)
    for batch in batches(3):
        optimizer.zero_grad()
        part = functools.partial(select, batch)
        chunks = chunked.backward(method, part, IMAGES, 2, 0.0, True, contextlib.nullcontext, lambda loss: loss)
        average_gradients(method)
        optimizer.step()
        method.update(chunks.kept, 0.0)
    expected = trained(whole, 3)
    for key, value in method.state_dict().items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(value, expected[key], rtol=1e-11, atol=1e-12)


SHORT = ["dataset.size=12", "epochs=2", "checkpoint.every=1"]


def _back_to_the_first_epoch(outputs: Path) -> None:
    """Make a finished run look like one that was stopped after its first epoch."""
    folder = only_run(outputs)
    (folder / "checkpoints" / "previous.pt").rename(folder / "checkpoints" / "last.pt")
    (folder / "results.json").unlink()


@pytest.mark.slow
def test_one_rank_resumes_a_run_whose_memory_two_ranks_shared(train: Callable[..., Any]) -> None:
    run = ["framework=npid_cld", "framework.clusters=8", "framework.sharded=true", "batch_size=b128", *SHORT]
    run += ["precision=fp64"]
    assert train(*run, "paths.outputs=one")[0] == 0
    assert train_on_two_ranks(*SMALL, *run, "paths.outputs=two")[0] == 0
    one, two = Path("one"), Path("two")
    both = _state(two)
    _back_to_the_first_epoch(two)
    assert train(*run, "paths.outputs=two")[0] == 0
    expected, resumed = _state(one), _state(two)
    assert expected["encoder.memory.vectors"].shape == (1347, 16)
    for key in (k for k, v in expected.items() if isinstance(v, Tensor) and v.is_floating_point()):
        for found in (both, resumed):
            torch.testing.assert_close(found[key], expected[key], rtol=1e-9, atol=1e-11, msg=key)


def _state(outputs: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(only_run(outputs) / "checkpoints" / "last.pt", weights_only=True)["method"]
    return state


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["framework=npid_cld"], "framework.clusters=128: set framework.clusters to 64 or less, the images of a batch"),
        (
            ["framework=npid", "framework.noise=-1"],
            "framework.noise=-1: set framework.noise to a number of images up to 1048576, or to 0 for the softmax",
        ),
        (["framework=npid", "framework.sharded=no_way"], "set framework.sharded to true or false or auto"),
    ],
)
def test_invalid_values_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        Parts(load(overrides)).validate(1)
