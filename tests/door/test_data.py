"""Data of any content: one sentence that names the file and what to do, before anything is computed."""

import json
import os
import pickle
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ssl_bench.data import coco, photos
from ssl_bench.data.arrays import ArrayDataset
from ssl_bench.data.folder import Folder
from ssl_bench.data.packed import Packed, pack
from ssl_bench.errors import ConfigError, RunError
from ssl_bench.training.parts import Parts
from tests.composed import load

Train = Callable[..., tuple[int, str]]


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
    ("train_images", images(0), "train_images.npy has 0 images and"),
    ("train_labels", LABELS[:60], "has 70 images and data/mnist/train_labels.npy has 60 labels: remove"),
    ("train_labels", LABELS + 1, "train_labels.npy has labels from 1 to 10, not from 0 to 9 or -1 for an unlabelled"),
    ("test_labels", LABELS.astype(np.float64), "test_labels.npy holds float64 [70], not int64 [N]: replace it"),
    ("train_images", images()[..., 0], "train_images.npy holds uint8 [70, 28, 28], not uint8 [N, height, width, chan"),
    ("train_images", images(channels=3), "has images of 28 x 28 pixels with 3 channels, not 28 x 28 with 1: set"),
    ("test_images", images(size=32), "has images of 32 x 32 pixels with 1 channels, not 28 x 28 with 1"),
    ("train_labels", np.array([Hostile()] * 70, object), "train_labels.npy is cut short, damaged or no array of num"),
]


@pytest.mark.parametrize(("name", "array", "sentence"), WRONG)
def test_wrong_arrays_are_refused(folder: Path, name: str, array: Any, sentence: str) -> None:
    np.save(folder / f"{name}.npy", array)
    with pytest.raises(ConfigError) as refusal:
        mnist().check()
    text = str(refusal.value)
    assert text.startswith("dataset=mnist: data/mnist/") and sentence in text and "\n" not in text
    assert "pickle" not in text and not Path("hacked").exists()


def test_commands_refuse_data_before_anything_is_written(folder: Path, train: Train) -> None:
    (folder / "train_labels.npy").write_bytes(pickle.dumps(Hostile()))
    code, printed = train("dataset=mnist", "paths.data=data", "tracking=off", small=False)
    assert code == 2 and len(printed.splitlines()) == 1 and "pickle" not in printed and "remove it, and get" in printed
    (folder / "train_labels.npy").unlink()
    code, printed = train("dataset=mnist", "paths.data=data", "tracking=off", small=False)
    assert code == 2 and "train_labels.npy is missing; get it with `ssl-bench prepare dataset=mnist" in printed
    assert not Path("outputs").exists() and not Path("hacked").exists()


def test_prepare_replaces_no_array(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ssl_bench.commands.prepare import main

    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert main(["dataset=mnist", "paths.data=data", "dataset.size=32"]) == 2
    assert "not 32 x 32 with 1: set dataset.size and channels" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_unlabelled_digits_cannot_be_painted(folder: Path) -> None:
    np.save(folder / "train_labels.npy", np.full(70, -1))
    dataset = Parts(load(["dataset=multi_digits", "paths.data=data"])).dataset
    with pytest.raises(ConfigError, match=r"train_labels\.npy has unlabelled images \(-1\): replace it"):
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


def test_a_class_without_a_good_photo_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photos, "MAX_DAMAGED", 2.0)
    split = photo_folder({"0.jpg": b"", "1.jpg": DEFECT})
    with pytest.raises(RunError, match=r"0\.jpg cannot be decoded, and no other image of its class can: replace them"):
        split.take(torch.tensor([0]))


def test_a_picture_of_another_format_is_no_photo() -> None:
    """Pillow would start Ghostscript for an EPS."""
    Path("a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\nshowpage\n%%EOF\n")
    Path("b.png").write_bytes(photo("PCX"))
    for name in ("a.png", "b.png"):
        with pytest.raises(OSError, match="cannot identify image file"):
            photos.decode(torch.tensor(list(Path(name).read_bytes()), dtype=torch.uint8))
        with pytest.raises(RunError, match=f"^{name}: it is no photo that can be read$"):
            photos.read_photo(Path(name))


DEFECT = photo("JPEG")[:100]


def test_packed_photos_with_damage_are_refused() -> None:
    pack(photo_folder({f"{i}.jpg": photo("JPEG") for i in range(4)}), Path("packed/train"), 20, lambda each: each)
    index = Path("packed/train.npz")
    content = index.read_bytes()
    index.write_bytes(content[:100])
    with pytest.raises(ConfigError, match=r"train\.npz is damaged, or does not belong to train\.jpegs: remove both"):
        Packed(Path("packed/train"), 1)
    for changes in ({"labels": np.array([Hostile()] * 4, object)}, {"offsets": np.array([0, 5, 4, 6, 7])}):
        index.write_bytes(content)
        np.savez(index, **(dict(np.load(index)) | changes))
        with pytest.raises(ConfigError, match="remove both, and make them with the same arguments after"):
            Packed(Path("packed/train"), 1)
    assert not Path("hacked").exists()
    index.unlink()
    with pytest.raises(ConfigError, match=r"packed/train\.npz is missing; make it"):
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
        with pytest.raises(ConfigError, match="leads out of the folder of the photos"):
            coco.read_instances(path)
