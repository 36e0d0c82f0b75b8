"""Features of images as files: those of the network, of each image once, whole or not at all."""

import csv
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

import ssl_bench
from ssl_bench.api.embed import FEATURES
from ssl_bench.commands.embed import main
from ssl_bench.config.compose import load
from ssl_bench.record.neighbours import nearest
from ssl_bench.training import build
from tests.conftest import SMALL, no_pictures, only_run
from tests.data.photos import photos
from tests.door.door import refuses

BATCH = 512  # images that pass through a network at once


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step on digits of 12 x 12 pixels, for tests that leave its directory as it is."""
    folder = tmp_path_factory.mktemp("run")
    with no_pictures():
        assert ssl_bench.train.main([*SMALL, "dataset.size=12", "max_steps=1", f"paths.outputs={folder}"]) == 0  # type: ignore[attr-defined]
    return only_run(folder)


@pytest.fixture(scope="module")
def whole(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the digits' features."""
    folder = tmp_path_factory.mktemp("embed")
    assert main([str(run), "--out", str(folder), "precision=fp64"]) == 0
    return folder


def table(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "images.csv").read_text().splitlines()))


def test_the_features_are_those_of_the_network_for_each_image_alone(run: Path, whole: Path) -> None:
    features, rows = np.load(whole / FEATURES), table(whole)
    assert features.dtype == np.float32 and len(features) == len(rows) == 1797 and 1347 % BATCH != 0
    backbone, data = ssl_bench.load(run).double(), build.dataset(load(["dataset.size=12"]))
    sources = {split: data.split(split) for split in ("train", "test")}
    for i in (0, BATCH, 1346, 1347, 1796):  # of both splits, and on both sides of a batch
        split, row = rows[i]["split"], int(rows[i]["image"])
        assert (split, row) == (("train", i) if i < 1347 else ("test", i - 1347))
        image: Any = sources[split].take(torch.tensor([row]))
        assert int(sources[split].labels[row]) == int(rows[i]["label"])
        with torch.no_grad():
            alone = backbone((image.double() / 255 - 0.214) / 0.275)[0].numpy()
        assert np.abs(features[i] - alone).max() <= 1e-6 * np.abs(alone).max()


def test_the_folder_has_features_pictures_and_a_record(whole: Path) -> None:
    record = json.loads((whole / "embed.json").read_text())
    names = {"features.npy", "images.csv", "neighbours.png", "embed.json"}
    assert {path.name for path in whole.iterdir()} == names == {*record["files"]}
    assert len(record["network"]) == 1
    image = Image.open(whole / "neighbours.png").convert("RGB")
    assert min(image.size) > 600 and image.getpixel((2, 2)) == (255, 255, 255)


def test_photos_through_a_network_from_elsewhere(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = photos(tmp_path / "birds", "train/owl", "train/swan", "test/owl", "test/swan", count=3)
    words = ["--weights", "random", "backbone=timm", "backbone.name=test_resnet"]
    words += ["dataset=folder", f"dataset.root={root}", "dataset.size=16", "dataset.workers=1"]
    assert main(words) == 0
    out = Path(capfd.readouterr().out.splitlines()[-1].removeprefix("features: ")).parent
    assert out.parts[0] == "outputs" and out.parts[-2:] == ("embed", "birds")
    names = [(split, name, i) for split in ("train", "test") for name in ("owl", "swan") for i in range(3)]
    wanted = [(str(root / split / name / f"{i}.jpg"), name, split) for split, name, i in names]
    assert [(row["image"], row["label"], row["split"]) for row in table(out)] == wanted
    features = np.load(out / FEATURES)
    assert features.shape == (12, 96) and len({*map(bytes, features)}) == 12
    (root / "train" / "owl" / "0.jpg").write_bytes((root / "test" / "owl" / "0.jpg").read_bytes()[:-200])
    refuses(f"embed {shlex.join(words)} --out broken", "1 12", capfd)


def test_refusals_come_before_images_are_read(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = photos(tmp_path / "photos", "")
    (tmp_path / "empty").mkdir()
    copy, config = Path(shutil.copytree(run, f"outputs/default/{run.name}")), (run / "config.yaml").read_text()
    (tmp_path / "outside").mkdir()
    for words, names in (
        ("--weights random", "--weights"),
        ("evaluate=knn", "evaluate=knn"),
        ("devices=2", "devices=2"),
        ("loss=dcl", "loss evaluate device precision paths.data"),
        (f"dataset=folder dataset.root={root}", "dataset=photos 1"),
        (f"dataset=folder dataset.root={tmp_path}/empty", "dataset.root"),
        ("dataset=mnist paths.data=none", "dataset=mnist"),
    ):
        refuses(f"embed {copy} {words}", names, capfd)
    for name in ("..", ".", "a/b", "a\nb", str(tmp_path / "x")):
        changed = yaml.safe_load(config)
        changed["choices"]["dataset"] = name
        (copy / "config.yaml").write_text(yaml.safe_dump(changed))
        refuses(f"embed {copy} --split test", "--out", capfd)
    (copy / "config.yaml").write_text(config)
    (copy / "embed").symlink_to(tmp_path / "outside")
    refuses(f"embed {copy} --split test", "--out", capfd)
    assert not list((tmp_path / "outside").iterdir())


def test_neighbours_are_those_of_all_cosines() -> None:
    x = np.random.default_rng(0).normal(size=(9000, 8)).astype(np.float32)
    x[5000], x[4000] = x[17], 2 * x[17]  # of equal cosines the lower number
    drawn = torch.tensor([17, 0, 8999, 4097])
    cosines, index = nearest(torch.from_numpy(x), drawn, 5)
    unit = x.astype(np.float64) / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
    for row, (query, of_query) in enumerate(zip(drawn.tolist(), index.tolist(), strict=True)):
        every = unit @ unit[query]
        every[query] = -2
        wanted = np.lexsort((np.arange(len(x)), -every.round(6)))[:5]
        assert of_query == wanted.tolist() and np.abs(cosines[row].numpy() - every[wanted]).max() < 1e-6
    assert index[0, :2].tolist() == [4000, 5000]
    assert nearest(torch.from_numpy(x[:4]), torch.tensor([2]), 8)[1].sort().values.tolist() == [[0, 1, 3]]
