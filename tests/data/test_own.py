"""Images of the user's own: layouts, identity and evaluation."""

import hashlib
import os
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ssl_bench.config.compose import load
from ssl_bench.config.identity import run_id
from ssl_bench.data.folder import OwnFolder
from ssl_bench.data.splits import held_out
from ssl_bench.errors import ConfigError
from ssl_bench.training import build
from tests.data.photos import SIZE, dataset, names, own, photos, picture


@pytest.mark.parametrize(
    ("folders", "classes", "sizes", "overrides"),
    [
        (["a", "b"], 2, (18, 2), []),
        (["2023", "2024", ""], 0, (27, 3), []),
        (["only"], 0, (9, 1), []),
        (["train/a", "train/b", "val/a", "val/b"], 2, (20, 20), []),
        (["train", "test"], 0, (10, 10), []),
        (["train", "bus"], 2, (18, 2), []),  # vehicles, not a split
        (["a", "b"], 0, (18, 2), ["dataset.classes=none"]),
        (["a", "b"], 2, (10, 10), ["dataset.test_share=0.5"]),
    ],
)
def test_classes_and_splits_are_found(
    folders: list[str], classes: int, sizes: tuple[int, int], overrides: list[str], tmp_path: Path
) -> None:
    config = own(photos(tmp_path / "photos", *folders), *overrides)
    made: Any = build.dataset(config)
    train, test = made.split("train"), made.split("test")
    assert (config["dataset"]["num_classes"], (len(train), len(test))) == (classes, sizes)
    assert not {*names(train)} & {*names(test)} and made.check() == config["dataset"]["train_images"] == sizes[0]
    for source in (train, test):
        assert sorted(set(source.labels.tolist())) == ([*range(classes)] or [-1])
    if classes == 2 and "bus" not in folders:
        assert all(f"/{'ab'[label]}/" in train.name(i) for i, label in enumerate(train.labels.tolist()))


@pytest.mark.parametrize("seed", range(5))
def test_the_only_image_of_a_class_stays_to_train_on(seed: int) -> None:
    labels = [0, 0, 0, 0, 1, 1, 2]
    drawn = held_out(range(7), [f"{i}.png" for i in range(7)], labels, range(7), 0.25, seed)
    assert sorted(labels[i] for i in drawn) == [0, 1]


def test_the_held_out_images_are_drawn_by_the_seed_and_stay_when_others_come(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", "a", "b", count=20)
    drawn = {*names(dataset(root).split("test"))}
    assert {*names(dataset(root, "dataset.split_seed=1").split("test"))} != drawn
    picture(999).save(root / "a" / "new.jpg")
    assert len({*names(dataset(root).split("test"))} & drawn) >= 3


def test_a_set_without_copies_keeps_its_hash_and_its_split(tmp_path: Path) -> None:
    """Both are parts of the identity of runs: computed here once more from names and bytes."""
    root = photos(tmp_path / "photos", "a", "b", count=20)
    every = [f"{folder}/{name}" for folder in "ab" for name in sorted(f"{i}.jpg" for i in range(20))]
    content, drawn = hashlib.sha256(), set[str]()
    for name in every:
        data = (root / name).read_bytes()
        checksum = zlib.crc32(data[:4096] + data[max(0, len(data) - 4096) :])
        content.update(f"{name}\0{'ab'.index(name[0])}\0{len(data)}\0{checksum:08x}\n".encode())
    for folder in "ab":
        of_class = [name for name in every if name[0] == folder]
        drawn |= {*sorted(of_class, key=lambda name: hashlib.sha256(f"0/{name}".encode()).hexdigest())[:2]}
    config = own(root)
    assert config["dataset"]["content"] == content.hexdigest()[:10]
    assert {*names(build.dataset(config).split("test"))} == {f"{root}/{name}" for name in drawn}


# Identity


def test_a_copy_is_the_same_dataset_and_another_file_another_one(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", "a", "b")
    first = run_id(own(root))
    assert run_id(own(root, "dataset.workers=1")) == first
    copy = shutil.copytree(root, tmp_path / "elsewhere", copy_function=shutil.copyfile)  # with other times
    assert run_id(own(copy)) == first
    swapped = (copy / "a" / "0.jpg").read_bytes(), (copy / "a" / "1.jpg").read_bytes()
    for name, content in zip(("1", "0"), swapped, strict=True):
        (copy / "a" / f"{name}.jpg").write_bytes(content)
    assert run_id(own(copy)) != first
    hashed = run_id(own(root, "dataset.hashes=true"))
    (root / "a" / "0.jpg").rename(root / "b" / "00.jpg")
    assert len({first, hashed, run_id(own(root))}) == 3


def test_a_middle_byte_counts_under_hashes_only(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", "")
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(root / "large.bmp")
    before = [own(root, f"dataset.hashes={h}")["dataset"]["content"] for h in ("false", "true")]
    data = bytearray((root / "large.bmp").read_bytes())
    data[6000] ^= 1
    (root / "large.bmp").write_bytes(data)
    after = [own(root, f"dataset.hashes={h}")["dataset"]["content"] for h in ("false", "true")]
    assert before[0] == after[0] and before[1] != after[1]


def test_a_run_refuses_images_that_have_changed(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", "")
    config = own(root)
    (root / "3.jpg").unlink()
    with pytest.raises(ConfigError, match=r"\(hash \w{10}, not \w{10}\).*dataset\.root"):
        build.dataset(config).check()


# Evaluation


def test_the_number_of_classes_and_of_neighbours_comes_from_the_images(tmp_path: Path) -> None:
    config = own(photos(tmp_path / "photos", "a", "b", "c", count=60), "framework=supervised")
    assert config["head"]["out"] == 3 and config["evaluate"]["knn"]["k"] == 162 // 50
    assert {"knn", "linear", "geometry"} <= config["evaluate"].keys()


def test_small_images_get_the_small_stem_and_it_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = photos(tmp_path / "photos", "a", "b")

    def stem(*overrides: str) -> str:
        return str(own(root, "backbone=resnet50", *overrides)["backbone"]["stem"])

    assert stem("dataset.size=65") == stem("backbone.stem=imagenet", "dataset.size=64") == "imagenet"
    assert "backbone.stem" not in capsys.readouterr().err
    assert stem("dataset.size=64") == "cifar" and "backbone.stem=imagenet" in capsys.readouterr().err


def test_one_trains_on_one_dataset_and_evaluates_on_another(tmp_path: Path) -> None:
    first = photos(tmp_path / "first", "", count=24)
    second = photos(tmp_path / "second", "a", "b", count=30)
    words = ["dataset=folder", f"dataset.root={first}", *SIZE, "evaluate.baselines=[]"]
    plain = load([*words, "evaluate=geometry"])
    other = load([*words, f"evaluate.on={{dataset: folder, root: {second}, size: 64}}"])
    assert {"knn", "linear", "geometry"} <= other["evaluate"].keys()  # which the second has classes for
    assert run_id(plain) == run_id(other) and other["evaluate"]["knn"]["k"] == 54 // 50
    ((_, _, evaluated),) = build.build(other).evaluated
    assert evaluated.eval_view == {"resize": 18, "size": 16, "interpolation": "bilinear"}
    assert evaluated.num_classes == 2
    with pytest.raises(ConfigError, match=r"^evaluate\.on=mnist: .* 3 channels"):
        _ = build.build(load([*words, "evaluate.on=mnist"])).evaluated


def test_an_image_in_the_place_of_another_one_of_equal_size_and_time_is_another_dataset(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", "a", "b")
    for name, shade in (("a/x.bmp", 10), ("new.bmp", 200)):
        path = root / name if "/" in name else tmp_path / name
        Image.new("RGB", (20, 20), (shade,) * 3).save(path)
        os.utime(path, (1e9, 1e9))
    before = own(root)["dataset"]["content"]
    os.replace(tmp_path / "new.bmp", root / "a/x.bmp")
    assert own(root)["dataset"]["content"] != before


def test_an_image_that_could_not_be_opened_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, closed = photos(tmp_path / "photos", "a", "b"), [True]
    whole = own(root)["dataset"]["content"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    opened: Any = OwnFolder.open_image

    class Closing(OwnFolder):
        def open_image(self, name: str) -> Any:
            if closed[0] and name == "a/3.jpg":
                raise PermissionError(13, "Permission denied")
            return opened(self, name)

    given: Any = {"root": str(root), "size": 16, "channels": 3, "mean": [0.5] * 3, "std": [0.5] * 3}
    first = Closing(**given, skip_broken=0.1)
    assert first.settings_of_images()["train_images"] == 17 and "Permission denied" in first.summary()
    closed[0] = False
    assert Closing(**given).settings_of_images()["content"] == whole
