"""Data of any content: one sentence that names the file and what to do, before anything is computed."""

import json
import os
import pickle
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ssl_bench.config.compose import load
from ssl_bench.data import coco, photos
from ssl_bench.data.arrays import ArrayDataset
from ssl_bench.data.folder import Folder
from ssl_bench.data.photos import Packed, pack
from ssl_bench.errors import ConfigError, RunError
from ssl_bench.training.parts import Parts
from tests.door.door import refused, refuses

Capture = pytest.CaptureFixture[str]


class Hostile:
    """Makes a directory when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("hacked",)


def images(count: int = 70, size: int = 28, channels: int = 1) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, size, size, channels), dtype=np.uint8)


@pytest.fixture
def folder() -> Path:
    """The files of MNIST."""
    path = Path("data/mnist")
    path.mkdir(parents=True)
    for split in ("train", "test"):
        np.save(path / f"{split}_images.npy", images())
        np.save(path / f"{split}_labels.npy", np.arange(70) % 10)
    return path


def mnist(*overrides: str) -> ArrayDataset:
    dataset = Parts(load(["dataset=mnist", "paths.data=data", *overrides])).dataset
    assert isinstance(dataset, ArrayDataset)
    return dataset


LABELS = np.arange(70) % 10
WRONG: list[tuple[str, Any, str]] = [
    ("train_images", images(0), "0"),
    ("train_labels", LABELS[:60], "[60] [70]"),
    ("train_labels", LABELS + 1, "1 10 0 9 -1"),
    ("test_labels", LABELS.astype(np.float64), "float64 [70] int64 [70]"),
    ("train_images", images()[..., 0], "[70, 28, 28] [N, 28, 28, 1]"),
    ("train_images", images(channels=3), "28 3 1"),
    ("test_images", images(size=32), "32 28 1"),
    ("train_labels", np.array([Hostile()] * 70, object), ""),
]


@pytest.mark.parametrize(("name", "array", "found"), WRONG)
def test_wrong_arrays_are_refused(folder: Path, name: str, array: Any, found: str) -> None:
    np.save(folder / f"{name}.npy", array)
    dataset = mnist()
    with refused(f"dataset=mnist data/mnist/{name}.npy {found}"):
        dataset.check()
    assert not Path("hacked").exists()


def test_commands_refuse_data_before_anything_is_written(folder: Path, capfd: Capture) -> None:
    (folder / "train_labels.npy").write_bytes(pickle.dumps(Hostile()))
    for _ in ("wrong", "missing"):
        refuses("train dataset=mnist paths.data=data", "dataset=mnist data/mnist/train_labels.npy prepare", capfd)
        (folder / "train_labels.npy").unlink(missing_ok=True)
    assert not Path("hacked").exists()


@pytest.mark.usefixtures("folder")
def test_prepare_replaces_no_array(capfd: Capture) -> None:
    refuses("prepare dataset=mnist paths.data=data dataset.size=32", "dataset.size 28 32", capfd)


def test_unlabelled_digits_cannot_be_painted(folder: Path) -> None:
    np.save(folder / "train_labels.npy", np.full(70, -1))
    dataset = Parts(load(["dataset=multi_digits", "paths.data=data"])).dataset
    with pytest.raises(ConfigError, match=r"train_labels\.npy.* \(-1\)"):
        dataset.pretrain()


# ---- photos


def photo(kind: str, **options: Any) -> bytes:
    file = BytesIO()
    Image.fromarray(np.arange(20 * 24 * 3, dtype=np.uint8).reshape(20, 24, 3)).save(file, kind, **options)
    return file.getvalue()


def photo_folder(content: dict[str, bytes]) -> Folder:
    (Path("photos/a")).mkdir(parents=True, exist_ok=True)
    for name, data in content.items():
        Path("photos/a", name).write_bytes(data)
    return Folder(Path("photos"), ["a"], 1)


def test_of_a_moving_picture_the_first_frame_counts() -> None:
    frames = [Image.fromarray(np.full((8, 9, 3), grey, np.uint8)) for grey in (10, 200)]
    file = BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    image = photos.decode(torch.tensor(list(file.getvalue()), dtype=torch.uint8))
    assert image.shape == (3, 8, 9) and image.unique().tolist() == [10]


def test_a_picture_of_another_format_is_no_photo() -> None:
    """Pillow would start Ghostscript for an EPS."""
    Path("a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\nshowpage\n%%EOF\n")
    Path("b.png").write_bytes(photo("PCX"))
    for name in ("a.png", "b.png"):
        with pytest.raises(OSError):  # of Pillow
            photos.decode(torch.tensor(list(Path(name).read_bytes()), dtype=torch.uint8))
        with pytest.raises(RunError, match=f"^{name}: "):
            photos.read_photo(Path(name))


DEFECT = photo("JPEG")[:100]


def test_packed_photos_with_damage_are_refused() -> None:
    pack(photo_folder({f"{i}.jpg": photo("JPEG") for i in range(4)}), Path("packed/train"), 20, lambda each: each)
    index = Path("packed/train.npz")
    content = index.read_bytes()
    index.write_bytes(content[:100])
    with pytest.raises(ConfigError, match=r"train\.npz.*train\.jpegs"):
        Packed(Path("packed/train"), 1)
    for changes in ({"labels": np.array([Hostile()] * 4, object)}, {"offsets": np.array([0, 5, 4, 6, 7])}):
        index.write_bytes(content)
        np.savez(index, **(dict(np.load(index)) | changes))
        with pytest.raises(ConfigError, match=r"train\.npz"):
            Packed(Path("packed/train"), 1)
    assert not Path("hacked").exists()
    index.unlink()
    with pytest.raises(ConfigError, match=r"packed/train\.npz"):
        Packed(Path("packed/train"), 1)


# ---- COCO

ENTRY = {"id": 1, "image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4], "area": 12, "iscrowd": 0, "segmentation": []}
INSTANCES: dict[str, Any] = {
    "images": [{"id": 1, "file_name": "1.jpg", "width": 20, "height": 30}],
    "annotations": [ENTRY],
    "categories": [{"id": 3}],
}


def test_instances_name_photos_of_their_folder_only() -> None:
    path = Path("instances.json")
    path.write_text(json.dumps(INSTANCES))
    assert len(coco.Boxes(Path(), path, True)) == 1
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"instances\.json"):
        coco.Boxes(Path(), path, False)
    for name in ("/etc/passwd", "../secret.jpg", "a/../../b.jpg"):
        photo_entry = INSTANCES["images"][0] | {"file_name": name}
        path.write_text(json.dumps(INSTANCES | {"images": [photo_entry]}))
        with pytest.raises(ConfigError, match=name):
            coco.read_instances(path)
