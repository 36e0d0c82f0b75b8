"""``ssl_bench.embed``: features of arrays and folders by any network, in memory and as files."""

import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ssl_bench
from ssl_bench.errors import ConfigError, InvalidValue, RunError
from tests.data.photos import photos
from tests.door.door import refused

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
    assert (ssl_bench.embed(network, np.broadcast_to(IMAGES[:1], IMAGES.shape)) == features[0]).all()  # is read-only
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
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
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
