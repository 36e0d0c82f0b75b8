"""Gradients of networks of any width, in the memory format of runs, on any processor."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from ssl_bench.check.networks import NETWORKS, differences
from ssl_bench.networks.backbones import DigitsResNet
from ssl_bench.networks.narrow import NarrowConv2d, replace_narrow


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_in_float32_are_those_in_float64(name: str, threads: int) -> None:
    """oneDNN's kernel for AVX2 is wrong by 75% with two threads, and with one it ends the process."""
    assert [each for each in differences(name, torch.device("cpu")) if each.share > 1] == []


def test_only_narrow_strided_convolutions_are_replaced() -> None:
    network = replace_narrow(DigitsResNet(8, 1))
    kinds = {name: type(module) for name, module in network.named_modules() if isinstance(module, nn.Conv2d)}
    assert {name for name, kind in kinds.items() if kind is NarrowConv2d} == {"stages.1.shortcut.0"}
    # 8 channels are replaced, 16 are not
    assert kinds["stages.2.shortcut.0"] is nn.Conv2d


@pytest.mark.parametrize(("groups", "size"), [(1, 20), (3, 15)])
def test_a_replaced_convolution_computes_the_same(groups: int, size: int) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(6, 9, 1, (2, 3), groups=groups)).double()
    x = torch.randn(4, 6, size, size, dtype=torch.float64)  # float64 is not computed by oneDNN
    expected = plain(x)
    assert isinstance(replace_narrow(plain)[0], NarrowConv2d)  # type: ignore[index]
    torch.testing.assert_close(plain(x), expected, rtol=1e-14, atol=1e-14)
