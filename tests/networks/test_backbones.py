"""Backbones: shapes, parameter counts, first values, and what is tried before a run, with what it refuses."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

from ssl_bench.config.build import build
from ssl_bench.config.compose import load
from ssl_bench.errors import InvalidValue
from ssl_bench.networks.backbones import (
    Backbone,
    ConvN,
    KerasConvN,
    moco_v3_vit,
    positions,
    timm_backbone,
    wide_resnet50,
)
from ssl_bench.networks.heads import MLP, KerasMLP
from ssl_bench.networks.norm import group_statistics
from ssl_bench.networks.trial import try_backbone
from tests.door.door import refused


@pytest.mark.parametrize(
    ("name", "stem", "size", "features", "parameters"),
    # Counts of the published networks less their classifiers; the CIFAR stem has 7,680 weights fewer.
    [
        ("resnet18", "imagenet", 64, 512, 11_176_512),
        ("resnet18", "cifar", 32, 512, 11_168_832),
        ("resnet50", "imagenet", 64, 2048, 23_508_032),
        ("resnet50", "cifar", 32, 2048, 23_500_352),
    ],
)
def test_resnets(name: str, stem: str, size: int, features: int, parameters: int) -> None:
    model = timm_backbone(name, 3, stem, zero_init_residual=True).eval()  # type: ignore[arg-type]
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert model(torch.zeros(2, 3, size, size)).shape == (2, features) and model.num_features == features
    assert not model.get_parameter(f"layer1.0.bn{2 if name == 'resnet18' else 3}.weight").any()
    maps: list[Tensor] = []
    model.get_submodule("layer4").register_forward_hook(lambda *seen: maps.append(seen[2]))
    model(torch.zeros(1, 3, size, size))
    assert maps[0].shape[-1] == size // (8 if stem == "cifar" else 32)


@pytest.mark.parametrize(("width", "millions"), [(1, 24), (2, 94), (4, 375)])
def test_wide_resnets(width: int, millions: int) -> None:
    """SimCLR's table 6 has 24, 94 and 375 million. Of the 1x, 9,408 weights read the image and 53,120 are of BNs."""
    with torch.device("meta"):
        model = wide_resnet50(width, 3, True)
        assert model(torch.zeros(2, 3, 64, 64)).shape == (2, 2048 * width) and model.num_features == 2048 * width
    count = sum(p.numel() for p in model.parameters())
    assert count == (23_508_032 - 9_408 - 53_120) * width**2 + (9_408 + 53_120) * width
    assert round(count / 1e6) == millions
    assert {m.out_channels % (64 * width) for m in model.modules() if isinstance(m, nn.Conv2d)} == {0}


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "mobilenetv3_small_050", "resnet18"])
def test_networks_of_timm_at_any_size_and_number_of_channels(name: str) -> None:
    """Some are made for one image size, and some have a layer after the one whose features timm counts."""
    model = timm_backbone(name, 5, size=32).eval()
    assert model(torch.zeros(2, 5, 32, 32)).shape == (2, model.num_features)


def test_positions_are_sines_and_cosines_of_rows_and_columns() -> None:
    """facebookresearch/moco-v3 vits.py, number by number."""
    found = positions(2, 3, 8)
    for row, column in itertools.product(range(2), range(3)):
        angles = [[place / 10000 ** (i / 2) for i in range(2)] for place in (row, column)]
        expected = [f(angle) for of_place in angles for f in (math.sin, math.cos) for angle in of_place]
        assert found[3 * row + column].tolist() == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("freeze", [True, False])
def test_a_vit_starts_as_in_moco_v3(freeze: bool) -> None:
    model: Any = moco_v3_vit("vit_tiny_patch16_224", 2, 20, {"patch_size": 5, "depth": 1}, freeze)
    weights = dict(model.named_parameters())
    # Inputs and outputs of a layer; queries, keys and values are three layers.
    widths = {"patch_embed.proj": 2 * 25 + 192, "blocks.0.attn.qkv": 192 + 192, "blocks.0.mlp.fc1": 192 + 768}
    for name, both in widths.items():
        weight, bound = weights[f"{name}.weight"].detach(), math.sqrt(6 / both)
        assert 0.99 * bound < float(weight.abs().max()) <= bound * (1 + 1e-6)
        assert float(weight.std()) == pytest.approx(bound / math.sqrt(3), rel=0.03)
        assert not weights[f"{name}.bias"].any()
    assert torch.equal(model.pos_embed[0, 1:], positions(4, 4, 192).float()) and not model.pos_embed[0, 0].any()
    frozen = {"pos_embed"} | ({"patch_embed.proj.weight", "patch_embed.proj.bias"} if freeze else set())
    assert {name for name, p in weights.items() if not p.requires_grad} == frozen
    with pytest.raises(InvalidValue, match=r"^name=resnet18: .*ViT"):
        moco_v3_vit("resnet18", 2, 20)
    with pytest.raises(InvalidValue, match=r"^args\.embed_dim=6: .* 4"):
        moco_v3_vit("vit_tiny_patch16_224", 2, 32, {"embed_dim": 6})


# ---- the forward pass of two images before a run, without memory for weights

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
    monkeypatch.setattr("ssl_bench.networks.trial.MOST_WEIGHTS_ON_CPU", 0)


class Computing(Own):
    """It cannot be built without memory for its weights."""

    def __init__(self) -> None:
        super().__init__()
        assert next(self.parameters()).sum().item() != 0


@pytest.mark.parametrize(("network", "device"), [(Own, "meta"), (Computing, "cpu")])
def test_a_network_of_many_weights_is_built_without_memory_if_it_can_be(network: type[Own], device: str) -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    tried = try_backbone({"_target_": f"{__name__}.{network.__name__}"}, 3, {16: "dataset.size"})
    assert next(tried.parameters()).device.type == device
    assert torch.equal(torch.get_rng_state(), state)


OPTIONS = sorted(path.stem for path in Path(__file__).parents[2].glob("conf/backbone/*.yaml"))


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_is_tried_without_memory(option: str) -> None:
    words = [f"backbone={option}", "dataset=cifar10", *(["backbone.name=test_vit"] if option == "timm" else [])]
    backbone = load(words)["backbone"]
    assert next(try_backbone(backbone, 3, {32: "dataset.size"}).parameters()).is_meta


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
        try_backbone({"_target_": f"{__name__}.Own"}, 3, {size: "dataset.size"})


# ---- projection heads, and networks that start as those of Keras do


HEADS = Path(__file__).parents[2] / "conf" / "head"


@pytest.mark.parametrize(
    ("name", "widths", "biases", "norms", "shift"), yaml.safe_load(Path(__file__).with_name("heads.yaml").read_text())
)
def test_the_heads_of_the_papers(
    name: str, widths: list[int], biases: list[bool], norms: int, shift: bool | None
) -> None:
    with torch.device("meta"):
        head: MLP = build(yaml.safe_load((HEADS / f"{name}.yaml").read_text()), "head", inputs=64)
    linears = [m for m in head.modules() if isinstance(m, nn.Linear)]
    assert [m.out_features for m in linears] == widths and [m.bias is not None for m in linears] == biases
    every = [m for m in head.modules() if isinstance(m, nn.BatchNorm1d)]
    assert len(every) == norms and (shift is None or every[-1].bias.requires_grad == shift)
    assert all(m.bias.requires_grad and m.weight.requires_grad for m in every[:-1])
    assert not every or every[-1].weight.requires_grad == (name not in ("simsiam", "moco_v3"))
    assert isinstance(head.layers[-1], nn.BatchNorm1d) == (norms == len(linears)) and head.num_features == widths[-1]


@pytest.mark.parametrize("network", [KerasConvN(11, 28), KerasMLP(128, 256, 64)])
def test_weights_are_glorots_and_batch_norms_have_keras_constants(network: nn.Module) -> None:
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            pixels = module.weight[0, 0].numel()
            bound = math.sqrt(6 / (pixels * (module.weight.shape[0] + module.weight.shape[1])))
            largest, deviation = module.weight.abs().max().item(), module.weight.std().item()
            assert 0.99 * bound < largest <= bound and deviation == pytest.approx(bound / math.sqrt(3), rel=0.03)
            assert module.bias is None
    group_statistics(network, 1)  # as a framework does
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)]
    assert {(norm.eps, norm.momentum) for norm in norms} == {(1e-3, 0.01)}


def test_the_layers_are_those_of_conv_n() -> None:
    torch.manual_seed(0)
    ours, keras = ConvN(11, 28), KerasConvN(11, 28)
    assert {k: v.shape for k, v in ours.state_dict().items()} == {k: v.shape for k, v in keras.state_dict().items()}
    keras.load_state_dict(ours.state_dict())
    images = torch.rand(4, 11, 28, 28)
    difference = keras(images) - ours(images)
    assert difference.norm() < 0.05 * ours(images).norm()  # but for the larger eps
