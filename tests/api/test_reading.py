"""``ssl_bench.runs``, ``curves`` and ``load``: the runs of a results folder; and refusals of all functions."""

import csv
import json
import os
import shutil
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor, nn

import ssl_bench
from ssl_bench.errors import ConfigError, InvalidValue, RunError
from tests.data.photos import photos
from tests.door.door import refused
from tests.results.folders import OUTPUTS, configuration, finish, make, rows

REFUSED = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text())


@pytest.fixture
def made() -> list[Path]:
    """Three finished runs, of which one has another size than its option, and one that has begun."""
    folders = list[Path]()
    for loss, size, top1 in (("dcl", 64, 0.5), ("dcl", 48, 0.6), ("eqco", 64, 0.7), ("eqco", 64, 0)):
        choices = configuration()["choices"] | {"loss": loss, "batch_size": "b64"}
        values = {"choices": choices, "batch_size": {"size": size}, "seed": len(folders), "dim": 128}
        folders.append(make(f"a/{len(folders)}", rows(2), **values))
        if top1:
            finish(folders[-1], 20.0, knn_top1=top1, **{"geometry/uniformity": -2.0})
    return folders


def test_runs_are_rows_with_groups_all_settings_and_metrics(made: list[Path]) -> None:
    table = ssl_bench.runs(all=True)
    first, second, _, last = table.to_dict("records")
    main = {"run_id": made[0].name, "experiment": "a", "loss": "dcl", "batch_size": 64, "dataset": "mnist", "seed": 0}
    end = {"state": "finished", "seconds": 20.0, "warnings": "", "path": str(made[0])}
    others: dict[str, Any] = {"batch_size.size": 64, "dim": 128, "epochs": 10, "max_steps": None}
    others |= {"geometry/uniformity": -2.0, "positives": "view", "similarity": "cosine"}
    others["loss.own_view"] = False  # as the two before it: a configuration need not say it
    assert first == main | {"knn/top1": 0.5} | end | others and table["seed"].dtype == table["batch_size"].dtype == int
    names = [*main, "knn/top1", *end]
    assert list(ssl_bench.runs()) == list(first)[: len(names)] == names
    choices = configuration()["choices"] | {"batch_size": "b64"}
    folder = make("a/4", choices=choices, batch_size={"size": 64}, dim=64, other=1)  # one follows from the other
    where: dict[str, Any] = {"epochs": 10, "state": ["finished", "interrupted"]}
    assert list(ssl_bench.runs(where=where)) == [*names[:5], "dim", *names[5:7], "epochs", *names[7:]]
    shutil.rmtree(folder)
    (only,) = ssl_bench.runs(where={"seed": 3}).to_dict("records")  # in which nothing varies
    assert only["loss"] == "eqco" and only["batch_size"] == 64
    assert second["batch_size"] == 48 and list(second) == list(first)
    assert (last["state"], last["seconds"]) == ("interrupted", 20.0) and isnan(last["knn/top1"])
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({"loss": "dcl"}, [0, 1]),
        ({"batch_size": 64, "state": "finished"}, [0, 2]),
        ({"batch_size": "b64", "seed": [0, 3]}, [0, 3]),
        ({"batch_size.size": [48], "experiment": "a"}, [1]),
        ({"experiment": ["a"], "knn/top1": ">0.65"}, [2]),
    ]
    for words, (where, expected) in zip(["outputs", "a", Path("outputs"), None, "outputs/a"], cases, strict=True):
        assert list(ssl_bench.runs(words, where)["seed"]) == expected
    for where, words in (({"los": "dcl"}, "los loss"), ({"loss": "swd"}, "loss=swd"), ({"experiment": "b"}, "b")):
        with refused(words):
            ssl_bench.runs(where=where)
    of_last = [{"run_id": made[3].name, "label": "", "seed": 3} | row for row in rows(2)]
    for run in (last, str(made[3]), made[3].absolute(), made[3].name[:5]):
        assert ssl_bench.curves(run).to_dict("records") == of_last
    labels = ssl_bench.curves(["a", "loss=dcl"]).groupby("label")["seed"].agg(["min", "count"])
    assert labels.to_dict("index") == {f"batch_size={n}": {"min": i, "count": 2} for i, n in enumerate((64, 48))}


def test_tables_are_those_of_pandas_of_the_results_folder_of_the_commands(
    made: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ssl_bench.runs(where={"state": "finished"})
    assert table.groupby("loss")["knn/top1"].mean().tolist() == [0.55, 0.7]
    assert ssl_bench.curves(table.iloc[0])["step"].tolist() == [2, 4]
    OUTPUTS.rename("elsewhere")
    monkeypatch.setenv("SSL_BENCH_OUTPUTS", "elsewhere")
    assert len(ssl_bench.runs()) == 4 and len(ssl_bench.runs(where={"seed": "<1", "loss": "!=eqco"})) == 1


@pytest.mark.parametrize(("call", "arguments", "names"), REFUSED)
def test_a_refusal_names_the_argument(call: str, arguments: dict[str, Any], names: str, made: list[Path]) -> None:
    with refused(names):
        getattr(ssl_bench, call)(**arguments)


def test_load_gives_the_trained_backbone(trained: Path) -> None:
    backbone = ssl_bench.load(trained)
    state = torch.load(trained / "checkpoints" / "last.pt", weights_only=True)["method"]
    (weight,) = (
        value for name, value in state.items() if name.endswith("backbone.stem.0.weight") and "key" not in name
    )
    assert not backbone.training and torch.equal(backbone.state_dict()["stem.0.weight"], weight)
    assert backbone(torch.zeros(3, 1, 20, 20)).shape[0] == 3


# ---- embed: features of arrays and folders by any network, in memory and as files


BATCH = 512  # images that pass through a network at once


class Network(nn.Module):
    """A linear map of the pixels, which counts its images and stops as Ctrl-C does after ``most``."""

    def __init__(self, width: int = 4, pixels: int = 3 * 5 * 5, most: int = 10**9) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.map, self.dropout = nn.Linear(pixels, width), nn.Dropout(0.9)
        self.seen, self.most = 0, most

    def forward(self, x: Tensor) -> Tensor:
        if self.seen + len(x) > self.most:
            raise KeyboardInterrupt
        self.seen += len(x)
        features: Tensor = self.dropout(self.map(x.flatten(1)))
        return features


IMAGES = np.random.default_rng(0).integers(0, 256, (3 * BATCH + 10, 3, 5, 5), dtype=np.uint8)


def naive(network: Network, views: Tensor) -> np.ndarray:
    with torch.no_grad():
        return torch.cat([network.map(view.flatten()[None]) for view in views]).numpy()


def test_arrays_give_the_features_of_a_loop_in_evaluation_mode() -> None:
    network, views = Network(), torch.from_numpy(IMAGES).float() / 255
    features = ssl_bench.embed(network, IMAGES)
    assert features.dtype == np.float32 and network.training and network.dropout.training
    np.testing.assert_allclose(features, naive(network, views), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ssl_bench.embed(network, views), features, rtol=1e-5, atol=1e-6)
    repeated = ssl_bench.embed(network, np.broadcast_to(IMAGES[:1], IMAGES.shape))  # is read-only
    np.testing.assert_allclose(repeated, features[:1].repeat(len(IMAGES), 0), rtol=1e-5, atol=1e-6)
    mean, std = [0.1, 0.2, 0.3], [0.5, 0.6, 0.7]
    normalised = (views - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    made = ssl_bench.embed(network, torch.from_numpy(IMAGES), mean=mean, std=std)
    np.testing.assert_allclose(made, naive(network, normalised), rtol=1e-5, atol=1e-5)


def test_files_are_whole_and_of_one_network(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        ssl_bench.embed(Network(most=2 * BATCH + 1), IMAGES, out=tmp_path)
    assert list(tmp_path.iterdir()) == []
    features = ssl_bench.embed(Network(), IMAGES, out=tmp_path)
    assert (np.load(tmp_path / "features.npy") == features).all() and (
        features == ssl_bench.embed(Network(), IMAGES)
    ).all()
    rows = list(csv.DictReader((tmp_path / "images.csv").read_text().splitlines()))
    assert len(rows) == len(IMAGES) and rows[-1] == {"image": str(len(IMAGES) - 1), "label": "", "split": "images"}
    former = json.loads((tmp_path / "embed.json").read_text())
    (tmp_path / "embed.json").write_text(json.dumps(former | {"files": [*former["files"], "neighbours.png"]}))
    (tmp_path / "neighbours.png").touch()  # of the former network: no picture of it stays
    other = ssl_bench.embed(Network(5), IMAGES[::-1], out=tmp_path)
    assert other.shape == (len(IMAGES), 5) and (other == ssl_bench.embed(Network(5), IMAGES[::-1])).all()
    record = json.loads((tmp_path / "embed.json").read_text())
    assert record["files"] == ["features.npy", "images.csv", "embed.json"] and len(list(tmp_path.iterdir())) == 3
    assert record["network"] != former["network"]


def test_a_folder_of_photos(tmp_path: Path) -> None:
    root, network = photos(tmp_path / "birds", "owl", "swan"), Network(pixels=3 * 8 * 8)
    features = ssl_bench.embed(network, root, size=8, workers=1, out=tmp_path / "out")
    rows = list(csv.DictReader((tmp_path / "out" / "images.csv").read_text().splitlines()))
    assert features.shape == (20, 4) and {Path(row["image"]).parent.name for row in rows} == {"owl", "swan"}
    assert (ssl_bench.embed(network, str(root), size=8, workers=1) == features).all()
    odd = os.fsencode(root) + b'/owl/\xff,"\r\n\xc3\xa9.jpg'  # a name may have any bytes but / and 0
    os.rename(min((root / "owl").iterdir()), odd)
    ssl_bench.embed(network, root, size=8, workers=1, out=tmp_path / "out")
    with open(tmp_path / "out" / "images.csv", newline="", errors="surrogateescape") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 20 and [row["label"] for row in rows if os.fsencode(row["image"]) == odd] == ["owl"]
    with refused("images=nowhere arrays bits"):
        ssl_bench.embed(network, "nowhere")


def test_what_is_no_network_of_features_or_no_image_is_refused() -> None:
    with pytest.raises(RuntimeError, match="512x75"):
        ssl_bench.embed(Network(pixels=7), IMAGES)
    with_nan = np.where(np.arange(9)[:, None, None, None] == 7, np.nan, IMAGES[:9].astype(float))
    for network, images, more, names, kind in (
        (nn.Identity(), IMAGES, {}, "network=[512,3,5,5] [512, D]", InvalidValue),
        (Network(), IMAGES.astype(np.int64), {}, "images=torch.int64", InvalidValue),
        (Network(), IMAGES.astype(float), {"blur": 1}, "blur", ConfigError),
        (Network(), with_nan, {}, "7 finite", RunError),
    ):
        with refused(names, kind):
            ssl_bench.embed(network, images, **more)  # type: ignore[arg-type]
