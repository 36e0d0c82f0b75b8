"""Arrays, packed photos and files of COCO of any content in the place of prepared ones."""

import io
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ssl_bench.config.compose import load
from ssl_bench.data import coco, photos
from ssl_bench.data.photos import Packed, Photos, pack
from ssl_bench.errors import ConfigError, RunError
from ssl_bench.files import open_regular
from ssl_bench.training import build
from tests.door.door import refuses
from tests.door.hostile import MARKER, PLACES, SEED, Payload, large, outcome, variants

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory of a process is not known")
IMAGES = np.random.default_rng(0).integers(0, 256, (70, 28, 28, 1), dtype=np.uint8)
LABELS = np.arange(70) % 10
DAMAGED = "cut short, damaged or no array of numbers"


def saved(array: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def described(kind: str = "'|u1'", shape: str = "(70, 28, 28, 1)", header: str = "") -> bytes:
    """A file with any header, and the bytes of the images."""
    header = header or f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}, }}"
    text = f"{header:<117}\n".encode("latin1")
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + IMAGES.tobytes()


# Images, and the words of the refusal; None: they are read right. NumPy reads the header: one damage of each kind.
OF_IMAGES: dict[str, tuple[bytes, str | None]] = {
    "as they were": (saved(IMAGES), None),
    "Fortran's order": (saved(np.asfortranarray(IMAGES)), None),
    "more bytes": (saved(IMAGES) + b"x", None),
    "big endian": (described("'>u1'"), None),
    "objects": (saved(np.array([Payload()] * 3, object)), DAMAGED),
    "pickle": (pickle.dumps(Payload()), DAMAGED),
    "type of code": (described(f"__import__('os').system('touch {MARKER}')"), DAMAGED),
    "nested header": (described(header="[" * 5000 + "]" * 5000), DAMAGED),
    "power": (described(shape="(9**9**9,)"), DAMAGED),
    "nothing": (b"", DAMAGED),
    "half a header": (saved(IMAGES)[:60], DAMAGED),
    "cut by a byte": (saved(IMAGES)[:-1], DAMAGED),
    "below 0": (described(shape="(-70, -28, 28, 1)"), DAMAGED),
    "beyond 2^63": (described(shape="(9223372036854775807, 0, 28, 1)"), DAMAGED),
    "no images": (described(shape="(0, 28, 28, 1)"), "holds uint8 [0, 28, 28, 1]"),
    "one number": (described(shape="()"), "holds uint8 []"),
    "one image less": (described(shape="(69, 28, 28, 1)"), "holds int64 [70], not int64 [69]"),
    "channels before": (saved(IMAGES.transpose(0, 3, 1, 2)), "holds uint8 [70, 1, 28, 28]"),
    "no channels": (saved(IMAGES[..., 0]), "holds uint8 [70, 28, 28], not"),
    **{f"type {kind}": (described(kind), "holds ") for kind in ("'|i1'", "'|V1'", "[('a', '|u1')]")},
    "shares": (saved(IMAGES.astype(np.float32) / 255), "holds float32 [70, 28, 28, 1], not uint8"),
}
OF_LABELS: dict[str, tuple[Any, str | None]] = {
    "as they were": (LABELS, None),
    "unlabelled": (np.where(LABELS == 3, -1, LABELS), None),
    "big endian": (LABELS.astype(">i8"), "holds >i8 [70], not int64 [70]"),
    "int32": (LABELS.astype("int32"), "holds int32 [70], not int64 [70]"),
    "text": (LABELS.astype(str), "holds <U21 [70]"),
    "objects": (np.array([Payload()] * 70, object), DAMAGED),
    "below -1": (np.where(LABELS == 3, -2, LABELS), "from -2 to 9, not int64 [70] from 0 to 9, or -1"),
    "10": (np.where(LABELS == 3, 10, LABELS), "from 0 to 10, not int64 [70] from 0 to 9"),
    "-2^63": (np.where(LABELS == 3, -(2**63), LABELS), f"from -{2**63} to 9"),
    "one less": (LABELS[:69], "holds int64 [69]"),
    "a column": (LABELS[:, None], "holds int64 [70, 1], not"),
    "one number": (np.int64(3), "holds int64 [], not"),
}


def prepared() -> Path:
    """The files of MNIST, in data/mnist."""
    path = Path("data/mnist")
    path.mkdir(parents=True)
    for split in ("train", "test"):
        np.save(path / f"{split}_images.npy", IMAGES)
        np.save(path / f"{split}_labels.npy", LABELS)
    return path


def reader() -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    """Function that reads the training split of data/mnist."""
    config = load(["dataset=mnist", "paths.data=data"])

    def read() -> tuple[np.ndarray, np.ndarray]:
        dataset: Any = build.dataset(config)
        assert dataset.check() == 70
        source = dataset.split("train")
        return source.take(torch.arange(70)).permute(0, 2, 3, 1).numpy(), source.labels.numpy()

    return read


def test_arrays_are_read_right_or_refused() -> None:
    cases: list[tuple[str, bytes | Callable[[Path], Any], str | None, Any]]
    cases = [("images", content, says, LABELS) for content, says in OF_IMAGES.values()]
    cases += [("labels", saved(array), says, array) for array, says in OF_LABELS.values()]
    cases += [("images", place, "", None) for name, place in PLACES.items() if name != "64 GiB"]
    folder, read = prepared(), reader()
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}
    for what, content, says, labels in cases:
        path = folder / f"train_{what}.npy"
        path.unlink()
        content(path) if callable(content) else path.write_bytes(content)
        said, arrays = outcome(read)
        if says is None:
            assert said == "" and np.array_equal(arrays[0], IMAGES) and np.array_equal(arrays[1], labels)
        else:
            assert said.startswith("dataset=mnist: ") and path.parent.name in said and says in said, said
        path.rmdir() if path.is_dir() else path.unlink()
        path.write_bytes(whole[path.name])


def test_an_array_with_any_damage_in_its_header_is_read_right_or_refused() -> None:
    path, whole, read, refused = prepared() / "train_images.npy", saved(IMAGES), reader(), 0
    for description, header in [*variants(whole[:128], SEED, 60), ("nothing", whole[:128])]:
        path.unlink()
        path.write_bytes(header + whole[128:] if len(header) == 128 else header)
        said, arrays = outcome(read)
        assert (str(path) in said) if said else np.array_equal(arrays[0], IMAGES), description
        refused += bool(said)
    assert 60 < refused <= 120


def test_commands_refuse_data_before_anything_is_written(capfd: pytest.CaptureFixture[str]) -> None:
    labels = prepared() / "train_labels.npy"
    labels.write_bytes(pickle.dumps(Payload()))
    for _ in ("wrong", "missing"):
        refuses("train dataset=mnist paths.data=data", "dataset=mnist data/mnist/train_labels.npy prepare", capfd)
        labels.unlink(missing_ok=True)


def test_an_index_of_packed_photos_with_damage_is_refused() -> None:
    Path("photos/a").mkdir(parents=True)
    for number in range(4):
        Image.fromarray(IMAGES[number, :, :, 0]).save(f"photos/a/{number}.jpg")
    names = [*map(str, Path("photos/a").iterdir())]
    pack(Photos(torch.zeros(4), names, open_regular, 1), Path("packed/train"), 20, lambda each: each)
    index = Path("packed/train.npz")
    content = index.read_bytes()
    arrays: Any = dict(np.load(io.BytesIO(content)))
    assert len(Packed(Path("packed/train"), 1)) == 4
    damage: list[Callable[[], Any]] = [
        lambda: index.write_bytes(content[:100]),
        lambda: np.savez(index, **(arrays | {"labels": np.array([Payload()] * 4, object)})),
        lambda: np.savez(index, **(arrays | {"offsets": np.array([0, 5, 4, 6, 7])})),
        lambda: np.savez_compressed(index, **arrays),  # a part of a compressed one can have any size
        lambda: large(index),
        index.unlink,
    ]
    for spoil in damage:
        spoil()
        said, _ = outcome(lambda: Packed(Path("packed/train"), 1))
        assert said.startswith("dataset.packed=true: packed/train.npz "), said


def test_a_picture_of_another_format_is_no_photo() -> None:
    """Pillow would start Ghostscript for an EPS."""
    Path("a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\nshowpage\n%%EOF\n")
    with pytest.raises(OSError):  # of Pillow
        photos.decode(torch.tensor(list(Path("a.png").read_bytes()), dtype=torch.uint8))
    with pytest.raises(RunError, match=r"^a\.png: "):
        photos.read_photo(Path("a.png"))


@pytest.mark.parametrize(
    "wrong",
    [{"segmentation": {"counts": "abc", "size": [2, 2]}}, {"category_id": 4}, {"bbox": [1, 2, 3]}, {"image_id": "1"}],
)
def test_instances_in_another_form_are_refused_by_name(wrong: dict[str, Any]) -> None:
    entry = {"image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4], "area": 12, "iscrowd": 0, "segmentation": []}
    image, path = {"id": 1, "file_name": "1.jpg", "width": 20, "height": 30}, Path("instances.json")
    content: dict[str, Any] = {"images": [image], "annotations": [entry], "categories": [{"id": 3}]}
    path.write_text(json.dumps(content))
    assert len(coco.Boxes(Path(), path, True)) == 1
    for text in ("{", json.dumps(content | {"annotations": [entry | wrong]})):
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"instances\.json"):
            coco.Boxes(Path(), path, False)
