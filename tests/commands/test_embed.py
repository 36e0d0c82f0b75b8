"""Features of images as files: those of the network, of each image once, whole or not at all."""

import csv
import json
import shutil
import signal
from collections.abc import Callable
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
from ssl_bench.commands.evaluate import main as evaluate
from ssl_bench.config.compose import load
from ssl_bench.record import feature_plots
from ssl_bench.record.feature_plots import mapped, nearest
from ssl_bench.training.parts import Parts
from tests.conftest import SMALL, no_pictures, only_run
from tests.data.photos import photos

Refusal = Callable[..., str]
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


@pytest.fixture
def refused(capfd: pytest.CaptureFixture[str]) -> Refusal:
    def run(*arguments: str, code: int = 2) -> str:
        capfd.readouterr()
        assert main(arguments) == code
        return capfd.readouterr().err

    return run


def table(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "images.csv").read_text().splitlines()))


def test_the_features_are_those_of_the_network_for_each_image_alone(run: Path, whole: Path) -> None:
    features, rows = np.load(whole / FEATURES), table(whole)
    assert features.dtype == np.float32 and len(features) == len(rows) == 1797 and 1347 % BATCH != 0
    backbone, data = ssl_bench.load(run).double(), Parts(load(["dataset.size=12"])).dataset
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
    names = {"features.npy", "images.csv", "neighbours.png", "map.png", "embed.json"}
    assert {path.name for path in whole.iterdir()} == names == {*record["files"]}
    assert len(record["network"]) == 1
    for name in ("neighbours.png", "map.png"):
        image = Image.open(whole / name).convert("RGB")
        assert min(image.size) > 600 and image.getpixel((2, 2)) == (255, 255, 255)


def test_a_signal_leaves_the_folder_as_it_was_and_another_call_replaces_all_of_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    out, words = tmp_path / "out", [str(run), "--split", "test", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(feature_plots, "LEAST", 10**9)  # no pictures
    assert main(words) == 0
    (out / "mine.txt").write_text("of the user")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    other = ["--weights", "random", "backbone=resnet18_cifar", "dataset.size=12", "seed=1", *words[1:]]
    with monkeypatch.context() as patch:
        patch.setattr(feature_plots, "LEAST", 5)
        patch.setattr(feature_plots, "render", lambda *_: signal.raise_signal(signal.SIGTERM))
        assert main(other) == 128 + signal.SIGTERM
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    (out / FEATURES).write_bytes(before[FEATURES][:3000])  # as a full disk leaves a copy
    assert main(words) == 0 and {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert main(other) == 0 and np.load(out / FEATURES).shape == (450, 512)
    assert {path.name for path in out.iterdir()} == before.keys()
    assert (out / "mine.txt").read_text() == "of the user" and capfd.readouterr().out.count("features: ") == 3


def test_a_name_of_a_run_is_one_part_of_a_path(run: Path, tmp_path: Path, refused: Refusal) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "outputs" / "default" / run.name))
    for name in ("..", ".", "", "a/b", "a\nb", str(tmp_path / "x")):
        config = yaml.safe_load((run / "config.yaml").read_text())
        config["choices"]["dataset"] = name
        (copy / "config.yaml").write_text(yaml.safe_dump(config))
        assert "set --out to a folder" in refused(str(copy), "--split", "test")
        assert not (copy / "embed").exists()
    shutil.copy(run / "config.yaml", copy)
    (tmp_path / "outside").mkdir()
    (copy / "embed").symlink_to(tmp_path / "outside")
    assert "set --out to a folder" in refused(str(copy), "--split", "test") and not list(
        (tmp_path / "outside").iterdir()
    )


def test_photos_through_a_network_from_elsewhere(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], refused: Refusal
) -> None:
    root = photos(tmp_path / "birds", "train/owl", "train/swan", "test/owl", "test/swan", count=3)
    words = ["--weights", "random", "backbone=resnet18_cifar", "dataset=folder", f"dataset.root={root}"]
    words += ["dataset.size=16", "dataset.workers=1"]
    assert main(words) == 0
    out = Path(capfd.readouterr().out.splitlines()[-1].removeprefix("features: ")).parent
    assert out.parts[0] == "outputs" and out.parts[-2:] == ("embed", "birds")
    rows = table(out)
    wanted = [
        (str(root / split / name / f"{i}.jpg"), name, split)
        for split in ("train", "test")
        for name in ("owl", "swan")
        for i in range(3)
    ]
    assert [(row["image"], row["label"], row["split"]) for row in rows] == wanted
    features = np.load(out / FEATURES)
    assert features.shape == (12, 512) and len({*map(bytes, features)}) == 12
    assert main([*words, "--split", "test", "--out", "tests"]) == 0
    np.testing.assert_allclose(np.load("tests/features.npy"), features[6:], rtol=1e-4, atol=1e-5)
    (root / "train" / "owl" / "0.jpg").write_bytes((root / "test" / "owl" / "0.jpg").read_bytes()[:-200])
    assert "1 of 12 images" in refused(*words, "--out", "broken") and not Path("broken").exists()


def test_a_run_that_evaluates_a_file_has_no_checkpoint(run: Path) -> None:
    words = ["--weights", str(run / "checkpoints" / "last.pt"), "backbone=resnet_digits", *SMALL[:1], "dataset.size=12"]
    with no_pictures():
        assert evaluate([*words, "tracking=off", "evaluate=[]", "evaluate.baselines=[]"]) == 0
    for folder in (run, only_run()):
        assert main([str(folder), "--split", "test", "--out", f"of_{folder.name}"]) == 0
    of_training, of_file = (np.load(f"of_{folder.name}/{FEATURES}") for folder in (run, only_run()))
    np.testing.assert_allclose(of_training, of_file, rtol=1e-5, atol=1e-6)


def test_refusals_come_before_images_are_read(run: Path, tmp_path: Path, refused: Refusal) -> None:
    assert "name one run, or give --weights FILE" in refused()
    assert "name one run, or give --weights FILE" in refused(str(run), "--weights", "random")
    assert "evaluate=knn: leave it out" in refused(str(run), "evaluate=knn")
    assert "devices=2: leave it out" in refused(str(run), "devices=2")
    assert "loss=dcl: after the training only evaluate, device, precision, paths.data can" in refused(
        str(run), "loss=dcl"
    )
    root = photos(tmp_path / "photos", "")
    colours = refused(str(run), "dataset=folder", f"dataset.root={root}")
    assert "dataset=photos: set dataset to a dataset of images with 1 channels, as the training has" in colours
    (tmp_path / "empty").mkdir()
    empty = refused(str(run), "dataset=folder", f"dataset.root={tmp_path / 'empty'}")
    assert f"dataset.root={tmp_path / 'empty'}: there is no image in it" in empty
    assert "dataset=mnist: " in refused(str(run), "dataset=mnist", "paths.data=none")
    (tmp_path / "foreign").mkdir()
    np.save(tmp_path / "foreign" / FEATURES, np.zeros(3))
    assert "features.npy in this one" in refused(str(run), "--out", str(tmp_path / "foreign"))
    assert not (run / "embed").exists() and json.loads((run / "results.json").read_text())["run_id"] == run.name


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


def test_the_map_keeps_clusters_apart() -> None:
    centres = np.eye(3, 6, dtype=np.float32).repeat(30, axis=0) * 10
    x = centres + np.random.default_rng(0).normal(size=centres.shape).astype(np.float32)
    places = mapped(torch.from_numpy(x), 0)
    assert places.shape == (90, 2)
    distances = np.linalg.norm(places[:, None] - places[None], axis=2)
    with pytest.raises(ValueError, match="the features of all images point in one direction"):
        mapped(torch.ones(9, 4) * torch.arange(1, 10)[:, None], 0)
    np.fill_diagonal(distances, np.inf)
    assert ((distances.argmin(1) // 30) == np.arange(90) // 30).all()
