"""Photos in folders: reading, refusals, evaluation, and a loader that continues in the middle of an epoch."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as F

from ssl_bench.commands.prepare import main as prepare
from ssl_bench.config.compose import load
from ssl_bench.data import photos
from ssl_bench.data.folder import FolderDataset
from ssl_bench.data.photos import Packed, Photos, encode
from ssl_bench.data.pixels import EvalView
from ssl_bench.data.prepare import box
from ssl_bench.errors import ConfigError, RunError
from ssl_bench.files import open_regular
from ssl_bench.training import build
from ssl_bench.training.validate import _check_pixels
from tests.evaluated import targets_of

CLASSES = ["n01", "n02", "n03"]


def jpeg(seed: int, height: int, width: int, mode: str = "RGB", kind: str = "JPEG") -> bytes:
    """A smooth random picture, encoded."""
    coarse = np.random.default_rng(seed).integers(0, 256, (3, 4, 4 if mode == "CMYK" else 3), dtype=np.uint8)
    picture = Image.frombytes("CMYK", (4, 3), coarse.tobytes()) if mode == "CMYK" else Image.fromarray(coarse)
    out = BytesIO()
    picture.convert(mode).resize((width, height), Image.Resampling.BICUBIC).save(out, kind)
    return out.getvalue()


def imagenet(root: Path, train: int = 8, val: int = 3, classes: list[str] = CLASSES) -> Path:
    """Write a folder in ImageNet's layout; each class has images with sides from 24 to 55 pixels."""
    for split, n in (("train", train), ("val", val)):
        for c, name in enumerate(classes):
            folder = root / "imagenet" / split / name
            folder.mkdir(parents=True)
            for i in range(n):
                sides = 24 + (7 * i + 11 * c) % 32, 24 + (13 * i + 5 * c) % 32
                (folder / f"{name}_{i:04}.JPEG").write_bytes(jpeg(100 * c + i, *sides))
    return root / "imagenet"


def dataset(root: Path, *overrides: str, name: str = "imagenet", classes: int = 3) -> FolderDataset:
    small = ["dataset.size=16", "dataset.resize=20", f"dataset.num_classes={classes}", "dataset.workers=2"]
    opened = build.dataset(load([f"dataset={name}", f"paths.data={root}", *small, *overrides]))
    assert isinstance(opened, FolderDataset)
    return opened


def reference(data: bytes) -> Tensor:
    """Decode with torchvision's operator; its wrapper warns that it is deprecated."""
    return torch.ops.image.decode_image(torch.frombuffer(bytearray(data), dtype=torch.uint8), 3, False)  # type: ignore[no-any-return]


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


# Reading


def test_images_and_labels_equal_torchvisions_imagefolder(tmp_path: Path) -> None:
    from torchvision.datasets import ImageFolder

    root = imagenet(tmp_path)
    (root / "train" / "n02" / "notes.txt").write_text("not an image")
    (root / "train" / "list.csv").write_text("not a class")
    made = dataset(tmp_path)
    expected = ImageFolder(str(root / "train"))
    images = made.split("train")
    assert made.check() == len(images) == len(expected) == 24 and images.nbytes is None
    assert images.labels.tolist() == expected.targets
    assert [images.name(i) for i in range(24)] == [path for path, _ in expected.samples]
    ids = torch.tensor([23, 0, 9, 9, 4])
    taken = images.take(ids)
    assert equal(taken, [reference(Path(expected.samples[i][0]).read_bytes()) for i in ids])
    for image, i in zip(taken, ids.tolist(), strict=True):
        by_pillow = torch.from_numpy(np.array(expected[i][0])).permute(2, 0, 1)
        assert int((image.int() - by_pillow.int()).abs().max()) <= 1
    assert made.pretrain() is made.split("train") is images and len(made.split("test")) == 9


def test_the_orientation_in_exif_is_ignored() -> None:
    picture, exif, out = Image.new("RGB", (30, 20)), Image.Exif(), BytesIO()
    exif[0x0112] = 6  # orientation: turned by 90 degrees
    picture.save(out, "JPEG", exif=exif)
    assert photos.decode(torch.frombuffer(bytearray(out.getvalue()), dtype=torch.uint8)).shape == (3, 20, 30)


def test_imagenet100_selects_its_classes(tmp_path: Path) -> None:
    made = build.dataset(load(["dataset=imagenet100", f"paths.data={tmp_path}"]))
    assert isinstance(made, FolderDataset) and made.class_file is not None
    names = made.class_file.read_text().split()
    assert len(set(names)) == len(names) == 100 and all(len(n) == 9 and n[0] == "n" for n in names)
    assert names[:2] == ["n02869837", "n01749939"]
    imagenet(tmp_path, 1, 1, [*names, "n00000001", "n99999999"])
    assert made.check() == 100 and made.class_folders() == sorted(names)
    assert made.split("test").name(0).endswith(f"val/{min(names)}/{min(names)}_0000.JPEG")


def test_hidden_files_are_no_images(tmp_path: Path) -> None:
    root = imagenet(tmp_path)
    (root / "train" / "n01" / "._n01_0000.JPEG").write_bytes(b"resource fork")
    (root / "train" / "__MACOSX").mkdir()
    (root / "train" / "n02" / "a.heic").touch()
    (root / "train" / "n03" / "b.HEIC").touch()
    (root / "val" / "n01" / "1.jfif").write_bytes(jpeg(0, 20, 30))
    made = dataset(tmp_path)
    assert made.check() == len(made.split("train")) == 24 and len(made.split("test")) == 10
    assert made.class_names() == CLASSES


# Refusals


def test_raw_pixels_of_photos_are_those_of_their_centres(tmp_path: Path) -> None:
    imagenet(tmp_path, 2, 1)
    words = ["dataset=imagenet", f"paths.data={tmp_path}", "dataset.num_classes=3", "dataset.resize=24"]
    run = build.build(load([*words, "dataset.size=16", "evaluate.baselines=[raw]"]))

    class Pixels(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"backbone": x.flatten(1)}

    targets = targets_of(run, {"": Pixels(), "_raw": None}).values()
    normalised, raw = (target.features("train")["backbone"].view(6, 3, -1) for target in targets)
    mean, std = (torch.tensor(run.config["dataset"][name])[:, None] for name in ("mean", "std"))
    torch.testing.assert_close(raw, normalised * std + mean, rtol=0, atol=1e-6)
    assert 0 <= raw.min() < 0.2 and 0.8 < raw.max() <= 1
    large = build.build(
        load(
            [*words[:3], "dataset.size=200000", "dataset.resize=200000", "augment.size=32", "evaluate.baselines=[raw]"]
        )
    )
    with pytest.raises(ConfigError, match=r"baselines=\[raw\].*\[init\].* 6 .* 200000 x 200000 .*2,880 GB"):
        _check_pixels(large)


# Damaged images


def test_a_photo_that_cannot_be_decoded_ends_the_run_with_its_name(tmp_path: Path) -> None:
    root = imagenet(tmp_path)
    whole = (root / "train" / "n01" / "n01_0001.JPEG").read_bytes()
    (root / "train" / "n01" / "n01_0000.JPEG").write_text("this is no image")
    (root / "train" / "n01" / "n01_0001.JPEG").write_bytes(whole[: len(whole) // 2])
    names = sorted(path.name for path in (root / "train" / "n01").iterdir())
    images = Photos(torch.zeros(len(names)), names, lambda name: open_regular(root / "train" / "n01" / name), 2)
    for i in range(2):
        with pytest.raises(RunError, match=rf"n01_000{i}\.JPEG ") as refusal:
            images.take(torch.tensor([2, i]))
        assert " object at 0x" not in str(refusal.value)
    assert len(images.take(torch.tensor([2, 3]))) == 2


# Views and evaluation


@pytest.mark.parametrize(("resize", "size"), [(256, 224), (20, 15)])
def test_the_evaluation_view_equals_torchvisions_centre(resize: int, size: int) -> None:
    sides = [(375, 500), (500, 333), (224, 224), (61, 40), (375, 500), (257, 300)]
    images = [reference(jpeg(i, *each)) for i, each in enumerate(sides)]
    views = EvalView(resize=resize, size=size, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.25))(images)
    for x, image in zip(views, images, strict=True):
        centre = F.center_crop(F.resize(image.float() / 255, [resize], antialias=True), [size])
        expected = F.normalize(centre, [0.5, 0.4, 0.3], [0.2, 0.3, 0.25])
        assert float((x - expected).abs().max()) <= 1e-5
    same = torch.stack([images[0], images[4]])
    assert torch.equal(EvalView(resize=resize, size=size)(same), EvalView(resize=resize, size=size)(list(same)))


# Whole commands


def test_packed_photos_are_the_encoded_originals(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = imagenet(tmp_path / "data")
    packed = ["dataset=imagenet", "paths.data=data", "dataset.size=16", "dataset.resize=20", "dataset.num_classes=3"]
    packed += ["dataset.packed=true"]
    damaged = root / "train" / "n01" / "n01_0000.JPEG"
    kept = damaged.read_bytes()
    damaged.write_bytes(b"")
    assert prepare(packed) == 1 and "n01_0000.JPEG" in capfd.readouterr().err
    assert not list(root.glob("packed/*/train*"))
    damaged.write_bytes(kept)
    assert prepare(packed) == 0 and "packed/all_20 is ready: 24 " in capfd.readouterr().out
    made = dataset(Path("data"), "dataset.packed=true")
    images, originals = made.split("train"), dataset(Path("data")).split("train")
    assert isinstance(images, Packed) and made.check() == 24 and torch.equal(images.labels, originals.labels)
    for i, original in enumerate(originals.take(torch.arange(24))):
        (image,) = images.take(torch.tensor([i]))
        height, width = original.shape[1:]
        scaled = [side * 20 // min(height, width) for side in (height, width)]
        assert list(image.shape[1:]) == scaled
        data = encode(original, 20)
        assert images.encoded(i).numpy().tobytes() == data
        assert torch.equal(image, reference(data))
    assert sorted(path.name for path in (root / "packed" / "all_20").iterdir()) == [
        "train.jpegs", "train.npz", "val.jpegs", "val.npz",
    ]  # fmt: skip
    before = (root / "packed" / "all_20" / "train.npz").stat().st_mtime_ns
    assert prepare(packed) == 0
    assert (root / "packed" / "all_20" / "train.npz").stat().st_mtime_ns == before
    with pytest.raises(ConfigError, match=r"dataset\.num_classes to 3.*val\.jpegs"):
        dataset(Path("data"), "dataset.packed=true", classes=4).check()


def test_imagenet64_is_made_with_a_box_filter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = torch.randint(256, (3, 192, 256), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    mean = image.double().view(3, 64, 3, 64, 4).mean((2, 4)).permute(1, 2, 0).numpy()
    assert np.abs(box(image, 64) - mean).max() <= 1  # Pillow rounds after each of the two directions
    root = imagenet(tmp_path / "photos")
    arguments = ["dataset=imagenet64", "dataset.num_classes=3", "paths.data=data"]
    assert prepare(arguments) == 2 and "data/imagenet/train " in capsys.readouterr().err
    assert prepare([*arguments, "--source", str(root)]) == 0
    assert "data/imagenet64 is ready: 24 " in capsys.readouterr().out
    images, labels = (np.load(f"data/imagenet64/train_{what}.npy", mmap_mode="r") for what in ("images", "labels"))
    originals = dataset(tmp_path / "photos").split("train")
    assert images.shape == (24, 64, 64, 3) and labels.tolist() == originals.labels.tolist()
    for array, original in zip(images, originals.take(torch.arange(24)), strict=True):
        assert np.array_equal(array, box(original, 64))
    assert np.load("data/imagenet64/test_images.npy").shape == (9, 64, 64, 3)
