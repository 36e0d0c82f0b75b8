"""Evaluators of a loss: weights of the positive in closed form, and estimates of a known mutual information."""

import json
import math

import pytest

from ssl_bench.commands.train import main
from ssl_bench.config.compose import load
from ssl_bench.evaluate.run import run_evaluators
from ssl_bench.training import build
from tests.conftest import only_run
from tests.evaluated import targets_of

FROZEN = ["framework=frozen", "temperature=fixed", "evaluate=gradient_weight", "backbone.width=4", "tracking=off"]


def number(*overrides: str) -> float:
    """The first metric of the evaluators."""
    run = build.build(load(overrides))
    targets = targets_of(run, {"": build.method(run).encoder}).items()
    return next(iter(run_evaluators(build.evaluators(run.config), targets)[0].values()))


@pytest.mark.parametrize("k", [1, 256, 65536])
@pytest.mark.parametrize("tau", [0.1, 0.5, 2.0])
@pytest.mark.parametrize(("positive", "negative"), [(1.0, -1.0), (0.3, 0.4)])
def test_the_weights_of_infonce_and_dcl_match_their_closed_forms(
    k: int, tau: float, positive: float, negative: float
) -> None:
    settings = {"k": k, "positive": positive, "negative": negative}
    overrides = [*FROZEN, f"temperature.tau={tau}", *(f"evaluate.gradient_weight.{n}={v}" for n, v in settings.items())]
    e = k * math.exp((negative - positive) / tau)
    assert number(*overrides, "loss=infonce") == pytest.approx(e / (1 + e), rel=1e-6, abs=1e-12)
    assert number(*overrides, "loss=dcl") == pytest.approx(1, rel=1e-6)


TOY = ["dataset=gaussians", "framework=frozen", "temperature=fixed", "temperature.tau=1", "tracking=off"]


def settings(**values: float) -> list[str]:
    return [f"evaluate.mutual_information.{key}={value}" for key, value in values.items()]


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
        assert -0.2 < number(*TOY, *untrained, *loss) < 0.05


def test_an_estimate_is_that_of_its_seed_and_leaves_random_numbers_as_they_are() -> None:
    """Numbers of the commit before the evaluator, whose last digits depend on the processor."""
    short = ["loss=eqco", "loss.alpha=15", "batch_size.size=16", *settings(steps=20, evaluations=5, hidden=16)]
    first = number(*TOY, *short)
    assert first == pytest.approx(0.0230085, abs=1e-4) and number(*TOY, *short) == first != number(
        *TOY, *short, "seed=1"
    )
    longer = ["loss=eqco", "loss.alpha=512", "batch_size=b128", "dataset.information=10", "seed=3"]
    assert number(*TOY, *longer, *settings(steps=200, evaluations=100)) == pytest.approx(5.8733, abs=0.02)
