"""EqCo's toy problem: estimates of a known mutual information."""

import itertools
import json
from pathlib import Path

import pytest
import torch

from ssl_bench.commands.train import main
from ssl_bench.config.compose import load
from ssl_bench.config.identity import run_id
from ssl_bench.evaluate.run import run_evaluators
from ssl_bench.training.parts import Parts
from ssl_bench.training.precision import Precision
from tests.conftest import only_run

TOY = ["dataset=gaussians", "framework=frozen", "temperature=fixed", "temperature.tau=1", "tracking=off"]


def settings(**values: float) -> list[str]:
    return [f"evaluate.mutual_information.{key}={value}" for key, value in values.items()]


def estimate(*overrides: str) -> float:
    parts = Parts(load([*TOY, *overrides]))
    targets = parts.targets({"": parts.method.encoder}, torch.device("cpu"), Precision.of("fp32", False))
    return run_evaluators(parts.evaluators, targets)[0]["mutual_information/estimate"]


def test_the_estimate_after_a_few_steps_is_below_the_true_value(capfd: pytest.CaptureFixture[str]) -> None:
    short = [*TOY, "loss=infonce", "batch_size=b32", *settings(steps=800, evaluations=50, lr=0.002)]
    assert main(short) == 0
    results = json.loads((only_run() / "results.json").read_text())
    assert results["metrics"]["mutual_information/true"] == 2
    assert "mutual_information/estimate" in capfd.readouterr().out
    assert results["metrics"]["mutual_information/estimate"] == pytest.approx(1.4217, abs=0.02)  # below log(32) = 3.5
    assert main(short) == 0 and "already done" in capfd.readouterr().out


def test_untrained_networks_give_an_estimate_of_zero_under_either_loss() -> None:
    """InfoNCE adds log(1 + K) and EqCo log(1 + alpha) to its negative loss."""
    untrained = ["batch_size.size=16", *settings(steps=1, evaluations=200, hidden=1, outputs=1)]
    for loss in (["loss=infonce"], ["loss=eqco", "loss.alpha=512"]):
        assert -0.2 < estimate(*untrained, *loss) < 0.05


def test_an_estimate_is_that_of_its_seed_and_leaves_random_numbers_as_they_are() -> None:
    """Numbers of the commit before the evaluator, whose last digits depend on the processor."""
    short = ["loss=eqco", "loss.alpha=15", "batch_size.size=16", *settings(steps=20, evaluations=5, hidden=16)]
    first = estimate(*short)
    assert first == pytest.approx(0.0230085, abs=1e-4) and estimate(*short) == first != estimate(*short, "seed=1")
    longer = ["loss=eqco", "loss.alpha=512", "batch_size=b128", "dataset.information=10", "seed=3"]
    assert estimate(*longer, *settings(steps=200, evaluations=100)) == pytest.approx(5.8733, abs=0.02)


def test_runs_of_a_grid_differ_in_loss_temperature_pairs_and_information() -> None:
    axes = {"loss": ("infonce", "dcl"), "temperature.tau": (1, 2), "batch_size.size": (4, 8)}
    axes |= {"dataset.information": (1, 2)}
    cells = [dict(zip(axes, cell, strict=True)) for cell in itertools.product(*axes.values())]
    small = settings(steps=1, evaluations=1, hidden=2, outputs=2)
    run_ids = {run_id(load([*TOY, *small, *(f"{key}={value}" for key, value in cell.items())])) for cell in cells}
    assert len(run_ids) == 16
    corners = ["loss=infonce,dcl", "temperature.tau=2", "batch_size.size=8", "dataset.information=1,2"]
    assert main(["-m", *TOY, *corners, *small]) == 0
    trained = {path.parent.name for path in Path("outputs").glob("default/*/results.json")}
    assert len(trained) == 4 and trained < run_ids
