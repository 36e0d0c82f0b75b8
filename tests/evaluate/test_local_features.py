"""Regions of photos: similar locations share a cluster, instances lie in their polygons, the record has its form."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from ssl_bench.data import coco
from ssl_bench.data.source import Images
from ssl_bench.errors import ConfigError, InvalidValue
from ssl_bench.evaluate.artifacts import Regions
from ssl_bench.evaluate.local_features import LocalFeatures, clustered, feature_maps
from ssl_bench.evaluate.target import Target
from ssl_bench.training.evaluation import write_artifacts

NO_THIRD = r"^layers=\[third\]: .*first, second, norm.*third"


class Backbone(nn.Module):
    """Two feature maps of strides 4 and 8."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first, self.second = nn.Conv2d(channels, 6, 4, 4), nn.Conv2d(6, 8, 2, 2)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.second(self.first(x))).mean((2, 3))


class Network(nn.Module):
    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.backbone = Backbone(channels)


def make_target(channels: int = 3) -> Target:
    images = Images([torch.zeros(2, channels, 8, 8, dtype=torch.uint8)], torch.zeros(2, dtype=torch.int64))
    settings: dict[str, Any] = {"num_classes": 2, "view": None, "device": "cpu", "seed": 0}
    return Target(Network(channels), images, images, **settings)


def photos(folder: Path) -> tuple[Path, Path]:
    """Three photos of 64 x 64, each of two flat halves, and the right half annotated as an object."""
    images = folder / "images"
    images.mkdir(exist_ok=True)
    for i in range(3):
        pixels = np.full((64, 64, 3), (200, 30, 40), np.uint8)
        pixels[:, 32:] = 40 + 20 * i, 60, 220
        Image.fromarray(pixels).save(images / f"{i}.png")
    right = {"segmentation": [[32, 0, 64, 0, 64, 64, 32, 64]], "area": 2048, "iscrowd": 0, "category_id": 7}
    right |= {"bbox": [32, 0, 32, 64]}
    entries = [{"id": i, "file_name": f"{i}.png", "width": 64, "height": 64} for i in range(3)]
    annotations = [right | {"id": i, "image_id": i} for i in range(3)]
    path = folder / "instances.json"
    path.write_text(json.dumps({"images": entries, "annotations": annotations, "categories": [{"id": 7}]}))
    return images, path


def make_evaluator(images: Path, annotations: Path | None, channels: int = 3, **change: Any) -> LocalFeatures:
    settings: dict[str, Any] = {"size": 64, "layers": ["first", "second"], "clusters": [2, 3], "patch": 8, "n_init": 2}
    settings["annotations"] = None if annotations is None else str(annotations)
    return LocalFeatures([0.5] * channels, [0.25] * channels, str(images), **(settings | change))


def test_small_instances_cover_large_ones_and_crowds_have_their_own_value() -> None:
    big = coco.Entry(0, 7, segmentation=[[0, 0, 8, 0, 8, 8, 0, 8]], area=64)
    small = coco.Entry(0, 7, segmentation=[[4, 4, 6, 4, 6, 6, 4, 6]], area=4)
    crowd = coco.Entry(0, 7, segmentation=coco.RunLengths([72, 8]), area=8, iscrowd=1)  # the last column
    photo = coco.Photo(0, "1.jpg", 10, 8, [small, big, crowd])
    results = coco.instance_map(photo, 40)
    assert (results[:, 36:] == coco.CROWD).all() and (results[:, 34:36] == coco.BACKGROUND).all()
    assert len(np.unique(results[22:28, 18:22])) == 1 and results[22, 18] != results[2, 2] > 0
    with pytest.raises(ConfigError, match=r"^1\.jpg: .* 10 x 8"):
        coco.mask(coco.RunLengths([72, 9]), photo, 4)


def test_clusters_are_numbered_by_size() -> None:
    x = torch.zeros(6, 6, 3)
    x[0, :4], x[1:3] = 1, 5
    results = clustered(x, 3, seed=0, n_init=2)
    assert results.dtype == np.uint8 and np.bincount(results.flatten()).tolist() == [20, 12, 4]
    assert clustered(torch.zeros(4, 4, 2), 3, seed=0, n_init=2).tolist() == [[0] * 4] * 4  # all locations are equal


def test_feature_maps_are_unit_vectors_and_no_larger_than_the_grid() -> None:
    backbone, view = Backbone(), torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    maps = feature_maps(backbone, ["first", "second"], view, grid=6)
    assert {name: tuple(x.shape) for name, x in maps.items()} == {"first": (6, 6, 6), "second": (4, 4, 8)}
    for x in maps.values():
        torch.testing.assert_close(x.norm(dim=2), torch.ones(x.shape[:2]))
    assert backbone.training and not backbone.first._forward_hooks
    with pytest.raises(InvalidValue, match=r"^layers=\[0\]: .*\[n, D, g, g\]"):
        feature_maps(nn.Sequential(nn.Flatten()), ["0"], view, 6)


def measured(folder: Path) -> dict[str, Any]:
    return dict(make_evaluator(*photos(folder)).run(make_target()))


@pytest.mark.slow
def test_two_flat_regions_are_found_and_drawn(tmp_path: Path) -> None:
    results = measured(tmp_path)
    numbers = {name: value for name, value in results.items() if isinstance(value, float)}
    assert set(numbers) == {f"{row}_k{k}_ami" for row in ("first", "second", "rgb") for k in (2, 3)}
    assert numbers["rgb_k2_ami"] == numbers["first_k2_ami"] == numbers["second_k2_ami"] == pytest.approx(1)
    regions = {name: value for name, value in results.items() if isinstance(value, Regions)}
    assert set(regions) == {"0", "1", "2"}
    maps = regions["1"].maps
    assert list(maps)[:2] == ["first, 2 clusters", "first, 3 clusters"]
    objects = regions["1"].instances or []
    assert {(line[:31], line[32:]) for line in objects} == {(31 * ".", 32 * "1")}  # PIL fills the outline too
    pictures = write_artifacts(tmp_path / "figures", {"local_features/1": regions["1"]})
    with Image.open(pictures["local_features/1"]) as picture:
        assert min(picture.size) > 300
    assert json.loads((tmp_path / "figures/local_features-1.json").read_text())["maps"] == maps


def test_without_annotations_there_are_only_pictures(tmp_path: Path) -> None:
    results = dict(make_evaluator(photos(tmp_path)[0], None, photos=1).run(make_target()))
    assert set(results) == {"0"} and isinstance(results["0"], Regions) and results["0"].instances is None


def test_photos_are_grey_for_a_network_of_grey_images(tmp_path: Path) -> None:
    results = dict(make_evaluator(photos(tmp_path)[0], None, channels=1).run(make_target(1)))
    assert set(results) == {"0", "1", "2"}


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    images, annotations = photos(tmp_path)
    (tmp_path / "empty").mkdir()
    for key, change in (
        ("annotations", {"annotations": images / "none.json"}),
        ("clusters", {"clusters": [17]}),
        ("patch", {"patch": 7}),
        ("images", {"images": tmp_path / "empty"}),
    ):
        settings: dict[str, Any] = {"images": images, "annotations": annotations} | change
        with pytest.raises(InvalidValue) as refusal:
            make_evaluator(**settings)
        assert refusal.value.key == key
    with pytest.raises(InvalidValue, match=r"^annotations=.*images/0"):
        list(make_evaluator(tmp_path, annotations).run(make_target()))
    make_evaluator(images, annotations).check(make_target())
    with pytest.raises(InvalidValue, match=NO_THIRD):
        make_evaluator(images, annotations, layers=["third"]).check(make_target())
    with pytest.raises(InvalidValue, match=r"^mean=.* 1 "):
        make_evaluator(images, None).check(make_target(1))
    with pytest.raises(ConfigError, match=r"Backbone .*evaluate"):
        target = make_target()
        target.network = Backbone()
        make_evaluator(images, annotations).check(target)


def test_ranks_share_the_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sum over five ranks, two of them without a photo, equals the regions of one rank."""
    evaluator, module = make_evaluator(*photos(tmp_path)), "ssl_bench.evaluate.local_features"
    alone = evaluator._regions(make_target())
    monkeypatch.setattr(f"{module}.world", lambda: 5)
    shares = []
    for each in range(5):
        monkeypatch.setattr(f"{module}.rank", lambda each=each: each)
        shares.append(evaluator._regions(make_target()))
    assert not any(x.any() for share in shares[3:] for x in share.values())
    for row, x in alone.items():
        np.testing.assert_array_equal(sum(share[row] for share in shares), x)
