"""The protocols of other libraries give the numbers of their own code on the same features; few labels, shares."""

import math
from typing import Any

import pytest
import torch
from lightly.utils.benchmarking import KNNClassifier, LinearClassifier, knn_predict
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from ssl_bench.config import schema
from ssl_bench.config.build import build
from ssl_bench.config.compose import load
from ssl_bench.data.arrays import stratified
from ssl_bench.data.share import Share
from ssl_bench.errors import ConfigError
from ssl_bench.evaluate.accuracy import Accuracy
from ssl_bench.evaluate.knn_euclidean import rank_by_distance
from ssl_bench.evaluate.target import Evaluator, SplitName, Target
from ssl_bench.precision import Precision
from ssl_bench.training.parts import Parts

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


def library_knn(k: int, temperature: float) -> Tensor:
    """The hits [Q] of lightly's own function, whose code is MoCo's."""
    bank = normalize(FEATURES, dim=1).T.contiguous()
    ranking = knn_predict(normalize(QUERIES, dim=1), bank, LABELS, CLASSES, k, temperature)
    return ranking[:, 0] == QUERY_LABELS


@pytest.mark.parametrize(("name", "k", "temperature"), [("lightly", 200, 0.1), ("moco", 200, 0.1), ("dino", 20, 0.07)])
def test_knn_is_that_of_the_library(name: str, k: int, temperature: float) -> None:
    top1 = measured(f"knn_{name}")["top1"]
    assert isinstance(top1, Accuracy) and torch.equal(top1.right, library_knn(k, temperature))


def test_the_settings_are_lightlys_defaults() -> None:
    classifier = KNNClassifier(None, CLASSES, 200, 0.1, 0, 1, topk=(1,))
    classifier.append_train_features(normalize(FEATURES, dim=1), LABELS)
    assert classifier.normalize
    assert (
        LinearClassifier(nn.Identity(), 256, feature_dim=WIDTH, num_classes=CLASSES).lr
        == CONFIG["linear_lightly"]["lr"]
    )


def test_the_euclidean_votes_are_their_formula() -> None:
    ranking = rank_by_distance(QUERIES[:50], FEATURES, LABELS, 20, 1e-5, CLASSES)
    for query, ranked in zip(QUERIES[:50].double(), ranking, strict=True):
        distances = [math.dist(query.tolist(), each) for each in FEATURES.tolist()]
        nearest = sorted(range(len(distances)), key=distances.__getitem__)[:20]
        votes = [sum(1 / (distances[i] + 1e-5) for i in nearest if LABELS[i] == c) for c in range(CLASSES)]
        assert ranked.tolist() == sorted(range(CLASSES), key=lambda c: -votes[c])
    assert measured("knn_solo")["top1"] == pytest.approx(0.8, abs=0.15)


def library_linear() -> float:
    """lightly's own classifier and optimiser on the features, in a plain loop."""
    torch.manual_seed(1)
    module = LinearClassifier(nn.Identity(), 256, feature_dim=WIDTH, num_classes=CLASSES)

    class Trainer:
        world_size, estimated_stepping_batches = 1, 90 * (len(LABELS) // 256)

    module.__class__ = type("Attached", (LinearClassifier,), {"trainer": Trainer()})
    (optimizer,), (scheduler,) = module.configure_optimizers()
    for _ in range(90):
        for batch in torch.randperm(len(LABELS))[: len(LABELS) // 256 * 256].split(256):
            optimizer.zero_grad()
            cross_entropy(module(FEATURES[batch]), LABELS[batch]).backward()
            optimizer.step()
            scheduler["scheduler"].step()
    return (module(QUERIES).argmax(1) == QUERY_LABELS).double().mean().item()


def test_a_linear_classifier_is_that_of_lightly_within_a_standard_error() -> None:
    ours, theirs = measured("linear_lightly")["top1"], library_linear()
    assert abs(ours - theirs) <= (theirs * (1 - theirs) / len(QUERY_LABELS)) ** 0.5


@pytest.mark.parametrize("name", ["linear_solo", "linear_dino", "linear_moco_features"])
def test_a_linear_classifier_separates_the_classes(name: str) -> None:
    best = (torch.cdist(QUERIES, CENTRES).argmin(1) == QUERY_LABELS).double().mean().item()  # Bayes
    assert best - 0.12 < measured(name)["top1"] <= best + 0.04


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
    parts = Parts(config)
    assert isinstance(parts.dataset, Share) and parts.dataset.check() == len(parts.dataset.pretrain())
    targets = dict(parts.targets({"": parts.method.encoder}, torch.device("cpu"), Precision.of("fp32", False)))
    few, whole = targets["/labels0.1/"], targets["/"]
    assert (len(few.train), len(whole.train), len(few.test)) == (len(few.labels("train")), parts.dataset.check(), 450)
    assert len(few.train) == pytest.approx(0.1 * len(whole.train), abs=5) and few.labels("train").unique().numel() == 10
    rows = few.features("train")["backbone"]
    assert all((whole.features("train")["backbone"] == row).all(1).any() for row in rows)
    for word in ("evaluate.labels=[]", "evaluate.labels=[0]", "evaluate.labels=[0.1,0.1]", "dataset.share=0"):
        with pytest.raises(ConfigError, match=word.partition("=")[0]):
            config = load([word])
            schema.check(config)
            _ = Parts(config).dataset
