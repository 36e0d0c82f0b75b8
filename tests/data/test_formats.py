"""Formats of the user's own images, and files that are broken."""

import io
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ssl_bench.config.identity import run_id
from ssl_bench.data import photos as photos_module
from ssl_bench.data.photos import endings as photo_endings
from ssl_bench.errors import ConfigError
from ssl_bench.training.parts import Parts
from tests.data.photos import SIZE, dataset, own, photos, picture


def test_every_kind_of_image_becomes_upright_rgb(tmp_path: Path) -> None:
    root, rgb = tmp_path / "photos", picture(0)
    root.mkdir()
    rgb.save(root / "a.png")
    rgb.convert("L").save(root / "b.png")
    rgb.convert("P").save(root / "c.png")
    rgb.convert("CMYK").save(root / "d.jpg")
    rgb.convert("RGBA").save(root / "f.png")
    saved: dict[str, dict[str, Any]] = {
        "g.jpg": {"quality": 95},
        "h.tif": {},
        "i.webp": {"lossless": True},
        "j.png": {},
    }
    for name, options in saved.items():
        turned = Image.Exif()
        turned[0x0112] = 6  # the camera was held upright: turn by 90 degrees clockwise
        rgb.transpose(Image.Transpose.ROTATE_90).save(root / name, exif=turned, **options)
    rgb.save(root / "k.bmp")
    rgb.save(root / "l.gif")
    made = dataset(root, "dataset.test_share=0.01")
    expected = torch.from_numpy(np.array(rgb)).permute(2, 0, 1).float()
    grey = torch.from_numpy(np.array(rgb.convert("L"))).expand(3, -1, -1).float()
    every = [s for s in (made.split("train"), made.split("test"))]
    images = {Path(s.name(i)).name[0]: s.take(torch.tensor([i]))[0].float() for s in every for i in range(len(s))}
    for name, image in images.items():
        assert image.shape == (3, 20, 30), name
        bound = {"a": 0, "b": 0, "f": 0, "h": 0, "i": 0, "j": 0, "k": 0}.get(name, 20)
        assert (image - (grey if name == "b" else expected)).abs().mean() <= bound, name
    assert len(images) == 11


def tiff(values: np.ndarray, bits: int, kind: int, white: int = 1) -> bytes:
    """A grey TIFF of one strip; values of 12 bits are packed. ``kind``: 1 unsigned, 2 signed, 3 float."""
    height, width = values.shape
    data = values.astype({1: f"<u{bits // 8}", 2: f"<i{bits // 8}", 3: "<f4"}[kind]).tobytes() if bits != 12 else b""
    for a, b in values.reshape(-1, 2) if bits == 12 else ():
        data += bytes([a >> 4, (a & 15) << 4 | b >> 8, b & 255])
    tags = {
        256: width,
        257: height,
        258: bits,
        259: 1,
        262: white,
        273: 8,
        277: 1,
        278: height,
        279: len(data),
        339: kind,
    }
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0" + struct.pack("<I", 8 + len(data)) + data + struct.pack("<H", len(tags)) + entries + b"\0" * 4


RAMP = np.arange(256).reshape(16, 16)  # of grey


def png16(values: np.ndarray) -> bytes:
    """A PNG of 16 bits a channel of uint16 [h, w, 3]."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    "content",
    [
        tiff(RAMP * 16 + 3, 12, 1),
        tiff(RAMP * 257, 16, 1),
        tiff(RAMP * 128, 16, 2),
        tiff(RAMP * 2**24, 32, 1),
        tiff(RAMP / 255, 32, 3),
        png16(np.stack([RAMP, RAMP[::-1], RAMP.T], 2) * 257),
    ],
)
def test_images_of_more_than_8_bits_are_refused_by_name(content: bytes, tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", "")
    (root / "deep.tif").write_bytes(content)
    with pytest.raises(ConfigError, match=r"1 of 11 .*photos .*deep\.tif.* 8 bits.*dataset=arrays"):
        own(root)


def test_further_pages_are_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = photos(tmp_path / "photos", "")
    for i, ending in enumerate(("tif", "gif", "png", "webp")):
        picture(50 + i).save(root / f"pages.{ending}", save_all=True, append_images=[picture(60 + i)])
    own(root)
    assert "; 4 files have several pages" in capfd.readouterr().err


def test_a_huge_photo_is_shrunk_by_a_whole_number_and_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8))
    monkeypatch.setattr(photos_module, "SHORTEST", 10)
    for kind in ("PNG", "JPEG"):
        file = io.BytesIO()
        wide.save(file, kind, quality=95)
        data = torch.tensor([*file.getvalue()], dtype=torch.uint8)
        monkeypatch.setattr(photos_module, "MOST_PIXELS", 2400)
        whole = photos_module.decode(data)
        monkeypatch.setattr(photos_module, "MOST_PIXELS", 1300)
        half = photos_module.decode(data)
        assert whole.shape == (3, 40, 60) and half.shape == (3, 20, 30)
        mean = whole.view(3, 20, 2, 30, 2).float().mean((2, 4))
        assert (half - mean).abs().mean() < (1 if kind == "PNG" else 12)


@pytest.mark.parametrize(("form", "ending"), [("JPEG2000", "jp2"), ("PPM", "ppm"), ("JPEG", "jfif"), ("AVIF", "avif")])
def test_other_formats_are_decoded(form: str, ending: str, tmp_path: Path) -> None:
    if f".{ending}" not in photo_endings():
        pytest.skip(f"this Pillow reads no {form}")
    root = tmp_path / "photos"
    root.mkdir()
    for i in range(2):
        picture(i).save(root / f"{i}.{ending}", form)
    source = dataset(root).split("train")
    (image,), expected = source.take(torch.tensor([0])), np.array(picture(int(Path(source.name(0)).stem)))
    assert (image.permute(1, 2, 0).int() - torch.from_numpy(expected).int()).abs().float().mean() < 8


# Broken files


def damaged(root: Path) -> None:
    """Cut one file short, empty one, and give one the name of an image."""
    whole = (root / "a" / "0.jpg").read_bytes()
    (root / "a" / "0.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "a" / "1.jpg").write_bytes(b"")
    (root / "b" / "0.jpg").write_text("a page that says 404")


def test_broken_files_are_named_before_anything_is_trained(train: Callable[..., Any], tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", "a", "b", count=50)
    damaged(root)
    code, text = train("dataset=folder", f"dataset.root={root}", *SIZE, small=False)
    assert code == 2 and not Path("outputs").exists()
    assert text.startswith("ssl-bench: dataset.skip_broken=0: 3 of 100 ") and text.count("\n") == 1
    assert all(each in text for each in (str(root), "a/0.jpg", "a/1.jpg", "b/0.jpg", "dataset.skip_broken to 0.03"))
    without = own(root, "dataset.skip_broken=0.03")
    made = Parts(without).dataset
    assert made.check() + len(made.split("test")) == 97
    for name in ("a/0", "a/1", "b/0"):
        (root / f"{name}.jpg").unlink()
    assert run_id(own(root)) == run_id(without)


def test_a_file_that_cannot_be_opened_is_a_broken_image(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", "a", "b")
    (root / "a" / "gone.png").symlink_to("nowhere.png")
    (root / "a" / "round.png").symlink_to("round.png")
    with pytest.raises(ConfigError) as refusal:
        own(root)
    assert "2 of 22 " in str(refusal.value) and "a/gone.png (" in str(refusal.value)
    config = own(root, "dataset.skip_broken=0.1")
    assert config["dataset"]["train_images"] == 18
    (root / "a" / "gone.png").unlink()
    (root / "a" / "gone.png").symlink_to(root / "b" / "0.jpg")  # which is there the next time
    with pytest.raises(ConfigError, match=r"1 of 22 .* a/round\.png \("):
        own(root)


def test_a_class_of_broken_images_only_is_refused_and_no_share_that_is(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", "a", "b")
    for path in (root / "b").iterdir():
        path.write_bytes(b"")
    with pytest.raises(ConfigError, match=r"photos: .* b "):
        own(root, "dataset.skip_broken=0.5")
    for path in (root / "a").iterdir():
        path.write_bytes(b"")
    with pytest.raises(ConfigError, match="20 of 20 "):
        own(root, "dataset.skip_broken=0.5")


@pytest.mark.parametrize("kept", [None, 40])
def test_a_header_that_claims_more_than_the_file_holds_is_damage(kept: int | None, tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", "")
    data = (root / "0.jpg").read_bytes()
    size, scan = data.index(b"\xff\xc0") + 5, data.index(b"\xff\xda")
    data = data[:size] + struct.pack(">HH", 10_000, 10_000) + data[size + 4 :]
    (root / "0.jpg").write_bytes(data if kept is None else data[: scan + kept] + b"\xff\xd9")
    with pytest.raises(ConfigError, match=r"1 of 10 .* 0\.jpg \("):
        own(root)


def aged(root: Path) -> None:
    for path in root.rglob("*.*"):
        os.utime(path, (1e9, 1e9))


def test_a_file_that_has_just_changed_is_scanned_again(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", "")
    path, before = root / "0.jpg", own(root)["dataset"]["content"]
    data, times = path.read_bytes(), path.stat()
    path.write_bytes(data[:-3] + b"x" + data[-2:])
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert own(root)["dataset"]["content"] != before
