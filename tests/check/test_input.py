"""The section "input": its figures on photos of a folder and constructed ones, and faults that it must name."""

import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from ssl_bench.check import input as check_input
from ssl_bench.check import reading
from ssl_bench.check.finding import Finding, Level, Setting, Verdict, findings
from ssl_bench.data import photos
from ssl_bench.data.folder import Folder
from ssl_bench.data.packed import Packed

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the usual time for each rate, and small batches."""
    monkeypatch.setattr(reading, "BATCH", 8)
    monkeypatch.setitem(check_input.SECONDS, Level.QUICK, 0.1)
    monkeypatch.setattr(check_input, "CONSTRUCTED", 4)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Twelve photos of 80 x 60 pixels in two classes, and a file of 2 MB."""
    generator = np.random.default_rng(0)
    for i in range(12):
        folder = tmp_path / "data" / "birds" / "train" / f"n{i % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(generator.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        coarse.resize((80, 60), Image.Resampling.BICUBIC).save(folder / f"{i}.jpg", "JPEG", quality=95)
    (tmp_path / "data" / "birds" / "large.bin").write_bytes(bytes(2 * 10**6))
    return tmp_path / "data"


def setting(tmp_path: Path, data: Path, seconds: float = 60, trained: float | None = None) -> Setting:
    folder = tmp_path / "section"
    folder.mkdir()
    earlier = {"speed": {"resnet50 224px bf16": {"images_s": trained}, "loss": {"seconds": 1.0}}} if trained else {}
    return Setting(CPU, 2, Level.QUICK, folder, data, time.monotonic() + seconds, earlier)


def measured(given: Setting) -> dict[str, Finding]:
    return {name: finding for name, finding, _ in findings(check_input.section, given)}


def test_photos_of_a_folder_are_measured_and_named(tmp_path: Path, data: Path) -> None:
    found = measured(setting(tmp_path, data, trained=1.0))
    assert list(found) == [
        "decoder",
        "decode, one core",
        "decode, all cores",
        "packed against folders",
        "feeding the training",
        "small files",
        "large file",
        "copies to the device",
    ]
    assert not [name for name, finding in found.items() if finding.verdict is Verdict.WRONG]
    decoder = found["decoder"]
    assert decoder.verdict is Verdict.GOOD and "12 photos of birds, 80 x 60 pixels, 2 kB" in decoder.figure
    assert decoder.values["mean_levels"] <= 1 and decoder.values["photos"] == 12
    one, every = found["decode, one core"].values, found["decode, all cores"].values
    assert one["megapixels_s"] == pytest.approx(one["images_s"] * 80 * 60 / 1e6)
    assert every["images_s"] > 0 and 0 < every["share_of_cores"] < 2 and every["processes"] == 1
    packed = found["packed against folders"].values
    assert packed["gain"] == pytest.approx(packed["packed_images_s_per_core"] / packed["folders_images_s_per_core"])
    feeding = found["feeding the training"]
    assert feeding.verdict is Verdict.GOOD and feeding.values["needed_images_s"] == 1.0
    assert found["small files"].verdict is Verdict.GOOD and found["small files"].values["files"] == 12
    assert str(data / "birds" / "train") in found["small files"].figure
    assert found["large file"].values["bytes"] == 2 * 10**6 and "large.bin" in found["large file"].figure
    assert found["copies to the device"].verdict is Verdict.SKIPPED
    assert "no GPU" in found["copies to the device"].reason


def test_without_data_constructed_photos_are_decoded_and_files_are_skipped(tmp_path: Path) -> None:
    found = measured(setting(tmp_path, tmp_path / "nothing"))
    assert "4 constructed photos, 500 x 375 pixels" in found["decoder"].figure
    assert found["decoder"].verdict is Verdict.GOOD and found["decode, one core"].values["photo_bytes"] > 70_000
    assert found["feeding the training"].verdict is Verdict.KNOWN
    for name in ("small files", "large file"):
        assert found[name].verdict is Verdict.SKIPPED and "nothing" in found[name].reason


def test_a_training_that_takes_more_than_the_cores_decode_is_slow(tmp_path: Path, data: Path) -> None:
    found = measured(setting(tmp_path, data, trained=1e7))
    feeding = found["feeding the training"]
    assert feeding.verdict is Verdict.SLOW and "10,000,000" in feeding.reason and "packed" in feeding.advice
    assert feeding.values["needed_cores"] > feeding.values["cores"]


def test_one_core_among_many_is_slow(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_input, "available_cores", lambda: 64)
    every = measured(setting(tmp_path, data))["decode, all cores"]
    assert every.verdict is Verdict.SLOW and "of 64 cores" in every.reason and every.values["share_of_cores"] < 0.4


def test_a_slow_disk_is_named_with_its_speed(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Folder.encoded

    def throttled(folder: Folder, i: int) -> Tensor:
        content = read(folder, i)
        if folder.folder.is_relative_to(data):
            time.sleep(0.01)
        return content

    class SlowFile:
        """A file that takes 0.1 s for every chunk of at most a megabyte."""

        def __init__(self, path: Path) -> None:
            self.file = path.open("rb")
            self.fileno, self.seek = self.file.fileno, self.file.seek

        def __enter__(self) -> "SlowFile":
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def read(self, size: int) -> bytes:
            time.sleep(0.1)
            return self.file.read(size)

    monkeypatch.setattr(Folder, "encoded", throttled)
    monkeypatch.setattr(reading, "open_regular", SlowFile)
    monkeypatch.setattr(check_input.InputChecks, "photo_bytes", 100_000.0)
    found = measured(setting(tmp_path, data))
    small, large = found["small files"], found["large file"]
    assert small.verdict is Verdict.SLOW and large.verdict is Verdict.SLOW
    assert small.values["files_s"] <= 200 and small.values["megabytes_s"] < 1
    assert f"{small.values['megabytes_s']:,.1f} MB/s" in small.reason and "local disk" in small.advice
    assert large.values["megabytes_s"] < 10.6 and f"{large.values['megabytes_s']:,.1f} MB/s" in large.reason
    assert "large.bin" in large.reason and found["decoder"].verdict is Verdict.GOOD


def channels_swapped(image: Tensor) -> Tensor:
    return image.flip(0)


def one_block_grey(image: Tensor) -> Tensor:
    image = image.clone()
    image[:, 16:24, 32:40] = 128
    return image


def one_row_lower(image: Tensor) -> Tensor:
    return image.roll(1, dims=1)


@pytest.mark.parametrize("fault", [channels_swapped, one_block_grey, one_row_lower])
def test_a_decoder_of_wrong_pixels_is_wrong(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[[Tensor], Tensor]
) -> None:
    right = photos.decode
    monkeypatch.setattr(photos, "decode", lambda content: fault(right(content)))
    decoder = check_input.InputChecks(setting(tmp_path, data)).decoder()
    assert decoder.verdict is Verdict.WRONG and "other pixels than Pillow" in decoder.reason
    assert decoder.values["block_levels"] > 8


def test_slow_packed_photos_are_named(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Packed.encoded

    def wasteful(packed: Any, i: int) -> Tensor:
        end = time.thread_time() + 0.003
        while time.thread_time() < end:
            pass
        return read(packed, i)

    monkeypatch.setattr(Packed, "encoded", wasteful)
    packed = check_input.InputChecks(setting(tmp_path, data)).packed()
    assert packed.verdict is Verdict.SLOW and packed.values["gain"] < 0.9 and "dataset.packed=false" in packed.advice


def test_copies_that_are_too_slow_for_the_photos_are_named(tmp_path: Path, data: Path) -> None:
    checks = check_input.InputChecks(setting(tmp_path, data, trained=1e6))
    rates = {"pinned_gigabytes_s": 12.0, "unpinned_gigabytes_s": 5.0}
    slow = checks.judged_copies(dict(rates))
    assert slow.verdict is Verdict.SLOW and "12.0 GB/s" in slow.reason
    assert slow.values["needed_gigabytes_s"] == pytest.approx(1e6 * 80 * 60 * 3 / 1e9)
    checks.trained_images_s = 1000.0
    assert checks.judged_copies(dict(rates)).verdict is Verdict.GOOD


def test_damaged_photos_and_other_formats_are_left_out(data: Path) -> None:
    (data / "birds" / "train" / "n0" / "damaged.jpg").write_bytes(b"\xff\xd8\xff" + bytes(50))
    out = BytesIO()
    Image.new("RGB", (8, 8)).save(out, "PNG")
    (data / "birds" / "train" / "n1" / "other.png").write_bytes(out.getvalue())
    found = reading.find_photos(data)
    assert found is not None and len(found) == 14
    assert len(reading.some_jpegs(found, 100, 60)) == 12 and len(reading.some_jpegs(found, 3, 60)) == 3
    assert len(reading.some_jpegs(found, 100, 0)) == 1


@pytest.mark.slow
def test_two_processes_read_at_once(tmp_path: Path, data: Path) -> None:
    found = reading.find_photos(data)
    assert found is not None
    rate = reading.all_ranks(found, CPU, 2, 0.5)
    assert rate.images_s > 0 and rate.cpu_seconds > 0
