"""Classes and splits of own images, found in the names of folders; files and links that are left out."""

import os
import re
from pathlib import Path
from unittest.mock import patch

import pytest
from PIL import Image

from ssl_bench.data.layout import Listing
from ssl_bench.data.own import OwnFolder
from ssl_bench.errors import ConfigError
from tests.data.photos import dataset, names, photos
from tests.door.door import refused


def opened(classes: str = "auto") -> OwnFolder:
    return OwnFolder("photos", classes, size=16, channels=3, mean=[], std=[])  # type: ignore[arg-type]


def listing(*files: str, classes: str = "auto") -> Listing:
    """The images among files that are made; a name with a star stands for three files."""
    for file in files:
        for path in (Path("photos", file.replace("*", str(i))) for i in range(3 if "*" in file else 1)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    return opened(classes).listing()


def each(*folders: str) -> list[str]:
    """Three images of each of two classes in some folders."""
    return [f"{folder}/{name}/*.jpg" for folder in folders for name in "ab"]


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("Training", "Testing"),
        ("Train", "Val"),
        ("train", "eval"),
        ("TRAIN", "VALID"),
        ("training", "validation"),
        ("trn", "dev"),
        ("images/train", "images/val"),
        ("a/b/c/Train", "a/b/c/Test"),
        ("train/images", "test/images"),
        ("seg/train/train", "seg/test"),
    ],
)
def test_splits_are_found_in_any_spelling_and_below_folders_that_stand_alone(train: str, test: str) -> None:
    found = listing(*each(train, test), "annotations/1.xml")
    assert found.classes == ["a", "b"] and found.test is not None and sum(found.test) == 6
    for name, label, is_test in zip(found.names, found.labels, found.test, strict=True):
        assert name.startswith(f"{test if is_test else train}/{'ab'[label]}/")


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["train_set", "test_set"], "test_set, train_set"),
        (["training_images", "Test Images"], "Test Images, training_images"),
        (["seg_train", "seg_test", "seg_pred"], "seg_test, seg_train"),
        (["trainA", "trainB", "testA", "testB"], "testA, testB, trainA and 1 more"),
        (["train2017", "val2017"], "train2017, val2017"),
        (["Fold1", "Fold2", "Fold3"], "Fold1, Fold2, Fold3"),
        (["data/part_A", "data/part_B"], "part_A, part_B"),
        (["train", "holdout"], "holdout, train"),
        (["train", "unlabeled"], "train, unlabeled"),
        (["train", "Train", "test"], "Train, test, train"),
        (["val", "test"], "test, val"),
    ],
)
def test_what_only_looks_like_splits_is_refused_by_name(folders: list[str], names: str) -> None:
    sentence = f"dataset.root=photos: {names} look like splits, and it is not clear which one is to be trained on: re"
    with pytest.raises(ConfigError) as refusal:
        listing(*each(*folders))
    assert str(refusal.value).startswith(sentence)
    assert listing(*each(*folders), classes="none").classes == []
    if "train" not in folders and len(folders) == 2:
        assert len(listing(classes="folders").classes) == 2


def test_names_of_classes_with_the_words_of_splits_are_classes() -> None:
    names = ["art_gallery", "bullet_train", "test_tube", "train_station", "validator"]
    assert listing(*(f"{name}/*.jpg" for name in names)).classes == names


def test_what_is_not_used_is_counted() -> None:
    found = listing(
        *each("train", "val", "test", "unlabeled"), "1.jpg", "val/a/7.JPG", "val/a/notes.TXT", "x", "*.heic"
    )
    assert found.test_name == "test" and len(found.names) == 12
    numbers = [re.findall(r"\d+", note) for note in found.notes]
    assert numbers == [["1"], ["6"], ["7"], ["3", "1", "1"]]
    assert all(word in note for word, note in zip(("", "unlabeled", "val", ".heic"), found.notes, strict=True))
    assert listing("1.heic", "a/1.tga", "a/1.jpg", classes="none").notes[-1].endswith("left out")


def test_classes_are_the_highest_folders_that_do_not_stand_alone() -> None:
    found = listing("all/animals/cat/*.jpg", "all/vehicles/car/*.jpg")
    assert found.classes == ["animals", "vehicles"] and found.labels == [0, 0, 0, 1, 1, 1]
    (note,) = listing("all/loose.jpg").notes
    assert "animals, vehicles" in note


def test_names_that_are_numbers_come_in_their_order() -> None:
    found = listing("2/*.jpg", "10/*.jpg", "1/*.jpg")
    assert found.classes == ["1", "2", "10"]
    assert dict(zip(found.names, found.labels, strict=True))["10/0.jpg"] == 2


JUNK = [
    "a/._1.jpg",
    "__MACOSX/a/._1.jpg",
    "__MACOSX/c.jpg",
    ".thumbs/c.jpg",
    "Thumbs.db",
    "a/desktop.ini",
    "@eaDir/c.jpg",
]


def test_every_format_that_pillow_reads_counts_by_its_ending_and_junk_does_not() -> None:
    endings: tuple[str, ...] = (
        "jpg",
        "JPEG",
        "jfif",
        "jpe",
        "png",
        "webp",
        "gif",
        "bmp",
        "tif",
        "TIFF",
        "jp2",
        "pgm",
        "ppm",
    )
    endings += ("avif",) * (".avif" in Image.registered_extensions())
    found = listing(*(f"a/1.{ending}" for ending in endings), "b/1.jpg", *JUNK)
    assert len(found.names) == len(endings) + 1 and found.notes == []
    found = listing("a/1.eps", "a/1.pdf", "a/1.ps", "a/1.wmf", "a/1.mpg")
    (note,) = found.notes
    assert note.startswith("1 .eps, 1 .mpg, 1 .pdf, 1 .ps, 1 .wmf ")


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["a/*.jpg", "b/*.jpg", "c/*.heic"], "c 3 .heic"),
        ([*each("train", "val"), "train/c/x/1.svg"], "train/c 1 .svg"),
        ([*each("train"), "test/a/*.heic"], "test 3 .heic"),
        (["Train/1.heic", *each("Val")], "Train 1 .heic"),
        (["1.heic", "b/2"], "JPEG PNG 1"),
    ],
)
def test_a_class_or_split_without_an_image_is_refused(files: list[str], names: str) -> None:
    with refused(f"dataset.root=photos {names}"):
        listing(*files)


def test_one_class_folder_beside_one_without_images_is_said() -> None:
    found = listing("a/*.jpg", "c/*.heic")
    assert found.classes == [] and [" c" in found.notes[0], "3 .heic" in found.notes[1]] == [True, True]


# Links


def test_links_are_followed_in_every_order_of_the_file_system_except_to_folders_above() -> None:
    listing("a/*.jpg", "b/*.jpg")
    for link, target in (("c", "a"), ("a/up", ".."), ("b/self", "."), ("b/far", "../.."), ("a/other", "../b")):
        Path("photos", link).symlink_to(target)
    Path("photos", "d").symlink_to(Path("outside").absolute())
    Path("outside").mkdir()
    Path("outside/1.jpg").touch()
    Path("outside/back").symlink_to(Path("photos").absolute())
    found = opened().listing()
    real = os.scandir

    class Reversed:
        def __init__(self, folder: str) -> None:
            self.entries = real(folder)

        def __enter__(self) -> list[os.DirEntry[str]]:
            return sorted(self.entries, key=lambda entry: entry.name, reverse=True)

        def __exit__(self, *error: object) -> None:
            self.entries.close()

    with patch("os.scandir", Reversed):
        again = opened().listing()
    assert found == again and found.classes == ["a", "b", "c", "d"]
    assert {"c/0.jpg", "a/other/0.jpg", "d/1.jpg"} <= set(found.names)
    assert found.notes[-1].endswith(": a/other/far, a/other/self, a/up and 6 more")


def test_links_to_one_image_are_on_one_side_of_the_split(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", "a")
    for i in range(10):
        (root / "a" / f"link{i}.jpg").symlink_to(f"{i}.jpg")
    made = dataset(root, "dataset.test_share=0.5")
    train, test = ({os.path.realpath(name) for name in names(made.split(split))} for split in ("train", "test"))
    assert train and test and not train & test
