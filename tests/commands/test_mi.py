"""EqCo's toy problem: estimates of a known mutual information."""

import json

import pytest

from ssl_bench.commands.mi import estimate, main
from tests.composed import load
from tests.conftest import only_run


def test_the_estimate_after_a_few_steps_is_below_the_true_value(capfd: pytest.CaptureFixture[str]) -> None:
    short = ["information=2", "pairs=32", "steps=800", "evaluations=50", "lr=0.002"]
    assert main(short) == 0
    results = json.loads((only_run() / "results.json").read_text())
    assert results["metrics"]["mi/true"] == 2 and "mi/estimate" in capfd.readouterr().out
    assert 1.0 < results["metrics"]["mi/estimate"] < 2.0  # the bound log(32) = 3.5 is not reached
    assert main(short) == 0 and "already done" in capfd.readouterr().out


def test_untrained_networks_give_an_estimate_of_zero_under_either_loss() -> None:
    """InfoNCE adds log(1 + K) and EqCo log(1 + alpha) to its negative loss."""
    untrained = ["steps=1", "evaluations=200", "hidden=1", "outputs=1", "pairs=16"]
    for loss in (["loss=infonce"], ["loss=eqco", "loss.alpha=512"]):
        assert -0.2 < estimate(load([*untrained, *loss], "mi")) < 0.05
