"""The protocols of other libraries give the numbers of their own code on the same features; few labels, shares."""

import inspect
import math
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
from ssl_bench.data.source import Images, stratified
from ssl_bench.errors import InvalidValue
from ssl_bench.evaluate.accuracy import Accuracy
from ssl_bench.evaluate.knn import KNN, HeldOutKNN, knn_predict, leave_one_out
from ssl_bench.evaluate.target import Evaluator, SplitName, Target
from ssl_bench.seeding import stream
from ssl_bench.training import build as of_run
from tests.evaluate.test_geometry import Halves
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


@pytest.mark.slow  # here and below: lightly is imported, and the next test has the same votes
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


@pytest.mark.slow
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


@pytest.mark.parametrize("name", [*list(LOOPS)[1:], pytest.param("lightly", marks=pytest.mark.slow)])
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


# ---- kNN beside a dense reference in float64: ties and bounded memory


SEVEN = 7


def exact(n: int, seed: int) -> Tensor:
    """Vectors whose cosines are exact multiples of 1/8 or 1/16, so that most neighbours are tied."""
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (n, 16), generator=generator) * 2.0 - 1
    four = torch.rand(n, 16, generator=generator).argsort(1) < 4
    return torch.where(torch.rand(n, 1, generator=generator) < 0.5, signs * four, signs)  # of norm 2 or 4


def labels_of(n: int, seed: int, classes: int = SEVEN) -> Tensor:
    return torch.randint(0, classes, (n,), generator=torch.Generator().manual_seed(seed))


def reference(queries: Tensor, bank: Tensor, labels: Tensor, k: int, temperature: float, classes: int) -> Tensor:
    """The ranking from a dense float64 product, one query at a time, with exactly rounded sums."""
    q, b = (x.double() / x.double().norm(dim=1, keepdim=True) for x in (queries, bank))
    ranking = []
    for cosines in (q @ b.T).numpy():
        order = np.argsort(-cosines, kind="stable")[:k]
        votes: list[list[float]] = [[] for _ in range(classes)]
        for index in order:
            votes[int(labels[index])].append(math.exp((cosines[index] - cosines[order[0]]) / temperature))
        scores = [math.fsum(vote) for vote in votes]
        ranking.append(sorted(range(classes), key=lambda c: (-scores[c], c)))
    return torch.tensor(ranking)


@pytest.mark.parametrize("k", [1, 7, 200, 1000])
def test_ranking_equals_the_reference_with_ties(k: int) -> None:
    queries, bank, labels = exact(100, 0), exact(1000, 1), labels_of(1000, 2)
    expected = reference(queries, bank, labels, k, 0.1, SEVEN)
    for blocks in (None, (1, 200), (33, 64), (1000, 4096)) if k == 7 else [None]:
        settings: dict[str, Any] = {"k": k, "temperature": 0.1, "num_classes": SEVEN, "blocks": blocks}
        assert torch.equal(knn_predict(queries, bank, labels, **settings), expected)


@pytest.mark.parametrize("copies", [0, 9])
def test_leave_one_out_equals_a_search_without_each_image(copies: int) -> None:
    """Also among more copies of an image than neighbours."""
    x, labels = exact(60, 0), labels_of(60, 2)
    x[:copies] = x[30]
    settings: dict[str, Any] = {"k": 5, "temperature": 0.1, "num_classes": SEVEN}
    hits = 0
    for i in range(60):
        others = [j for j in range(60) if j != i]
        hits += int(reference(x[i : i + 1], x[others], labels[others], 5, 0.1, SEVEN)[0, 0] == labels[i])
    assert leave_one_out(x, labels, **settings) == hits / 60


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_autocast_and_the_length_of_features_change_nothing(kind: torch.dtype) -> None:
    queries, bank, labels = exact(100, 0), exact(1000, 1), labels_of(1000, 2)
    settings: dict[str, Any] = {"k": 20, "temperature": 0.1, "num_classes": SEVEN}
    expected = reference(queries, bank, labels, 20, 0.1, SEVEN)
    with torch.autocast("cpu", kind):
        assert torch.equal(knn_predict(queries * 2.0**-45, bank * 2.0**45, labels, **settings), expected)
        assert torch.equal(knn_predict(queries.to(kind), bank.to(kind), labels, **settings), expected)


def test_of_more_equal_images_than_neighbours_the_first_others_vote() -> None:
    """Images 3 to 9 are not among their own three nearest: 0 and 1 vote. For the first three the votes are wrong."""
    labels = torch.tensor([1, 1, 0, 1, 1, 1, 1, 1, 1, 1])
    assert leave_one_out(torch.ones(10, 4), labels, k=2, temperature=0.1, num_classes=2) == 0.7


REFUSED: list[dict[str, Any]] = [{"k": 0}, {"k": 11}, {"temperature": 0.0}, {"num_classes": 3}]
REFUSED += [{"bank_labels": torch.arange(10) - 1}, {"queries": torch.full((10, 4), 1e20)}]
REFUSED += [{"bank": torch.full((10, 4), value)} for value in (math.nan, math.inf, 1e20, 1e-20)]


@pytest.mark.parametrize("change", REFUSED)
def test_refusals(change: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"queries": torch.ones(2, 4), "bank": torch.ones(10, 4)}
    arguments |= {"bank_labels": torch.arange(10) % 4, "k": 3, "temperature": 0.1, "num_classes": 4}
    with pytest.raises(InvalidValue) as refusal:
        knn_predict(**(arguments | change))
    assert refusal.value.key in ("bank_labels", *change)


def make_target(network: nn.Module | None, classes: int) -> Target:
    def split(n: int, seed: int) -> Images:
        images = torch.randint(0, 256, (n, 1, 4, 4), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
        labels = labels_of(n, seed, classes)
        images[:, :, :2] //= 4  # the first half shows the class, the second does not
        images[torch.arange(n), 0, labels // 4 % 2, labels % 4] = 255
        return Images([images], labels)

    view = torch.Tensor.float
    return Target(network, split(300, 0), split(100, 1), num_classes=classes, view=view, device="cpu", seed=0)


def test_evaluator_reports_backbone_and_projection() -> None:
    metrics = dict(KNN(k=10, temperature=0.1).run(make_target(Halves(), SEVEN)))
    assert list(metrics) == ["top1", "top5", "projection_top1", "projection_top5"]
    assert metrics["top1"] == 1
    assert metrics["projection_top1"] < 0.4 < metrics["projection_top5"] < 1
    target = make_target(Halves(), SEVEN)
    bank, queries = target.features("train")["projection"], target.features("test")["projection"]
    ranking = reference(queries, bank, target.labels("train"), 10, 0.1, SEVEN)
    hits = ranking[:, :5] == target.labels("test")[:, None]
    assert metrics["projection_top1"] == pytest.approx(hits[:, 0].double().mean().item(), abs=1e-12)
    assert metrics["projection_top5"] == pytest.approx(hits.any(1).double().mean().item(), abs=1e-12)


def test_several_settings_share_one_search_and_the_first_has_the_plain_names() -> None:
    target = make_target(Halves(), SEVEN)
    metrics = dict(KNN(k=[10, 50], temperature=[0.1, 1.0], per_class=True).run(target))
    for k, temperature in ((10, 0.1), (10, 1.0), (50, 0.1), (50, 1.0)):
        alone = dict(KNN(k=k, temperature=temperature).run(target))
        for name, value in alone.items():
            kind, space = name.rsplit("_", 1)[-1], "projection_" if name.startswith("projection") else ""
            assert metrics[f"{space}k{k}_t{temperature:g}_{kind}"] == value
            assert (k, temperature) != (10, 0.1) or metrics[name] == value
    labels = target.labels("test")
    shares = labels.bincount(minlength=SEVEN) / len(labels)
    mean = sum(float(shares[c]) * metrics[f"projection_top1_class{c}"] for c in range(SEVEN))
    assert mean == pytest.approx(metrics["projection_top1"], abs=1e-7)


def test_a_tenth_of_the_training_images_is_classified_by_the_others() -> None:
    target = make_target(Halves(), SEVEN)
    target.test = None  # type: ignore[assignment]  # nothing is read of it
    metrics = dict(HeldOutKNN(k=10, temperature=0.1).run(target))
    features, labels = target.features("train")["projection"], target.labels("train")
    order = torch.randperm(300, generator=torch.Generator().manual_seed(stream("knn_val", 0)))
    held_out, bank = order[:30], order[30:]
    ranking = reference(features[held_out], features[bank], labels[bank], 10, 0.1, SEVEN)
    share = (ranking[:, 0] == labels[held_out]).double().mean().item()
    assert metrics == {"top1": 1.0, "projection_top1": pytest.approx(share, abs=1e-12)} and 0 < share < 0.5
    with pytest.raises(InvalidValue, match=r"k=271: .* 1 to 270"):
        HeldOutKNN(k=271).check(target)
