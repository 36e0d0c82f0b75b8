"""kNN compared with a dense float64 reference, ties included, in bounded memory; test_protocols.py has scikit-learn."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ssl_bench.data.source import Images
from ssl_bench.errors import InvalidValue
from ssl_bench.evaluate.knn import KNN, HeldOutKNN, knn_predict, leave_one_out
from ssl_bench.evaluate.target import Target
from ssl_bench.seeding import stream

CLASSES = 7


def exact(n: int, seed: int) -> Tensor:
    """Vectors whose cosines are exact multiples of 1/8 or 1/16, so that most neighbours are tied."""
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (n, 16), generator=generator) * 2.0 - 1
    four = torch.rand(n, 16, generator=generator).argsort(1) < 4
    return torch.where(torch.rand(n, 1, generator=generator) < 0.5, signs * four, signs)  # of norm 2 or 4


def labels_of(n: int, seed: int, classes: int = CLASSES) -> Tensor:
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
    expected = reference(queries, bank, labels, k, 0.1, CLASSES)
    for blocks in (None, (1, 200), (33, 64), (1000, 4096)) if k == 7 else [None]:
        settings: dict[str, Any] = {"k": k, "temperature": 0.1, "num_classes": CLASSES, "blocks": blocks}
        assert torch.equal(knn_predict(queries, bank, labels, **settings), expected)


@pytest.mark.parametrize("copies", [0, 9])
def test_leave_one_out_equals_a_search_without_each_image(copies: int) -> None:
    """Also among more copies of an image than neighbours."""
    x, labels = exact(60, 0), labels_of(60, 2)
    x[:copies] = x[30]
    settings: dict[str, Any] = {"k": 5, "temperature": 0.1, "num_classes": CLASSES}
    hits = 0
    for i in range(60):
        others = [j for j in range(60) if j != i]
        hits += int(reference(x[i : i + 1], x[others], labels[others], 5, 0.1, CLASSES)[0, 0] == labels[i])
    assert leave_one_out(x, labels, **settings) == hits / 60


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_autocast_and_the_length_of_features_change_nothing(kind: torch.dtype) -> None:
    queries, bank, labels = exact(100, 0), exact(1000, 1), labels_of(1000, 2)
    settings: dict[str, Any] = {"k": 20, "temperature": 0.1, "num_classes": CLASSES}
    expected = reference(queries, bank, labels, 20, 0.1, CLASSES)
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


class Halves(nn.Module):
    """The first half of the pixels as backbone features, the second half as projection."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        first, second = x.flatten(1).chunk(2, dim=1)
        return {"backbone": first, "projection": second}


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
    metrics = dict(KNN(k=10, temperature=0.1).run(make_target(Halves(), CLASSES)))
    assert list(metrics) == ["top1", "top5", "projection_top1", "projection_top5"]
    assert metrics["top1"] == 1
    assert metrics["projection_top1"] < 0.4 < metrics["projection_top5"] < 1
    target = make_target(Halves(), CLASSES)
    bank, queries = target.features("train")["projection"], target.features("test")["projection"]
    ranking = reference(queries, bank, target.labels("train"), 10, 0.1, CLASSES)
    hits = ranking[:, :5] == target.labels("test")[:, None]
    assert metrics["projection_top1"] == pytest.approx(hits[:, 0].double().mean().item(), abs=1e-12)
    assert metrics["projection_top5"] == pytest.approx(hits.any(1).double().mean().item(), abs=1e-12)


def test_several_settings_share_one_search_and_the_first_has_the_plain_names() -> None:
    target = make_target(Halves(), CLASSES)
    metrics = dict(KNN(k=[10, 50], temperature=[0.1, 1.0], per_class=True).run(target))
    for k, temperature in ((10, 0.1), (10, 1.0), (50, 0.1), (50, 1.0)):
        alone = dict(KNN(k=k, temperature=temperature).run(target))
        for name, value in alone.items():
            kind, space = name.rsplit("_", 1)[-1], "projection_" if name.startswith("projection") else ""
            assert metrics[f"{space}k{k}_t{temperature:g}_{kind}"] == value
            assert (k, temperature) != (10, 0.1) or metrics[name] == value
    labels = target.labels("test")
    shares = labels.bincount(minlength=CLASSES) / len(labels)
    mean = sum(float(shares[c]) * metrics[f"projection_top1_class{c}"] for c in range(CLASSES))
    assert mean == pytest.approx(metrics["projection_top1"], abs=1e-7)


def test_a_tenth_of_the_training_images_is_classified_by_the_others() -> None:
    target = make_target(Halves(), CLASSES)
    target.test = None  # type: ignore[assignment]  # nothing is read of it
    metrics = dict(HeldOutKNN(k=10, temperature=0.1).run(target))
    features, labels = target.features("train")["projection"], target.labels("train")
    order = torch.randperm(300, generator=torch.Generator().manual_seed(stream("knn_val", 0)))
    held_out, bank = order[:30], order[30:]
    ranking = reference(features[held_out], features[bank], labels[bank], 10, 0.1, CLASSES)
    share = (ranking[:, 0] == labels[held_out]).double().mean().item()
    assert metrics == {"top1": 1.0, "projection_top1": pytest.approx(share, abs=1e-12)} and 0 < share < 0.5
    with pytest.raises(InvalidValue, match=r"k=271: .* 1 to 270"):
        HeldOutKNN(k=271).check(target)
