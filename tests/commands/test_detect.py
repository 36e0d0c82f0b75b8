"""The command ``detect``: a run with its record, which is resumed and not trained twice, and its refusals."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from ssl_bench import files
from ssl_bench.commands.detect import main
from ssl_bench.evaluate import detection
from ssl_bench.networks.export import load
from tests.evaluate.test_detection import data, small_detector
from tests.networks.test_export import exported as export_backbone
from tests.networks.test_export import run_directory


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    run_directory(folder, "backbone=resnet18")
    return export_backbone(folder, "timm")


@pytest.mark.slow
def test_the_weights_of_an_export_are_in_the_detector(exported: Path) -> None:
    backbone, facts = load(exported)
    model = detection.detector(backbone, 2, [64, 96], facts["mean"], facts["std"])
    weights = torch.load(exported.with_suffix(".pt"), weights_only=True)
    body = model.backbone.get_submodule("body").state_dict()
    assert body.keys() == weights.keys() and all(torch.equal(body[name], weights[name]) for name in weights)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("pycocotools") is None, reason="average precision needs pycocotools")
def test_a_finished_run_is_evaluated_again_but_not_trained_again(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detection, "detector", small_detector)
    options = ["--data", str(data(tmp_path)), "--out", str(tmp_path / "out"), "--sizes", "64", "64"]
    arguments = [str(exported), *options, "--batch", "2", "--epochs", "1"]
    assert main(arguments) == 0
    record = files.read_json(tmp_path / "out" / "detection.json")
    assert record["scale"] == "smoke" and record["steps"] == 1 and np.isfinite(record["losses"]).all()
    assert record["train_photos"] == 3 and record["val_photos"] == 4
    assert set(record["metrics"]) == {"ap", "ap50", "ap75", "ap_s"}
    assert main(arguments) == 0
    again = files.read_json(tmp_path / "out" / "detection.json")
    assert again["losses"] == [] and again["steps"] == 1 and again["metrics"] == record["metrics"]
    capsys.readouterr()
    assert main([str(exported), *options, "--batch", "8"]) == 2
    assert "batch_size=8: set batch_size to 1 to 3: a photo or more on each rank" in capsys.readouterr().err
    assert main([str(exported), *options, "--batch", "2", "--epochs", "2"]) == 1  # the checkpoint is of another run
    assert "belongs to run" in capsys.readouterr().err


def test_a_missing_pycocotools_is_reported_before_the_training(
    exported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main([str(exported), "--data", "nowhere"]) == 2
    assert "pip install 'ssl-bench[detection]'" in capsys.readouterr().err
