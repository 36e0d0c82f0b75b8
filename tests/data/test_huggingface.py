"""Datasets of Hugging Face on disk: splits, labels of any type, and folders that are none."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ssl_bench.config.compose import load
from ssl_bench.config.identity import run_id
from ssl_bench.errors import ConfigError
from ssl_bench.training.parts import Parts
from tests.data.test_own import SIZE, cache, photos

assert cache  # a fixture


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
    made = Parts(configs["saved"]).dataset
    train, test = made.split("train"), made.split("test")
    assert (made.num_classes, len(train), len(test)) == (2, 15, 5)
    files = {(tmp_path / "files" / f"{'ab'[label]}").as_posix() for label in train.labels.tolist()}
    assert len(files) == 2 and train.take(torch.tensor([0]))[0].shape == (3, 20, 30)
    assert load(["dataset=hf", paths["saved"], *SIZE, "dataset.label=kind"])["choices"]["dataset"] == "hf:saved"
    with pytest.raises(
        ConfigError, match=r"dataset\.label=hue: set dataset\.label to the column of the labels, one of k"
    ):
        load(["dataset=hf", paths["saved"], "dataset.label=hue"])
    with pytest.raises(ConfigError, match=r"no dataset of Hugging Face can be read there"):
        load(["dataset=hf", f"dataset.path={tmp_path / 'files'}"])


def test_without_the_package_datasets_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(ConfigError, match=r'^dataset=hf needs the package datasets: pip install "ssl-bench\[hf\]"$'):
        load(["dataset=hf", f"dataset.path={tmp_path}"])
