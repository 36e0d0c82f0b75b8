"""Fine-tuning for detection: annotations, exported weights in the detector, learning rates, a step and a whole run."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN

from ssl_bench import files
from ssl_bench.commands.detect import detector, main, rate, train_step
from ssl_bench.data.coco import Boxes, read
from ssl_bench.errors import ConfigError, RunError
from tests.networks.test_export import exported as export_backbone
from tests.networks.test_export import run_directory


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    run_directory(folder, "backbone=resnet18")
    return export_backbone(folder, "torchvision")


def data(folder: Path, photos: int = 4) -> Path:
    """Write photos of 48 x 32 with a dark square each, in COCO's layout; the last one has only a crowd."""
    objects: list[dict[str, Any]] = []
    for i in range(photos - 1):
        objects.append({"id": i + 1, "image_id": i, "category_id": 3 + 4 * (i % 2), "bbox": [4.0 + i, 6.0, 16.0, 12.0]})
        objects[-1] |= {"iscrowd": 0, "area": 192.0, "segmentation": [[4 + i, 6, 20 + i, 6, 20 + i, 18, 4 + i, 18]]}
    thin = {"id": 98, "image_id": 0, "category_id": 3, "bbox": [47.0, 1.0, 9.0, 0.0], "iscrowd": 0, "area": 0.0}
    crowd = {"id": 99, "image_id": photos - 1, "category_id": 7, "bbox": [0, 0, 40, 30], "iscrowd": 1, "area": 1200.0}
    images = [{"id": i, "file_name": f"{i}.jpg", "width": 48, "height": 32} for i in range(photos)]
    content = {"images": images, "annotations": [*objects, thin, crowd], "categories": [{"id": 7}, {"id": 3}]}
    (folder / "annotations").mkdir()
    for split in ("train", "val"):
        (folder / f"{split}2017").mkdir()
        (folder / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(content))
        for i in range(photos):
            pixels = np.full((32, 48, 3), 220, np.uint8)
            pixels[6:18, 4 + i : 20 + i] = 20
            Image.fromarray(pixels).save(folder / f"{split}2017" / f"{i}.jpg", quality=95)
    return folder


def split(folder: Path, name: str) -> Boxes:
    return Boxes(folder / f"{name}2017", folder / "annotations" / f"instances_{name}2017.json", name == "train")


def small_detector(*arguments: Any) -> FasterRCNN:
    """A detector with few regions per photo."""
    model = detector(*arguments)
    model.roi_heads.fg_bg_sampler.batch_size_per_image = 16
    model.rpn._post_nms_top_n = {"training": 16, "testing": 16}
    return model


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def test_boxes_and_labels_are_read_from_the_annotations(tmp_path: Path) -> None:
    test = split(data(tmp_path), "val")
    assert len(test) == 4 and test.categories == [3, 7]
    image, target = test[1]
    assert image.shape == (3, 32, 48) and image.dtype == torch.float32 and 0 <= image.min() < 0.2 < 0.8 < image.max()
    assert target["boxes"].tolist() == [[5, 6, 21, 18]] and target["labels"].tolist() == [2]
    assert len(test[0][1]["boxes"]) == 1  # without the box of height 0
    assert test[3][1]["boxes"].shape == (0, 4) and int(test[3][1]["image_id"]) == 3
    assert len(split(tmp_path, "train")) == 3


def test_boxes_are_mirrored_with_their_photo(tmp_path: Path) -> None:
    train = split(data(tmp_path), "train")
    left_edges = set()
    for _ in range(16):
        image, target = train[2]
        x1, y1, x2, y2 = (int(v) for v in target["boxes"][0])
        assert image[:, y1:y2, x1:x2].mean() < 0.2 and image.mean() > 0.6
        left_edges.add(x1)
    assert left_edges == {6, 48 - 22}


@pytest.mark.parametrize("text", ["", "[]", '{"images": []}'])
def test_a_file_in_another_format_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "instances.json"
    with pytest.raises(ConfigError, match="it should be COCO's"):
        read(path)
    path.write_text(text)
    with pytest.raises(ConfigError, match="is no file of COCO instances"):
        read(path)


@pytest.mark.slow
def test_every_weight_of_the_export_is_in_the_detector(exported: Path) -> None:
    model = detector(exported, 2, [64, 96])
    weights = torch.load(exported.with_suffix(".pt"), weights_only=True)
    body = model.backbone.get_submodule("body").state_dict()
    assert body.keys() == weights.keys() and all(torch.equal(body[name], weights[name]) for name in weights)
    assert all(parameter.requires_grad for parameter in model.parameters())
    head = model.roi_heads.box_head
    assert [type(m) for m in head.modules()].count(nn.Conv2d) == 4
    assert [type(m) for m in head.modules()].count(nn.Linear) == 1
    assert sum(isinstance(m, nn.BatchNorm2d) for m in head.modules()) == 4
    assert sum(isinstance(m, nn.BatchNorm2d) for m in model.backbone.get_submodule("fpn").modules()) == 8


def test_unsuitable_exports_are_refused(exported: Path, tmp_path: Path) -> None:
    facts = files.read_json(exported)
    (tmp_path / "other.pt").write_bytes(exported.with_suffix(".pt").read_bytes())
    for change in ({"stem": "cifar"}, {"in_channels": 1}, {"library": "timm"}):
        files.write_json(tmp_path / "other.json", facts | change)
        with pytest.raises(ConfigError, match="export=torchvision of a run with stem=imagenet and in_channels=3"):
            detector(tmp_path / "other.json", 2, [64])


def test_the_learning_rate_warms_up_and_drops_twice() -> None:
    assert rate(0.2, 0, 0, 1000) == pytest.approx(0.0002)
    assert rate(0.2, 0, 499, 1000) == pytest.approx(0.1)
    epochs = [rate(0.2, epoch, 1000 + epoch, 1000) for epoch in range(12)]
    assert epochs == pytest.approx([0.2] * 7 + [0.02] * 4 + [0.002])


@pytest.mark.slow
def test_a_step_changes_every_layer(exported: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    photos = split(data(tmp_path), "train")
    model = small_detector(exported, 2, [64]).train()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    before = state(model)
    loss = train_step(model, optimizer, [photos[0], photos[1]], torch.device("cpu"))
    assert 0 < loss < 100
    after = state(model)
    parts = ["backbone.body.conv1.weight", "backbone.body.layer4.1.bn2.weight", "backbone.fpn.inner_blocks.0.0.weight"]
    parts += ["roi_heads.box_head.0.0.weight", "rpn.head.cls_logits.weight", "backbone.body.bn1.running_mean"]
    assert all(not torch.equal(before[name], after[name]) and after[name].isfinite().all() for name in parts)
    with torch.no_grad():
        model.roi_heads.box_predictor.cls_score.bias.fill_(torch.nan)
    with pytest.raises(RunError, match="set a smaller --lr"):
        train_step(model, optimizer, [photos[0], photos[1]], torch.device("cpu"))


@pytest.mark.skipif(importlib.util.find_spec("pycocotools") is None, reason="average precision needs pycocotools")
def test_a_finished_run_is_evaluated_again_but_not_trained_again(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ssl_bench.commands.detect.detector", small_detector)
    options = ["--data", str(data(tmp_path)), "--out", str(tmp_path / "out"), "--sizes", "64", "64", "--workers", "0"]
    arguments = [str(exported), *options, "--batch", "2", "--epochs", "1"]
    assert main(arguments) == 0
    record = files.read_json(tmp_path / "out" / "detection.json")
    assert record["scale"] == "smoke" and record["steps"] == 1 and np.isfinite(record["losses"]).all()
    assert record["lr"] == pytest.approx(0.0025) and set(record["metrics"]) == {
        "AP", "AP50", "AP75", "APs", "APm", "APl"
    }  # fmt: skip
    assert main(arguments) == 0
    again = files.read_json(tmp_path / "out" / "detection.json")
    assert again["losses"] == [] and again["steps"] == 1 and again["metrics"] == record["metrics"]
    capsys.readouterr()
    assert main([str(exported), *options, "--batch", "1"]) == 2
    assert "--batch=1: set a multiple of 1 ranks, two photos or more on each" in capsys.readouterr().err
    assert main([str(exported), *options, "--batch", "8"]) == 2
    assert main([str(exported), *options, "--batch", "2", "--epochs", "2"]) == 1  # the checkpoint is of another run
    assert "belongs to run" in capsys.readouterr().err


def test_a_missing_pycocotools_is_reported_before_the_training(
    exported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main([str(exported), "--data", "nowhere"]) == 2
    assert "pip install ssl-bench[detection]" in capsys.readouterr().err
