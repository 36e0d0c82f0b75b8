"""Layers and initial values of the projection heads, and of the networks that start as those of Keras do."""

import math
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

from ssl_bench.config.build import build
from ssl_bench.networks.backbones import ConvN, KerasConvN
from ssl_bench.networks.heads import MLP, KerasMLP
from ssl_bench.networks.norm import group_statistics

HEADS = Path(__file__).parents[2] / "conf" / "head"


@pytest.mark.parametrize(
    ("name", "widths", "biases", "norms", "shift"),
    yaml.safe_load(Path(__file__).with_name("heads.yaml").read_text()),
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
