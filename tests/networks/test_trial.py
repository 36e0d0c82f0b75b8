"""The forward pass of two images before a run, without memory for weights: what it refuses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ssl_bench.config.compose import load
from ssl_bench.errors import InvalidValue
from ssl_bench.networks.backbones import Backbone
from ssl_bench.networks.trial import try_on_meta
from tests.composed import load
from tests.door.door import refused

Spoil = Callable[[Tensor], Any]


class Own(Backbone):
    """A network of a plugin; ``spoil`` changes its features [2, 6]."""

    spoil: Spoil = Tensor.clone
    num_features: Any = 6

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 6, 9), nn.BatchNorm2d(6), nn.Dropout(), nn.AdaptiveAvgPool2d(1))

    def forward(self, x: Tensor) -> Tensor:
        return type(self).spoil(self.layers(x).flatten(1))  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_BENCH_PLUGINS", "tests")


class Computing(Own):
    """It cannot be built without memory for its weights."""

    def __init__(self) -> None:
        super().__init__()
        assert next(self.parameters()).sum().item() != 0


@pytest.mark.parametrize(("network", "device"), [(Own, "meta"), (Computing, "cpu")])
def test_a_network_is_built_without_memory_if_it_can_be(network: type[Own], device: str) -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    tried = try_on_meta({"_target_": f"{__name__}.{network.__name__}"}, 3, {16: "dataset.size"})
    assert next(tried.parameters()).device.type == device
    assert torch.equal(torch.get_rng_state(), state)


OPTIONS = sorted(path.stem for path in Path(__file__).parents[2].glob("conf/backbone/*.yaml"))


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_is_tried_without_memory(option: str) -> None:
    words = [f"backbone={option}", "dataset=cifar10", *(["backbone.name=test_vit"] if option == "timm" else [])]
    backbone = load(words)["backbone"]
    assert next(try_on_meta(backbone, 3, {32: "dataset.size"}).parameters()).is_meta


@pytest.mark.parametrize(
    ("spoil", "width", "size", "names"),
    [
        (Tensor.clone, 6, 8, "dataset.size=8: backbone"),
        (Tensor.clone, None, 16, "num_features None"),
        (Tensor.clone, 6.0, 16, "num_features 6.0"),
        (Tensor.clone, 7, 16, "[2, 6] 7]"),
        (lambda x: x[:, :, None], 6, 16, "[2, 6, 1]"),
        (lambda x: (x, x), 6, 16, "tuple [2, 6]"),
        (Tensor.int, 6, 16, "floating-point"),
    ],
)
def test_a_network_without_features_is_refused(
    spoil: Spoil, width: Any, size: int, names: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Own, "spoil", spoil)
    monkeypatch.setattr(Own, "num_features", width)
    with refused(f"backbone {names}", InvalidValue):
        try_on_meta({"_target_": f"{__name__}.Own"}, 3, {size: "dataset.size"})
