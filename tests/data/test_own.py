"""Images of the user's own: layouts, formats, broken files and identity."""

import hashlib
import json
import os
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ssl_bench import files
from ssl_bench.config.compose import load
from ssl_bench.config.identity import run_id
from ssl_bench.data import headers
from ssl_bench.data.own import OwnFolder
from ssl_bench.data.photos import endings as photo_endings
from ssl_bench.data.source import Chosen, without_copies
from ssl_bench.errors import ConfigError
from ssl_bench.record.results import read
from ssl_bench.training.parts import Parts
from tests.conftest import only_run

SIZE = ["dataset.size=16", "dataset.workers=2"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files.say_once.cache_clear()


def picture(seed: int) -> Image.Image:
    """A smooth random picture of 20 x 30 pixels."""
    coarse = np.random.default_rng(seed).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((30, 20), Image.Resampling.BICUBIC)


def photos(root: Path, *folders: str, count: int = 10) -> Path:
    """Write ``count`` JPEGs into each folder below ``root``; "" is the root itself."""
    for f, name in enumerate(folders):
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            picture(100 * f + i).save(root / name / f"{i}.jpg")
    return root


def own(root: Path, *overrides: str) -> dict[str, Any]:
    return load(["dataset=folder", f"dataset.root={root}", *SIZE, *overrides])


def dataset(root: Path, *overrides: str) -> Any:
    return Parts(own(root, *overrides)).dataset


def names(source: Any) -> list[str]:
    return [source.name(i) for i in range(len(source))]


def all_of(source: Any) -> list[torch.Tensor]:
    return source.take(torch.arange(len(source)))  # type: ignore[no-any-return]


# Layouts


@pytest.mark.parametrize(
    ("folders", "classes", "sizes", "overrides"),
    [
        (["a", "b"], 2, (18, 2), []),
        (["2023", "2024", ""], 0, (27, 3), []),
        (["only"], 0, (9, 1), []),
        (["train/a", "train/b", "val/a", "val/b"], 2, (20, 20), []),
        (["train", "test"], 0, (10, 10), []),
        (["train", "bus"], 2, (18, 2), []),  # vehicles, not a split
        (["a", "b"], 0, (18, 2), ["dataset.classes=none"]),
        (["a", "b"], 2, (10, 10), ["dataset.test_share=0.5"]),
    ],
)
def test_classes_and_splits_are_found(
    folders: list[str], classes: int, sizes: tuple[int, int], overrides: list[str], tmp_path: Path
) -> None:
    config = own(photos(tmp_path / "photos", *folders), *overrides)
    made: Any = Parts(config).dataset
    train, test = made.split("train"), made.split("test")
    assert (config["dataset"]["num_classes"], (len(train), len(test))) == (classes, sizes)
    assert not {*names(train)} & {*names(test)} and made.check() == config["dataset"]["train_images"] == sizes[0]
    for source in (train, test):
        assert sorted(set(source.labels.tolist())) == ([*range(classes)] or [-1])
    if classes == 2 and "bus" not in folders:
        assert all(f"/{'ab'[label]}/" in train.name(i) for i, label in enumerate(train.labels.tolist()))


def test_the_held_out_images_are_drawn_by_the_seed_and_stay_when_others_come(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", "a", "b", count=20)
    held_out = {*names(dataset(root).split("test"))}
    assert {*names(dataset(root, "dataset.split_seed=1").split("test"))} != held_out
    picture(999).save(root / "a" / "new.jpg")
    assert len({*names(dataset(root).split("test"))} & held_out) >= 3


def test_a_set_without_copies_keeps_its_hash_and_its_split(tmp_path: Path) -> None:
    """Both are parts of the identity of runs: computed here once more from names and bytes."""
    root = photos(tmp_path / "photos", "a", "b", count=20)
    every = [f"{folder}/{name}" for folder in "ab" for name in sorted(f"{i}.jpg" for i in range(20))]
    content, drawn = hashlib.sha256(), set[str]()
    for name in every:
        data = (root / name).read_bytes()
        checksum = zlib.crc32(data[:4096] + data[max(0, len(data) - 4096) :])
        content.update(f"{name}\0{'ab'.index(name[0])}\0{len(data)}\0{checksum:08x}\n".encode())
    for folder in "ab":
        of_class = [name for name in every if name[0] == folder]
        drawn |= {*sorted(of_class, key=lambda name: hashlib.sha256(f"0/{name}".encode()).hexdigest())[:2]}
    config = own(root)
    assert config["dataset"]["content"] == content.hexdigest()[:10]
    assert {*names(Parts(config).dataset.split("test"))} == {f"{root}/{name}" for name in drawn}


# Copies


def copy_each(root: Path, times: int = 2) -> None:
    for path in [*root.rglob("*.jpg")]:
        for number in range(times):
            shutil.copyfile(path, path.with_stem(f"{path.stem}_copy{number}"))


def test_copies_of_one_image_are_on_one_side_of_the_split(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = photos(tmp_path / "photos", "a", "b", count=15)
    alone = own(root)["dataset"]["content"]
    copy_each(root)
    shutil.copyfile(root / "a" / "0.jpg", root / "b" / "from_a.jpg")
    config = own(root)
    assert "61 are copies of others and in the same split as those" in capfd.readouterr().err
    made: Any = Parts(config).dataset
    train, test = ({Path(name).read_bytes() for name in names(made.split(split))} for split in ("train", "test"))
    assert not train & test and len(train | test) == 30 and made.doubts() == []
    assert len(made.split("test")) in (9, 10, 12, 13) and {*made.split("test").labels.tolist()} == {0, 1}
    for path in root.rglob("*_copy*"):
        path.unlink()
    (root / "b" / "from_a.jpg").unlink()
    assert own(root)["dataset"]["content"] == alone  # as before the copies, and as in earlier versions


def test_settings_are_not_chosen_by_copies_of_what_is_fitted(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", "train/a", "train/b", "test/a", "test/b", count=15)
    made = dataset(root)
    assert made.split("train").twins is None and made.split("test").twins is None
    copy_each(root / "train")
    source = dataset(root).split("train")
    for images in (source, Chosen(source, torch.arange(0, 90, 2))):
        held_out, fitted = without_copies(torch.randperm(len(images)), 9, images.twins)
        chosen, other = ({images.take(i[None])[0].numpy().tobytes() for i in ids} for ids in (held_out, fitted))
        assert not chosen & other and len(chosen | other) == 30
        assert sorted([*held_out.tolist(), *fitted.tolist()]) == [*range(len(images))]
    order = torch.randperm(90)
    assert all(map(torch.equal, without_copies(order, 9, None), (order[:9], order[9:])))


def test_a_class_of_one_image_and_its_copies_is_trained_on(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", "a", count=10)
    (root / "b").mkdir()
    for number in range(4):
        picture(500).save(root / "b" / f"{number}.jpg")
    made = dataset(root)
    assert made.split("train").labels.tolist().count(1) == 4 and made.split("test").labels.tolist() == [0]


def test_copies_in_a_test_split_are_counted_beside_the_result(
    train: Callable[..., Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = photos(tmp_path / "photos", "train/a", "train/b", "test/a", "test/b")
    for number in range(3):
        shutil.copyfile(root / "train" / "a" / f"{number}.jpg", root / "test" / "a" / f"other_{number}.jpg")
    sentence = "3 of 23 test images are copies of training images (test/a/other_0.jpg is train/a/0.jpg)"
    words = ["dataset=folder", f"dataset.root={root}", *SIZE, "batch_size.size=8", "max_steps=1", "backbone=conv_n"]
    code, printed = train(*words, small=False)
    assert code == 0 and sentence in printed.partition("knn")[0], printed
    results = json.loads((only_run() / "results.json").read_text())
    assert sentence in results["warnings"]
    shutil.rmtree(root / "test")
    shutil.copytree(root / "train", root / "test")
    with pytest.raises(ConfigError, match=r"photos: all 20 images of test are copies of images of train: put other"):
        own(root)


def test_images_with_equal_ends_and_another_middle_are_no_copies(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", "")
    dark = np.zeros((100, 60, 3), dtype=np.uint8)
    for number in range(4):
        dark[50] = number // 2
        Image.fromarray(dark).save(root / f"{number}.bmp")
    made = dataset(root)
    look = made._look["copies"]
    assert [[made._listing.names[i] for i in pair] for pair in look] == [["1.bmp", "0.bmp"], ["3.bmp", "2.bmp"]]


def test_a_folder_that_cannot_be_used_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    photos(tmp_path / "odd", "train/a", "train/b", "val/a", "val/c")
    photos(tmp_path / "flat", "")
    for root, overrides, sentence in (
        (
            "none",
            [],
            f"dataset.root={tmp_path}/none: set dataset.root to a folder of images: there is none of that name",
        ),
        (
            "empty",
            [],
            f"dataset.root={tmp_path}/empty: there is no image in it (JPEG, PNG, GIF, WEBP, ",
        ),
        ("odd", [], "train and val must have the same classes, and those of train are a, b: rename the folders of one"),
        ("flat", ["dataset.classes=folders"], "dataset.classes=folders: set dataset.classes to auto or none: it takes"),
        ("flat", ["dataset.num_classes=3"], "dataset.num_classes=3: set dataset.num_classes to 0 or null"),
        (
            "flat",
            ["dataset.test_share=1.5"],
            "dataset.test_share=1.5: set dataset.test_share to a share between 0 and 1",
        ),
    ):
        with pytest.raises(ConfigError) as refusal:
            own(tmp_path / root, *overrides)
        assert sentence in str(refusal.value)
    with pytest.raises(ConfigError, match=r"^dataset\.root=null: set dataset\.root to the folder of your images$"):
        load(["dataset=folder"])


# Formats


def test_every_kind_of_image_becomes_upright_rgb(tmp_path: Path) -> None:
    root, rgb = tmp_path / "photos", picture(0)
    root.mkdir()
    rgb.save(root / "a.png")
    rgb.convert("L").save(root / "b.png")
    rgb.convert("P").save(root / "c.png")
    rgb.convert("CMYK").save(root / "d.jpg")
    Image.fromarray(np.array(rgb.convert("L")).astype(np.uint16) * 257).save(root / "e.png")
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
        bound = {"a": 0, "b": 0, "e": 0, "f": 0, "h": 0, "i": 0, "j": 0, "k": 0}.get(name, 20)
        assert (image - (grey if name in "be" else expected)).abs().mean() <= bound, name
    assert len(images) == 12


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


@pytest.mark.parametrize(
    ("values", "bits", "kind", "white"),
    [
        (RAMP * 16 + 3, 12, 1, 1),
        (RAMP * 256 + 200, 16, 1, 1),
        (65535 - RAMP * 257, 16, 1, 0),
        (RAMP * 128 + 5, 16, 2, 1),
        (RAMP * 2**24 + 77, 32, 1, 1),
        (RAMP * 2**23, 32, 2, 1),
        (RAMP / 255, 32, 3, 1),
        (1 - RAMP / 255, 32, 3, 0),
    ],
)
def test_grey_of_more_than_8_bits_has_the_range_of_its_type(
    values: np.ndarray, bits: int, kind: int, white: int, tmp_path: Path
) -> None:
    root = photos(tmp_path / "photos", "", count=1)
    (root / "deep.tif").write_bytes(tiff(values, bits, kind, white))
    made = dataset(root)
    (source,) = (each for split in ("train", "test") if (each := made.split(split)).name(0).endswith("deep.tif"))
    grey = source.take(torch.tensor([0]))[0].int()
    assert (grey - torch.from_numpy(RAMP)).abs().max() <= (kind == 3 and white == 0)


@pytest.mark.parametrize(
    ("values", "bits", "kind", "sentence"),
    [
        (RAMP - 1, 16, 2, r"deep\.tif \(values from -1 to 254, not from 0 to 32767\): replace"),
        (RAMP / 100, 32, 3, r"deep\.tif \(values from 0 to 2\.55, not from 0 to 1\): replace"),
        (RAMP / 255 - 0.5, 32, 3, r"values from -0\.5 to 0\.5, not from 0 to 1"),
        (np.where(RAMP == 9, np.nan, 0.5), 32, 3, r"values from nan to nan, not from 0 to 1"),
        (
            RAMP * 16,
            16,
            1,
            r"photos: the images of more than 8 bits would be almost black: their highest value is 0\.062",
        ),
        (
            RAMP * 256,
            32,
            2,
            r"would be almost black: their highest value is 3e-05 of the range of their type: save them",
        ),
    ],
)
def test_grey_that_does_not_fill_the_range_of_its_type_is_refused(
    values: np.ndarray, bits: int, kind: int, sentence: str, tmp_path: Path
) -> None:
    root = photos(tmp_path / "photos", "")
    (root / "deep.tif").write_bytes(tiff(values, bits, kind))
    with pytest.raises(ConfigError, match=sentence):
        own(root)


@pytest.mark.parametrize(
    ("highest", "folders", "refused"),
    [
        (4095, ("bright", "dim"), r"in dim would be almost black beside the others: their highest value is 0\.062 of"),
        (4095, ("train/a", "test/a"), r"in test would be almost black beside the others: .* 12 bits in files of 16"),
        (8191, ("bright", "dim"), None),  # 32 of 256 levels are left
    ],
)
def test_a_class_of_fewer_bits_than_the_others_is_refused(
    highest: int, folders: tuple[str, str], refused: str | None, tmp_path: Path
) -> None:
    root = tmp_path / "photos"
    for folder, top in zip(folders, (65535, highest), strict=True):
        (root / folder).mkdir(parents=True)
        for number in range(2):
            (root / folder / f"{number}.tif").write_bytes(tiff(RAMP / 255 * (top - number), 16, 1))
    if refused:
        with pytest.raises(ConfigError, match=refused):
            own(root)
    else:
        values = [int(image.max()) for split in ("train", "test") for image in all_of(dataset(root).split(split))]
        assert sorted(values) == [31, 31, 255, 255]


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
    assert text == (
        f"ssl-bench: dataset.skip_broken=0: 3 of 100 images in {root} are broken, a/0.jpg (damaged), a/1.jpg (empty), "
        "b/0.jpg (no image): replace or remove them, or set dataset.skip_broken to 0.03 to leave them out\n"
    )
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
    assert "2 of 22 images" in str(refusal.value) and "a/gone.png (No such file or directory), " in str(refusal.value)
    config = own(root, "dataset.skip_broken=0.1")
    assert config["dataset"]["train_images"] == 18
    (root / "a" / "gone.png").unlink()
    (root / "a" / "gone.png").symlink_to(root / "b" / "0.jpg")  # which is there the next time
    with pytest.raises(ConfigError, match=r"1 of 22 images in .* are broken, a/round\.png \("):
        own(root)


def test_a_class_of_broken_images_only_is_refused_and_no_share_that_is(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", "a", "b")
    for path in (root / "b").iterdir():
        path.write_bytes(b"")
    with pytest.raises(ConfigError, match=r"photos: all images of b are broken: replace them$"):
        own(root, "dataset.skip_broken=0.5")
    for path in (root / "a").iterdir():
        path.write_bytes(b"")
    with pytest.raises(ConfigError, match=r"20 of 20 images in .* are broken, .*: replace or remove them$"):
        own(root, "dataset.skip_broken=0.5")


@pytest.mark.parametrize("kept", [None, 40])
def test_a_header_that_claims_more_than_the_file_holds_is_damage(kept: int | None, tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", "")
    data = (root / "0.jpg").read_bytes()
    size, scan = data.index(b"\xff\xc0") + 5, data.index(b"\xff\xda")
    data = data[:size] + struct.pack(">HH", 10_000, 10_000) + data[size + 4 :]
    (root / "0.jpg").write_bytes(data if kept is None else data[: scan + kept] + b"\xff\xd9")
    with pytest.raises(ConfigError, match=r"1 of 10 images in .* are broken, 0\.jpg \(damaged\)"):
        own(root)


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"content": 3, "broken": {}}', '{"content": "a", "broken": ["b"]}', "{"]
)
def test_a_damaged_file_of_the_cache_is_made_again(content: str, tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", "")
    first = own(root)["dataset"]["content"]
    headers._LOOKS.clear()
    (file,) = (tmp_path / "cache" / "ssl_bench").glob("images-*.json")
    file.write_text(content)
    assert own(root)["dataset"]["content"] == first and files.read_cache(file)["brightest"] == {}


# Identity


def test_a_copy_is_the_same_dataset_and_another_file_another_one(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", "a", "b")
    first = run_id(own(root))
    assert run_id(own(root, "dataset.workers=1")) == first
    copy = shutil.copytree(root, tmp_path / "elsewhere", copy_function=shutil.copyfile)  # with other times
    assert run_id(own(copy)) == first
    swapped = (copy / "a" / "0.jpg").read_bytes(), (copy / "a" / "1.jpg").read_bytes()
    for name, content in zip(("1", "0"), swapped, strict=True):
        (copy / "a" / f"{name}.jpg").write_bytes(content)
    assert run_id(own(copy)) != first
    hashed = run_id(own(root, "dataset.hashes=true"))
    (root / "a" / "0.jpg").rename(root / "b" / "00.jpg")
    assert len({first, hashed, run_id(own(root))}) == 3


def test_a_middle_byte_counts_under_hashes_only(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", "")
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(root / "large.bmp")
    before = [own(root, f"dataset.hashes={h}")["dataset"]["content"] for h in ("false", "true")]
    data = bytearray((root / "large.bmp").read_bytes())
    data[6000] ^= 1
    (root / "large.bmp").write_bytes(data)
    after = [own(root, f"dataset.hashes={h}")["dataset"]["content"] for h in ("false", "true")]
    assert before[0] == after[0] and before[1] != after[1]


def test_a_run_refuses_images_that_have_changed(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", "")
    config = own(root)
    (root / "3.jpg").unlink()
    with pytest.raises(ConfigError, match=r"are not the images of this run any more \(\w{10}, not \w{10}\): set datas"):
        Parts(config).dataset.check()


# Evaluation


def test_what_needs_labels_is_left_out_of_the_default_and_refused_by_name(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    root = photos(tmp_path / "photos", "", count=40)
    small = ["dataset=folder", f"dataset.root={root}", *SIZE, "batch_size=b32", "epochs=1", "tracking=off"]
    small += ["backbone=resnet_digits", "backbone.width=4", "head.out=16"]
    code, text = train(*small, "evaluate.knn.k=3", small=False)
    assert code == 0
    assert f"{root}: no classes, 36 images to train on, 4 to test (held out: dataset.test_share=0.1)\n" in text
    assert "folder:photos: no classes, so knn and linear are left out of the evaluation\n" in text
    assert "geometry/uniformity" in text and "geometry/effective_rank" in text and "geometry/tolerance" not in text
    assert "folder:photos" in (only_run() / "config.yaml").read_text()
    code, text = train(*small, "evaluate=[knn,geometry]", small=False)
    needs = "the images have no classes: set evaluate to evaluators that need none, such as geometry"
    assert code == 2 and text.endswith(f"ssl-bench: evaluate.knn: {needs}\n")


def test_the_number_of_classes_and_of_neighbours_comes_from_the_images(tmp_path: Path) -> None:
    config = own(photos(tmp_path / "photos", "a", "b", "c", count=60), "framework=supervised")
    assert config["head"]["out"] == 3 and config["evaluate"]["knn"]["k"] == 162 // 50
    assert {"knn", "linear", "geometry"} <= config["evaluate"].keys()


def test_more_neighbours_than_a_tenth_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    small = ["batch_size.size=8", "backbone=resnet_digits"]
    Parts(own(photos(tmp_path / "photos", "a", "b"), *small, "evaluate=knn", "evaluate.knn.k=5")).validate(1)
    assert [record.getMessage() for record in caplog.records] == [
        "evaluate.knn.k=5 is more than a tenth of the 18 images that can vote: set k to 1 or less"
    ]


def test_one_trains_on_one_dataset_and_evaluates_on_another(train: Callable[..., Any], tmp_path: Path) -> None:
    first = photos(tmp_path / "first", "", count=24)
    second = photos(tmp_path / "second", "a", "b", count=30)
    words = ["dataset=folder", f"dataset.root={first}", *SIZE, "batch_size.size=8", "epochs=1", "tracking=off"]
    words += ["backbone=resnet_digits", "backbone.width=4", "head.out=16", "evaluate.baselines=[]"]
    on = f"evaluate.on={{dataset: folder, root: {second}, size: 64}}"
    plain, other = load([*words, "evaluate=geometry"]), load([*words, on])
    assert {"knn", "linear", "geometry"} <= other["evaluate"].keys()  # which the second has classes for
    assert run_id(plain) == run_id(other) and other["evaluate"]["knn"]["k"] == 54 // 50
    parts = Parts(other)
    ((_, _, evaluated),) = parts.evaluated
    assert evaluated.eval_view == {"resize": 18, "size": 16, "interpolation": "bilinear"}
    assert evaluated.num_classes == 2
    assert train(*words, "evaluate=knn", on, small=False)[0] == 0
    assert (read(only_run()) or {})["classes/second"] == ["a", "b"]
    from ssl_bench.commands.evaluate import main

    assert main([str(only_run()), "evaluate=geometry", "evaluate.on=null"]) == 0
    results = read(only_run()) or {}
    metrics = results["metrics"]
    assert {"knn/second/top1", "geometry/uniformity"} <= metrics.keys() and "knn/top1" not in metrics
    assert results["classes/second"] == ["a", "b"] and "classes" not in results  # the first has none
    with pytest.raises(ConfigError, match=r"^evaluate\.on=mnist: set evaluate\.on to a dataset of images with 3 chann"):
        _ = Parts(load([*words, "evaluate.on=mnist"])).evaluated


def test_an_image_in_the_place_of_another_one_of_equal_size_and_time_is_another_dataset(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", "a", "b")
    for name, shade in (("a/x.bmp", 10), ("new.bmp", 200)):
        path = root / name if "/" in name else tmp_path / name
        Image.new("RGB", (20, 20), (shade,) * 3).save(path)
        os.utime(path, (1e9, 1e9))
    before = own(root)["dataset"]["content"]
    os.replace(tmp_path / "new.bmp", root / "a/x.bmp")
    assert own(root)["dataset"]["content"] != before


def test_an_image_that_could_not_be_opened_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, closed = photos(tmp_path / "photos", "a", "b"), [True]
    whole = own(root)["dataset"]["content"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    headers._LOOKS.clear()
    opened: Any = OwnFolder.open_image

    class Closing(OwnFolder):
        def open_image(self, listing: Any, i: int) -> Any:
            if closed[0] and i == 3:
                raise PermissionError(13, "Permission denied")
            return opened(self, listing, i)

    given: Any = {"root": str(root), "size": 16, "channels": 3, "mean": [0.5] * 3, "std": [0.5] * 3}
    first = Closing(**given, skip_broken=0.1)
    assert first.settings_of_images()["train_images"] == 17 and "Permission denied" in first.summary()
    closed[0] = False
    assert Closing(**given).settings_of_images()["content"] == whole
