"""Formats of the user's own images, and files that are broken."""

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ssl_bench.config.identity import run_id
from ssl_bench.data import photos as photos_module
from ssl_bench.errors import ConfigError
from ssl_bench.training import build
from tests.data.photos import own, photos, picture


def png16(values: np.ndarray) -> bytes:
    """A PNG of 16 bits a channel of uint16 [h, w, 3]."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    header = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], 16, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["uint16", "int32", "float32", "colour"])
def test_images_of_more_than_8_bits_are_refused_by_name(kind: str, tmp_path: Path) -> None:
    root, ramp = photos(tmp_path / "photos", ""), np.arange(256).reshape(16, 16) * 257
    if kind == "colour":
        (root / "deep.png").write_bytes(png16(np.stack([ramp, ramp[::-1], ramp.T], 2)))
    else:
        Image.fromarray(ramp.astype(kind)).save(root / "deep.tif")
    with pytest.raises(ConfigError, match=r"1 of 11 .*deep\.(tif|png).* 8 bits.*dataset=arrays"):
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


# Broken files


def damaged(root: Path) -> None:
    """Cut one file short, empty one, and give one the name of an image."""
    whole = (root / "a" / "0.jpg").read_bytes()
    (root / "a" / "0.jpg").write_bytes(whole[: len(whole) // 2])
    (root / "a" / "1.jpg").write_bytes(b"")
    (root / "b" / "0.jpg").write_text("a page that says 404")


def test_broken_files_are_named(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", "a", "b", count=50)
    damaged(root)
    with pytest.raises(ConfigError) as refusal:
        own(root)
    text = str(refusal.value)
    assert text.startswith("dataset.skip_broken=0: 3 of 100 ")
    assert all(each in text for each in (str(root), "a/0.jpg", "a/1.jpg", "b/0.jpg", "dataset.skip_broken to 0.03"))
    without = own(root, "dataset.skip_broken=0.03")
    made = build.dataset(without)
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


def test_a_file_that_has_just_changed_is_scanned_again(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", "")
    path, before = root / "0.jpg", own(root)["dataset"]["content"]
    data, times = path.read_bytes(), path.stat()
    path.write_bytes(data[:-3] + b"x" + data[-2:])
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert own(root)["dataset"]["content"] != before
