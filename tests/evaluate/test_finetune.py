"""Fine-tuning: its steps in float64, two ranks, an interruption, what it leaves alone, its settings, and whole runs."""

import json
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssl_bench.commands.evaluate import main as evaluate
from ssl_bench.config.compose import load
from ssl_bench.data.source import Images
from ssl_bench.errors import InvalidValue
from ssl_bench.evaluate import finetune
from ssl_bench.evaluate.finetune import Classifier, FineTune
from ssl_bench.evaluate.target import Target
from ssl_bench.networks.norm import group_statistics
from ssl_bench.record import evaluations
from ssl_bench.seeding import stream
from ssl_bench.signals import Interrupt, Interrupted
from tests.conftest import only_run
from tests.evaluate.test_few_labels import photos
from tests.evaluate.test_linear_images import CLASSES, SIDE, images

WHOLE: dict[str, Any] = {"scale": (1.0, 1.0), "ratio": (1.0, 1.0), "flip": 0.0}  # views that are the images
SMALL: dict[str, Any] = {
    "epochs": 2,
    "least_steps": 0,
    "batch_size": 4,
    "lr": 3.2,
    "momentum": 0.8,
    "weight_decay": 0.01,
}
DIGITS = ["backbone.width=8", "tracking=off", "evaluate=finetune", "evaluate.finetune.flip=0"]


class Net(nn.Module):
    """An encoder whose backbone is a convolution, BN and ReLU."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Conv2d(3, 6, 3, 2), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.backbone.append(nn.Flatten())

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"backbone": self.backbone(x)}


def make_target(network: nn.Module, train: Images | None = None, **options: Any) -> Target:
    view: Any = {"view": lambda x: x.double() / 255, "num_classes": CLASSES, "device": "cpu", "seed": 3}
    return Target(network, train or images(10, 1), images(40, 2), **view | options)


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def by_hand(recipe: dict[str, Any], train: Images, seed: int) -> dict[str, Tensor]:
    """The weights after Nesterov's SGD on batches that go over the ends of epochs, and their logits of the test."""
    conv, bn = nn.Conv2d(3, 6, 3, 2).double(), nn.BatchNorm2d(6).double()
    conv.load_state_dict(Net().backbone[0].state_dict())
    linear = {"weight": torch.zeros(CLASSES, 6).double(), "bias": torch.zeros(CLASSES).double()}
    parameters = [conv.weight, conv.bias, bn.weight, bn.bias, *(p.requires_grad_() for p in linear.values())]
    velocity = [torch.zeros_like(p) for p in parameters]  # type: ignore[arg-type]
    count, batch, lr = len(train), recipe["batch_size"], recipe["lr"] * recipe["batch_size"] / 256
    orders = [
        torch.randperm(count, generator=torch.Generator().manual_seed(stream("finetune", seed, epoch)))
        for epoch in range(recipe["epochs"])
    ]
    steps = torch.cat(orders).split(batch)

    def logits(x: Tensor) -> Tensor:
        return bn(conv(x.double() / 255)).relu().mean((2, 3)) @ linear["weight"].T + linear["bias"]

    for step, ids in enumerate(steps):
        loss = F.cross_entropy(logits(train.take(ids)), train.labels[ids])
        rate = lr * 0.5 * (1 + math.cos(math.pi * step / len(steps)))
        gradients = torch.autograd.grad(loss, parameters)  # type: ignore[arg-type]
        for p, v, g in zip(parameters, velocity, gradients, strict=True):
            decayed = g + recipe["weight_decay"] * p.detach()  # type: ignore[union-attr]
            v.mul_(recipe["momentum"]).add_(decayed)
            p.data -= rate * (decayed + recipe["momentum"] * v)  # type: ignore[union-attr]
    bn.eval()
    running = {"network.1.running_mean": bn.running_mean, "network.1.running_var": bn.running_var}
    named = {"network.0.weight": conv.weight, "network.1.weight": bn.weight, "linear.weight": linear["weight"]}
    return {**running, **named, "logits": logits(images(40, 2).parts[0])}  # type: ignore[dict-item]


def test_the_steps_are_those_of_a_reference_in_float64() -> None:
    train, recipe, network = images(10, 1), FineTune(SIDE, **WHOLE, **SMALL), Net().double()
    expected = by_hand(SMALL, train, 3)
    state = recipe.fitted(make_target(network, train), 4).state_dict()
    assert len(expected) == 6
    for name in expected.keys() - {"logits"}:
        torch.testing.assert_close(state[name], expected[name], rtol=1e-9, atol=1e-11)
    right = (expected["logits"].argmax(1) == images(40, 2).labels).double().mean()
    assert dict(recipe.run(make_target(network, train)))["top1"] == float(right)


@pytest.mark.parametrize("mixed", [None, torch.bfloat16])
def test_the_network_of_the_run_and_the_random_numbers_stay(mixed: torch.dtype | None) -> None:
    network = Net().requires_grad_(False)
    group_statistics(network, 1)
    before, modes, random = weights(network), [m.training for m in network.modules()], torch.get_rng_state()
    target = make_target(network, view=lambda x: x.float() / 255, autocast=mixed)
    first, second = (dict(FineTune(SIDE, **SMALL).run(target)) for _ in range(2))
    assert first == second and 0 <= first["top1"] <= 1
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert modes == [m.training for m in network.modules()] and torch.equal(random, torch.get_rng_state())
    assert not any(p.requires_grad or p.grad is not None for p in network.parameters())
    trained = FineTune(SIDE, **SMALL).fitted(target, 4).state_dict()
    changed = ("network.0.weight", "network.1.bias", "network.1.running_var", "linear.weight")
    assert all(not torch.equal(trained[name], Classifier(network, 6, 3).state_dict()[name]) for name in changed)


def test_a_stopped_training_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    network, recipe, passes = Net().double(), FineTune(SIDE, **SMALL), list[nn.Module]()
    target = make_target(network)
    undisturbed = weights(recipe.fitted(target, 4))
    target.state_file = tmp_path / "checkpoints" / "state.pt"

    def fitted(steps: int) -> None:
        passes.clear()
        state = weights(recipe.fitted(target, 4, saves=True))
        assert len(passes) == steps and all(torch.equal(value, undisturbed[name]) for name, value in state.items())

    with Interrupt(lambda number: number) as interrupt:
        interrupt.saved = True

        def stop(module: nn.Module, _: object) -> None:  # the copy of the network has it too
            passes.extend([module] if module.training else [])
            if len(passes) == 3:
                interrupt.ask(15)

        network.backbone[0].register_forward_pre_hook(stop)
        with pytest.raises(Interrupted):
            fitted(5)
    assert len(passes) == 3
    fitted(2)
    target.state_file.write_bytes(target.state_file.read_bytes()[:-100])  # a damaged file: from the start
    fitted(5)


def test_a_rate_that_diverges_has_no_accuracy() -> None:
    with pytest.raises(InvalidValue, match=r"^lr=1e\+30: "):
        dict(FineTune(SIDE, **SMALL | {"lr": 1e30}).run(make_target(Net())))


def test_few_labels_have_more_epochs() -> None:
    def asked(*words: str) -> list[tuple[int, str]]:
        entries = evaluations.asked(load(["evaluate=finetune", "evaluate.baselines=[]", *words]))
        return [(entry["settings"]["epochs"], entry["id"]) for entry in entries]

    shares = "evaluate.labels=[0.01,0.1,1.0]"
    entries = asked(shares)
    assert [epochs for epochs, _ in entries] == [60, 30, 30] and len({name for _, name in entries}) == 3
    assert asked(shares, "evaluate.finetune.epochs=30")[1:] == entries[1:]
    words = photos("photos", count=40)
    Path("few.txt").write_text("0_00.png\n1_00.png\n0_01.png\n")
    assert [epochs for epochs, _ in asked(*words, "evaluate.labels=[few.txt,0.5]")] == [60, 30]


def test_photos_and_the_list_of_those_with_labels(capfd: pytest.CaptureFixture[str]) -> None:
    """The list of a share is one for evaluate.labels, and gives the same number."""
    words = [
        *photos("photos"),
        "evaluate=finetune",
        "evaluate.finetune.least_steps=2",
        "evaluate.finetune.batch_size=64",
    ]
    assert evaluate(["--weights", "random", *words, "evaluate.labels=[0.5]"]) == 0
    run = only_run()
    listed = (run / "labels" / "labels0.5.txt").read_text().split()
    assert len(listed) == 12 and {name.partition("/")[0] for name in listed} == {"c0", "c1"}
    (run / "labels" / "labels0.5.txt").rename("half.txt")
    assert evaluate([str(run), "evaluate.labels=[half.txt]"]) == 0
    metrics = json.loads((run / "results.json").read_text())["metrics"]
    assert metrics.keys() == {"finetune/labels0.5/top1", "finetune/labels_half/top1"}
    assert len(set(metrics.values())) == 1 and not list(run.glob("checkpoints/evaluation-*"))


def test_a_stopped_fine_tuning_goes_on_after_another_evaluation(
    train: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*DIGITS[:2], "max_steps=1", "evaluate.baselines=[]"]
    tuned = [*words, "evaluate=[finetune]", "evaluate.labels=[0.1]", "evaluate.finetune.flip=0"]
    tuned += [f"evaluate.finetune.{key}" for key in ("epochs=2", "batch_size=64", "least_steps=0")]
    monkeypatch.setattr(finetune, "SAVE_EVERY", 0.0)
    steps, keep = list[int](), finetune._save

    def stopped_at_two(file: Path, step: int, parts: Any) -> None:
        keep(file, step, parts)
        steps.append(step)
        if steps == [1, 2]:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(finetune, "_save", stopped_at_two)
    assert train(*words, "evaluate=[]")[0] == 0
    assert train(*tuned)[0] == 128 + signal.SIGTERM
    assert train(*words, "evaluate=[knn]")[0] == 0
    assert train(*tuned)[0] == 0 and steps == [1, 2, 3, 4]
    assert not list(only_run().glob("checkpoints/evaluation-*"))
