"""NPID, NPID + CLD, MoCo + CLD and k-means against plain loops in double precision."""

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
from ssl_bench.methods.contrastive import Contrastive, ForUpdate
from ssl_bench.methods.kmeans import kmeans
from ssl_bench.methods.npid import NPID
from ssl_bench.networks.heads import MLP
from ssl_bench.objective.contrast import Contrast
from ssl_bench.objective.losses import DCL, NCE, InfoNCE
from ssl_bench.objective.memory import Memory
from ssl_bench.objective.negatives import MemoryBank, Queue
from ssl_bench.objective.temperature import Fixed, Learned

IMAGES, INSTANCES, DIM = 8, 30, 5
NPID_: dict[str, Any] = {"instances": INSTANCES, "memory_momentum": 0.5, "seed": 0, "norm": "sync"}
CLD: dict[str, Any] = {"clusters": 3, "cld_tau": 0.2, "weight": 0.7, "iterations": 5}


class Backbone(nn.Sequential):
    num_features = 12


def parts() -> dict[str, Any]:
    torch.manual_seed(0)
    backbone = Backbone(nn.Flatten(), nn.Linear(9, 12), nn.BatchNorm1d(12), nn.Tanh())
    return {"backbone": backbone, "head": MLP(12, 1, None, DIM, norm=False, final_norm="none")}


def npid(noise: int = 0, make: Any = NPID, **settings: Any) -> Any:
    """With the softmax over all images, or with NCE."""
    bank, loss = MemoryBank(noise or None, 0.5, DIM, INSTANCES, 0), NCE(INSTANCES) if noise else InfoNCE()
    return Contrastive(make(**parts(), **NPID_, **settings), bank, Fixed(0.1), loss, views=make.views).double()


def npid_cld(noise: int = 0) -> Any:
    return npid(noise, NPIDCLD, **CLD)


def moco_cld(k: int = 11, loss: Any = None, temperature: Any = None, **settings: Any) -> Any:
    framework = MoCoCLD(**parts(), momentum=0.9, norm="sync", **CLD | settings)
    made = Contrastive(framework, Queue(k, DIM, 0), temperature or Fixed(0.1), loss or InfoNCE(), views=3)
    return made.double()


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
    loss, found = method._of_term(term, batch, 0.0, True, ForUpdate({}, {}))
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
        method.update(method(batch, 0.0).for_update, 0.0)
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


@pytest.mark.parametrize("make", [npid_cld, moco_cld])
def test_cld_finds_the_cluster_of_the_other_view(make: Callable[..., Any]) -> None:
    method = make()
    (batch,) = batches(1)
    outputs = outputs_of(method, batch)
    loss, found, _ = method.objective(outputs, batch, 0.0, True)
    instance, _ = instance_term(method, outputs, batch)
    if make is moco_cld:
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


def test_without_a_temperature_of_its_own_the_group_term_has_that_of_the_option() -> None:
    method = moco_cld(5, DCL(), Learned(0.3, 0.01), cld_tau=None)
    (batch,) = batches(1)
    loss, found, _ = method(batch, 0.0, True)
    loss.backward()
    assert float(found["cld/tau"]) == pytest.approx(0.3) and method.temperature.theta.grad is not None


def test_the_key_of_moco_is_that_of_the_third_view_and_enters_the_queue_once() -> None:
    method = moco_cld()
    (batch,) = batches(1)
    target = method.framework.target
    expected = normalize(target(batch.views[2])["projection"], dim=-1)
    loss, _, for_update = method(batch, 0.0)
    loss.backward()
    assert all(p.grad is None for p in target.parameters())
    method.update(for_update, 0.0)
    torch.testing.assert_close(method.negatives.keys[:IMAGES], expected)
    assert int(method.negatives.place) == IMAGES


def test_no_gradient_reaches_the_memory_and_both_views_enter_it() -> None:
    method, expected = npid_cld(), Memory(INSTANCES, DIM, 0.5, 0).double()
    (batch,) = batches(1)
    f = normalize(outputs_of(method, batch)["z"], dim=-1)
    loss, _, for_update = method(batch, 0.0)
    loss.backward()
    memory = method.encoder.memory
    assert not memory.vectors.requires_grad and torch.equal(memory.vectors, expected.vectors)
    method.update(for_update, 0.0)
    expected.update(batch.ids, f)
    torch.testing.assert_close(memory.vectors, expected.vectors)
    assert torch.equal(memory.vectors, method.negatives.memory.vectors)  # the softmax is over what the memory holds


# ---- k-means


def points(n: int, dim: int = 3, seed: int = 0) -> Tensor:
    vectors = torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return normalize(vectors, dim=1)


def naive(x: list[list[float]], clusters: int, iterations: int) -> tuple[list[int], list[list[float]]]:
    means = [list(row) for row in x[:clusters]]
    labels: list[int] = []
    for _ in range(iterations):
        labels = []
        for row in x:
            distances = [sum((a - b) ** 2 for a, b in zip(row, mean, strict=True)) for mean in means]
            labels.append(distances.index(min(distances)))
        for c in range(clusters):
            members = [row for row, label in zip(x, labels, strict=True) if label == c]
            means[c] = [sum(row[d] for row in members) / max(1, len(members)) for d in range(len(x[0]))]
    return labels, means


@pytest.mark.parametrize(("clusters", "iterations"), [(1, 1), (4, 5), (20, 3)])
def test_labels_and_means_are_those_of_a_loop(clusters: int, iterations: int) -> None:
    x = points(20)
    labels, means = kmeans(x, clusters, iterations)
    expected_labels, expected = naive(x.tolist(), clusters, iterations)
    assert labels.tolist() == expected_labels
    torch.testing.assert_close(means, torch.tensor(expected, dtype=x.dtype), rtol=1e-13, atol=1e-14)
    if clusters < 10:
        assert float(means.norm(dim=1).min()) < 0.999  # means are not normalised


def test_a_cluster_without_points_is_at_the_origin() -> None:
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.8, 0.6]])  # of two equal means, the first takes the points near both
    labels, means = kmeans(x, 2, 1)
    assert labels.tolist() == [0, 0, 0] and means[1].tolist() == [0.0, 0.0]
    torch.testing.assert_close(means[0], x.mean(0))


def test_the_gradient_goes_through_the_last_means() -> None:
    assert torch.autograd.gradcheck(lambda x: kmeans(x, 4, 5)[1], points(12).requires_grad_())
