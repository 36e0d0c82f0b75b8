"""NPID, NPID + CLD and MoCo + CLD against plain loops in double precision; refusals."""

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ssl_bench.data.batch import Batch
from ssl_bench.methods.cld import NPIDCLD, MoCoCLD
from ssl_bench.methods.contrastive import Contrastive, Kept
from ssl_bench.methods.kmeans import kmeans
from ssl_bench.methods.npid import NPID
from ssl_bench.networks.heads import MLP
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.losses import BYOL, DCL, NCE, InfoNCE
from ssl_bench.objective.memory import Memory
from ssl_bench.objective.negatives import MemoryBank, Queue
from ssl_bench.objective.temperature import Fixed, Learned

IMAGES, INSTANCES, DIM = 8, 30, 5
NPID_: dict[str, Any] = {"instances": INSTANCES, "memory_momentum": 0.5, "seed": 0, "norm": "sync"}
CLD: dict[str, Any] = {"clusters": 3, "cld_tau": 0.2, "weight": 0.7, "iterations": 5}


class Backbone(nn.Sequential):
    num_features = 12


def parts(norm: bool = True) -> dict[str, Any]:
    torch.manual_seed(0)
    norms = [nn.BatchNorm1d(12)] if norm else []
    backbone = Backbone(nn.Flatten(), nn.Linear(9, 12), *norms, nn.Tanh())
    return {"backbone": backbone, "head": MLP(12, 1, None, DIM, norm=False, final_norm="none")}


def npid(noise: int = 0, norm: bool = True, make: Any = NPID, **settings: Any) -> Any:
    """With the softmax over all images, or with NCE."""
    bank, loss = MemoryBank(noise or None, 0.5, DIM, INSTANCES, 0), NCE(INSTANCES) if noise else InfoNCE()
    return Contrastive(make(**parts(norm), **NPID_, **settings), bank, Fixed(0.1), loss, views=make.views).double()


def npid_cld(noise: int = 0, norm: bool = True) -> Any:
    return npid(noise, norm, NPIDCLD, **CLD)


def moco_cld(k: int = 11, norm: bool = True) -> Any:
    framework = MoCoCLD(**parts(norm), momentum=0.9, norm="sync", **CLD)
    return Contrastive(framework, Queue(k, DIM, 0), Fixed(0.1), InfoNCE(), views=3).double()


METHODS: dict[str, Callable[..., Any]] = {
    "npid": npid,
    "npid noise": functools.partial(npid, noise=7),
    "npid_cld": npid_cld,
    "npid_cld noise": functools.partial(npid_cld, noise=7),
    "moco_cld": moco_cld,
    "moco_cld small queue": functools.partial(moco_cld, k=3),
}


def batches(steps: int) -> Iterator[Batch]:
    """Batches with three views: at least as many as any method takes."""
    generator = torch.Generator().manual_seed(3)
    for _ in range(steps):
        views = torch.randn(3, IMAGES, 1, 3, 3, generator=generator, dtype=torch.float64)
        views[1:] += views[0]
        yield Batch([*views], torch.randperm(INSTANCES, generator=generator)[:IMAGES], torch.full((IMAGES,), -1))


# ---- losses


def dot(a: Any, b: Any) -> float:
    return sum(float(x) * float(y) for x, y in zip(a, b, strict=True))


def outputs_of(method: Any, batch: Batch) -> dict[str, Tensor]:
    outputs = method.trained_outputs(batch) | method.momentum_outputs(batch)
    return {name: value.detach() for name, value in outputs.items()}


def instance_term(method: Any, outputs: dict[str, Tensor], batch: Batch) -> tuple[float, dict[str, Tensor]]:
    """The loss and the diagnostics of the first term."""
    term, *_ = method.framework.embed(outputs, batch.ids)
    loss, found = method._of_term(term, batch, 0.0, True, Kept({}, {}))
    return float(loss), found


@pytest.mark.parametrize("make", [npid, npid_cld])
def test_nce_separates_the_image_from_noise_with_the_z_of_the_first_batch(make: Callable[..., Any]) -> None:
    method, m = make(noise=7), 7
    z = 0.0
    for step, batch in enumerate(batches(3)):
        outputs = outputs_of(method, batch)
        loss, _ = instance_term(method, outputs, batch)
        vectors, f = method.encoder.memory.vectors, normalize(outputs["z"], dim=-1)
        term, *_ = method.framework.embed(outputs, batch.ids)
        contrast = Contrast.of(term.e, method.negatives.bank(term.e))
        pool = method.negatives.select(contrast, 0.0).candidates
        cosines, counts = pool.cosines(term.e.q)
        scores = []
        for v, b in itertools.product(range(len(f)), range(IMAGES)):
            own = math.exp(dot(f[v, b], vectors[batch.ids[b]]) / 0.1)
            drawn = cosines[v, b] if counts is None else cosines[v, b][counts[v, b]]
            assert len(drawn) == m
            scores.append([own, *(math.exp(float(s) / 0.1) for s in drawn)])
        if step == 0:
            z = INSTANCES * sum(map(sum, scores)) / (len(scores) * (m + 1))
        expected = 0.0
        for positive, *noise in scores:
            expected -= math.log(positive / z / (positive / z + m / INSTANCES))
            expected -= sum(math.log(m / INSTANCES / (p / z + m / INSTANCES)) for p in noise)
        assert loss == pytest.approx(expected / len(scores), rel=1e-12)
        method.update(method(batch, 0.0).kept, 0.0)
    assert math.exp(float(method.loss.log_z)) == pytest.approx(z, rel=1e-12)


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
    instance, _ = instance_term(method, outputs, batch)
    if name == "moco_cld":
        keys = [*method.negatives.keys]
        q, key = normalize(outputs["z"], dim=-1), normalize(outputs["key"], dim=-1)[0]
        each = []
        for view in q:
            for query, positive in zip(view, key, strict=True):
                logits = [dot(query, k) / 0.1 for k in [positive, *keys]]
                each.append(math.log(sum(map(math.exp, logits))) - logits[0])
        assert instance == pytest.approx(sum(each) / len(each), rel=1e-12)
    expected = cross_level(outputs["group"])
    assert float(found["cld/loss"]) == pytest.approx(expected, rel=1e-12)
    assert float(loss) == pytest.approx(instance + 0.7 * expected, rel=1e-9)
    assert {"cld/npc/mean", "cld/positive", "cld/query_grad/mean"} <= found.keys() and float(found["cld/tau"]) == 0.2


@pytest.mark.parametrize("loss", [InfoNCE(), DCL(), BYOL()])
def test_the_gradient_of_the_group_term_is_its_slope(loss: Any) -> None:
    framework = MoCoCLD(**parts(), momentum=0.9, norm="sync", **CLD)
    method: Any = Contrastive(framework, Queue(5, DIM, 0), Fixed(0.1), loss, views=3).double()
    generator = torch.Generator().manual_seed(1)
    group = torch.randn(2, IMAGES, DIM, generator=generator, dtype=torch.float64).requires_grad_()
    (batch,) = batches(1)

    def value(x: Tensor) -> Tensor:
        (term,) = method.framework.cld.terms({"group": x}, batch.ids)
        return method._of_term(term, batch, 0.0, False, Kept({}, {}))[0]

    assert torch.autograd.gradcheck(value, group)


def test_without_a_temperature_of_its_own_the_group_term_has_that_of_the_option() -> None:
    framework = MoCoCLD(**parts(), momentum=0.9, norm="sync", **CLD | {"cld_tau": None})
    method = Contrastive(framework, Queue(5, DIM, 0), Learned(0.3, 0.01), DCL(), views=3).double()
    (batch,) = batches(1)
    loss, found, _ = method(batch, 0.0, True)
    loss.backward()
    assert float(found["cld/tau"]) == pytest.approx(0.3) and method.temperature.theta.grad is not None


def test_without_weight_there_is_no_group_term() -> None:
    framework = MoCoCLD(**parts(), momentum=0.9, norm="sync", **CLD | {"weight": 0.0, "clusters": 1})
    method = Contrastive(framework, Queue(5, DIM, 0), Fixed(0.1), DCL(), views=3).double()
    (batch,) = batches(1)
    assert not any("cld" in name for name in {**method.state_dict(), **method(batch, 0.0, True).diagnostics})


def test_the_key_of_moco_is_that_of_the_third_view_and_enters_the_queue_once() -> None:
    method = moco_cld()
    (batch,) = batches(1)
    target = method.framework.target
    expected = normalize(target(batch.views[2])["projection"], dim=-1)
    loss, _, kept = method(batch, 0.0)
    loss.backward()
    assert all(p.grad is None for p in target.parameters())
    method.update(kept, 0.0)
    torch.testing.assert_close(method.negatives.keys[:IMAGES], expected)
    assert int(method.negatives.place) == IMAGES


def test_no_gradient_reaches_the_memory_and_both_views_enter_it() -> None:
    method, expected = npid_cld(), Memory(INSTANCES, DIM, 0.5, 0).double()
    (batch,) = batches(1)
    f = normalize(outputs_of(method, batch)["z"], dim=-1)
    loss, _, kept = method(batch, 0.0)
    loss.backward()
    memory = method.encoder.memory
    assert not memory.vectors.requires_grad and torch.equal(memory.vectors, expected.vectors)
    method.update(kept, 0.0)
    expected.update(batch.ids, f)
    torch.testing.assert_close(memory.vectors, expected.vectors)
    assert torch.equal(memory.vectors, method.negatives.memory.vectors)  # the softmax is over what the memory holds
