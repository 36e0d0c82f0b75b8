"""The steps and hours that are left to train of some runs."""

import json
from typing import Any

import pytest
import torch

from ssl_bench.commands import hours
from ssl_bench.config.compose import load
from ssl_bench.config.identity import run_dir
from ssl_bench.record.environment import conditions
from tests.evaluated import with_evaluations

# GFLOP of a view, forward and backward.
OF_VIEW = {("imagenet", "resnet50"): 24.3, ("imagenet", "resnet18"): 10.7}
OF_VIEW |= {("cifar10", "resnet50_cifar"): 7.8, ("cifar10", "resnet18_cifar"): 3.33}


def test_operations_of_a_view() -> None:
    for (dataset, backbone), gflop in OF_VIEW.items():
        config = load([f"dataset={dataset}", f"backbone={backbone}", "framework=simclr", "batch_size=b256"])
        assert hours.gflop_of_a_step(config) == pytest.approx(256 * 2 * gflop, rel=0.02), backbone


def test_steps_follow_the_number_of_images_without_those_that_are_set_apart() -> None:
    assert [hours.steps(load(["dataset=bits", f"dataset.images={n}"])) for n in (1000, 2000)] == [2800, 6000]
    mnist = load(["dataset=mnist", "dataset.held_out=[10000,5000]", "epochs=1", "batch_size=b64", "paths.data=no"])
    assert hours.steps(mnist) == 45_000 // 64
    nowhere = hours.estimate([mnist])
    assert (nowhere.steps, nowhere.hours, nowhere.way) == ([703], [None], "")
    mnist["dataset"]["train_images"] = None
    assert hours.estimate([mnist]).steps == [None]


def test_what_is_left_is_measured_by_runs_like_these() -> None:
    """A run has 21 steps an epoch, and one of them took a second."""
    constant = ["optimizer.schedule=constant", "threads=1"]
    trained = load([*constant, "epochs=2"])
    folder = run_dir(trained)
    folder.mkdir(parents=True)
    record: dict[str, Any] = {
        "run_id": folder.name,
        "name": "default",
        "config": trained,
        "metrics": {},
        "seconds": 99.0,
    }
    record["environment"] = conditions(torch.device("cpu"))
    (folder / "results.json").write_text(json.dumps(with_evaluations(record)))
    rows = ({"step": step, "epoch": step / 21, "images_per_second": 64.0, "seconds": step} for step in range(1, 43))
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    asked = [load([*constant, *words]) for words in (["epochs=2"], ["epochs=3"], ["epochs=3"], ["epochs=1", "seed=1"])]
    left = hours.estimate(asked)
    assert left.steps == [0, 21, 0, 21] and left.way == f"{hours.MEASURED} {hours.HERE}"
    assert left.hours == pytest.approx([0, 21 / 3600, 0, 21 / 3600])
    both = hours.estimate([*asked, load([*constant, "batch_size=b32", "max_steps=2"])])
    assert hours.MEASURED in both.way and hours.TIMED in both.way and 0 < (both.hours[-1] or 0) < 1
    record["environment"]["device"] = "another processor"
    (folder / "results.json").write_text(json.dumps(with_evaluations(record)))
    assert hours.estimate(asked).way == f"{hours.TIMED} {hours.HERE}"
    assert hours.estimate(asked[:1]).way == "" and hours.estimate(asked[:1]).hours == [0]
