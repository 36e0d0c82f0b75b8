"""Every option of conf/evaluate: its evaluator yields finite and repeatable results.

A new evaluator needs no entry here, unless it has an argument that must be small in a test.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from omegaconf import OmegaConf
from PIL import Image

from ssl_bench.commands.train import main
from ssl_bench.config.build import build
from ssl_bench.config.compose import load
from ssl_bench.data.source import Images
from ssl_bench.data.views import Views
from ssl_bench.evaluate.artifacts import Artifact
from ssl_bench.evaluate.run import run_evaluators
from ssl_bench.evaluate.target import Target
from ssl_bench.networks.backbones import timm_backbone
from ssl_bench.networks.encoder import Encoder
from ssl_bench.networks.heads import MLP
from ssl_bench.training import build as of_run
from tests.conftest import only_run
from tests.evaluated import targets_of

FILES = sorted((Path(__file__).parents[2] / "conf/evaluate").glob("*.yaml"))
NODES: dict[str, dict[str, Any]] = {  # these two are several of them
    file.stem: yaml.safe_load(file.read_text())[file.stem] for file in FILES if file.stem not in ("auto", "protocols")
}
DATASET = {"size": 64, "mean": [0.5], "std": [0.25], "knn_k": 5}
# Small values of arguments, for every option that has them.
SMALL = {"epochs": 1, "least_steps": 1, "batch_size": 15, "batch_sizes": [4, 9], "batches": 2}
SMALL |= {"ks": [2, 9], "queries": 5, "keys": 20, "draws": 2}
SMALL |= {"views": 3, "k": 5}
SMALL |= {"images": "photos", "annotations": None, "size": 64, "clusters": [2], "n_init": 1}


def make_target(trained: bool) -> Target:
    """Thirty grey images of six classes, with a ResNet that has a memory of them or with raw pixels."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (30, 1, 64, 64), generator=generator, dtype=torch.uint8)
    images = Images([pixels], torch.arange(30) % 6)
    torch.manual_seed(0)
    network = Encoder(timm_backbone("resnet18", 1), MLP(512, 1, None, 4))
    return Target(
        network if trained else None,
        images,
        images,
        num_classes=6,
        view=lambda x: x.float() / 255,
        device="cpu",
        seed=0,
        augment=[Views(64)] * 2,
    )


# Without detection, for photos of COCO, encoder_gradients, which takes long, and what needs a run's loss: these have
# tests of their own.
OPTIONS = sorted(NODES.keys() - {"detection", "encoder_gradients", "gradient_weight", "mutual_information"})
# Kinds of knn and linear that test_protocols.py compares with other libraries on the same features.
KINDS = {each for each in OPTIONS if each.startswith(("knn_", "linear_"))} - {"linear_opensel"}
PARAMETERS = [
    pytest.param(each, marks=pytest.mark.exhaustive if each in KINDS else pytest.mark.slow) for each in OPTIONS
]


@pytest.mark.parametrize("option", PARAMETERS)
def test_results_are_finite_and_repeatable(option: str) -> None:
    Path("photos").mkdir()
    Image.radial_gradient("L").save("photos/a.png")
    node = NODES[option] | {name: value for name, value in SMALL.items() if name in NODES[option]}
    settings = {"dataset": DATASET, "paths": {"data": "."}, "node": node}
    resolved: Any = OmegaConf.to_container(OmegaConf.create(settings), resolve=True)
    evaluator = build(resolved["node"], f"evaluate.{option}")
    evaluator.check(make_target(True))
    results = list(evaluator.run(make_target(True)))
    assert results and len(dict(results)) == len(results)
    assert all(isinstance(value, Artifact) or math.isfinite(value) for _, value in results)
    assert results == list(evaluator.run(make_target(True)))
    of_pixels, artifacts = run_evaluators({"": evaluator}, [("", make_target(False))])
    assert {*of_pixels, *artifacts} <= dict(results).keys()


# ---- evaluators of a loss


FROZEN = ["framework=frozen", "temperature=fixed", "evaluate=gradient_weight", "backbone.width=4", "tracking=off"]


def number(*overrides: str) -> float:
    """The first metric of the evaluators."""
    run = of_run.build(load(overrides))
    targets = targets_of(run, {"": of_run.method(run).encoder}).items()
    return next(iter(run_evaluators(of_run.evaluators(run.config), targets)[0].values()))


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


@pytest.mark.slow
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
