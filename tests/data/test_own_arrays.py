"""Arrays of the user's own: what is found in them, how they are read, refusals, identity, training and evaluation."""

import json
import os
import re
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ssl_bench.config.compose import load
from ssl_bench.config.identity import run_id
from ssl_bench.data.arrays import examined
from ssl_bench.data.pixels import EvalView
from ssl_bench.data.views import Views
from ssl_bench.errors import ConfigError
from ssl_bench.training import build
from ssl_bench.training.validate import validate
from tests.data.photos import arrays_in as write
from tests.data.photos import own, patches, photos
from tests.door.door import refused

SMALL = ["batch_size.size=16", "backbone=resnet_digits", "backbone.width=4", "head.out=16", "tracking=off"]


def arrays(root: Path, *overrides: str) -> dict[str, Any]:
    return load(["dataset=arrays", f"dataset.root={root}", *SMALL, *overrides])


# What is found


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float16", "float32", "float64"])
def test_settings_and_images_come_from_the_arrays(
    dtype: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = arrays(write(tmp_path / "set", dtype=dtype))
    node, images = config["dataset"], np.load(tmp_path / "set/train_images.npy").astype(np.float64)
    white = 255 if dtype == "uint8" else 1
    assert node["mean"] == pytest.approx((images / white).mean((0, 1, 2)), rel=1e-5)
    assert node["std"] == pytest.approx((images / white).std((0, 1, 2)), rel=1e-5)
    found = [
        node[key] for key in ("channels", "dtype", "size", "resize", "num_classes", "train_images", "least_labels")
    ]
    assert found == [5, dtype, 12, None, 5, 60, 12] and config["backbone"]["in_channels"] == 5
    source: Any = build.dataset(config).pretrain()
    taken = source.take(torch.tensor([7, 3]))
    assert taken.dtype == (torch.uint8 if dtype == "uint8" else torch.float32)
    assert np.array_equal(taken.permute(0, 2, 3, 1), images[[7, 3]].astype(np.float32))
    on_device = source.to(torch.device("cpu"))
    assert torch.equal(on_device.take(torch.arange(60)), source.take(torch.arange(60)))
    assert source.nbytes == on_device.nbytes == taken[0].nbytes * 60
    assert re.search(f"set: {dtype} of 12 x 12 x 5, 5 .* 60 .* 30 ", capfd.readouterr().err)


def test_sums_of_large_values_lose_no_digits() -> None:
    images = patches(60, dtype="float64")[0] * 1e-6 + 1e4
    assert examined(images)["std"] == pytest.approx(images.std((0, 1, 2)), rel=1e-5)


def test_oblong_grey_images_are_shrunk_and_their_centre_is_evaluated(tmp_path: Path) -> None:
    root = write(tmp_path / "set", channels=2)
    for split in ("train", "test"):
        images = np.load(root / f"{split}_images.npy")
        np.save(root / f"{split}_images.npy", np.concatenate([images, images[:, :5]], 1)[..., 0])
    node = arrays(root)["dataset"]
    assert (node["channels"], node["size"], node["resize"]) == (1, 12, 12)
    dataset = build.dataset(arrays(root, "dataset.size=8"))
    assert dataset.eval_view == {"resize": 8, "size": 8, "interpolation": "bilinear"}
    view = EvalView(mean=[0.5], std=[0.5], **dataset.eval_view)
    assert view(dataset.split("test").take(torch.arange(4))).shape == (4, 1, 8, 8)


def test_without_labels_there_are_no_classes(tmp_path: Path) -> None:
    root = write(tmp_path / "set")
    for path in root.glob("*_labels.npy"):
        path.unlink()
    config = arrays(root)
    assert config["dataset"]["num_classes"] == 0
    assert "geometry" in config["evaluate"] and not {"knn", "linear"} & config["evaluate"].keys()


def test_a_part_is_held_out_where_there_is_no_test_split(tmp_path: Path) -> None:
    root = write(tmp_path / "set", (60,))
    config = arrays(root, "dataset.held_out=[10,20]")
    dataset = build.dataset(config)
    assert [len(dataset.split(name)) for name in ("train", "choose", "test")] == [30, 10, 20]
    assert config["dataset"]["train_images"] == 30
    with pytest.raises(ConfigError, match=r"test_images\.npy.*dataset\.held_out"):
        arrays(root)


def test_copies_in_the_test_split_are_counted_and_a_whole_copy_is_refused(tmp_path: Path) -> None:
    root = write(tmp_path / "set", dtype="float32")
    images = np.load(root / "test_images.npy")
    images[:3] = np.load(root / "train_images.npy")[[5, 6, 7]]
    np.save(root / "test_images.npy", images)
    (said,) = build.dataset(arrays(root)).warnings()
    assert re.findall(r"\d+", said) == ["3", "30", "0", "5"]
    for kind in ("images", "labels"):
        shutil.copyfile(root / f"train_{kind}.npy", root / f"test_{kind}.npy")
    with pytest.raises(ConfigError, match="all 60 "):
        arrays(root)


@pytest.mark.slow
def test_arrays_are_read_in_pieces(tmp_path: Path) -> None:
    """No copy of 200 MB: neither to find the mean, the hash and copies, nor for a batch."""
    root, shape = write(tmp_path / "set", channels=4, side=64, dtype="float32"), (3000, 64, 64, 4)
    mapped = np.lib.format.open_memmap(root / "train_images.npy", mode="w+", dtype=np.float32, shape=shape)
    mapped[:, 0] = np.random.default_rng(0).standard_normal((3000, 64, 4))
    size = mapped.nbytes
    del mapped
    np.save(root / "train_labels.npy", np.arange(3000) % 4)
    tracemalloc.start()
    try:
        batch: Any = build.dataset(arrays(root)).pretrain().take(torch.arange(8))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert batch.shape == (8, 4, 64, 64) and 0 < peak < size / 4


@pytest.mark.parametrize("fill", [None, -9999, 1e6])
def test_values_that_may_stand_for_missing_ones_are_named(fill: float | None, tmp_path: Path) -> None:
    root = write(tmp_path / "set", (100, 30), dtype="float32")
    for split in ("train", "test"):
        images = np.load(root / f"{split}_images.npy")
        if fill == -9999:
            images[:, :3] = fill
        elif fill:
            images[4, 0, 0, 0] = fill
        np.save(root / f"{split}_images.npy", images)
    said = build.dataset(arrays(root)).warnings()
    assert bool(said) == bool(fill) and (
        not said or ("dataset.mean" in said[0] and (f"{fill:g}" in said[0] or fill == 1e6))
    )
    assert not build.dataset(arrays(root, "dataset.mean=[1,1,1,1,1]", "dataset.std=[2,2,2,2,2]")).warnings()


def test_a_file_that_was_just_changed_is_read_again(tmp_path: Path) -> None:
    root = write(tmp_path / "set")
    images, seen = np.load(root / "train_images.npy", mmap_mode="r+"), os.stat(root / "train_images.npy")
    first = arrays(root)["dataset"]["content"]
    images[3] += 1
    os.utime(root / "train_images.npy", ns=(seen.st_atime_ns, seen.st_mtime_ns))  # as a mapped file keeps it
    assert arrays(root)["dataset"]["content"] != first


# Views


def test_views_of_floats_do_not_depend_on_their_units() -> None:
    settings: dict[str, Any] = {"jitter": (0.8, 0.8, 0.8, 0.2), "blur": 0.5, "interpolation": "bicubic"}
    images = torch.rand(6, 5, 12, 12)
    generators = (torch.Generator().manual_seed(1) for _ in range(2))
    mean, std = [0.5, 0.4, 0.6, 0.5, 0.5], [0.2, 0.3, 0.3, 0.2, 0.3]
    other: dict[str, Any] = {"mean": [300 + 20 * m for m in mean], "std": [20 * s for s in std]}
    one = Views(10, mean=mean, std=std, **settings)(images, next(generators))
    same = Views(10, **other, **settings)(300 + 20 * images, next(generators))
    torch.testing.assert_close(same, one, rtol=0, atol=2e-4)
    for masked in (True, False):
        views = Views(10, mean=mean, std=std, **settings)
        parameters = views.draw(6, 12, 12, torch.Generator().manual_seed(1))
        torch.testing.assert_close(views.apply(images, parameters, masked=masked), one, rtol=0, atol=1e-6)
    plain = Views(10, mean=mean, std=std, flip=0.5)
    whole = (images * 255).round()
    pair = [plain(x, torch.Generator().manual_seed(1)) for x in (whole.byte(), whole / 255)]
    torch.testing.assert_close(*pair, rtol=0, atol=1e-5)


def test_contrast_changes_around_the_mean_of_all_channels_and_colours_stay() -> None:
    images = torch.randint(256, (9, 5, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    still: dict[str, Any] = {"scale": (1.0, 1.0), "ratio": (1.0, 1.0), "flip": 0.0, "grayscale": 1.0}
    views = Views(8, jitter=(0.0, 0.5, 0.8, 0.4), jitter_p=1.0, mean=[0.0] * 5, std=[1.0] * 5, **still)
    parameters = views.draw(9, 8, 8, torch.Generator().manual_seed(2))
    x, factor = images / 255, parameters.strength[:, 1].view(-1, 1, 1, 1)
    expected = (factor * x + (1 - factor) * x.mean((1, 2, 3), keepdim=True)).clamp(0, 1)
    torch.testing.assert_close(views.apply(images, parameters), expected, rtol=0, atol=1e-6)
    floats = Views(8, jitter=(0.0, 0.5, 0.8, 0.4), jitter_p=1.0, mean=[0.5] * 3, std=[0.2] * 3, **still)
    z = (x[:, :3] - 0.5) / 0.2
    expected = factor * z + (1 - factor) * z.mean((1, 2, 3), keepdim=True)
    torch.testing.assert_close(floats.apply(x[:, :3], parameters), expected, rtol=0, atol=1e-5)


# Refusals


def _replace(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    return lambda root: np.save(root / f"{name}.npy", change(np.load(root / f"{name}.npy")))


def _with(value: float) -> Callable[[Any], Any]:
    def change(images: Any) -> Any:
        images = images.astype(np.float32)
        images[17, 3, 3, 2] = value
        return images

    return change


def _both(change: Callable[[Any], Any]) -> Callable[[Path], Any]:
    return lambda root: [_replace(f"{split}_images", change)(root) for split in ("train", "test")]


IMAGES, LABELS = "train_images", "train_labels"


@pytest.mark.parametrize(
    ("spoil", "names"),
    [
        (shutil.rmtree, "dataset.root"),
        (lambda root: (root / "train_images.npy").unlink(), "train_images.npy dataset.root"),
        (lambda root: (root / "test_labels.npy").unlink(), "test_labels.npy dataset.root"),
        (lambda root: (root / "train_images.npy").write_bytes(b"\x80"), "train_images.npy"),
        (_replace(IMAGES, lambda x: x.astype(object)), "train_images.npy"),
        (_replace(IMAGES, lambda x: x.astype(int)), "int64 uint8 int16"),
        (_replace(IMAGES, lambda x: x.astype(">f4")), "numpy.ascontiguousarray"),
        (_replace(IMAGES, np.asfortranarray), "train_images.npy order"),
        (_replace(IMAGES, lambda x: np.moveaxis(x, 3, 1).copy()), "5, [N"),
        (_replace(IMAGES, lambda x: np.moveaxis(x, 3, 1)[..., :10].copy()), "dataset.channels=10"),
        (_replace(IMAGES, lambda x: np.tile(x, 7)), "35 [N"),
        (_replace(IMAGES, lambda x: x[:0]), "[0, [N"),
        (_replace(IMAGES, lambda x: x.reshape(60, -1)), "720 [N"),
        (_replace(IMAGES, lambda x: x[..., :4]), "train_images.npy 4 5"),
        (_replace("test_images", lambda x: x / 255), "test_images.npy float64 train_images.npy uint8"),
        (_replace(IMAGES, lambda x: x[:50]), "train_labels.npy 60 50"),
        (_replace(LABELS, lambda x: x / 1), "train_labels.npy float64 [60]"),
        (_replace(LABELS, lambda x: x - 1), "train_labels.npy -1 0"),
        (_replace(LABELS, lambda x: x * 0), "train_labels.npy 0"),
        (_replace(LABELS, lambda x: x * 2), "train_labels.npy 0, 2, 4"),
        (_replace("test_labels", lambda x: x + 1), "test_labels.npy 1, 2, 3"),
        (_replace(IMAGES, lambda x: x * np.array([1, 1, 1, 0, 1], np.uint8)), "channel 3"),
        (_both(lambda x: x + 1e9), "channel 0 float32"),
    ],
)
def test_arrays_that_cannot_be_used_are_refused(spoil: Callable[[Path], Any], names: str, tmp_path: Path) -> None:
    spoil(write(root := tmp_path / "set"))
    with refused(f"{root} {names}"):
        arrays(root)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e31])
@pytest.mark.parametrize("split", ["train", "test"])
def test_values_that_are_not_finite_are_refused(split: str, value: float, tmp_path: Path) -> None:
    root = write(tmp_path / "set", dtype="float32")
    _replace(f"{split}_images", _with(value))(root)
    wrong = rf"{split}_images\.npy has .*1e\+30 in image 17"
    for _ in range(2):  # also what the cache has
        with pytest.raises(ConfigError, match=wrong):
            arrays(root)


# Identity


@pytest.mark.parametrize("kind", ["arrays", "folder"])
def test_what_is_kept_in_another_form_is_found_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = write(tmp_path / "set") if kind == "arrays" else photos(tmp_path / "set", "a", "b")
    for path in filter(Path.is_file, root.rglob("*")):
        os.utime(path, (1e9, 1e9))

    def found() -> Any:
        config = arrays(root) if kind == "arrays" else own(root)
        return config["dataset"], build.dataset(config).warnings()

    first, kept = found(), list((tmp_path / "cache/ssl_bench").glob("images-*.json"))
    forms = {path: json.loads(path.read_text()) for path in kept}
    assert sorted(map(len, forms.values())) == ([1, *[5] * 4] if kind == "arrays" else [5])
    for other in ({"of_before": 3}, {"pairs": 3, "content": 3}):
        for path, form in forms.items():
            path.write_text(json.dumps(dict(list(form.items())[1:]) | other))
        assert found() == first
        assert {path: json.loads(path.read_text()) for path in kept} == forms


def test_a_copy_is_the_same_dataset_and_another_value_another_one(tmp_path: Path) -> None:
    root = write(tmp_path / "set", dtype="float32")
    first = arrays(root)
    copy = shutil.copytree(root, tmp_path / "elsewhere", copy_function=shutil.copyfile)
    assert run_id(arrays(copy)) == run_id(first)
    images = np.load(root / "train_images.npy", mmap_mode="r+")  # in place, in the same process
    images[31, 6, 6, 3] += 1
    images.flush()
    statistics = [f"dataset.{key}={first['dataset'][key]}" for key in ("mean", "std")]
    assert run_id(arrays(root, *statistics)) != run_id(first)
    with pytest.raises(ConfigError, match=r"\(hash \w{10}, not \w{10}\).*dataset\.root"):
        build.dataset(first).check()
    labels = np.load(copy / "test_labels.npy")
    np.save(copy / "test_labels.npy", labels[::-1])
    assert run_id(arrays(copy)) != run_id(first)


# Commands


@pytest.mark.parametrize("backbone", ["resnet18", "resnet18_cifar", "conv_n", "timm"])
def test_the_first_layer_takes_the_channels(backbone: str, tmp_path: Path) -> None:
    words = [f"backbone={backbone}", "batch_size.size=8", "tracking=off"]
    words += ["backbone.name=vit_tiny_patch16_224", "backbone.args={img_size: 32}"] if backbone == "timm" else []
    root = write(tmp_path / "set", (12, 6), channels=6, side=32)
    config = load(["dataset=arrays", f"dataset.root={root}", *words])
    validate(config, 1)
    assert next(p for p in build.backbone(config).parameters() if p.ndim == 4).shape[1] == 6
