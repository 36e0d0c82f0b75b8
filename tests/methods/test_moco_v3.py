"""MoCo v3: its loss and gradients by its algorithm, and its ViT, of which the patch projection stays as it starts."""

import copy
import functools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from ssl_bench.config.compose import load
from ssl_bench.methods.base import Method
from ssl_bench.training.parts import Parts
from tests.methods.test_base import steps
from tests.methods.training import train
from tests.ranks import on_two_ranks

SMALL = ["framework=moco_v3", "framework.predictor=8", "head.hidden=8", "head.out=6", "batch_size.size=8"]
VIT = ["backbone=vit_moco_v3", "backbone.name=vit_tiny_patch16_224", "optimizer=adamw", "optimizer.decay_norms=true"]
VIT += [f"backbone.args.{word}" for word in ("patch_size=5", "depth=1", "embed_dim=12", "num_heads=3")]


@functools.cache
def configuration(*overrides: str) -> dict[str, Any]:
    return load([*SMALL, *overrides])


def method_of(config: dict[str, Any]) -> Method:
    torch.manual_seed(0)
    return Parts(copy.deepcopy(config)).method.double()


def normed(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()


def test_the_loss_and_its_gradients_are_those_of_the_papers_algorithm() -> None:
    """Algorithm 1, one pair of images at a time: 2 tau (CE(q1, k2) + CE(q2, k1)), which is 4 tau times the loss."""
    config, tau = configuration("backbone.width=2"), 0.2
    method: Any = method_of(config)
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


def trained(config: dict[str, Any], rank: int | None = None) -> dict[str, Tensor]:
    method = method_of(config)
    train(method, steps())
    return {name: p.detach() for name, p in method.named_parameters()}


@functools.cache
def frozen() -> set[str]:
    weights = ("pos_embed", "patch_embed.proj.weight", "patch_embed.proj.bias")
    return {f"framework.{network}.backbone.{name}" for network in ("encoder", "target") for name in weights}


def test_patches_and_positions_stay_while_all_else_moves_also_after_a_resumption() -> None:
    config = configuration(*VIT)
    norms = ["predictor.layers.4", "encoder.head.layers.7", "target.head.layers.7"]
    last = {f"framework.{norm}.{name}" for norm in norms for name in ("weight", "bias")}
    method = method_of(config)
    start, whole = {name: p.detach().clone() for name, p in method.named_parameters()}, trained(config)
    assert {name for name in start if torch.equal(start[name], whole[name])} == frozen() | last
    optimised = {id(p) for group in Parts(config).recipe.groups(method) for p in group["params"]}
    of_networks = {name for name, p in method.named_parameters() if id(p) in optimised}
    assert of_networks == {name for name in start if "target" not in name} - frozen() - last
    state = dict[str, Any]()
    train(method, steps()[:1], state)
    again = method_of(config)
    again.load_state_dict(copy.deepcopy(method.state_dict()))
    train(again, steps()[1:], state)
    assert all(torch.equal(p, whole[name]) for name, p in again.named_parameters())


@pytest.mark.slow
def test_frozen_patches_train_on_two_ranks_as_on_one() -> None:
    config = configuration(*VIT)
    start, alone = dict(method_of(config).named_parameters()), trained(config)
    for found in on_two_ranks(functools.partial(trained, config)):
        for name, value in found.items():
            assert name not in frozen() or torch.equal(value, start[name])
            torch.testing.assert_close(value, alone[name], rtol=1e-9, atol=1e-12)
