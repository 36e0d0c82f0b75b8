"""Networks that start as those of Keras do: bounds of the weights, constants of the batch norms, no biases."""

import math

import pytest
import torch
from torch import nn

from ssl_bench.networks.backbones import ConvN, KerasConvN
from ssl_bench.networks.heads import KerasMLP
from ssl_bench.networks.norm import group_statistics


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
    ours, keras = ConvN(11, 28), KerasConvN(11, 28)
    assert {k: v.shape for k, v in ours.state_dict().items()} == {k: v.shape for k, v in keras.state_dict().items()}
    keras.load_state_dict(ours.state_dict())
    images = torch.rand(4, 11, 28, 28)
    torch.testing.assert_close(keras(images), ours(images), rtol=0.1, atol=0.1)  # but for the larger eps
