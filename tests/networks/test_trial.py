"""The forward pass of two images before a run: what it refuses, and that it changes nothing."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ssl_bench.errors import ConfigError, InvalidValue
from ssl_bench.networks.backbones import Backbone
from ssl_bench.networks.trial import try_backbone
from ssl_bench.training import checked
from ssl_bench.training.checked import CheckedParts
from tests.composed import load
from tests.door.door import refuses

TIMM = ["dataset=cifar10", "backbone=timm", "evaluate=[]"]
Spoil = Callable[[Tensor], Any]


class Own(Backbone):
    """A network of a plugin; ``spoil`` changes its features [2, 6]."""

    def __init__(self, spoil: Spoil = lambda x: x, num_features: Any = 6) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 6, 9), nn.BatchNorm2d(6), nn.Dropout(), nn.AdaptiveAvgPool2d(1))
        self.spoil, self.num_features = spoil, num_features

    def forward(self, x: Tensor) -> Tensor:
        return self.spoil(self.layers(x).flatten(1))  # type: ignore[no-any-return]


def test_the_pass_changes_neither_the_network_nor_the_generator() -> None:
    backbone = Own()
    backbone.layers[0].requires_grad_(False).eval()
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    modes = [(module.training, [p.requires_grad for p in module.parameters()]) for module in backbone.modules()]
    torch.manual_seed(3)
    state = torch.get_rng_state()
    try_backbone(backbone, {"_target_": "mine.Own"}, 3, 16, "dataset.size")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())
    assert modes == [(m.training, [p.requires_grad for p in m.parameters()]) for m in backbone.modules()]
    assert all(p.grad is None for p in backbone.parameters())


@pytest.mark.parametrize(
    ("spoil", "width", "size", "sentence"),
    [
        (Tensor.clone, 6, 8, "dataset.size=8: set dataset.size to another size, or backbone to another network: "),
        (Tensor.clone, None, 16, "a network whose num_features is the width of its output: it is None"),
        (Tensor.clone, 6.0, 16, "a network whose num_features is the width of its output: it is 6.0"),
        (Tensor.clone, 7, 16, "another network: of two images, mine.Own makes [2, 6], not features [2, 7]"),
        (
            lambda x: x[:, :, None],
            6,
            16,
            "another network: of two images, mine.Own makes [2, 6, 1], not feat",
        ),
        (lambda x: (x, x), 6, 16, "another network: of two images, mine.Own makes tuple, not features [2, 6]"),
        (lambda x: x / 0, 6, 16, "another network: of two images, mine.Own makes values that are not finite"),
        (Tensor.int, 6, 16, "another network: of two images, mine.Own makes values that are not finite"),
    ],
)
def test_a_network_without_features_is_refused(spoil: Spoil, width: Any, size: int, sentence: str) -> None:
    with pytest.raises(InvalidValue) as refusal:
        try_backbone(Own(spoil, width), {"_target_": "mine.Own"}, 3, size, "dataset.size")
    expected = sentence if sentence.startswith("dataset") else f"backbone=mine.Own: set backbone to {sentence}"
    assert str(refusal.value).startswith(expected)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["backbone.name=inception_v3", "dataset.size=64"], "dataset.size=64: set dataset.size to 299, or backbone "),
        (["backbone.name=crossvit_tiny_240"], "dataset.size=32: set dataset.size to 240, or backbone to another net"),
        (
            ["backbone.name=xcit_nano_12_p16_224", "dataset.size=40"],
            "backbone.name=xcit_nano_12_p16_224: set backbone.name to a network that timm can make for 3 channels and "
            "dataset.size=40 (`patch_size` should divide image dimensions evenly)",
        ),
        (["backbone.name=resnet18.a0"], "backbone.name=resnet18.a0: set backbone.name to a network that timm can "),
        (
            ["backbone.name=resnet18", "backbone.args.global_pool="],
            "backbone.args={'global_pool': ''}: set backbone.args to others: of two images, resnet18 makes [2, 512",
        ),
        (["backbone.name=resnet18", "backbone.args.features_only=true"], "backbone.args.features_only=true: set "),
        (["backbone.name=resnet18", "backbone.args=5"], "backbone.args=5: set backbone.args to null, or argument"),
        (["backbone.name=resnet18", "backbone.args.output_stride=7"], "set backbone.args to arguments that timm's"),
        (
            ["backbone.name=test_vit", "augment=multicrop_cifar"],
            "augment.small.size=18: set augment.small.size to 32, or backbone to another network: test_vit cannot",
        ),
    ],
)
def test_networks_that_do_not_fit_the_images_are_refused(overrides: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        CheckedParts(load([*TIMM, *overrides])).validate(1)
    assert says in str(refusal.value)


def test_a_network_that_does_not_fit_is_refused_on_the_command_line(capfd: pytest.CaptureFixture[str]) -> None:
    command = "train tracking=off backbone=timm backbone.name=inception_v3"
    refuses(command, "dataset.size=20 set dataset.size to 299 inception_v3 cannot take 20 x 20 pixels", capfd)


def test_a_network_is_tried_at_each_size_that_it_is_trained_or_evaluated_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[tuple[int, str]] = []

    def noting(*arguments: Any) -> None:
        tried.append(arguments[-2:])
        try_backbone(*arguments)

    monkeypatch.setattr(checked, "try_backbone", noting)
    CheckedParts(load(["augment.size=18", "evaluate=[]"])).validate(1)
    assert tried == [(18, "augment.size")]
    CheckedParts(load(["augment.size=18", "evaluate=knn"])).validate(1)
    assert tried[1:] == [(18, "augment.size"), (20, "dataset.size")]
