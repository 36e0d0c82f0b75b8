"""Features of images as files: those of the network, of each image once, also after a stop and on two processes."""

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import ssl_bench
from ssl_bench.commands.embed import main
from ssl_bench.config.compose import load
from ssl_bench.evaluate.embedding import BATCH, FEATURES, FeatureFile
from ssl_bench.launch.lock import Lock
from ssl_bench.record.feature_plots import mapped, nearest
from ssl_bench.training.parts import Parts
from tests.conftest import SMALL, no_pictures, only_run
from tests.data.photos import photos

Refusal = Callable[..., str]


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


def without_pictures(folder: Path) -> None:
    """Make a folder in which no picture is missing, so that none is drawn."""
    folder.mkdir()
    for name in ("neighbours.png", "map.png"):
        (folder / name).touch()


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


def test_a_second_call_computes_nothing_and_draws_what_is_missing(
    run: Path, whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "copy"))
    kept = np.load(folder / FEATURES)
    np.save(folder / FEATURES, kept + 1)
    (folder / "neighbours.png").unlink()
    again = [str(run), "--out", str(folder), "precision=fp64"]
    assert main(again) == 0 and (np.load(folder / FEATURES) == kept + 1).all()
    picture, done = capfd.readouterr().out.splitlines()
    assert picture == f"{folder}/neighbours.png: 12 images and the nearest of all 1,797 by cosine, drawn by seed 0"
    assert done == f"already done: {folder / FEATURES}"
    assert not (folder / "claims").exists()
    for name in ("neighbours.png", "map.png"):
        image = Image.open(folder / name).convert("RGB")
        assert min(image.size) > 600 and image.getpixel((2, 2)) == (255, 255, 255)
    lock = Lock(folder)
    assert lock.take() is None
    assert main(again) == 1 and "is being written by" in capfd.readouterr().err
    lock.release(False)


def test_a_stopped_command_goes_on_at_its_last_whole_batch(run: Path, whole: Path, tmp_path: Path) -> None:
    expected, out = np.load(whole / FEATURES), tmp_path / "stopped"
    without_pictures(out)
    shutil.copy(whole / "embed.json", out)
    file = FeatureFile(out, *expected.shape)
    assert file.begin() == list(range(8))
    marked = torch.full((BATCH, expected.shape[1]), 7.0)  # would be others if they were computed again
    for batch in (0, 5):
        file.write(batch, marked)
    with file.part.open("r+b") as part:  # a batch that was not marked as whole
        part.seek(200 + 2 * BATCH * expected.shape[1] * 4)
        part.write(b"torn" * 100)
    assert file.begin() == [1, 2, 3, 4, 6, 7] and not file.path.exists()
    assert main([str(run), "--out", str(out), "precision=fp64"]) == 0
    features = np.load(out / FEATURES)
    for batch in (0, 5):
        rows = slice(batch * BATCH, (batch + 1) * BATCH)
        assert (features[rows] == 7).all()
        features[rows] = expected[rows]
    assert (features == expected).all() and not file.part.exists()
    assert (out / FEATURES).stat().st_size == (whole / FEATURES).stat().st_size
    assert (out / "images.csv").read_bytes() == (whole / "images.csv").read_bytes()


def test_two_processes_write_the_same(run: Path, whole: Path) -> None:
    without_pictures(Path("two"))
    assert main([str(run), "--out", "two", "precision=fp64", "devices=2"]) == 0
    np.testing.assert_allclose(np.load(f"two/{FEATURES}"), np.load(whole / FEATURES), rtol=1e-6, atol=1e-7)
    assert Path("two/images.csv").read_bytes() == (whole / "images.csv").read_bytes()


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
    kept = (out / FEATURES).read_bytes()
    other = refused(*words, "dataset.mean=[0.5,0.5,0.5]", "--out", str(out))
    assert f"--out={out}: set --out to another folder: the features in this one have other images, view" in other
    assert (out / FEATURES).read_bytes() == kept
    (root / "train" / "owl" / "0.jpg").write_bytes((root / "test" / "owl" / "0.jpg").read_bytes()[:-200])
    assert "1 of 12 images" in refused(*words, "--out", "broken") and not Path("broken").exists()


def test_refusals_come_before_images_are_read(run: Path, tmp_path: Path, refused: Refusal) -> None:
    assert "name one run, or give --weights FILE" in refused()
    assert "name one run, or give --weights FILE" in refused(str(run), "--weights", "random")
    assert "evaluate=knn: leave it out" in refused(str(run), "evaluate=knn")
    assert "loss=dcl: for a run set only dataset=OPTION with its keys, and device, " in refused(str(run), "loss=dcl")
    root = photos(tmp_path / "photos", "")
    colours = refused(str(run), "dataset=folder", f"dataset.root={root}")
    assert "dataset=photos: set dataset to a dataset of images with 1 channels, as the training has" in colours
    (tmp_path / "empty").mkdir()
    empty = refused(str(run), "dataset=folder", f"dataset.root={tmp_path / 'empty'}")
    assert f"dataset.root={tmp_path / 'empty'}: there is no image in it" in empty
    assert "dataset=mnist: " in refused(str(run), "dataset=mnist", "paths.data=none")
    (tmp_path / "foreign").mkdir()
    np.save(tmp_path / "foreign" / FEATURES, np.zeros(3))
    assert "the features in this one have other network, images, view, " in refused(
        str(run), "--out", str(tmp_path / "foreign")
    )
    assert not (run / "embed").exists() and json.loads((run / "results.json").read_text())["run_id"] == run.name


def test_neighbours_are_those_of_all_cosines(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(9000, 8)).astype(np.float32)
    x[5000], x[4000] = x[17], 2 * x[17]  # of equal cosines the lower number
    np.save(tmp_path / FEATURES, x)
    drawn = torch.tensor([17, 0, 8999, 4097])
    cosines, index = nearest(tmp_path / FEATURES, drawn, 5)
    unit = x.astype(np.float64) / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
    for row, (query, of_query) in enumerate(zip(drawn.tolist(), index.tolist(), strict=True)):
        every = unit @ unit[query]
        every[query] = -2
        wanted = np.lexsort((np.arange(len(x)), -every.round(6)))[:5]
        assert of_query == wanted.tolist() and np.abs(cosines[row].numpy() - every[wanted]).max() < 1e-6
    assert index[0, :2].tolist() == [4000, 5000]
    np.save(tmp_path / FEATURES, x[:4])
    assert nearest(tmp_path / FEATURES, torch.tensor([2]), 8)[1].sort().values.tolist() == [[0, 1, 3]]


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
