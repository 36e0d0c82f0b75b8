"""Images that are set apart, and the bits of those that an evaluation counts as right."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ssl_bench.config.compose import load
from ssl_bench.config.identity import run_id
from ssl_bench.data.source import Source
from ssl_bench.record import evaluations
from ssl_bench.training import build
from tests.conftest import SMALL, only_run

Train = Callable[..., tuple[int, str]]
HELD_OUT = ["dataset=mnist", "dataset.held_out=[20,30]", "paths.data=data", "backbone=resnet_digits", *SMALL]


@pytest.fixture
def images() -> np.ndarray:
    drawn = np.random.default_rng(0).integers(0, 256, (120, 28, 28, 1), np.uint8)
    Path("data/mnist").mkdir(parents=True)
    np.save("data/mnist/train_images.npy", drawn)
    np.save("data/mnist/train_labels.npy", np.arange(120) % 10)
    return drawn


def pictures(source: Source) -> torch.Tensor:
    found = source.take(torch.arange(len(source)))
    assert isinstance(found, torch.Tensor)
    return found


def test_held_out_images_are_apart_and_the_same_in_every_run(images: np.ndarray) -> None:
    dataset = build.dataset(load(HELD_OUT))  # there is no test split on the disk
    assert dataset.check() == 70
    (probe,) = dataset.probes().values()
    parts = [probe.train, probe.choose, probe.test]
    found = [pictures(each) for each in parts if each is not None]
    assert [len(each) for each in found] == [70, 20, 30]
    order = np.random.RandomState(0).permutation(120)
    expected = torch.from_numpy(images[order]).permute(0, 3, 1, 2)
    assert torch.equal(torch.cat(found), expected)
    assert torch.equal(torch.cat([each.labels for each in parts if each is not None]), torch.from_numpy(order % 10))
    trained = dataset.pretrain()
    assert torch.equal(pictures(trained), expected[:70])
    assert torch.equal(pictures(trained.to(torch.device("cpu"))), expected[:70])
    assert trained.nbytes == 70 * 28 * 28
    plain = [each for each in HELD_OUT if "held_out" not in each]
    former = load(plain)
    del former["dataset"]["held_out"]
    assert run_id(load(plain)) == run_id(former) != run_id(load(HELD_OUT))


def test_an_evaluation_says_which_test_images_were_right(images: np.ndarray, train: Train) -> None:
    words = ["evaluate=[knn,knn_val,linear]", "evaluate.knn.k=5", "evaluate.knn_val.k=5", "evaluate.linear.epochs=2"]
    code, text = train(*HELD_OUT, *words, "evaluate.baselines=[init]", "batch_size.size=16", "max_steps=2")
    assert code == 0, text
    run = only_run()
    results: dict[str, Any] = json.loads((run / "results.json").read_text())
    counted = dict[str, np.ndarray]()
    for entry in results["evaluations"]:
        for name in entry["metrics"]:
            bits = evaluations.read_hits(run, entry, name)
            counted |= {} if bits is None else {name: bits}
    assert sorted(counted) == ["knn/projection_top1", "knn/top1", "linear/top1"]  # of the test images only
    assert all(len(bits) == 30 and bits.mean() == results["metrics"][name] for name, bits in counted.items())
    (entry,) = [each for each in results["evaluations"] if each["evaluator"] == "linear" and not each["network"]]
    file = run / entry["hits"]["linear/top1"]["file"]
    assert file.stat().st_size == 4
    file.write_bytes(b"123")
    assert evaluations.read_hits(run, entry, "linear/top1") is None
