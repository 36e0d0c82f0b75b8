"""EqCo's toy: the estimate of a mutual information that is known."""

import json
from pathlib import Path

import pytest

from ssl_bench.commands.mi import estimate, main
from ssl_bench.config.compose import load
from tests.conftest import only_run


def test_few_steps_find_what_there_is_and_never_more_than_the_bound(capfd: pytest.CaptureFixture[str]) -> None:
    short = ["information=2", "pairs=32", "steps=800", "evaluations=50", "lr=0.002"]
    assert main(short) == 0
    results = json.loads((only_run() / "results.json").read_text())
    assert results["metrics"]["mi/true"] == 2 and "mi/estimate" in capfd.readouterr().out
    assert 1.0 < results["metrics"]["mi/estimate"] < 2.0  # log(32) is far above
    assert main(short) == 0 and "already done" in capfd.readouterr().out


def test_a_loss_bounds_by_its_own_number_of_negatives() -> None:
    """Untrained networks of width 1 know nothing: every estimate is about zero, from below."""
    nothing = ["steps=1", "evaluations=200", "hidden=1", "outputs=1", "pairs=16"]
    for loss in (["loss=infonce"], ["loss=eqco", "loss.alpha=512"]):
        assert -0.2 < estimate(load([*nothing, *loss], "mi")) < 0.05


def test_bad_values_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["pairs=1"]) == 2 and "pairs=1: set pairs to 2 or more" in capfd.readouterr().err
    assert main(["lr=-1"]) == 2 and "set lr to a positive number" in capfd.readouterr().err
    assert main(["steps=none"]) == 2 and "steps" in capfd.readouterr().err
    assert not Path("outputs").exists()
