"""Detection: photos and boxes, the network's weights in the detector, its BN, rates, a step, COCO's metrics, a run."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from timm.models.resnet import ResNet
from torch import Tensor, nn
from torchvision.models.detection import FasterRCNN

from ssl_bench.config.compose import load as compose
from ssl_bench.data.coco import Boxes
from ssl_bench.data.source import Images
from ssl_bench.errors import ConfigError, InvalidValue, RunError
from ssl_bench.evaluate import detection
from ssl_bench.evaluate.detection import Detection, FineTuning, check_backbone, coco_metrics, detector
from ssl_bench.evaluate.target import Target
from ssl_bench.networks.backbones import ConvN, timm_backbone
from ssl_bench.networks.encoder import Encoder
from ssl_bench.networks.heads import MLP
from ssl_bench.networks.norm import GroupedBatchNorm, group_statistics
from tests.papers.small import write as write_images
from tests.ranks import Command

needs_pycocotools = pytest.mark.skipif(
    importlib.util.find_spec("pycocotools") is None, reason="average precision needs pycocotools"
)
MEAN, STD = [0.5, 0.4, 0.3], [0.2, 0.25, 0.3]


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
    (folder / "annotations").mkdir(parents=True)
    for split in ("train", "val"):
        (folder / f"{split}2017").mkdir()
        (folder / "annotations" / f"instances_{split}2017.json").write_text(json.dumps(content))
        for i in range(photos):
            pixels = np.full((32, 48, 3), 220, np.uint8)
            pixels[6:18, 4 + i : 20 + i] = 20
            Image.fromarray(pixels).save(folder / f"{split}2017" / f"{i}.jpg", quality=95)
    return folder


def split(folder: Path, name: str) -> Boxes:
    return Boxes(folder / f"{name}2017", folder / "annotations" / f"instances_{name}2017.json", name == "val")


def small_detector(*arguments: Any) -> FasterRCNN:
    """A detector with few regions per photo."""
    model = detector(*arguments)
    model.roi_heads.fg_bg_sampler.batch_size_per_image = 16
    model.rpn._post_nms_top_n = {"training": 16, "testing": 16}
    return model


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def resnet(**options: Any) -> ResNet:
    torch.manual_seed(0)
    backbone: Any = timm_backbone("resnet18", **({"in_channels": 3} | options))
    assert isinstance(backbone, ResNet)
    return backbone


def make_target(backbone: nn.Module | None, seed: int = 0) -> Target:
    images = Images([torch.zeros(2, 3, 8, 8, dtype=torch.uint8)], torch.zeros(2, dtype=torch.int64))
    network = None if backbone is None else Encoder(backbone, MLP(512, 1, None, 4))
    return Target(network, images, images, num_classes=2, view=torch.nn.Identity(), device="cpu", seed=seed)


def recipe(folder: Path, **change: Any) -> Detection:
    settings: dict[str, Any] = {"epochs": 1, "batch_size": 2, "sizes": (64, 64), "warmup": 2}
    return Detection(MEAN, STD, str(folder), **(settings | change))


# ---- photos and boxes


def test_boxes_and_labels_are_read_from_the_annotations(tmp_path: Path) -> None:
    test = split(data(tmp_path), "val")
    assert len(test) == 4 and test.categories == [3, 7]
    image, target = test.take(1)
    assert image.shape == (3, 32, 48) and image.dtype == torch.float32 and 0 <= image.min() < 0.2 < 0.8 < image.max()
    assert target["boxes"].tolist() == [[5, 6, 21, 18]] and target["labels"].tolist() == [2]
    assert len(test.take(0)[1]["boxes"]) == 1  # without the box of height 0
    assert test.take(3)[1]["boxes"].shape == (0, 4) and int(test.take(3)[1]["image_id"]) == 3
    assert len(split(tmp_path, "train")) == 3


def test_boxes_are_mirrored_with_their_photo(tmp_path: Path) -> None:
    train = split(data(tmp_path), "train")
    for mirrored, left in ((False, 6), (True, 48 - 22)):
        image, target = train.take(2, mirrored)
        x1, y1, x2, y2 = (int(v) for v in target["boxes"][0])
        assert x1 == left and image[:, y1:y2, x1:x2].mean() < 0.2 and image.mean() > 0.6


# ---- the detector


def test_the_weights_of_the_network_are_in_the_detector_and_stay_in_the_network() -> None:
    backbone = resnet().requires_grad_(False)
    group_statistics(backbone, 4)
    before = state(backbone)
    model = detector(backbone, 2, [64, 96], MEAN, STD)
    body = model.backbone.get_submodule("body").state_dict()
    assert body.keys() == before.keys() and all(torch.equal(body[name], before[name]) for name in before)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not {p.data_ptr() for p in model.parameters()} & {p.data_ptr() for p in backbone.parameters()}
    kinds = [type(module) for module in model.roi_heads.box_head.modules()]
    assert [kinds.count(kind) for kind in (nn.Conv2d, nn.BatchNorm2d, nn.Linear)] == [4, 4, 1]
    assert sum(isinstance(m, nn.BatchNorm2d) for m in model.backbone.get_submodule("fpn").modules()) == 8
    assert not any(isinstance(m, GroupedBatchNorm) for m in model.modules())


def test_the_body_computes_the_maps_of_the_network_and_its_bn_takes_the_whole_batch() -> None:
    backbone, x = resnet(), torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    group_statistics(backbone, 2)
    body: nn.Module = detector(backbone, 2, [64], MEAN, STD).backbone.get_submodule("body")
    with torch.no_grad():
        maps = body.eval()(x)
        assert [tuple(m.shape[1:]) for m in maps.values()] == [(64, 16, 16), (128, 8, 8), (256, 4, 4), (512, 2, 2)]
        assert torch.equal(maps["3"].mean((2, 3)), backbone.eval()(x))
        body.train()(x)
        first = torch.nn.functional.conv2d(x, backbone.state_dict()["conv1.weight"], stride=2, padding=3)
    running_mean = 0.1 * first.double().mean((0, 2, 3))
    running_var = 0.9 + 0.1 * first.double().var((0, 2, 3))  # torch's running variance is the unbiased one
    buffers = dict(body.named_buffers())
    torch.testing.assert_close(buffers["bn1.running_mean"].double(), running_mean, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(buffers["bn1.running_var"].double(), running_var, rtol=1e-4, atol=1e-7)
    assert int(buffers["bn1.num_batches_tracked"]) == 1


def test_other_networks_are_refused() -> None:
    for backbone in (ConvN(3, 32), None, resnet(stem="cifar"), resnet(in_channels=1)):
        with pytest.raises(ConfigError):
            check_backbone(backbone)


# ---- rates and steps


def test_the_learning_rate_warms_up_and_drops_twice() -> None:
    full = Detection(MEAN, STD, "coco", batch_size=160)
    assert full.lr_at(0, 0) == pytest.approx(0.0002) and full.lr_at(0, 499) == pytest.approx(0.1)
    epochs = [full.lr_at(epoch, 1000 + epoch) for epoch in range(12)]
    assert epochs == pytest.approx([0.2] * 7 + [0.02] * 4 + [0.002])
    assert Detection(MEAN, STD, "coco").lr_at(3, 5000) == pytest.approx(0.02)
    assert full.sides == (640, 672, 704, 736, 768, 800) and Detection(MEAN, STD, "coco", sizes=(64, 64)).sides == (64,)


@pytest.mark.slow
def test_a_step_changes_every_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection, "detector", small_detector)
    backbone = resnet()
    network, random = state(backbone), torch.get_rng_state()
    training = FineTuning(recipe(data(tmp_path)), backbone, torch.device("cpu"), 0)
    before = state(training.model)
    training.train_epoch()
    assert (training.epoch, training.step, len(training.losses)) == (1, 1, 1) and 0 < training.losses[0] < 100
    after = state(training.model)
    parts = ["backbone.body.conv1.weight", "backbone.body.layer4.1.bn2.weight", "backbone.fpn.inner_blocks.0.0.weight"]
    parts += ["roi_heads.box_head.0.0.weight", "rpn.head.cls_logits.weight", "backbone.body.bn1.running_mean"]
    assert all(not torch.equal(before[name], after[name]) and after[name].isfinite().all() for name in parts)
    assert all(torch.equal(value, network[name]) for name, value in backbone.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())  # the draws leave the global generator as it was
    with torch.no_grad():
        training.model.roi_heads.box_predictor.cls_score.bias.fill_(torch.nan)
    with pytest.raises(RunError, match=r"\blr\b"):
        training.train_epoch()


# ---- COCO's metrics


def annotations(folder: Path, *boxes: tuple[int, int, tuple[float, ...]]) -> Path:
    """Write objects, each an image, a category of 1 and 2, and a box; return the file."""
    entries = [
        {"id": i, "image_id": image, "category_id": category, "bbox": list(box), "area": box[2] * box[3], "iscrowd": 0}
        for i, (image, category, box) in enumerate(boxes, 1)
    ]
    images = [{"id": i, "file_name": f"{i}.jpg", "width": 500, "height": 500} for i in range(3)]
    path = folder / "instances.json"
    path.write_text(json.dumps({"images": images, "annotations": entries, "categories": [{"id": 1}, {"id": 2}]}))
    return path


def box(image: int, score: float, *bbox: float, category: int = 1) -> dict[str, Any]:
    return {"image_id": image, "category_id": category, "bbox": list(bbox), "score": score}


@needs_pycocotools
def test_metrics_of_boxes_are_those_computed_by_hand(tmp_path: Path) -> None:
    """Two small objects of class 1. The best box is exact; a false one follows; the third overlaps by 0.8.

    Precision over the recall is 1 up to 1/2, then 2/3 where the third box counts, for which the IoU must be 0.8 or
    less: at 7 of the 10 thresholds. Of the 101 levels of recall, 51 are 1/2 or less.
    """
    truth = annotations(tmp_path, (0, 1, (10, 10, 20, 20)), (1, 1, (10, 10, 20, 20)))
    found = [box(0, 0.9, 10, 10, 20, 20), box(0, 0.8, 200, 200, 20, 20), box(1, 0.7, 10, 10, 20, 25)]
    with_third, without = (51 + 50 * 2 / 3) / 101, 51 / 101
    expected = {"ap": (7 * with_third + 3 * without) / 10, "ap50": with_third, "ap75": with_third}
    expected["ap_s"] = expected["ap"]
    assert coco_metrics(truth, found) == pytest.approx({name: 100 * value for name, value in expected.items()})


# ---- the evaluator


def test_missing_files_and_batches_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    if importlib.util.find_spec("pycocotools"):
        with pytest.raises(InvalidValue, match=rf"^data={tmp_path}: "):
            recipe(tmp_path).check(make_target(resnet()))
    with pytest.raises(InvalidValue, match=r"^batch_size=4: .*1 to 3"):
        FineTuning(recipe(data(tmp_path), batch_size=4), resnet(), torch.device("cpu"), 0)


@pytest.mark.slow
@needs_pycocotools
def test_detection_is_an_evaluator_of_a_run() -> None:
    write_images(compose(["dataset=cifar10", "paths.data=data"]))
    data(Path("data/coco"))
    small = ["dataset=cifar10", "backbone=resnet18", "batch_size.size=8", "max_steps=2", "tracking=off"]
    settings = ["paths.data=data", "evaluate=[detection]", "evaluate.baselines=[init]", "evaluate.detection.epochs=1"]
    settings += ["evaluate.detection.batch_size=2", "evaluate.detection.sizes=[32,32]"]
    command = Command("train", *small, *settings, "paths.outputs=out")
    assert (printed := command.wait(150)) and command.code == 0, printed
    (results,) = Path("out").glob("default/*/results.json")
    metrics = json.loads(results.read_text())["metrics"]
    names = ("ap", "ap50", "ap75", "ap_s")
    assert set(metrics) == {f"detection{infix}/{name}" for infix in ("", "_init") for name in names}
    assert all(0 <= value <= 100 for value in metrics.values())
