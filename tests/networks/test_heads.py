"""Layers and initial values of the projection heads."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from torch import nn

from ssl_bench.config.build import build
from ssl_bench.errors import InvalidValue
from ssl_bench.networks.heads import MLP

HEADS = Path(__file__).parents[2] / "conf" / "head"


@pytest.mark.parametrize(
    ("name", "widths", "biases", "norms", "shift"),
    # widths of the Linears, their biases, the number of BNs, and whether the shift of the last BN is trained
    [
        ("linear", [128], [True], 0, None),
        ("mlp2", [64, 128], [False, False], 2, False),
        ("mlp3", [64, 64, 128], [False] * 3, 3, False),
        ("mlp4", [64, 64, 64, 128], [False] * 4, 4, False),
        ("moco", [64, 128], [True, True], 0, None),
        ("simo", [64, 128], [False, False], 2, True),
        ("byol", [4096, 256], [False, True], 1, True),
        ("relic", [4096, 2048, 1024, 512, 128], [False] * 5, 5, False),
        ("simsiam", [64, 64, 2048], [False] * 3, 3, False),
        ("moco_v3", [4096, 4096, 256], [False] * 3, 3, False),
        ("mlp2_keras", [256, 64], [False, False], 1, True),
        ("expander", [8192] * 3, [False, False, True], 2, None),
    ],
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


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MLP(4, 0, None, 2), "layers=0: .*1 to 100"),
        (lambda: MLP(4, 3, (5,), 2), r"hidden=\[5\]: .*2 "),
        (lambda: MLP(4, 2, 0, 2), "hidden=0: .*1 "),
        (lambda: MLP(4, 1, None, 0), "out=0: .*1 "),
    ],
)
def test_invalid_heads_are_refused(make: Callable[[], MLP], message: str) -> None:
    with pytest.raises(InvalidValue, match=f"^{message}"):
        make()
