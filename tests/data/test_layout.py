"""Classes and splits of own images, found in the names of folders; files and links that are left out."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from ssl_bench.data.folder import OwnFolder
from ssl_bench.data.splits import Listing, connected
from ssl_bench.errors import ConfigError
from tests.data.photos import dataset, names, photos
from tests.door.door import refused


def opened(classes: Any = "auto") -> OwnFolder:
    return OwnFolder(root="photos", classes=classes, size=16, channels=3, mean=[], std=[])


def listing(*files: str, classes: str = "auto") -> Listing:
    """The images among files that are made; a name with a star stands for three files."""
    for file in files:
        for path in (Path("photos", file.replace("*", str(i))) for i in range(3 if "*" in file else 1)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    return opened(classes)._listing


def each(*folders: str) -> list[str]:
    """Three images of each of two classes in some folders."""
    return [f"{folder}/{name}/*.jpg" for folder in folders for name in "ab"]


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("Train", "Val"),
        ("train", "validation"),
        ("images/train", "images/val"),
        ("a/b/c/Train", "a/b/c/Test"),
        ("train/images", "test/images"),
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
        (["training", "eval"], "eval, training"),
        (["trainA", "trainB", "testA", "testB"], "testA, testB, trainA and 1 more"),
        (["train2017", "val2017"], "train2017, val2017"),
        (["train", "unlabeled"], "train, unlabeled"),
        (["train", "Train", "test"], "Train, test, train"),
        (["val", "test"], "test, val"),
    ],
)
def test_what_only_looks_like_splits_is_refused_by_name(folders: list[str], names: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        listing(*each(*folders))
    assert names in str(refusal.value) and "dataset.train" in str(refusal.value)
    assert listing(*each(*folders), classes="none").classes == []
    if "train" not in folders and len(folders) == 2:
        assert len(listing(classes="folders").classes) == 2
    made = OwnFolder(root="photos", train=folders[0], test=folders[1], size=16, channels=3, mean=[], std=[])._listing
    assert made.classes == ["a", "b"] and made.test is not None and sum(made.test) == 6


@pytest.mark.parametrize(("other", "named"), [("Caf\u00e9", "Caf\\xe9"), ("cafe ", "'cafe '"), ("d", "d")])
def test_the_classes_that_only_one_split_has_are_named(other: str, named: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        listing("train/a/1.jpg", "train/cafe/1.jpg", "val/a/1.jpg", f"val/{other}/1.jpg")
    assert "only train has cafe" in str(refusal.value) and named in str(refusal.value).partition("only val has")[2]


def test_names_of_classes_with_the_words_of_splits_are_classes() -> None:
    names = ["art_gallery", "bullet_train", "test_tube", "train_station", "validator"]
    assert listing(*(f"{name}/*.jpg" for name in names)).classes == names


def test_what_is_not_used_is_counted() -> None:
    found = listing(
        *each("train", "val", "test", "unlabeled"), "1.jpg", "val/a/7.JPG", "val/a/notes.TXT", "x", "*.heic"
    )
    assert found.test_name == "test" and len(found.names) == 12
    numbers = [re.findall(r"\d+", note) for note in found.notes]
    assert numbers == [["3", "1", "1"], ["1"], ["6"], ["7"]]
    assert all(word in note for word, note in zip((".heic", "", "unlabeled", "val"), found.notes, strict=True))
    assert listing("1.heic", "a/1.tga", "a/1.jpg", classes="none").notes[0].endswith("left out")


def test_classes_are_the_highest_folders_that_do_not_stand_alone() -> None:
    found = listing("all/animals/cat/*.jpg", "all/vehicles/car/*.jpg")
    assert found.classes == ["animals", "vehicles"] and found.labels == [0, 0, 0, 1, 1, 1]
    assert listing("all/loose.jpg").classes == []


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
        ([*each("train"), "test/a/*.heic"], "test train"),
        (["1.heic", "b/2"], "JPEG PNG 1"),
    ],
)
def test_a_class_or_split_without_an_image_is_refused(files: list[str], names: str) -> None:
    with refused(f"dataset.root=photos {names}"):
        listing(*files)


# Links


def test_links_are_followed_in_every_order_of_the_file_system_except_to_folders_above() -> None:
    listing("a/*.jpg", "b/*.jpg")
    for link, target in (("c", "a"), ("a/up", ".."), ("b/self", "."), ("b/far", "../.."), ("a/other", "../b")):
        Path("photos", link).symlink_to(target)
    Path("photos", "d").symlink_to(Path("outside").absolute())
    Path("outside").mkdir()
    Path("outside/1.jpg").touch()
    Path("outside/back").symlink_to(Path("photos").absolute())
    found = opened()._listing
    assert found.classes == ["a", "b", "c", "d"]
    assert {"c/0.jpg", "a/other/0.jpg", "d/1.jpg"} <= set(found.names)
    assert not any("/up/" in name or "/self/" in name or "/back/" in name for name in found.names)


# A file of labels, and groups


def table(text: str, *overrides: str, count: int = 12) -> Any:
    root = photos(Path("photos").absolute(), "", count=count)
    (root / "metadata.csv").write_text(text)
    return dataset(root, *overrides)


def rows(columns: str, *values: str) -> str:
    return "\n".join([f"file_name,{columns}", *(f"{i}.jpg,{value}" for i, value in enumerate(values))])


def of(source: Any) -> dict[int, int]:
    return {int(Path(n).stem): int(label) for n, label in zip(names(source), source.labels, strict=True)}


def test_labels_and_splits_come_from_a_file() -> None:
    values = [f"{'xy'[i % 2]},{'train' if i < 6 else 'test' if i < 9 else 'val'}" for i in range(11)]
    made = table(rows("label,split", *values))
    assert made.class_names() == ["x", "y"] and of(made.split("train")) == {i: i % 2 for i in range(6)}
    assert of(made.split("test")) == {6: 0, 7: 1, 8: 0}
    for number, changed in ((0, "x,test"), (0, "y,train")):
        values[number] = changed
        assert table(rows("label,split", *values)).content != made.content


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("id,label\n0.jpg,x", "file_name"),
        ("file_name,label\n0.jpg,x\n0.jpg,y", "0.jpg"),
        ("file_name,label\n0.jpg,x\n1.jpg,", "1.jpg"),
        ("file_name,label\n0.jpg,x\nx.jpg,y", "x.jpg"),
        (rows("label,split", *["x,train", "y,train", "x,exam"]), "exam"),
        (rows("label,split", *["x,train", "y,train", "z,test"]), "only test has z"),
        ('file_name,"a', "metadata.csv"),
    ],
)
def test_a_file_of_labels_that_does_not_fit_is_refused(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=r"photos: .*" + re.escape(named)):
        table(text)


def test_images_of_one_group_and_copies_of_them_are_on_one_side() -> None:
    groups = [f"p{i % 5}" for i in range(30)]
    two = [f"{'xy'[i % 5 % 2]},{group}" for i, group in enumerate(groups)]
    for text, words in ((rows("label,group", *two), []), (rows("label,patient", *two), ["dataset.group=patient"])):
        made = table(text, *words, count=30)
        train, test = ({groups[i] for i in of(made.split(name))} for name in ("train", "test"))
        assert not train & test and len(train | test) == 5 and made.split("train").twins is not None
    Path("photos/metadata.csv").unlink()
    made = dataset(Path("photos"), 'dataset.group="([0-4])[.]jpg|([5-9])[.]jpg"')
    train, test = ({Path(n).stem[-1] for n in names(made.split(name))} for name in ("train", "test"))
    assert test and not train & test
    with pytest.raises(ConfigError, match=r"dataset\.group.*0\.jpg"):
        dataset(Path("photos"), "dataset.group=1.jpg")
    assert connected([0, 0, 2, 3], ["a", "b", "b", "c"]) == [0, 0, 0, 3]


def test_copies_in_another_class_bound_what_a_method_can_have() -> None:
    root = photos(Path("photos").absolute(), "train/a", "train/b", "test/a", "test/b")
    for i in range(3):
        shutil.copyfile(root / f"test/a/{i}.jpg", root / f"test/b/{i}_too.jpg")
    (sentence,) = dataset(root).warnings()
    assert sentence.startswith("3 images ") and f"{20 / 23:.1%}" in sentence
