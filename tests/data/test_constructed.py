"""Constructed datasets: places of digits and bits of images, which depend on the seed only."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import ssl_bench
from ssl_bench.commands.prepare import main as prepare
from ssl_bench.config.compose import load
from ssl_bench.data.batch import Batch, Loader
from ssl_bench.data.constructed import Canvases, Gaussians, Pairs, WithBits, binary, scaled
from ssl_bench.data.dataset import Dataset
from ssl_bench.data.pixels import EvalView
from ssl_bench.data.source import Images, Source
from ssl_bench.errors import ConfigError
from ssl_bench.methods.supervised import Supervised
from ssl_bench.training import build

CPU = torch.device("cpu")
TRAIN, TEST = 96, 40  # images of the small MNIST
DARK = 60  # no pixel of its digits is darker


def write_arrays(root: Path, name: str, split: str, images: np.ndarray) -> None:
    """Write a prepared split with the labels 0, 7, 4, 1, ..."""
    (root / name).mkdir(parents=True, exist_ok=True)
    np.save(root / name / f"{split}_images.npy", images)
    np.save(root / name / f"{split}_labels.npy", np.arange(len(images)) * 7 % 10)


def write_mnist(root: Path) -> dict[str, Tensor]:
    """Write different digits without a black pixel; return uint8 [M, 28, 28] of each split."""
    digits = {}
    for split, count in (("train", TRAIN), ("test", TEST)):
        images = np.random.default_rng(count).integers(DARK, 256, (count, 28, 28, 1), dtype=np.uint8)
        write_arrays(root, "mnist", split, images)
        digits[split] = torch.from_numpy(images[..., 0])
    return digits


def write_cifar10(root: Path) -> None:
    for split, count in (("train", 48), ("test", 16)):
        images = np.random.default_rng(count).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        write_arrays(root, "cifar10", split, images)


def write_photos(root: Path) -> None:
    """Write two classes of photos of different sizes."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 6), ("val", 3)):
        for name in ("cat", "dog"):
            (root / "imagenet" / split / name).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                photo = generator.integers(0, 200, (180 + 20 * i, 260 - 10 * i, 3), dtype=np.uint8)
                Image.fromarray(photo).save(root / "imagenet" / split / name / f"{i}.png")


def dataset(root: Path, *overrides: str) -> Dataset:
    return build.dataset(load([*overrides, f"paths.data={root}"]))


def canvases(root: Path, *overrides: str) -> Canvases:
    source = dataset(root, "dataset=multi_digits", *overrides).pretrain()
    assert isinstance(source, Canvases)
    return source


def taken(source: Source, ids: Tensor | None = None) -> Tensor:
    """Read images of one size, by default all."""
    images = source.take(torch.arange(len(source)) if ids is None else ids)
    assert isinstance(images, Tensor)
    return images


# ---- MultiDigits


@pytest.mark.parametrize("digits", [1, 8, 16])
def test_the_grid_has_each_whole_digit_in_a_separate_cell(tmp_path: Path, digits: int) -> None:
    mnist = write_mnist(tmp_path)["train"]
    made = canvases(tmp_path, "dataset.placement=grid", f"dataset.digits={digits}")
    images = taken(made)
    assert images.shape == (TRAIN, 1, 112, 112) and images.dtype == torch.uint8
    ink = mnist.long().sum((1, 2))[made.which].sum(1)  # without overlaps, all ink is visible
    assert torch.equal(images.long().sum((1, 2, 3)), ink)
    rows = images[:, 0].unflatten(1, (4, 28)).unflatten(3, (4, 28))  # [N, 4, 28, 4, 28]
    cells = rows.transpose(2, 3).flatten(1, 2)  # [N, 16, 28, 28]
    filled = (cells >= DARK).flatten(2)
    assert torch.equal(filled.all(2), filled.any(2))  # a cell is full or empty: every pixel of a digit has ink
    assert (filled.all(2).sum(1) == digits).all()
    for i in range(0, TRAIN, 13):
        place = made.top[i] // 28 * 4 + made.left[i] // 28
        assert torch.equal(cells[i][place], mnist[made.which[i]])


def test_random_places_are_inside_and_the_brighter_pixel_counts(tmp_path: Path) -> None:
    mnist = write_mnist(tmp_path)["train"]
    made = canvases(tmp_path, "dataset.digits=8")
    assert made.top.min() >= 0 and made.top.max() <= 84 and made.left.min() >= 0 and made.left.max() <= 84
    assert made.top.max() > 80 and made.left.min() < 4 and len(made.top.unique()) > 80  # uniform over all 85 rows
    images, overlapping = taken(made), 0
    for i in range(0, TRAIN, 7):
        canvas = np.zeros((112, 112), np.uint8)
        for which, top, left in zip(made.which[i], made.top[i], made.left[i], strict=True):
            window = canvas[top : top + 28, left : left + 28]
            overlapping += int((window > 0).any())
            np.maximum(window, mnist[which].numpy(), out=window)
        assert np.array_equal(images[i, 0].numpy(), canvas)
    assert overlapping > 5


def test_digits_of_two_sizes(tmp_path: Path) -> None:
    mnist = write_mnist(tmp_path)
    made = canvases(tmp_path, "dataset.digits=2", "dataset.sizes=[20,80]")
    assert made.top[:, 0].max() <= 92 and made.top[:, 1].max() <= 32 and made.left[:, 1].max() <= 32
    assert made.top[:, 0].max() > 80 and made.top[:, 1].max() > 28
    images = taken(made)[:, 0]
    for i in range(TRAIN):
        top, left = made.top[i, 1], made.left[i, 1]
        assert (images[i, top : top + 80, left : left + 80] >= DARK).all()  # the large digit is complete
    inked = (images > 0).sum((1, 2))
    assert inked.min() >= 80 * 80 and inked.max() <= 80 * 80 + 20 * 20
    small = scaled(mnist["train"][:3], 20)
    assert small.shape == (3, 20, 20) and small.float().mean().sub(mnist["train"][:3].float().mean()).abs() < 1
    assert scaled(mnist["train"], 28) is mnist["train"]


def test_an_image_depends_on_its_id_and_the_seed_only(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    for overrides in ([], ["dataset.placement=grid"], ["dataset.digits=2", "dataset.sizes=[20,80]"]):
        made = canvases(tmp_path, *overrides)
        whole = taken(made)
        order = torch.randperm(TRAIN)
        assert torch.equal(taken(made, order), whole[order])
        assert torch.equal(taken(made, torch.tensor([5])), whole[5:6])
        assert torch.equal(taken(canvases(tmp_path, *overrides)), whole)
        other = canvases(tmp_path, *overrides, "seed=1")
        assert not torch.equal(made.which, other.which) and not torch.equal(made.top, other.top)


def test_labels_count_the_digits(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    several = canvases(tmp_path, "dataset.digits=12")
    assert several.labels.shape == (TRAIN, 10) and several.labels.dtype == torch.int64
    assert (several.labels.sum(1) == 12).all()
    assert several.labels[3].tolist() == np.bincount(several.which[3] * 7 % 10, minlength=10).tolist()
    one = canvases(tmp_path, "dataset.digits=1")
    assert torch.equal(one.labels, one.which[:, 0] * 7 % 10)


def test_evaluation_uses_single_digits(tmp_path: Path) -> None:
    mnist = write_mnist(tmp_path)
    probes = dataset(tmp_path, "dataset=multi_digits", "dataset.digits=16", "dataset.placement=grid").probes()
    assert list(probes) == [""]
    for split, source in (("train", probes[""].train), ("test", probes[""].test)):
        images, count = taken(source)[:, 0], len(mnist[split])
        assert len(source) == count and source.labels.tolist() == (np.arange(count) * 7 % 10).tolist()
        assert torch.equal(images.long().sum((1, 2)), mnist[split].long().sum((1, 2)))  # each digit once and no other
    sized = dataset(tmp_path, "dataset=multi_digits", "dataset.digits=2", "dataset.sizes=[20,80]").probes()
    assert list(sized) == ["digit20", "digit80"]
    for size, probe in zip((20, 80), sized.values(), strict=True):
        assert ((taken(probe.test) > 0).sum((1, 2, 3)) == size * size).all() and probe.num_classes == 10
    equal = dataset(tmp_path, "dataset=multi_digits", "dataset.digits=2", "dataset.sizes=[20,20]").probes()
    assert list(equal) == ["digit20"]


def test_the_supervised_target_of_several_digits_is_the_frequency_of_classes() -> None:
    logits = torch.tensor([[[2.0, 1.0, -1.0], [0.0, 0.5, 1.0]]] * 2, dtype=torch.float64)  # [V, B, C]
    method = Supervised(torch.nn.Identity(), torch.nn.Identity())
    log_p = logits[0].log_softmax(1)

    def loss(labels: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        batch = Batch([], torch.arange(2), labels)
        result = method.objective({"logits": logits}, batch, 0.0, True)
        return result.loss, result.diagnostics

    several, diagnostics = loss(torch.tensor([[3, 0, 1], [1, 1, 0]]))
    expected = -(0.75 * log_p[0, 0] + 0.25 * log_p[0, 2] + 0.5 * log_p[1, 0] + 0.5 * log_p[1, 1]) / 2
    assert several.item() == pytest.approx(expected.item(), abs=1e-12)
    assert diagnostics["train/top1"].item() == 0.5  # image 0 has a digit of its likeliest class, image 1 has none
    one, _ = loss(torch.tensor([[0, 0, 1], [0, 4, 0]]))  # digits of one class: the cross-entropy with that class
    plain, _ = loss(torch.tensor([2, 1]))
    assert one.item() == pytest.approx(plain.item(), abs=1e-12)
    unlabelled, _ = loss(torch.tensor([[0, 0, 0], [0, 4, 0]]))
    assert unlabelled.item() == pytest.approx(-log_p[1, 1].item(), abs=1e-12)
    assert loss(torch.tensor([-1, 1]))[0].item() == pytest.approx(-log_p[1, 1].item(), abs=1e-12)


# ---- RandBit


def test_channels_are_the_binary_expansion() -> None:
    values = torch.tensor([0, 1, 6, 2**59 + 5, 2**60 - 1])
    for k in (0, 3, 60):
        expected = [[int(v) >> j & 1 for j in range(k)] for v in values]
        assert binary(values, k).reshape(5, k).tolist() == expected
    picture = torch.zeros(5, 1, 4, 4, dtype=torch.uint8)
    source = WithBits(Images([picture], torch.zeros(5).long()), 3, values % 8)
    assert taken(source)[2, :, 1, 3].tolist() == [0, 0, 255, 255]  # 6 = 110, the lowest bit first
    assert (taken(source) == taken(source)[:, :, :1, :1]).all()


def test_bits_are_uniform_and_differ_between_splits_and_seeds(tmp_path: Path) -> None:
    black = Images([torch.zeros(20000, 1, 1, 1, dtype=torch.uint8)], torch.zeros(20000).long())
    for k in (1, 5):
        values = WithBits.drawn(black, k, 0, "train").values
        counts = torch.bincount(values, minlength=2**k).double()
        expected = 20000 / 2**k
        chi = float(((counts - expected) ** 2 / expected).sum())
        assert len(counts) == 2**k and chi < 2**k - 1 + 4 * (2 * (2**k - 1)) ** 0.5, (k, chi)
    ones = binary(WithBits.drawn(black, 60, 0, "train").values, 60).double().mean(0)
    assert (ones - 0.5).abs().max() < 5 * 0.5 / 20000**0.5
    write_mnist(tmp_path)
    made = dataset(tmp_path, "dataset=randbit_mnist", "dataset.bits=30")
    train, test = made.split("train"), made.split("test")
    pretrain = made.pretrain()
    other = dataset(tmp_path, "dataset=randbit_mnist", "dataset.bits=30", "seed=1").pretrain()
    assert isinstance(pretrain, WithBits) and isinstance(other, WithBits)
    assert isinstance(train, WithBits) and isinstance(test, WithBits)
    assert torch.equal(pretrain.values, train.values)  # the same images for training and evaluation
    assert not torch.equal(train.values[:TEST], test.values) and not torch.equal(pretrain.values, other.values)


def bits_of(images: Tensor, picture: int) -> Tensor:
    """The values [n, E] of the channels after the first ``picture`` channels, which must be constant."""
    constants = images[:, picture:]
    assert (constants == constants[:, :, :1, :1]).all()
    return constants[:, :, 0, 0]


@pytest.mark.parametrize(("name", "picture", "size"), [("randbit_mnist", 1, 28), ("randbit_cifar10", 3, 32)])
def test_a_network_takes_the_picture_and_the_bits(tmp_path: Path, name: str, picture: int, size: int) -> None:
    k = 7 if picture == 1 else 0
    write_mnist(tmp_path)
    write_cifar10(tmp_path)
    config = load([f"dataset={name}", f"dataset.bits={k}", f"paths.data={tmp_path}"])
    run = build.build(config)
    source = run.dataset.split("test")
    assert config["dataset"]["channels"] == picture + k
    assert taken(source).shape == (len(source), picture + k, size, size)
    x = EvalView(mean=config["dataset"]["mean"], std=config["dataset"]["std"])(taken(source, torch.arange(4)))
    assert build.method(run).encoder(x)["backbone"].shape[0] == 4
    plain = dataset(tmp_path, f"dataset={name.removeprefix('randbit_')}").split("test")
    assert torch.equal(taken(source)[:, :picture], taken(plain))  # the picture is unchanged


def test_photos_of_many_sizes_have_bits_too(tmp_path: Path) -> None:
    write_photos(tmp_path)
    bits = dataset(tmp_path, "dataset=randbit_imagenet", "dataset.num_classes=2", "dataset.bits=9").pretrain()
    plain = dataset(tmp_path, "dataset=imagenet", "dataset.num_classes=2").pretrain()
    assert isinstance(bits, WithBits) and not isinstance(bits.images, WithBits) and bits.nbytes is None
    ids = torch.tensor([11, 2])
    for image, photo, value in zip(bits.take(ids), plain.take(ids), bits.values[ids], strict=True):
        assert torch.equal(image[:3], photo) and image.shape == (12, *photo.shape[1:])
        assert torch.equal(bits_of(image[None], 3), binary(value[None], 9) * 255)


def test_images_that_are_only_bits() -> None:
    config = load(["dataset=bits", "dataset.bits=8", "dataset.images=600", "batch_size.size=20"])
    run = build.build(config)
    assert build.evaluators(config) == {} and config["dataset"]["train_images"] == run.dataset.check() == 600
    source = run.dataset.pretrain()
    assert isinstance(source, WithBits) and len(source) == 600 and (source.labels == -1).all()
    batch = next(Loader(source, run.views, 20, CPU, 0, torch.float32).steps(2, 3)).batch()
    assert batch.views[0].shape == (20, 8, 32, 32) and torch.equal(*batch.views)  # no augmentation
    assert torch.equal(bits_of(batch.views[0], 0), binary(source.values[batch.ids], 8).float())
    assert build.method(run).encoder(batch.views[0][:2])["backbone"].shape == (2, 512)


# ---- DigitOnImageNet


def test_a_digit_is_painted_in_nine_places(tmp_path: Path) -> None:
    mnist = write_mnist(tmp_path)["train"]
    write_photos(tmp_path)
    overrides = ["dataset=digit_on_imagenet", "dataset.num_classes=2", "dataset.digits=5"]
    made: Any = dataset(tmp_path, *overrides).pretrain()
    images, added = taken(made), taken(dataset(tmp_path, *overrides, "dataset.combine=sum").pretrain())
    assert images.shape == (12, 3, 224, 224) and made.which.max() < 5
    photos = dataset(tmp_path, "dataset=imagenet", "dataset.num_classes=2").pretrain().take(torch.arange(12))
    for i, photo in enumerate(photos):
        plain, digit = scaled(photo, 224), mnist[made.which[i]]
        largest, total = plain.clone(), plain.long()
        for top in (33, 100, 168):
            for left in (33, 100, 168):
                window = slice(None), slice(top, top + 28), slice(left, left + 28)
                largest[window] = torch.maximum(plain[window], digit)
                total[window] += digit
        assert torch.equal(images[i], largest) and torch.equal(added[i].long(), total.clamp(max=255))
    order = torch.tensor([7, 0, 7])
    assert torch.equal(taken(made, order), images[order])
    again: Any = dataset(tmp_path, *overrides).pretrain()
    other: Any = dataset(tmp_path, *overrides, "seed=1").pretrain()
    assert torch.equal(again.which, made.which) and not torch.equal(other.which, made.which)


def test_photo_and_digit_are_separate_probes(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    write_photos(tmp_path)
    made = dataset(tmp_path, "dataset=digit_on_imagenet", "dataset.num_classes=2", "dataset.digits=1")
    probes: Any = made.probes()
    assert made.check() == 12 and list(probes) == ["object", "digit"]
    assert probes["object"].test.labels.tolist() == [0] * 3 + [1] * 3 and probes["object"].num_classes == 2
    for split, count in (("train", 12), ("test", 6)):
        by_object, by_digit = (getattr(probe, split) for probe in probes.values())
        assert torch.equal(taken(by_object), taken(by_digit)) and len(by_digit) == count
        assert torch.equal(by_digit.labels, by_digit.which * 7 % 10) and len(by_digit.which.unique()) > 1
    assert made.eval_view == {} and made.pretrain().labels.tolist() == [0] * 6 + [1] * 6


# ---- Gaussians


def test_the_correlation_of_a_pair_gives_its_mutual_information() -> None:
    """-d/2 log(1 - rho^2) nats; different coordinates are independent, and both vectors have variance 1."""
    made = build.dataset(load(["dataset=gaussians", "dataset.information=3", "dataset.dimensions=2"]))
    assert isinstance(made, Gaussians) and made.check() == len(made.pretrain()) > 0
    source = made.split("train")
    x, y = source.draw(200_000, torch.Generator().manual_seed(0))
    assert x.shape == y.shape == (200_000, 2) and x.dtype == y.dtype == torch.float32
    covariance = torch.cat([x, y], 1).double().T.cov()
    rho = math.sqrt(1 - math.exp(-3))
    expected = torch.eye(4) + rho * torch.eye(2).repeat(2, 2).fill_diagonal_(0)
    assert (covariance - expected).abs().max() < 0.01
    assert source.information == 3 == pytest.approx(-2 / 2 * math.log(1 - rho**2))


def test_a_seed_draws_the_same_pairs_and_a_pair_is_no_image() -> None:
    source = Pairs(2.0, 20)
    first, again, other = (source.draw(8, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1]) and not torch.equal(first[0], other[0])
    with pytest.raises(ConfigError, match="dataset=gaussians"):
        source.take(torch.arange(2))


# ---- the sheet


def test_a_sheet_shows_images_and_views(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_mnist(tmp_path)
    assert prepare(["dataset=randbit_mnist", f"paths.data={tmp_path}", "--show", "sheet.png"]) == 0
    (line,) = capsys.readouterr().out.splitlines()[1:]
    assert line.startswith("sheet.png: ") and re.findall(r"\b\d\b", line) == ["8", "2"]
    with Image.open("sheet.png") as sheet:
        pixels = torch.from_numpy(np.array(sheet))
    assert pixels.shape == (3 * 136, 8 * 116, 3)
    words = ["dataset=randbit_mnist", f"paths.data={tmp_path}"]
    assert np.array_equal(np.array(ssl_bench.show_views(words)), pixels)
    assert not np.array_equal(np.array(ssl_bench.show_views([*words, "seed=1"])), pixels)
    for refused, named in (("--show=x.png", "--show=x.png"), ("--config-dir=no", " no "), ("dataset.root=no", "root")):
        with pytest.raises(ConfigError, match=named):
            ssl_bench.show_views([*words, refused])
