"""Images with the same bytes: on one side of a split, counted aloud between two, and refused as a whole."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ssl_bench.config.compose import load
from ssl_bench.config.from_disk import find_prepared
from ssl_bench.data.dataset import content_of
from ssl_bench.data.source import Chosen, without_copies
from ssl_bench.errors import ConfigError
from ssl_bench.training import build
from tests.data.photos import dataset, names, own, photos, picture


def copy_each(root: Path, times: int = 2) -> None:
    for path in [*root.rglob("*.jpg")]:
        for number in range(times):
            shutil.copyfile(path, path.with_stem(f"{path.stem}_copy{number}"))


def test_copies_of_one_image_are_on_one_side_of_the_split(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = photos(tmp_path / "photos", "a", "b", count=15)
    alone = own(root)["dataset"]["content"]
    copy_each(root)
    shutil.copyfile(root / "a" / "0.jpg", root / "b" / "from_a.jpg")
    config = own(root)
    assert "61 are copies of" in capfd.readouterr().err
    made: Any = build.dataset(config)
    train, test = ({Path(name).read_bytes() for name in names(made.split(split))} for split in ("train", "test"))
    assert not train & test and len(train | test) == 30 and len(made.warnings()) == 1
    assert len(made.split("test")) in (9, 10, 12, 13) and {*made.split("test").labels.tolist()} == {0, 1}
    for path in root.rglob("*_copy*"):
        path.unlink()
    (root / "b" / "from_a.jpg").unlink()
    assert own(root)["dataset"]["content"] == alone  # as before the copies, and as in earlier versions


def test_settings_are_not_chosen_by_copies_of_what_is_fitted(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", "train/a", "train/b", "test/a", "test/b", count=15)
    made = dataset(root)
    assert made.split("train").twins is None and made.split("test").twins is None
    copy_each(root / "train")
    source = dataset(root).split("train")
    for images in (source, Chosen(source, torch.arange(0, 90, 2))):
        held_out, fitted = without_copies(torch.randperm(len(images)), 9, images.twins)
        chosen, other = ({images.take(i[None])[0].numpy().tobytes() for i in ids} for ids in (held_out, fitted))
        assert not chosen & other and len(chosen | other) == 30
        assert sorted([*held_out.tolist(), *fitted.tolist()]) == [*range(len(images))]
    order = torch.randperm(90)
    assert all(map(torch.equal, without_copies(order, 9, None), (order[:9], order[9:])))


def test_a_class_of_one_image_and_its_copies_is_trained_on(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", "a", count=10)
    (root / "b").mkdir()
    for number in range(4):
        picture(500).save(root / "b" / f"{number}.jpg")
    made = dataset(root)
    assert made.split("train").labels.tolist().count(1) == 4 and made.split("test").labels.tolist() == [0]


def test_images_with_equal_ends_and_another_middle_are_no_copies(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", "")
    dark = np.zeros((100, 60, 3), dtype=np.uint8)
    for number in range(4):
        dark[50] = number // 2
        Image.fromarray(dark).save(root / f"{number}.bmp")
    made = dataset(root)
    pairs = {made._listing.names[i]: made._listing.names[first] for i, first in enumerate(made._scan["twins"])}
    assert [pairs[f"{number}.bmp"] for number in range(4)] == ["0.bmp", "0.bmp", "2.bmp", "2.bmp"]


def test_copies_in_a_given_test_split_are_counted_and_a_whole_copy_is_refused(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", "train/a", "train/b", "test/a", "test/b")
    for number in range(3):
        shutil.copyfile(root / "train" / "a" / f"{number}.jpg", root / "test" / "a" / f"other_{number}.jpg")
    (sentence,) = dataset(root).warnings()
    assert sentence.startswith("3 of 23 ") and "test/a/other_0.jpg" in sentence and "train/a/0.jpg" in sentence
    shutil.rmtree(root / "test")
    shutil.copytree(root / "train", root / "test")
    with pytest.raises(ConfigError, match=r"photos: all 20 "):
        own(root)


# Prepared arrays


@pytest.fixture
def arrays() -> Path:
    """Forty digits of noise, of which 0 to 4 are there twice, the second one as image 40 and the following."""
    folder = Path("data/mnist")
    folder.mkdir(parents=True)
    drawn = np.random.default_rng(0).integers(0, 256, (40, 28, 28, 1), np.uint8)
    drawn[6], drawn[6, 0] = drawn[7], 0  # equal in the middle only
    for split, images in (("train", np.concatenate([drawn, drawn[:5]])), ("test", drawn[:20])):
        np.save(folder / f"{split}_images.npy", images)
        np.save(folder / f"{split}_labels.npy", np.arange(len(images)) % 10)
    return folder


MNIST = ["dataset=mnist", "paths.data=data", "dataset.held_out=[10,15]"]


def test_copies_in_prepared_arrays_are_held_out_together(arrays: Path, capfd: pytest.CaptureFixture[str]) -> None:
    images = np.load(arrays / "train_images.npy")
    order = np.random.RandomState(0).permutation(45).tolist()
    drawn = {image: (order.index(image) >= 20) + (order.index(image) >= 30) for image in order}
    twin = {i: (i + 40 if i < 5 else i - 40 if i >= 40 else i) for i in order}
    part = {i: max(drawn[i], drawn[twin[i]]) for i in order}
    moved = sum(part[i] != drawn[i] for i in order)
    config = find_prepared(load(MNIST))
    made = build.dataset(config)
    assert moved > 0 and f"{moved} images are copies of" in capfd.readouterr().err
    for place, name in enumerate(("train", "choose", "test")):
        source: Any = made.split(name)
        expected = torch.from_numpy(images[[i for i in order if part[i] == place]]).permute(0, 3, 1, 2)
        assert torch.equal(source.take(torch.arange(len(source))), expected)
    assert made.check() == len(made.pretrain()) == config["dataset"]["train_images"] == [*part.values()].count(0)
    paths = [arrays / f"train_{kind}.npy" for kind in ("images", "labels")]
    assert config["dataset"]["content"] != content_of(paths, Path("data"), False)
    np.save(arrays / "train_images.npy", np.random.default_rng(1).integers(0, 256, images.shape, np.uint8))
    assert find_prepared(load(MNIST))["dataset"]["content"] == content_of(paths, Path("data"), False)
    assert [len(build.dataset(load(MNIST)).split(name)) for name in ("train", "choose", "test")] == [20, 10, 15]
