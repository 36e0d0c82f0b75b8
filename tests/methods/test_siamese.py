"""Anchors, positives and the momentum network of the Siamese framework, of MoCo v3 and its ViT; supervised training."""

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from ssl_bench.config.compose import load
from ssl_bench.data.batch import Batch
from ssl_bench.methods.siamese import Siamese
from ssl_bench.methods.supervised import Supervised
from ssl_bench.networks.heads import MLP
from ssl_bench.networks.norm import group_statistics
from ssl_bench.objective.contrast import Embedded
from ssl_bench.training import build
from tests.methods.training import select, train


class Flat(nn.Module):
    """A network without batch statistics, or with them."""

    num_features = 6

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(25, 6), *([nn.BatchNorm1d(6)] if norm else []), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


def siamese(bn: bool = True, **settings: Any) -> Siamese:
    torch.manual_seed(0)
    head = MLP(6, 2, None, 8) if bn else MLP(6, 2, 5, 8, norm=False, final_norm="none")
    return Siamese(Flat(bn), head, **settings).double()


def images(count: int = 6) -> Batch:
    """Two views, the second with other statistics."""
    generator = torch.Generator().manual_seed(1)
    views = [torch.randn(count, 1, 5, 5, generator=generator, dtype=torch.float64) * (1 + v) + v for v in range(2)]
    return Batch(views, torch.arange(count), torch.zeros(count))


def embedded(framework: Siamese, batch: Batch) -> Embedded:
    (term,) = framework.embed(framework.trained_outputs(batch) | framework.momentum_outputs(batch), batch.ids)
    return term.e


def moved(framework: Siamese) -> Siamese:
    """The framework after a change of the trained network's weights."""
    with torch.no_grad():
        for parameter in framework.encoder.parameters():
            parameter.add_(torch.randn(parameter.shape, dtype=parameter.dtype), alpha=0.3)
    return framework


BOTH = {"both_views", "two_views"}


@pytest.mark.parametrize(
    ("settings", "trained_positives", "gives"),
    [
        ({}, True, BOTH),
        ({"symmetric": False}, True, set()),
        ({"momentum": 0.9, "symmetric": False}, False, set()),  # MoCo: a query of the first view, a key of the second
        ({"momentum": 0.9}, False, {"both_views"}),
        ({"momentum": 0.9, "predictor": 7}, False, {"both_views"}),
        ({"predictor": 7}, True, {"both_views"}),
        ({"predictor": 7, "symmetric": False}, True, set()),
        ({"predictor": 7, "stop_gradient": True}, False, {"both_views"}),
    ],
)
def test_anchors_and_positives_are_those_of_the_views(
    settings: dict[str, Any], trained_positives: bool, gives: set[str]
) -> None:
    """The predictor is applied to anchors only; the positive of an anchor is the other view."""
    framework = moved(siamese(bn=False, **settings))
    e, views = embedded(framework, images()), images().views[:2]
    z = [framework.encoder(view)["projection"] for view in views]
    keys = z if framework.target is None else [framework.target(view)["projection"] for view in views]
    symmetric = settings.get("symmetric", True)
    raw = torch.cat(z if symmetric else z[:1])
    if framework.predictor is not None:
        raw = framework.predictor.layers(raw)
        kinds = [type(layer).__name__ for layer in framework.predictor.layers]
        assert kinds == ["Linear", "BatchNorm1d", "ReLU", "Linear"] and framework.predictor.layers[0].out_features == 7
    raw = raw.unflatten(0, (-1, 6))
    torch.testing.assert_close(e.raw, raw)
    torch.testing.assert_close(e.q, normalize(raw, dim=-1))
    torch.testing.assert_close(e.p, normalize(torch.stack([keys[1], keys[0]] if symmetric else [keys[1]]), dim=-1))
    assert e.p.requires_grad == trained_positives and framework.gives == gives
    (e.q * e.p).sum().backward()  # type: ignore[no-untyped-call]
    if framework.target is not None:
        assert all(p.grad is None and not p.requires_grad for p in framework.target.parameters())


def test_joint_batch_statistics_are_over_both_views() -> None:
    joint, separate = (embedded(siamese(views_forward=kind), images()).raw for kind in ("joint", "separate"))
    both = siamese().encoder(torch.cat(images().views[:2]))["projection"].unflatten(0, (2, 6))
    assert torch.equal(joint, both) and not torch.allclose(joint, separate, rtol=0.01)
    torch.testing.assert_close(separate, torch.stack([siamese().encoder(x)["projection"] for x in images().views]))


def test_vectors_are_never_normalised_in_half_precision() -> None:
    framework, z = siamese(momentum=0.9), torch.randn(2, 3, 8)
    e = framework.embed({"z": z.bfloat16(), "key": z.half()}, torch.arange(3))[0].e
    assert e.q.dtype == e.p.dtype == e.raw.dtype == torch.float32
    torch.testing.assert_close(e.q.norm(dim=-1), torch.ones(2, 3))


# ---- the momentum network


@pytest.mark.parametrize("momentum", [0.0, 0.9, 1.0])
def test_the_momentum_network_moves_towards_the_trained_one(momentum: float) -> None:
    """k <- m k + (1 - m) q (MoCo, eq. 2) for the parameters; buffers are not averaged."""
    framework = moved(siamese(momentum=momentum))
    assert framework.target is not None
    e = embedded(framework, images())  # both networks see a batch, so their batch statistics differ
    before, trained = copy.deepcopy(framework.target.state_dict()), framework.encoder.state_dict()
    for progress in (0.2, 0.9):
        framework.update(e, progress)
        parameters = dict(framework.target.named_parameters())
        for name, value in framework.target.state_dict().items():
            if name in parameters:
                torch.testing.assert_close(value, momentum * before[name] + (1 - momentum) * trained[name])
            else:
                assert torch.equal(value, before[name])
                assert "num_batches" in name or not torch.equal(value, trained[name])
        before = copy.deepcopy(framework.target.state_dict())


@pytest.mark.parametrize(("progress", "momentum"), [(0.0, 0.996), (0.25, None), (0.5, 0.998), (1.0, 1.0)])
def test_the_momentum_of_byol_ends_at_one(progress: float, momentum: float | None) -> None:
    """1 - (1 - m) (cos(pi k / K) + 1) / 2 (BYOL, appendix C.2)."""
    expected = 1 - (1 - 0.996) * (math.cos(math.pi * progress) + 1) / 2
    assert momentum is None or momentum == pytest.approx(expected, rel=1e-15)
    framework = moved(siamese(momentum=0.996, final_momentum=1.0, predictor=7))
    assert framework.target is not None
    k, q = (next(network.parameters()).detach().clone() for network in (framework.target, framework.encoder))
    framework.update(embedded(framework, images()), progress)
    found = next(framework.target.parameters())
    torch.testing.assert_close(found, expected * k + (1 - expected) * q, rtol=1e-14, atol=1e-16)
    assert (progress == 1) == torch.equal(found, k)


@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("norm", ["shuffle", "local"])
@pytest.mark.parametrize("views_forward", ["separate", "joint"])
def test_shuffled_keys_return_to_their_images(views_forward: Any, norm: Any, groups: int) -> None:
    """Group k of G has the images k, k + G, ... under shuffle. ``test_invariances`` has ranks."""
    for bn, symmetric in itertools.product((False, True), repeat=2):
        settings = {"symmetric": symmetric, "norm": norm, "groups": groups, "views_forward": views_forward}
        framework = siamese(bn, momentum=0.9, **settings)
        group_statistics(framework, groups)
        keys = framework.momentum_outputs(images(12))["key"]  # [V, 12, D]
        views, size = torch.stack(images(12).views[:2] if symmetric else images(12).views[1:2]), 12 // groups
        target = siamese(bn, momentum=0.9).target
        assert target is not None and keys.shape == (len(views), 12, 8)
        for k in range(groups):
            rows = slice(k, None, groups) if norm == "shuffle" else slice(size * k, size * k + size)
            part = views[:, rows]
            joint = target(part.flatten(0, 1))["projection"].unflatten(0, part.shape[:2])
            separate = torch.stack([target(view)["projection"] for view in part])
            expected = joint if views_forward == "joint" else separate
            torch.testing.assert_close(keys[:, rows], expected.detach(), rtol=1e-12, atol=1e-13)


# ---- MoCo v3

SMALL = ["framework=moco_v3", "framework.predictor=8", "head.hidden=8", "head.out=6", "batch_size.size=8"]
VIT = ["backbone=vit_moco_v3", "backbone.name=vit_tiny_patch16_224", "optimizer=adamw", "optimizer.decay_norms=true"]
VIT += [f"backbone.args.{word}" for word in ("patch_size=5", "depth=1", "embed_dim=12", "num_heads=3")]


def moco_v3(*overrides: str) -> tuple[build.Run, Any]:
    torch.manual_seed(0)
    run = build.build(load([*SMALL, *overrides]))
    return run, build.method(run).double()


def steps() -> list[Batch]:
    """Three batches of 8 images."""
    views = torch.rand(2, 24, 1, 20, 20, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    whole = Batch([views[0], views[0] + views[1]], torch.arange(24) * 7, torch.arange(24) % 6)
    return [select(whole, slice(start, start + 8)) for start in (0, 8, 16)]


def normed(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()


def test_the_loss_and_its_gradients_are_those_of_the_papers_algorithm() -> None:
    """Algorithm 1, one pair of images at a time: 2 tau (CE(q1, k2) + CE(q2, k1)), which is 4 tau times the loss."""
    (_, method), tau = moco_v3("backbone.width=2"), 0.2
    train(method, steps()[:1])  # the momentum network is another one now
    batch, framework = steps()[1], method.framework
    into, norm, _, out, last = framework.predictor.layers
    assert (into.bias, out.bias) == (None, None) and not last.weight.requires_grad and not last.bias.requires_grad

    def unit(x: Tensor) -> Tensor:
        return x / x.norm(dim=1, keepdim=True)

    def predicted(view: Tensor) -> Tensor:
        hidden = normed(linear(framework.encoder(view)["projection"], into.weight))
        return unit(normed(linear((hidden * norm.weight + norm.bias).relu(), out.weight)))

    queries = [predicted(view) for view in batch.views[:2]]
    with torch.no_grad():
        keys = [unit(framework.target(view)["projection"]) for view in batch.views[:2]]
    total = torch.zeros((), dtype=torch.float64)
    for q, k in zip(queries, reversed(keys), strict=True):
        for i in range(8):
            exponentials = [(q[i] @ k[j] / tau).exp() for j in range(8)]
            total = total - (exponentials[i] / torch.stack(exponentials).sum()).log() / 8
    weights = {name: p for name, p in method.named_parameters() if p.requires_grad}
    expected = torch.autograd.grad(2 * tau * total, [*weights.values()])
    loss = method(batch, 0.5).loss
    torch.testing.assert_close(4 * tau * loss, 2 * tau * total, rtol=1e-12, atol=0)
    for name, gradient, ours in zip(weights, expected, torch.autograd.grad(loss, [*weights.values()]), strict=True):
        torch.testing.assert_close(4 * tau * ours, gradient, rtol=1e-9, atol=1e-12, msg=name)
        assert float(gradient.norm()) > 1e-6, name


def test_patches_and_positions_stay_while_all_else_moves() -> None:
    run, method = moco_v3(*VIT)
    norms = ["predictor.layers.4", "encoder.head.layers.7", "target.head.layers.7"]
    last = {f"framework.{norm}.{name}" for norm in norms for name in ("weight", "bias")}
    fixed = ("pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias")
    frozen = {f"framework.{network}.backbone.{name}" for network in ("encoder", "target") for name in fixed}
    start = {name: p.detach().clone() for name, p in method.named_parameters()}
    train(method, steps())
    assert {name for name, p in method.named_parameters() if torch.equal(start[name], p)} == frozen | last
    optimised = {id(p) for group in run.recipe.groups(method) for p in group["params"]}
    of_networks = {name for name, p in method.named_parameters() if id(p) in optimised}
    assert of_networks == {name for name in start if "target" not in name} - frozen - last


# ---- with labels

LABELS = torch.tensor([2, -1, 0, 1, -1, -1, -1, 2])


def test_supervised_is_the_mean_over_both_views_of_the_labelled_images() -> None:
    torch.manual_seed(0)
    method = Supervised(Flat(), MLP(6, 1, None, 3, norm=False, final_norm="none")).double()
    values, correct, batch = [], [], images(8)
    for view, image in itertools.product(batch.views, range(8)):
        if (label := int(LABELS[image])) >= 0:
            logits = method.encoder(view[image : image + 1])["projection"][0]
            values.append(-logits.log_softmax(0)[label])
            correct.append(float(int(logits.argmax()) == label))
    loss, found, _ = method(Batch(batch.views, batch.ids, LABELS), 0.5, True)
    assert float(found["train/top1"]) == pytest.approx(sum(correct) / 8, rel=1e-12) and len(values) == 8
    pair = [loss, torch.stack(values).mean()]
    torch.testing.assert_close(*pair, rtol=1e-12, atol=0)
    weights = list(method.parameters())
    for gradients in zip(*(torch.autograd.grad(value, weights) for value in pair), strict=True):
        torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-14)
