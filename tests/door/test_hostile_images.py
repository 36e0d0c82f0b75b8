"""Images of any content in a folder of the user's own, and parquet files of Hugging Face."""

import contextlib
import errno
import io
import json
import os
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from ssl_bench.config.compose import load
from ssl_bench.data import photos
from ssl_bench.training import build
from tests.door.door import occurs
from tests.door.hostile import MARKER, PLACES, SEED, Payload, large, outcome, variants

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory of a process is not known"),
    pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning"),  # Pillow's, of what is odd in an image
]
Change = dict[str, Any]


def picture(seed: int, width: int = 30, height: int = 20) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, data: bytes, *others: bytes, bits: int = 8, colour: int = 2) -> bytes:
    """A PNG with any header; ``data`` are the rows, compressed."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(others) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def zeros(count: int) -> bytes:
    """So many zeros, compressed: one block, repeated, which is quick."""
    block, rest = (zlib.compressobj(9, wbits=-15) for _ in range(2))
    whole = block.compress(bytes(2**20)) + block.flush(zlib.Z_FULL_FLUSH)
    end = rest.compress(bytes(count % 2**20)) + rest.flush()
    adler = (count % 65_521 << 16) + 1
    return b"\x78\xda" + whole * (count // 2**20) + end + struct.pack(">I", adler)


RGB = picture(1)
WHOLE = {kind: encoded(RGB, kind) for kind in ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "JPEG2000", "AVIF")}
ENDING = {"JPEG": "jpg", "PNG": "png", "GIF": "gif", "WEBP": "webp", "BMP": "bmp", "TIFF": "tif"}
ENDING |= {"JPEG2000": "jp2", "AVIF": "avif"}
ROWS = zlib.compress((b"\0" + b"\1" * 12) * 4)


def turned(orientation: Any) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(RGB, "JPEG", exif=exif)


# By name the file, and whether it is read; for what is not, a word of what is wrong.
REFUSED: dict[str, tuple[bytes, str]] = {
    **{f"empty.{ENDING[kind]}": (b"", "empty") for kind in WHOLE},
    **{
        f"cut_{kind}_{n}.{ENDING[kind]}": (WHOLE[kind][: len(WHOLE[kind]) * n // 100], "")
        for kind in WHOLE
        for n in (5, 40)
    },
    "bomb_rgb.png": (png(20_000, 20_000, zeros(20_000 * 60_001)), "pixels"),
    "bomb_header.png": (png(60_000, 60_000, zlib.compress(b"")), "pixels"),
    "no_pixel.png": (png(0, 0, zlib.compress(b"")), "no image"),
    "text_bomb.png": (png(4, 4, ROWS, chunk(b"zTXt", b"a\0\0" + zeros(2**28))), "damaged"),
    "profile_bomb.png": (png(4, 4, ROWS, chunk(b"iCCP", b"a\0\0" + zeros(2**28))), "damaged"),
    "deep.ppm": (b"P6 2 2 99999999999999999999\n" + bytes(100), "damaged"),
    "header.jpg": (WHOLE["JPEG"].replace(struct.pack(">HH", 20, 30), struct.pack(">HH", 60_000, 60_000), 1), "pixels"),
    "text.png": (b"404 not found", "no image"),
    "program.png": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\nshowpage\n", "no image"),
    "pickle.png": (b"\x80\x04cos\nsystem\n(S'touch HACKED'\ntR.", "no image"),
    "line\nbreak.png": (b"", "empty"),
    "caf\udce9.png": (b"x", "no image"),
    f"{'x' * 250}.png": (b"", "empty"),
}
READ: dict[str, bytes] = {
    **{f"whole.{ENDING[kind]}": content for kind, content in WHOLE.items()},
    **{f"longer.{ENDING[kind]}": WHOLE[kind] + b"x" * 100 for kind in ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF")},
    **{f"turned_{n}.jpg": turned(n) for n in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 65_535)},
    "turned_by_text.jpg": turned(6).replace(b"\x12\x01\x03\0\1\0\0\0\6\0", b"\x12\x01\x02\0\1\0\0\0\6\0"),
    "odd_exif.jpg": encoded(RGB, "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff"),
    "end_is_cut.png": WHOLE["PNG"][:-12],
    "more_rows.png": png(4, 4, zlib.compress((b"\0" + b"\1" * 12) * 4 + bytes(2**24))),
    **{f"one.{ENDING[kind]}": encoded(picture(2, 1, 1), kind) for kind in ("JPEG", "PNG", "GIF", "BMP", "WEBP")},
    "high.jpg": encoded(picture(2, 1, 9000), "JPEG"),
    "cmyk.jpg": encoded(RGB.convert("CMYK"), "JPEG"),
    "palette_alpha.png": encoded(RGB.convert("P"), "PNG", transparency=bytes(range(256))),
    "alpha.png": encoded(RGB.convert("RGBA"), "PNG"),
    **{
        f"moving.{ENDING[kind]}": encoded(RGB, kind, save_all=True, append_images=[picture(3)])
        for kind in ("GIF", "PNG")
    },
    "moving.webp": encoded(RGB, "WEBP", save_all=True, append_images=[picture(3)], lossless=True),
    "jpeg.png": WHOLE["JPEG"],
    "png.jpg": WHOLE["PNG"],
    "a\nb.png": WHOLE["PNG"],
    "a\udce9.png": WHOLE["PNG"],
    "a\t'\"$(touch HACKED)`.png": WHOLE["PNG"],
    f"{'a' * 250}.png": WHOLE["PNG"],
}


def pillow(content: bytes) -> np.ndarray:
    """The first frame upright, as RGB."""
    with Image.open(io.BytesIO(content)) as image:
        image.info.pop("transparency", None)
        return np.array(ImageOps.exif_transpose(image).convert("RGB")).astype(int)


def test_a_folder_of_images_is_read_right_and_names_each_that_is_not() -> None:
    root = Path("photos")
    for folder in ("a", "b"):
        (root / folder).mkdir(parents=True)
    for number, (name, content) in enumerate({**READ, **{k: v for k, (v, _) in REFUSED.items()}}.items()):
        (root / "ab"[number % 2] / name).write_bytes(content)
    for number, (name, place) in enumerate(PLACES.items()):
        place(root / "ab"[number % 2] / f"{name}.png")
    (root / "a" / "above").symlink_to("..")
    large(root / "a" / "ends.png", WHOLE["PNG"])
    (root / "b" / "other.gif").write_bytes(pickle_of_payload())
    for path in root.rglob("*"):
        os.utime(path, (1e9, 1e9), follow_symlinks=False)  # what has just changed is scanned once more

    def read() -> tuple[dict[str, str], dict[str, np.ndarray]]:
        words = [f"dataset.root={root}", "dataset.size=8", "dataset.workers=1", "dataset.skip_broken=0.99"]
        dataset: Any = build.dataset(load(["dataset=folder", *words]))
        images: dict[str, np.ndarray] = {}
        for source in map(dataset.split, ("train", "test")):
            for i, image in enumerate(source.take(torch.arange(len(source)))):
                images[Path(source.name(i)).name] = image.permute(1, 2, 0).int().numpy()
        return {Path(name).name: wrong for name, wrong in dataset._scan["broken"].items()}, images

    said, (broken, images) = outcome(read)
    assert said == ""
    assert images.keys() == READ.keys()
    for name, image in images.items():
        expected = pillow(READ[name])
        assert image.shape == expected.shape, name
        assert np.abs(image - expected).mean() <= (2 if READ[name][:3] == b"\xff\xd8\xff" else 0), name
    odd = {f"{name}.png" for name in PLACES if name != "folder"} | {"ends.png", "other.gif"}
    assert broken.keys() == REFUSED.keys() | odd
    assert all(word in broken[name] for name, (_, word) in REFUSED.items()), broken
    assert broken["ends.png"] == os.strerror(errno.EFBIG) != broken["pipe.png"]
    said, _ = outcome(lambda: load(["dataset=folder", f"dataset.root={root}", "dataset.size=8"]))
    assert said.startswith("dataset.skip_broken=0: ") and occurs(f"{len(broken)} of {len(broken) + len(images)}", said)


def test_folders_in_folders_are_read() -> None:
    folder = Path("photos", *"a" * 100)
    folder.mkdir(parents=True)
    for number in range(2):
        (folder / f"{number}.png").write_bytes(encoded(picture(number), "PNG"))
    assert load(["dataset=folder", "dataset.root=photos", "dataset.size=8"])["dataset"]["train_images"] == 1


def pickle_of_payload() -> bytes:
    import pickle

    return pickle.dumps(Payload())


@pytest.mark.parametrize("count", [12, pytest.param(500, marks=pytest.mark.slow)])
def test_an_image_with_any_damage_is_decoded_or_refused(count: int) -> None:
    """Pillow is asked as well, where this package does not have another decoder."""
    decoded = dict.fromkeys(WHOLE, 0)
    for kind, content in WHOLE.items():
        for description, changed in variants(content, SEED, count):

            def read() -> torch.Tensor | None:
                seen = photos.scan_image(io.BytesIO(changed))  # noqa: B023
                assert seen.size == len(changed)  # noqa: B023
                assert seen.wrong in ("", "damaged", "no image", "empty") or any(
                    word in seen.wrong for word in ("pixels", "8 bits")
                )
                with contextlib.suppress(RuntimeError, OSError, ValueError):
                    return photos.decode(torch.tensor([*changed], dtype=torch.uint8), upright=True)  # noqa: B023
                return None

            said, image = outcome(read)
            assert said == ""
            if image is not None:
                decoded[kind] += 1
                assert image.dtype == torch.uint8 and image.shape[0] == 3, (kind, description)
                if kind != "JPEG":
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        assert np.array_equal(image.permute(1, 2, 0).int().numpy(), pillow(changed)), description
    assert sum(decoded.values()) > count and all(number < 2 * count for number in decoded.values()), decoded


# ---- Hugging Face


def parquet(rows: int = 12, **columns: Any) -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as files_of_parquet

    file = io.BytesIO()
    given = {"image": [{"bytes": shown(i), "path": None} for i in range(rows)], "label": [i % 2 for i in range(rows)]}
    metadata = columns.pop("metadata", None)
    table = pyarrow.table({name: column for name, column in (given | columns).items() if column is not None})
    files_of_parquet.write_table(table.replace_schema_metadata(metadata), file)
    return file.getvalue()


def shown(i: int) -> bytes:
    return encoded(picture(i, 9, 8), "PNG")


def at(path: str) -> list[dict[str, Any]]:
    return [{"bytes": None, "path": path}] * 12


def of_type(kind: str) -> dict[str, str]:
    return {"huggingface": json.dumps({"info": {"features": {"image": {"_type": kind}}}})}


# Changes of a parquet file, and the classes that are read, or None: it is refused.
CHANGES: list[tuple[Change, list[str] | None]] = [
    ({}, ["0", "1"]),
    ({"rows": 0}, None),
    ({"label": None}, []),
    ({"image": None}, None),
    ({"image": ["/etc/passwd"] * 12}, None),
    ({"image": [None, {"bytes": shown(1), "path": None}] * 6}, None),
    ({"image": at("/dev/zero")}, None),
    ({"image": at("http://localhost:1/x.png")}, None),
    ({"label": [float("nan"), 0.0] * 6}, None),
    ({"label": [[0], [1]] * 6}, None),
    ({"label": [2**62, 1] * 6}, ["1", str(2**62)]),
    ({"label": ["9" * 5000, "01", "1"] * 4}, ["01", "1", "9" * 5000]),
    ({"label": ["a\x1b[2J", "b\nc"] * 6}, ["a\x1b[2J", "b\nc"]),
    ({"metadata": {"huggingface": "{"}}, None),
    ({"metadata": of_type("os.system")}, None),
    ({"metadata": {"pandas": "[" * 10_000}}, ["0", "1"]),
]


@pytest.mark.slow
def test_parquet_files_are_read_right_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("datasets")
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    os.mkfifo("pipe")
    large(Path("large"))
    whole = parquet()
    odd = [b"hello", b"PAR1" + b"\xff" * 8 + b"PAR1", b"PAR1" * 30 + struct.pack("<I", 2**31) + b"PAR1"]
    contents: list[tuple[bytes | Callable[[Path], Any], Any]] = [(place, "dataset") for place in PLACES.values()]
    contents += [(parquet(**change), "dataset." if expected is None else expected) for change, expected in CHANGES]
    contents += [(content, "dataset.path=") for content in odd]
    contents += [(changed, None) for _, changed in variants(whole, SEED, 12)]
    for number, (content, expected) in enumerate(contents):
        path = Path(f"{number}/train-0.parquet")
        path.parent.mkdir()
        content(path) if callable(content) else path.write_bytes(content)

        def read() -> list[str]:
            words = ["dataset=hf", f"dataset.path={path.parent}", "dataset.size=8", "dataset.workers=1"]  # noqa: B023
            dataset: Any = build.dataset(load(words))
            for source in map(dataset.split, ("train", "test")):
                for name, image in zip(source.names, source.take(torch.arange(len(source))), strict=True):
                    right = np.array(Image.open(io.BytesIO(shown(int(name.rpartition("/")[2])))).convert("RGB"))
                    assert np.array_equal(image.permute(1, 2, 0).numpy(), right)
            return list(dataset.class_names())

        said, classes = outcome(read)
        if isinstance(expected, str):
            assert expected in said, (number, said)
        else:
            assert classes == expected or (expected is None and (said or classes == ["0", "1"])), (number, said)
    assert len(capfd.readouterr().err) < 200_000
    assert not Path(MARKER).exists()
