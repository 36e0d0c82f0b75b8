"""The protocols of other libraries give the numbers of their own code on the same features; few labels, shares."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR

from ssl_bench.config.build import build
from ssl_bench.config.compose import load
from ssl_bench.data.dataset import Share
from ssl_bench.data.source import stratified
from ssl_bench.evaluate.accuracy import Accuracy
from ssl_bench.evaluate.target import Evaluator, SplitName, Target
from ssl_bench.training import build as of_run
from tests.evaluated import targets_of

CLASSES, WIDTH = 4, 8
GENERATOR = torch.Generator().manual_seed(0)
CENTRES = torch.randn(CLASSES, WIDTH, generator=GENERATOR)
LABELS = torch.randint(CLASSES, (600,), generator=GENERATOR)
QUERY_LABELS = torch.randint(CLASSES, (400,), generator=GENERATOR)
FEATURES, QUERIES = (CENTRES[y] + 1.2 * torch.randn(len(y), WIDTH, generator=GENERATOR) for y in (LABELS, QUERY_LABELS))


class Known(Target):
    """Features that are there already."""

    def __init__(self) -> None:
        self.num_classes, self.seed, self.network = CLASSES, 0, None
        self.train = range(len(LABELS))  # type: ignore[assignment]

    def features(self, name: SplitName) -> dict[str, Tensor]:
        return {"backbone": FEATURES if name == "train" else QUERIES}

    def labels(self, name: SplitName) -> Tensor:
        return LABELS if name == "train" else QUERY_LABELS


CONFIG = load(["evaluate=protocols"])["evaluate"]


def measured(name: str) -> dict[str, Any]:
    evaluator: Evaluator = build(CONFIG[name], f"evaluate.{name}")
    return dict(evaluator.run(Known()))


@cache
def lightly() -> Any:
    """Its benchmarks, whose import takes two seconds: only of the process that has these tests."""
    from lightly.utils import benchmarking

    return benchmarking


def library_knn(k: int, temperature: float) -> Tensor:
    """The hits [Q] of lightly's own function, whose code is MoCo's."""
    bank = normalize(FEATURES, dim=1).T.contiguous()
    ranking = lightly().knn_predict(normalize(QUERIES, dim=1), bank, LABELS, CLASSES, k, temperature)
    return ranking[:, 0] == QUERY_LABELS


@pytest.mark.parametrize(("name", "k", "temperature"), [("lightly", 200, 0.1), ("moco", 200, 0.1), ("dino", 20, 0.07)])
def test_knn_is_that_of_the_library(name: str, k: int, temperature: float) -> None:
    top1 = measured(f"knn_{name}")["top1"]
    assert isinstance(top1, Accuracy) and torch.equal(top1.right, library_knn(k, temperature))


@pytest.mark.parametrize("name", ["lightly", "moco", "dino", "solo"])
def test_knn_is_that_of_scikit_learn_with_the_votes_of_the_library(name: str) -> None:
    """In double precision; DINO, MoCo and solo-learn are no packages that one can install."""
    node = CONFIG[f"knn_{name}"]
    k, tau, epsilon = node["k"], node.get("temperature", 1.0), node.get("epsilon")
    cosine: dict[str, Any] = {"metric": "cosine", "weights": lambda d: np.exp((1 - d) / tau)}
    euclidean: dict[str, Any] = {"weights": lambda d: 1 / (d + epsilon)}
    for each in k if isinstance(k, list) else [k]:
        nearest = KNeighborsClassifier(each, algorithm="brute", **(euclidean if name == "solo" else cosine))
        nearest.fit(FEATURES.double().numpy(), LABELS.numpy())
        hits = nearest.predict(QUERIES.double().numpy()) == QUERY_LABELS.numpy()
        metric = "top1" if not isinstance(k, list) or each == k[0] else f"k{each}_t{tau}_top1"
        assert measured(f"knn_{name}")[metric] == hits.mean()


def test_the_settings_are_lightlys_defaults() -> None:
    known = inspect.signature(lightly().knn_predict).parameters
    assert known["knn_k"].default == CONFIG["knn_lightly"]["k"]
    assert known["knn_t"].default == CONFIG["knn_lightly"]["temperature"]
    assert inspect.signature(lightly().LinearClassifier).parameters["lr"].default == CONFIG["linear_lightly"]["lr"]


Steps = tuple[SGD, Callable[[int], None], Callable[[], None]]  # before each epoch, and after each step


def of_lightly(layer: nn.Linear, steps: int) -> Steps:
    """Its own classifier with its own optimiser and schedule."""
    classifier = lightly().LinearClassifier
    module = classifier(nn.Identity(), 256, feature_dim=WIDTH, num_classes=CLASSES)
    trainer = type("Trainer", (), {"world_size": 1, "estimated_stepping_batches": 90 * steps})()
    module.__class__ = type("Attached", (classifier,), {"trainer": trainer})
    module.classification_head = layer
    (optimizer,), (scheduler,) = module.configure_optimizers()
    return optimizer, lambda epoch: None, scheduler["scheduler"].step


def of_solo(layer: nn.Linear, steps: int) -> Steps:
    optimizer = SGD(layer.parameters(), 1.0, momentum=0.9)
    scheduler = MultiStepLR(optimizer, [60, 80])
    return optimizer, lambda epoch: scheduler.step() if epoch else None, lambda: None


def of_dino(layer: nn.Linear, steps: int) -> Steps:
    optimizer = SGD(layer.parameters(), 0.001 * 128 / 256, momentum=0.9)
    scheduler = CosineAnnealingLR(optimizer, 100, eta_min=0)
    return optimizer, lambda epoch: scheduler.step() if epoch else None, lambda: None


def of_moco(layer: nn.Linear, steps: int) -> Steps:
    optimizer = SGD(layer.parameters(), 30.0, momentum=0.9)

    def adjust(epoch: int) -> None:
        optimizer.param_groups[0]["lr"] = 30.0 * 0.1 ** ((epoch >= 60) + (epoch >= 80))

    return optimizer, adjust, lambda: None


LOOPS = {"lightly": of_lightly, "solo": of_solo, "dino": of_dino, "moco_features": of_moco}


@pytest.mark.parametrize("name", LOOPS)
def test_a_linear_classifier_is_that_of_the_library(name: str) -> None:
    """Bit by bit: its optimiser and schedule in a plain loop, from the same weights and with the same batches."""
    evaluator: Any = build(CONFIG[f"linear_{name}"], f"evaluate.linear_{name}")
    ours = evaluator.fitted(Known(), torch.Generator().manual_seed(5))
    layer, size, generator = nn.Linear(WIDTH, CLASSES), 128 if name == "dino" else 256, torch.Generator().manual_seed(5)
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -(WIDTH**-0.5), WIDTH**-0.5, generator=generator)  # as nn.Linear does
    if name in ("dino", "moco_features"):
        nn.init.normal_(layer.weight, std=0.01, generator=generator), nn.init.zeros_(layer.bias)
    whole = name in ("lightly", "solo")
    optimizer, before_epoch, after_step = LOOPS[name](layer, len(LABELS) // size)
    for epoch in range(90 if name == "lightly" else 100):
        before_epoch(epoch)
        order = torch.randperm(len(LABELS), generator=generator)
        for batch in order[: len(LABELS) // size * size if whole else None].split(size):
            optimizer.zero_grad()
            cross_entropy(layer(FEATURES[batch]), LABELS[batch]).backward()
            optimizer.step()
            after_step()
    assert torch.equal(ours.weight, layer.weight) and torch.equal(ours.bias, layer.bias)


def test_a_share_is_drawn_from_each_class() -> None:
    labels = torch.tensor([0] * 100 + [1] * 10 + [-1] * 50)[torch.randperm(160, generator=GENERATOR)]
    few, more = (stratified(labels, share, 3) for share in (0.04, 0.3))
    assert labels[few].unique(return_counts=True)[1].tolist() == [2, 4, 1]
    assert labels[more].unique(return_counts=True)[1].tolist() == [15, 30, 3]
    assert {*few.tolist()} < {*more.tolist()} and few.tolist() == sorted(few.tolist())
    assert not torch.equal(few, stratified(labels, 0.04, 4))


def test_few_labels_and_shares_reach_the_evaluators() -> None:
    config = load(["dataset.share=0.5", "evaluate.labels=[0.1,1.0]", "backbone.width=4", "evaluate=knn"])
    assert load([])["dataset"]["share"] == 1.0
    run = of_run.build(config)
    assert isinstance(run.dataset, Share) and run.dataset.check() == len(run.dataset.pretrain())
    targets = targets_of(run, {"": of_run.method(run).encoder})
    few, whole = targets["/labels0.1/"], targets["/"]
    assert (len(few.train), len(whole.train), len(few.test)) == (len(few.labels("train")), run.dataset.check(), 450)
    assert len(few.train) == pytest.approx(0.1 * len(whole.train), abs=5) and few.labels("train").unique().numel() == 10
    rows = few.features("train")["backbone"]
    assert all((whole.features("train")["backbone"] == row).all(1).any() for row in rows)
