"""Every option of conf/evaluate: its evaluator yields finite and repeatable results.

A new evaluator needs no entry here, unless it has an argument that must be small in a test.
"""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from omegaconf import OmegaConf
from PIL import Image

from ssl_bench.config.build import build
from ssl_bench.data.source import Images
from ssl_bench.data.views import Views
from ssl_bench.evaluate.artifacts import Artifact
from ssl_bench.evaluate.run import run_evaluators
from ssl_bench.evaluate.target import Target
from ssl_bench.networks.backbones import timm_backbone
from ssl_bench.networks.encoder import Encoder
from ssl_bench.networks.heads import MLP

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
