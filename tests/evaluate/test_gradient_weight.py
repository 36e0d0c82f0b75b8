"""Weights of the positive in the gradients of InfoNCE and DCL in closed form, and a grid."""

import json
import math
from pathlib import Path

import pytest
import torch

from ssl_bench.commands.train import main
from ssl_bench.config.compose import load
from ssl_bench.evaluate.run import run_evaluators
from ssl_bench.training.parts import Parts
from ssl_bench.training.precision import Precision

FROZEN = ["framework=frozen", "temperature=fixed", "evaluate=gradient_weight", "backbone.width=4", "tracking=off"]


@pytest.mark.parametrize("k", [1, 256, 65536])
@pytest.mark.parametrize("tau", [0.1, 0.5, 2.0])
@pytest.mark.parametrize(("positive", "negative"), [(1.0, -1.0), (0.3, 0.4)])
def test_the_weights_of_infonce_and_dcl_match_their_closed_forms(
    k: int, tau: float, positive: float, negative: float
) -> None:
    settings = {"k": k, "positive": positive, "negative": negative}
    overrides = [*FROZEN, f"temperature.tau={tau}", *(f"evaluate.gradient_weight.{n}={v}" for n, v in settings.items())]
    e = k * math.exp((negative - positive) / tau)
    assert weight(*overrides, "loss=infonce") == pytest.approx(e / (1 + e), rel=1e-6, abs=1e-12)
    assert weight(*overrides, "loss=dcl") == pytest.approx(1, rel=1e-6)


def weight(*overrides: str) -> float:
    parts = Parts(load(overrides))
    targets = parts.targets({"": parts.method.encoder}, torch.device("cpu"), Precision.of("fp32", False))
    return run_evaluators(parts.evaluators, targets)[0]["gradient_weight/weight"]


def test_a_grid_of_weights(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["-m", *FROZEN, "loss=infonce", "temperature.tau=0.2,0.5"]) == 0
    weights = [
        json.loads(path.read_text())["metrics"]["gradient_weight/weight"]
        for path in Path("outputs").glob("default/*/results.json")
    ]
    expected = [256 * math.exp(-2 / tau) / (1 + 256 * math.exp(-2 / tau)) for tau in (0.2, 0.5)]
    assert sorted(weights) == pytest.approx(expected, rel=1e-6)
    printed = capfd.readouterr().out
    assert all(f"{weight:.4g}" in printed for weight in expected)
