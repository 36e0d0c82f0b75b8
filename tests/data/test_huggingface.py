"""Datasets of Hugging Face on disk: splits, labels of any type, and folders that are none."""

import itertools
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from ssl_bench.config.compose import load
from ssl_bench.config.identity import run_id
from ssl_bench.data.source import Joined
from ssl_bench.errors import ConfigError
from ssl_bench.training import build
from tests.data.photos import SIZE, photos
from tests.door.door import refused


def stored(folder: Path) -> dict[str, str]:
    """The same labelled images as a saved dataset and as parquet files."""
    datasets = pytest.importorskip("datasets")
    kinds = datasets.Features({"picture": datasets.Image(), "kind": datasets.ClassLabel(names=["a", "b"])})
    root = photos(folder / "files", "a", "b")
    paths = sorted(str(path) for path in root.rglob("*.jpg"))
    rows = {"picture": paths, "kind": [int("/b/" in path) for path in paths]}
    split = datasets.Dataset.from_dict(rows, features=kinds).train_test_split(0.25, seed=0)
    split.save_to_disk(str(folder / "saved"))
    (folder / "parquet").mkdir()
    for name, each in split.items():
        each.to_parquet(str(folder / "parquet" / f"{name}-00000-of-00001.parquet"))
    return {"saved": f"dataset.path={folder / 'saved'}", "parquet": f"dataset.path={folder / 'parquet'}"}


@pytest.mark.filterwarnings("ignore")  # of datasets and pyarrow
def test_a_dataset_of_hugging_face_is_read_from_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "hf", raising=False)
    paths = stored(tmp_path)
    configs = {kind: load(["dataset=hf", path, *SIZE]) for kind, path in paths.items()}
    assert run_id(configs["saved"]) == run_id(configs["parquet"])
    made = build.dataset(configs["saved"])
    train, test = made.split("train"), made.split("test")
    assert (made.num_classes, len(train), len(test)) == (2, 15, 5)
    files = {(tmp_path / "files" / f"{'ab'[label]}").as_posix() for label in train.labels.tolist()}
    assert len(files) == 2 and train.take(torch.tensor([0]))[0].shape == (3, 20, 30)
    assert [Joined([train, test]).path_of(i) for i in (0, 14, 15)] == ["0", "14", "0"]  # rows of their splits
    assert load(["dataset=hf", paths["saved"], *SIZE, "dataset.label=kind"])["choices"]["dataset"] == "hf:saved"
    with pytest.raises(ConfigError, match=r"^dataset\.label=hue: .*kind"):
        load(["dataset=hf", paths["saved"], "dataset.label=hue"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"^dataset\.path="):
        load(["dataset=hf", f"dataset.path={tmp_path / 'empty'}"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["saved", "parquet"])
def test_a_folder_that_is_written_again_is_another_dataset(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "hf", raising=False)
    datasets, place = pytest.importorskip("datasets"), tmp_path / "here"
    paths = [str(path) for path in sorted(photos(tmp_path / "files", "a", "b").rglob("*.jpg"))]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])})

    def written(count: int) -> tuple[str, int]:
        shutil.rmtree(place, ignore_errors=True)
        labels = [i % 2 for i in range(count)]
        rows = datasets.Dataset.from_dict({"image": paths[:count], "label": labels}, features=features)
        if kind == "saved":
            rows.save_to_disk(str(place))
        else:
            place.mkdir()
            rows.to_parquet(str(place / "train.parquet"))
            os.utime(place / "train.parquet", (1e9, 1e9))  # as an archive has it
        config = load(["dataset=hf", f"dataset.path={place}", *SIZE])
        return config["dataset"]["content"], len(build.dataset(config).split("train"))

    first, second = written(10), written(20)
    assert (first[1], second[1]) == (8, 18) and first[0] != second[0]
    assert written(10) == first


def test_without_the_package_datasets_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(ConfigError, match=r'^dataset\.path=.*pip install "ssl-bench\[hf\]"'):
        load(["dataset=hf", f"dataset.path={tmp_path}"])


# Labels


def saved(
    labels: dict[str, list[Any]], feature: Any = None, column: str = "label", image: str = "image", **columns: Any
) -> list[str]:
    """Save splits with these labels; return the words of a command that reads them."""
    datasets = pytest.importorskip("datasets")
    root, splits = photos(Path("files"), "", count=sum(map(len, labels.values()))), {}
    numbers = itertools.count()
    for split, values in labels.items():
        paths = [str(root / f"{next(numbers)}.jpg") for _ in values]
        features = {image: datasets.Image(), column: feature} if feature else None
        rows = {image: paths, column: values, **{name: [value] * len(values) for name, value in columns.items()}}
        made = datasets.Dataset.from_dict(rows, features=features and datasets.Features(features))
        splits[split] = made.cast_column(image, datasets.Image())
    datasets.DatasetDict(splits).save_to_disk(folder := f"saved_{column}")
    return ["dataset=hf", f"dataset.path={folder}", *SIZE]


def listed(words: list[str]) -> Any:
    made: Any = build.dataset(load(words))
    return made._listing


@pytest.mark.parametrize(
    ("values", "classes", "labels"),
    [
        ([70000, 3, 9], ["3", "9", "70000"], [2, 0, 1]),
        (["dog", "cat", "bird"], ["bird", "cat", "dog"], [2, 1, 0]),
        (["10", "2", "1"], ["1", "2", "10"], [2, 1, 0]),
        ([2.0, 0.0, 1.0], ["0", "1", "2"], [2, 0, 1]),
        ([True, False, True], ["False", "True"], [1, 0, 1]),
        ([None, None, None], [], [-1, -1, -1]),
        ([-1, -1, -1], [], [-1, -1, -1]),
    ],
)
@pytest.mark.filterwarnings("ignore")  # of datasets and pyarrow
def test_labels_of_any_type_are_classes_in_both_splits(
    values: list[Any], classes: list[str], labels: list[int]
) -> None:
    found = listed(saved({"train": values * 2, "test": values[::-1], "extra": values}))
    assert (found.classes, found.labels) == (classes, [*labels * 2, *labels[::-1]])
    assert found.test == [False] * 6 + [True] * 3 and found.notes == ["not used: 3 in extra"]


@pytest.mark.filterwarnings("ignore")
def test_the_names_of_classes_are_kept_and_those_without_images_are_left_out() -> None:
    datasets = pytest.importorskip("datasets")
    words = saved({"train": [3, 1, 1, 3], "val": [1, 3]}, datasets.ClassLabel(names=["a", "b", "c", "d"]))
    assert (listed(words).classes, listed(words).labels) == (["b", "d"], [1, 0, 0, 1, 0, 1])


@pytest.mark.parametrize(
    ("labels", "columns", "names"),
    [
        ({"train": [0, 1, 0, 1], "test": [0, 2]}, {}, "test 2 train"),
        ({"train": [0, 1, None, 1]}, {}, "1 4 train"),
        ({"train": [0.5, 1.0]}, {}, "dataset.label=label 0.5"),
        ({"train": [[0], [1]]}, {}, "dataset.label=label [0]"),
        ({"train": [0, 1]}, {"cls": 1}, "dataset.label=null cls label"),
        ({"one": [0, 1], "two": [0, 1]}, {}, "one two"),
        ({"train_a": [0, 1], "test_a": [0]}, {}, "test_a train_a"),
        ({"test": [0, 1], "validation": [0]}, {}, "test validation"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_labels_and_splits_that_are_not_clear_are_refused(
    labels: dict[str, list[Any]], columns: dict[str, Any], names: str
) -> None:
    words = saved(labels, **columns)
    with refused(names):
        load(words)


@pytest.mark.filterwarnings("ignore")
def test_columns_are_found_by_the_names_of_webdataset_and_others_are_said(capfd: pytest.CaptureFixture[str]) -> None:
    assert listed(saved({"train": [0, 1] * 4}, column="cls", image="jpg")).classes == ["0", "1"]
    datasets = pytest.importorskip("datasets")
    images = [{"bytes": Path(f"files/{i}.jpg").read_bytes(), "path": None} for i in range(4)]
    datasets.Dataset.from_dict({"image": images, "target": [0, 1] * 2}).save_to_disk("structs")
    assert listed(["dataset=hf", "dataset.path=structs"]).classes == ["0", "1"]
    load(saved({"train": [0, 1] * 4}, column="species"))
    assert " 7 images" in (text := capfd.readouterr().err) and "dataset.label" in text and "species\n" in text


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["torch", "numpy"])
def test_the_format_with_which_it_was_saved_changes_nothing(form: str) -> None:
    datasets, words = pytest.importorskip("datasets"), saved({"train": [0, 1] * 4, "test": [1, 0]})
    datasets.load_from_disk("saved_label").with_format(form).save_to_disk("formatted")
    one, other = listed(words), listed(["dataset=hf", "dataset.path=formatted", *SIZE])
    assert (one.names, one.labels, one.classes) == (other.names, other.labels, other.classes)


# Folders


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("columns", "splits"),
    [
        ({"train": ["train"] * 6 + ["test"] * 3 + ["extra"]}, [6, 3]),
        ({"train": ["train"] * 6, "test": ["test"] * 3}, [6, 3]),
        ({"train": ["train"] * 6 + ["test"], "test": ["test"] * 3}, None),
        ({"train": ["a"] * 6 + ["b"] * 3}, None),
    ],
)
def test_a_column_of_splits_is_used_or_refused(
    columns: dict[str, list[str]], splits: list[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", Path("hf").absolute(), raising=False)
    root = photos(Path("files").absolute(), "", count=12)
    numbers = itertools.count()
    for name, column in columns.items():
        rows = {"image": [str(root / f"{next(numbers)}.jpg") for _ in column], "label": ([0, 1] * 5)[: len(column)]}
        made = datasets.Dataset.from_dict(rows | {"split": column}).cast_column("image", datasets.Image())
        made.to_parquet(f"parquet/{name}.parquet")
    words = ["dataset=hf", "dataset.path=parquet", *SIZE]
    if splits is None:
        with refused("dataset.path="):
            load(words)
    else:
        made = build.dataset(load(words))
        assert [len(made.split(name)) for name in ("train", "test")] == splits


@pytest.mark.filterwarnings("ignore")
def test_a_damaged_or_mistaken_folder_is_refused_in_a_sentence() -> None:
    words = saved({"train": [0, 1, 0, 1]})
    (arrow,) = Path(words[1].partition("=")[2]).rglob("*.arrow")
    arrow.write_bytes(arrow.read_bytes()[:300])
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"image": [1, 2], "label": [0, 1]}).save_to_disk("numbers")
    for path in (words[1], "dataset.path=numbers"):
        with pytest.raises(ConfigError, match=r"^dataset\.path="):
            load(["dataset=hf", path, *SIZE])
