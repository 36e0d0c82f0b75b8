"""Learning rates in closed form, parameter groups, and the number of operations of a step."""

import copy
import math
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ssl_bench.config.build import build
from ssl_bench.config.compose import load
from ssl_bench.config.identity import run_id
from ssl_bench.distributed import world
from ssl_bench.errors import InvalidValue
from ssl_bench.methods.siamese import Siamese
from ssl_bench.networks.backbones import timm_backbone
from ssl_bench.networks.heads import MLP
from ssl_bench.objective.contrast import Embedded
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


def test_decay_norms_changes_the_identity_only_where_it_is_on() -> None:
    config = load(["optimizer=sgd"])
    before = {**config, "optimizer": {k: v for k, v in config["optimizer"].items() if k != "decay_norms"}}
    assert run_id(before) == run_id(config) != run_id(load(["optimizer=sgd", "optimizer.decay_norms=true"]))


def test_clip_and_layer_decay_change_the_identity_only_where_they_are_set() -> None:
    config = load(["optimizer=sgd"])
    before = {**config, "optimizer": {k: v for k, v in config["optimizer"].items() if k not in ("clip", "layer_decay")}}
    changed = [run_id(load(["optimizer=sgd", f"optimizer.{set_}"])) for set_ in ("clip=1.0", "layer_decay=0.5")]
    assert run_id(before) == run_id(config) and len({run_id(config), *changed}) == 3


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
    overrides += [
        "batch_size.size=16",
        f"devices={world()}",
        f"batch_size.chunk={chunk or 'null'}",
        "precision=fp64",
        "optimizer.clip=0.02",
    ]
    run = Training(load(overrides), "0123456789", Path("unused"), torch.device("cpu"))
    run.state.method.train()
    step = run.stepper()
    norms = [float(step(True)["gradient_norm"]) for _ in range(3)]
    gradients = [p.grad for p in run.state.method.parameters() if p.grad is not None]
    weights = torch.cat([p.detach().flatten() for p in run.state.method.parameters()])
    return {
        "norms": torch.tensor(norms, dtype=torch.float64),
        "weights": weights,
        "norm": torch.cat([g.flatten() for g in gradients]).norm(),
    }


def test_a_clipped_step_on_two_ranks_and_in_chunks_is_that_of_one_process() -> None:
    alone = clipped_training(None)
    assert float(alone["norms"].min()) > 0.04 and float(alone["norm"]) == pytest.approx(0.02, rel=1e-4)
    others = [clipped_training(8)]
    for chunk in (None, 8):
        others += on_two_ranks(partial(clipped_training, chunk))
    for found in others:
        for key in ("norms", "weights"):
            torch.testing.assert_close(found[key], alone[key], rtol=1e-12, atol=1e-12)


def twins(count: int) -> list[nn.Module]:
    """Equal float32 networks."""
    return [network().float() for _ in range(count)]


def set_gradients(model: nn.Module, seed: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator) * scale


def assert_same(model: nn.Module, other: nn.Module) -> None:
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def lars_of(model: nn.Module, momentum: float = 0.9) -> torch.optim.Optimizer:
    settings = ["optimizer.weight_decay=0.01", "optimizer.trust_coefficient=0.02", f"optimizer.momentum={momentum}"]
    return recipe("optimizer=lars", *settings).optimizer(model)


def test_lars_under_a_gradient_scaler_asks_nothing_of_the_host_and_leaves_out_an_overflow() -> None:
    scaled, plain = twins(2)
    mine, reference = lars_of(scaled), lars_of(plain)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=100)
    scaler.scale(torch.zeros(()))  # creates the scale
    for step in range(6):
        set_gradients(scaled, step, 2.0 ** (10 - step // 3))
        if step == 2:
            for name, value in {"0.weight": torch.inf, "3.bias": torch.nan}.items():
                (gradient := scaled.get_parameter(name).grad.flatten())[1] = value  # type: ignore[union-attr]
                scaled.get_parameter(name).grad = gradient.view_as(scaled.get_parameter(name))
        before = copy.deepcopy((scaled.state_dict(), mine.state_dict()["state"]))
        with Count() as count:
            scaler.step(mine)
        assert "aten._local_scalar_dense.default" not in count.names  # the operation behind item()
        scaler.update()
        if step == 2:
            after = scaled.state_dict(), mine.state_dict()["state"]
            assert all(torch.equal(after[0][name], value) for name, value in before[0].items())
            for i, state in before[1].items():
                assert torch.equal(after[1][i]["momentum_buffer"], state["momentum_buffer"])
        else:
            set_gradients(plain, step)
            reference.step()
            assert_same(scaled, plain)
        assert scaler.get_scale() == 2.0 ** (10 - (step >= 2))


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 16, 3), nn.Conv2d(16, 4, 1), nn.Conv2d(1, 4, 3)
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("options", [(), ("nesterov=true",), ("momentum=0",)], ids=str)
def test_sgd_in_channels_last_has_the_bits_of_torchs_and_copies_no_gradient(options: tuple[str, ...]) -> None:
    """With a gradient scaler, whose third step overflows, and weight decay of one group."""
    mine, reference = convolutions(), convolutions()
    made = recipe("optimizer.weight_decay=0.1", *(f"optimizer.{option}" for option in options))
    fused: dict[str, Any] = {
        "momentum": 0.0 if "momentum=0" in options else 0.9,
        "nesterov": "nesterov=true" in options,
    }
    optimizers = made.optimizer(mine), torch.optim.SGD(made.groups(reference), 0.3, **fused, fused=True)
    for step in range(5):
        for model, optimizer in zip((mine, reference), optimizers, strict=True):
            scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
            scaler.scale(torch.zeros(()))
            generator = torch.Generator().manual_seed(step)
            for p in model.parameters():
                p.grad = torch.empty_like(p).copy_(torch.randn(p.shape, generator=generator) * 8)
            if step == 2:
                next(model.parameters()).grad[0, 1, 0, 0] = torch.inf  # type: ignore[index]
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
                scaler.step(optimizer)
            called = {event.key for event in profiled.key_averages()}
            assert "aten::_fused_sgd_" in called and (model is not mine or "aten::clone" not in called)
        assert_same(mine, reference)
    found, expected = (optimizer.state_dict() for optimizer in optimizers)
    assert found["param_groups"] == expected["param_groups"]
    assert found["state"].keys() == (expected["state"] if fused["momentum"] else {}).keys()
    for i, state in found["state"].items():
        buffer = expected["state"][i]["momentum_buffer"]
        assert torch.equal(state["momentum_buffer"], buffer) and state["momentum_buffer"].stride() == buffer.stride()


@pytest.mark.parametrize("name", ["sgd", "lars", "adam", "adamw"])
def test_optimiser_and_momentum_network_are_updated_in_few_operations(name: str) -> None:
    """At most 25 operations for over 60 tensors of a ResNet-18 and its head; a loop takes about a thousand."""
    backbone = timm_backbone("resnet18", 3, "cifar")
    framework = Siamese(backbone, MLP(512, 2, None, 128), momentum=0.99)
    optimizer = recipe(f"optimizer={name}").optimizer(framework)
    trained = [p for p in framework.encoder.parameters() if p.requires_grad]
    q, p, raw = torch.zeros(3, 1, 1, 1)
    e = Embedded(q, p, raw, torch.zeros(1))
    for _ in range(2):  # the first step also creates the optimiser's state
        for p in trained:
            p.grad = torch.ones_like(p)
        with Count() as count:
            optimizer.step()
            framework.update(e, 0.0)
    assert len(trained) > 60 and len(count.names) <= 25, count.names


STEP = """
import sys
import torch
from ssl_bench.training.optim import LARS, SGD, AdamW
given = dict(lr=0.1, rule="none", base_batch=256, schedule="constant", milestones=(), final_lr=0.0, warmup_epochs=0)
given |= dict(warmup_start=0.0, weight_decay=0.1)
model, methods = torch.nn.Linear(3, 3), dict(vars(torch.optim.Optimizer))
for recipe in (SGD(0.9, False, **given), AdamW((0.9, 0.99), **given), LARS(0.9, 0.001, **given)):
    optimizer = recipe.optimizer(model)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
marked = [name for name, each in methods.items() if hasattr(getattr(each, "__wrapped__", each), "__dynamo_disable")]
print("torch._dynamo" in sys.modules, marked)
"""


@pytest.mark.slow
def test_an_optimiser_steps_without_torchs_compiler_and_leaves_torchs_own_class_alone() -> None:
    printed = subprocess.run([sys.executable, "-c", STEP], capture_output=True, text=True, check=True).stdout
    assert printed == "False []\n"
