"""Learning rates in closed form, parameter groups, and the number of operations of a step."""

import copy
import math
import re
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ssl_bench.config.build import build
from ssl_bench.config.compose import load
from ssl_bench.distributed import world
from ssl_bench.errors import InvalidValue
from ssl_bench.methods.siamese import Siamese
from ssl_bench.networks.backbones import timm_backbone
from ssl_bench.networks.heads import MLP
from ssl_bench.training.engine import Training
from ssl_bench.training.optim import Recipe
from tests.conftest import SMALL
from tests.ranks import on_two_ranks


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
    rising = recipe("optimizer.schedule=step", "optimizer.milestones=[0.5,0.6,0.8]", "optimizer.factors=[0.1,0.05,1]")
    assert [rising.factor(p, 0) for p in (0, 0.49, 0.5, 0.6, 0.79, 0.8, 1)] == [1, 1, 0.1, 0.05, 0.05, 1, 1]
    constant = recipe("optimizer.schedule=constant")
    assert [constant.factor(p, 0.5) for p in (0.25, 0.5, 1.0)] == [0.5, 1.0, 1.0]


NORMS = {"0.bias", "1.weight", "1.bias", "3.bias"}  # of network()


@pytest.mark.parametrize("decay_norms", [False, True])
@pytest.mark.parametrize("name", ["sgd", "lars", "adam", "adamw"])
def test_a_step_with_and_without_decay_of_biases_and_norms_has_its_closed_form(name: str, decay_norms: bool) -> None:
    """Two steps in float64: the second one also sees the momentum of the first."""
    model, decay, lr = network(), 0.1, 0.3
    names = {id(p): name for name, p in model.named_parameters()}
    made = recipe(f"optimizer={name}", f"optimizer.weight_decay={decay}", f"optimizer.decay_norms={decay_norms}")
    optimizer = made.optimizer(model)
    weights = {k: p.detach().clone() for k, p in model.named_parameters()}
    first, second = ({k: torch.zeros_like(w) for k, w in weights.items()} for _ in range(2))
    generator = torch.Generator().manual_seed(1)
    for step in (1, 2):
        for k, p in model.named_parameters():
            g = p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)
            w, wd = weights[k], decay if k not in NORMS or decay_norms else 0.0
            if name in ("sgd", "lars"):
                ratio = 0.001 * w.norm() / (g.norm() + wd * w.norm() + 1e-8)
                first[k] = 0.9 * first[k] + (ratio if name == "lars" and k not in NORMS else 1.0) * (g + wd * w)
                weights[k] = w - lr * first[k]
                continue
            h = g + wd * w if name == "adam" else g
            first[k], second[k] = 0.9 * first[k] + 0.1 * h, 0.999 * second[k] + 0.001 * h * h
            move = first[k] / (1 - 0.9**step) / ((second[k] / (1 - 0.999**step)).sqrt() + 1e-8)
            weights[k] = w * (1 - lr * wd if name == "adamw" else 1) - lr * move
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
    for k, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), weights[k], rtol=1e-9, atol=1e-10)
    decayed = {names[id(p)] for group in optimizer.param_groups if group["weight_decay"] for p in group["params"]}
    assert decayed == {"0.weight", "3.weight"} | (NORMS if decay_norms else set())


def test_a_learned_temperature_is_never_decayed() -> None:
    model = network()
    model.tau = nn.Parameter(torch.zeros(()))
    first, second, third = recipe("optimizer.decay_norms=true").groups(model)
    assert [len(group["params"]) for group in (first, second, third)] == [2, 4, 1]
    assert [group["weight_decay"] for group in (first, second, third)] == [5e-4, 5e-4, 0.0]
    assert [len(group["params"]) for group in recipe().groups(model)] == [2, 5]


@pytest.mark.parametrize("name", ["sgd", "lars", "adamw"])
def test_the_rate_of_a_layer_is_a_power_of_the_decay(name: str) -> None:
    """Patches, class and position are layer 0, block i is layer i + 1, with the last norm, and the head is full."""
    args = {"patch_size": 4, "depth": 3, "embed_dim": 12, "img_size": 8}
    model = Siamese(timm_backbone("vit_tiny_patch16_224", 1, args=args), MLP(12, 2, None, 6), momentum=0.9)
    optimizer = recipe(f"optimizer={name}", "optimizer.layer_decay=0.5").optimizer(model)
    scales = {p: group["lr_scale"] for group in optimizer.param_groups for p in group["params"]}
    for key, p in model.named_parameters():
        block = re.search(r"blocks\.(\d)", key)
        first = re.search("cls_token|pos_embed|patch_embed", key)
        if p.requires_grad:
            last = 0.5 if ".norm." in key else 1.0
            assert scales[p] == (0.5 ** (3 - int(block[1])) if block else 0.5**4 if first else last), key
    with pytest.raises(InvalidValue, match=r"layer_decay=0\.5.* 1\b.*backbone=timm"):
        recipe("optimizer.layer_decay=0.5").groups(network())


def clipped_training(chunk: int | None, rank: int = 0) -> dict[str, Any]:
    """Weights after three steps in float64 with a small bound, and the recorded norms; without batch statistics."""
    overrides = [*SMALL[1:], "backbone=timm", "backbone.name=vit_tiny_patch16_224", "backbone.args.patch_size=5"]
    overrides += ["backbone.args.depth=1", "backbone.args.embed_dim=12", "head=moco", "head.hidden=8", "max_steps=3"]
    overrides += ["batch_size.size=16", f"devices={world()}", f"batch_size.chunk={chunk or 'null'}"]
    config = load([*overrides, "precision=fp64", "optimizer.clip=0.02"])
    run = Training(config, torch.device("cpu"))
    step = run.stepper()
    norms = torch.tensor([float(step(True)["gradient_norm"]) for _ in range(3)], dtype=torch.float64)
    parameters = list(run.state.method.parameters())
    gradient = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
    return {"norms": norms, "weights": torch.cat([p.detach().flatten() for p in parameters]), "norm": gradient.norm()}


@pytest.mark.slow
def test_a_clipped_step_on_two_ranks_and_in_chunks_is_that_of_one_process() -> None:
    alone = clipped_training(None)
    assert float(alone["norms"].min()) > 0.04 and float(alone["norm"]) == pytest.approx(0.02, rel=1e-4)
    for found in [clipped_training(8), *on_two_ranks(partial(clipped_training, None))]:
        for key in ("norms", "weights"):
            torch.testing.assert_close(found[key], alone[key], rtol=1e-12, atol=1e-12)


SCALED = [["sgd"], ["sgd", "nesterov=true"], ["sgd", "momentum=0"], ["lars", "trust_coefficient=0.02"]]


@pytest.mark.parametrize("options", SCALED, ids=str)
def test_a_gradient_scaler_asks_nothing_of_the_host_and_an_overflow_changes_nothing(options: list[str]) -> None:
    """In channels_last, in which no gradient is copied; a scale that is a power of two changes no bit."""
    words = [f"optimizer={options[0]}", "optimizer.weight_decay=0.01", *(f"optimizer.{each}" for each in options[1:])]

    def made() -> nn.Module:
        torch.manual_seed(0)
        layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 16, 3), nn.Conv2d(16, 4, 1), nn.Conv2d(1, 4, 3)
        return nn.Sequential(*layers).to(memory_format=torch.channels_last)

    def set_gradients(model: nn.Module, seed: int, scale: float = 1.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        for p in model.parameters():
            p.grad = torch.empty_like(p).copy_(torch.randn(p.shape, generator=generator) * scale)

    scaled, plain = made(), made()
    mine, reference = (recipe(*words).optimizer(model) for model in (scaled, plain))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=100)
    scaler.scale(torch.zeros(()))  # creates the scale
    for step in range(6):
        set_gradients(scaled, step, 2.0 ** (10 - step // 3))
        if step == 2:
            next(scaled.parameters()).grad[0, 1, 0, 0] = torch.inf  # type: ignore[index]
        before = copy.deepcopy([*scaled.parameters(), *(state.get("momentum_buffer") for state in mine.state.values())])
        with Count() as count:
            scaler.step(mine)
        assert not {"aten._local_scalar_dense.default", "aten.clone.default"} & {*count.names}  # item() is the first
        scaler.update()
        if step == 2:
            after = [*scaled.parameters(), *(state.get("momentum_buffer") for state in mine.state.values())]
            assert all(a is b is None or torch.equal(a, b) for a, b in zip(after, before, strict=True))
        else:
            set_gradients(plain, step)
            reference.step()
            assert all(torch.equal(a, b) for a, b in zip(scaled.parameters(), plain.parameters(), strict=True))
        assert scaler.get_scale() == 2.0 ** (10 - (step >= 2))
