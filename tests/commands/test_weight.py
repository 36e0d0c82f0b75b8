"""``ssl-bench weight``: weights of InfoNCE and DCL in closed form, and a grid."""

import json
import math
from pathlib import Path

import pytest

from ssl_bench.commands.weight import main, weight
from tests.composed import load


@pytest.mark.parametrize("k", [1, 256, 65536])
@pytest.mark.parametrize("tau", [0.1, 0.5, 2.0])
@pytest.mark.parametrize(("positive", "negative"), [(1.0, -1.0), (0.3, 0.4)])
def test_the_weights_of_infonce_and_dcl_match_their_closed_forms(
    k: int, tau: float, positive: float, negative: float
) -> None:
    settings = [f"k={k}", f"temperature.tau={tau}", f"positive={positive}", f"negative={negative}"]
    e = k * math.exp((negative - positive) / tau)
    infonce = weight(load([*settings, "loss=infonce"], primary="weight"))["weight"]
    assert infonce == pytest.approx(e / (1 + e), rel=1e-6, abs=1e-12)
    assert weight(load([*settings, "loss=dcl"], primary="weight"))["weight"] == pytest.approx(1, rel=1e-6)


def test_a_grid_of_weights() -> None:
    assert main(["-m", "k=1,2"]) == 0
    weights = [
        json.loads(path.read_text())["metrics"]["weight"] for path in Path("outputs").glob("weight/*/results.json")
    ]
    assert sorted(weights) == pytest.approx([k * math.exp(-10) / (1 + k * math.exp(-10)) for k in (1, 2)], rel=1e-6)
