"""Learning rates in closed form, parameter groups, and the number of operations of a step."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ssl_bench.config.build import build
from ssl_bench.config.compose import load
from ssl_bench.methods.siamese import Siamese
from ssl_bench.networks.backbones import timm_backbone
from ssl_bench.networks.heads import MLP
from ssl_bench.training.optim import Recipe


def recipe(*overrides: str) -> Recipe:
    made: Recipe = build(load(["optimizer=sgd", "optimizer.lr=0.3", *overrides])["optimizer"], "optimizer")
    return made


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3 * 4, 5)).double()


class Count(TorchDispatchMode):
    """Count the operations that reach the dispatcher, without views and the profiler's marks, which compute nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view and func.namespace != "profiler":
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("rule", "expected"), [("linear", 0.3 * 512 / 256), ("sqrt", 0.3 * math.sqrt(2)), ("none", 0.3)]
)
def test_the_learning_rate_scales_with_the_batch_size(rule: str, expected: float) -> None:
    assert recipe(f"optimizer.rule={rule}").scaled_lr(512) == pytest.approx(expected, rel=1e-12)


def test_schedules_match_their_closed_forms() -> None:
    cosine = recipe("optimizer.final_lr=0.1", "optimizer.warmup_start=0.2")
    assert [cosine.factor(p, 0.1) for p in (0.0, 0.05, 0.1)] == pytest.approx([0.2, 0.6, 1.0])
    for p in (0.1, 0.3, 0.55, 1.0):
        expected = 0.1 + 0.9 * (1 + math.cos(math.pi * (p - 0.1) / 0.9)) / 2
        assert cosine.factor(p, 0.1) == pytest.approx(expected, rel=1e-12)
    linear = recipe("optimizer.schedule=linear", "optimizer.final_lr=0.1")
    assert [linear.factor(p, 0.2) for p in (0.1, 0.2, 0.6, 1.0)] == pytest.approx([0.5, 1.0, 0.55, 0.1])
    step = recipe("optimizer.schedule=step", "optimizer.milestones=[0.6,0.8]")
    assert [step.factor(p, 0) for p in (0, 0.59, 0.6, 0.79, 0.8, 1)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])
    constant = recipe("optimizer.schedule=constant")
    assert [constant.factor(p, 0.5) for p in (0.25, 0.5, 1.0)] == [0.5, 1.0, 1.0]


@pytest.mark.parametrize("name", ["sgd", "lars", "adam", "adamw"])
def test_biases_and_norms_are_not_decayed(name: str) -> None:
    """All gradients are zero, so that only weight decay changes a weight."""
    model = network()
    optimizer = recipe(f"optimizer={name}", "optimizer.weight_decay=0.1").optimizer(model)
    before = copy.deepcopy(model.state_dict())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {"0.weight", "3.weight"}


def test_lars_matches_its_formula() -> None:
    """v <- m v + eta |w| / (|g| + wd |w|) (g + wd w); w <- w - lr v; for biases and norms without ratio and decay."""
    model = network()
    made = recipe("optimizer=lars", "optimizer.weight_decay=0.01", "optimizer.trust_coefficient=0.02")
    optimizer = made.optimizer(model)
    weights = {k: p.detach().clone() for k, p in model.named_parameters()}
    velocity = {k: torch.zeros_like(w) for k, w in weights.items()}
    generator = torch.Generator().manual_seed(1)
    for lr in (0.5, 0.3, 0.2):
        for group in optimizer.param_groups:
            group["lr"] = lr
        for k, p in model.named_parameters():
            p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)
            g = p.grad
            if p.ndim > 1:
                ratio = 0.02 * weights[k].norm() / (g.norm() + 0.01 * weights[k].norm())
                g = ratio * (g + 0.01 * weights[k])
            velocity[k] = 0.9 * velocity[k] + g
            weights[k] = weights[k] - lr * velocity[k]
        optimizer.step()
    for k, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), weights[k], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["sgd", "lars", "adam", "adamw"])
def test_optimiser_and_momentum_network_are_updated_in_few_operations(name: str) -> None:
    """At most 25 operations for over 60 tensors of a ResNet-18 and its head; a loop takes about a thousand."""
    backbone = timm_backbone("resnet18", 3, "cifar")
    framework = Siamese(backbone, MLP(512, 2, None, 128), momentum=0.99)
    optimizer = recipe(f"optimizer={name}").optimizer(framework)
    trained = [p for p in framework.encoder.parameters() if p.requires_grad]
    for _ in range(2):  # the first step also creates the optimiser's state
        for p in trained:
            p.grad = torch.ones_like(p)
        with Count() as count:
            optimizer.step()
            framework.after_step(0.0)
    assert len(trained) > 60 and len(count.names) <= 25, count.names


def test_the_momentum_network_is_a_moving_average() -> None:
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    framework = Siamese(backbone, MLP(3, 1, None, 2, final_norm="none"), momentum=0.9).double()
    assert framework.target is not None
    old = [p.clone() for p in framework.target.parameters()]
    with torch.no_grad():
        for p in framework.encoder.parameters():
            p.add_(1.0)
    framework.after_step(0.0)
    pairs: list[tuple[Tensor, Tensor]] = list(zip(framework.target.parameters(), old, strict=True))
    for new, was in pairs:
        torch.testing.assert_close(new, was + 0.1, rtol=1e-12, atol=1e-12)
        assert not new.requires_grad
