"""Looks at the network of a training: they change no bit of it, and what goes wrong is said."""

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ssl_bench.config.compose import load
from ssl_bench.training.engine import Training
from ssl_bench.training.watch import warnings_of
from tests.conftest import SMALL, only_run

Train = Callable[..., tuple[int, str]]
SHORT = ["dataset.size=12", "batch_size=b128", "evaluate.watch=1"]  # ten steps an epoch


def rows(outputs: str = "outputs") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (only_run(Path(outputs)) / "metrics.jsonl").read_text().splitlines()]


def looks(outputs: str = "outputs") -> dict[int, tuple[float, ...]]:
    """The numbers of every look by its step."""
    seen = [row for row in rows(outputs) if "watch/effective_rank" in row]
    return {row["step"]: tuple(row[name] for name in sorted(row) if name.startswith("watch/")) for row in seen}


def saved(outputs: str) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(only_run(Path(outputs)) / "checkpoints/last.pt", weights_only=True)
    return state


def test_looks_change_no_bit_and_follow_the_rows_of_metrics(train: Train) -> None:
    run = [*SHORT, "epochs=3", "log_every=7", "framework=moco_v2", "negatives.k=64"]
    assert train(*run, "evaluate=knn", "evaluate.every=1", "paths.outputs=watched")[0] == 0
    assert train(*run, "evaluate.watch=0", "paths.outputs=plain")[0] == 0
    watched, plain = saved("watched"), saved("plain")
    weights = {name: v for name, v in watched["method"].items() if isinstance(v, torch.Tensor)}
    assert len(weights) > 20 and all(torch.equal(v, plain["method"][name]) for name, v in weights.items())
    assert torch.equal(watched["ranks"][0]["rng"]["torch"], plain["ranks"][0]["rng"]["torch"])
    assert only_run(Path("watched")).name == only_run(Path("plain")).name  # one identity
    assert list(looks("watched")) == [14, 21, 30] and not looks("plain")
    assert [row["epoch"] for row in rows("watched") if "knn/top1" in row] == [1.0, 2.0, 3.0]
    unwatched = [row for row in rows("watched") if "loss" in row]
    unwatched = [{k: v for k, v in row.items() if not k.startswith("watch/")} for row in unwatched]
    clocks = {"seconds": 0, "images_per_second": 0}
    assert [row | clocks for row in unwatched] == [row | clocks for row in rows("plain") if "loss" in row]


def test_images_without_labels_have_a_rank_only(train: Train) -> None:
    bits = ["dataset=bits", "dataset.images=400", "dataset.size=8", "backbone=resnet_digits", "backbone.in_channels=10"]
    assert train(*bits, "batch_size.size=40", "epochs=1", "evaluate.watch=1")[0] == 0
    (look,) = [row for row in rows() if "watch/effective_rank" in row]
    assert 1 < look["watch/effective_rank"] < 16 and -1 < look["watch/mean_cosine"] < 1 and "watch/knn_top1" not in look


def test_the_mean_cosine_is_of_different_images(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[torch.Tensor]()

    def rank(projections: torch.Tensor) -> float:
        seen.append(projections)
        return 1.0

    monkeypatch.setattr("ssl_bench.training.watch.effective_rank", rank)
    run = Training(load([*SMALL, "evaluate.watch=1"]), torch.device("cpu"))
    run.watch.ids, row = run.watch.ids[:5], dict[str, Any]()
    assert run.watch.measure_if_due(run.watch.every, row)
    pairs = itertools.combinations(seen[0].double(), 2)
    cosines = [float(torch.cosine_similarity(a, b, dim=0)) for a, b in pairs]
    assert len(cosines) == 10 and row["watch/mean_cosine"] == pytest.approx(sum(cosines) / 10, rel=1e-6)


@pytest.mark.parametrize(("every", "count"), [(1, 67), (4, 268), (0, 0)])
def test_a_look_sees_a_twentieth_of_the_images_that_were_trained_on(every: int, count: int) -> None:
    run, again = (Training(load([*SMALL, f"evaluate.watch={every}"]), torch.device("cpu")) for _ in range(2))
    assert len(run.watch.ids) == count and torch.equal(run.watch.ids, again.watch.ids)
    assert len(run.watch.ids.unique()) == count


# ---- what is said

GOOD = {"step": 100, "watch/effective_rank": 12.0, "watch/mean_cosine": 0.3}
COLLAPSE, CHANCE = "collapse", "no lower than if all images looked alike"  # what the warnings begin with or have


def test_collapse_and_chance_are_said_after_the_warm_up() -> None:
    collapsed = {"epoch": 8.0, "watch/effective_rank": 3.8, "watch/mean_cosine": 0.9991}
    early, late = {"epoch": 2.0, "information": -0.5}, {"epoch": 7.0, "information": 0.2}
    look, then = {**GOOD, "epoch": 8.0}, {**GOOD, "epoch": 12.0, "information": 1.0}

    def said(*rows: dict[str, Any], warmup: float = 0) -> list[str]:
        warnings = warnings_of(rows, {"metrics": {}, "config": {}}, warmup)
        assert all(" epoch 8" in each and "optimizer.lr" in each for each in warnings)
        return [COLLAPSE if each.startswith(COLLAPSE) else CHANCE if CHANCE in each else each for each in warnings]

    assert said(collapsed, collapsed) == [COLLAPSE] == said(collapsed, collapsed, then)  # also if it ends well
    assert said(collapsed, then, collapsed) == [] == said(collapsed, collapsed, warmup=10)  # for a while, and early
    assert said(collapsed | {"epoch": 2.9}, collapsed) == []
    assert said(early, early, late, late, look, early, early, late, late, look) == []  # of the second half
    assert said(late, late, early, early, look) == [CHANCE] and said(early, look | {"step": 99}) == []
    assert said({**collapsed, "information": 0.5}) == [COLLAPSE]  # with negatives one look suffices
    metrics = {"knn/top1": 0.1, "knn_init/top1": 0.164, "linear/digit/top1": 0.5, "linear_init/digit/top1": 0.5}
    numbers = {"metrics": metrics | {"linear/top1": 0.3}, "config": {}}
    (worse,) = warnings_of([then], numbers, 0)
    assert worse.startswith("knn/top1 ") and "10.0%" in worse and "16.4%" in worse
    for images, told in ((20, list[str]()), (2000, [worse])):  # other test images might make it better
        assert warnings_of([then], numbers | {"evaluations": [{"hits": {"knn/top1": {"images": images}}}]}, 0) == told


def test_a_collapse_is_said_once_on_the_way_and_recorded(train: Train) -> None:
    assert train(*SHORT, "epochs=5", "optimizer.lr=3000", "optimizer.warmup_epochs=0")[0] == 0
    (sentence,) = json.loads((only_run() / "results.json").read_text())["warnings"]
    assert "collapse" in sentence and "epoch 5" in sentence
    log = (only_run() / "train.log").read_text()
    assert re.findall(r"WARNING .*epoch (\d+)", log) == ["3", "5"]
