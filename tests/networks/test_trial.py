"""The forward pass of two images before a run: what it refuses, and that it changes nothing."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ssl_bench.errors import InvalidValue
from ssl_bench.networks.backbones import Backbone
from ssl_bench.networks.trial import try_backbone
from ssl_bench.training import validate as module
from ssl_bench.training.parts import Parts
from ssl_bench.training.validate import validate
from tests.composed import load
from tests.door.door import refused

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
    ("spoil", "width", "size", "names"),
    [
        (Tensor.clone, 6, 8, "dataset.size=8: backbone"),
        (Tensor.clone, None, 16, "num_features None"),
        (Tensor.clone, 6.0, 16, "num_features 6.0"),
        (Tensor.clone, 7, 16, "[2, 6] 7]"),
        (lambda x: x[:, :, None], 6, 16, "[2, 6, 1]"),
        (lambda x: (x, x), 6, 16, "tuple [2, 6]"),
        (lambda x: x / 0, 6, 16, "finite"),
        (Tensor.int, 6, 16, "finite"),
    ],
)
def test_a_network_without_features_is_refused(spoil: Spoil, width: Any, size: int, names: str) -> None:
    with refused(f"backbone {names}", InvalidValue):
        try_backbone(Own(spoil, width), {"_target_": "mine.Own"}, 3, size, "dataset.size")


def test_a_network_is_tried_at_each_size_that_it_is_trained_or_evaluated_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[tuple[int, str]] = []

    def noting(*arguments: Any) -> None:
        tried.append(arguments[-2:])
        try_backbone(*arguments)

    monkeypatch.setattr(module, "try_backbone", noting)
    validate(Parts(load(["augment.size=18", "evaluate=[]"])), 1)
    assert tried == [(18, "augment.size")]
    validate(Parts(load(["augment.size=18", "evaluate=knn"])), 1)
    assert tried[1:] == [(18, "augment.size"), (20, "dataset.size")]
