"""Views against torchvision: the values for given parameters, and the distribution of every parameter.

All seeds are fixed, so every p-value is the same in each run. Images are smooth noise.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from scipy import stats
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode
from torchvision.transforms import ColorJitter, GaussianBlur, InterpolationMode, RandomResizedCrop
from torchvision.transforms import functional as F

from ssl_bench.data.operations import blur_matrix
from ssl_bench.data.pixels import EvalView, sizes
from ssl_bench.data.views import LARGE, ViewParameters, Views
from ssl_bench.errors import InvalidValue
from tests.operations import Operations

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
AUGMENT = Path(__file__).parents[2] / "conf" / "augment"
ON: dict[str, Any] = {"jitter": (0.8, 0.8, 0.8, 0.2), "jitter_p": 0.8, "grayscale": 0.2, "blur": 0.5}
ON["solarize"] = 0.3


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def smooth(n: int, channels: int, height: int, width: int, seed: int = 0) -> Tensor:
    """Enlarged coarse noise, clipped at both ends: uint8 [n, C, H, W], stored channels last as in prepared data."""
    coarse = torch.rand(n, channels, 5, 7, generator=generator(seed))
    fine = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")
    grain = torch.randn(n, channels, height, width, generator=generator(seed + 1)) * 0.03
    pixels = ((fine * 1.6 - 0.3 + grain).clamp(0, 1) * 255).round().byte()
    return pixels.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def still(n: int, height: int, width: int) -> ViewParameters:
    """Parameters that change only the size."""
    zero, no = torch.zeros(n, dtype=torch.long), torch.zeros(n, dtype=torch.bool)
    return ViewParameters(
        top=zero,
        left=zero,
        height=zero + height,
        width=zero + width,
        flip=no,
        jitter=no,
        order=torch.arange(4).repeat(n, 1),
        strength=torch.tensor([1.0, 1.0, 1.0, 0.0]).repeat(n, 1),
        grayscale=no,
        blur=no,
        sigma=torch.ones(n),
        solarize=no,
    )


PARTS: list[Callable[[Any, float], Any]] = [F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue]


def reference(image: Any, views: Views, parameters: ViewParameters, k: int) -> Any:
    """Apply row k with torchvision to a float tensor [C, H, W] in [0, 1]; not normalised."""
    box = [int(getattr(parameters, name)[k]) for name in ("top", "left", "height", "width")]
    mode = InterpolationMode(views.interpolation)
    x = F.resized_crop(image, *box, [views.size] * 2, mode, antialias=True).clamp(0, 1)
    if parameters.flip[k]:
        x = F.hflip(x)
    channels = F.get_dimensions(x)[0]
    if parameters.grayscale[k] and views.grayscale_first:
        x = F.rgb_to_grayscale(x, channels)
    if parameters.jitter[k]:
        for part in parameters.order[k].tolist():
            if views.jitter[part] > 0:  # ColorJitter skips parts of strength 0
                x = PARTS[part](x, float(parameters.strength[k, part]))
    if parameters.grayscale[k] and not views.grayscale_first:
        x = F.rgb_to_grayscale(x, channels)
    if parameters.blur[k]:
        x = F.gaussian_blur(x, [views.blur_kernel] * 2, [float(parameters.sigma[k])] * 2)
    return x


def deviation(views: Views, images: Tensor, parameters: ViewParameters, dtype: torch.dtype = torch.float32) -> float:
    """Largest difference from torchvision over all images and pixels, on the scale [0, 1]."""
    ours = views.apply(images, parameters, dtype)
    theirs = torch.stack([reference(image.to(dtype) / 255, views, parameters, k) for k, image in enumerate(images)])
    assert ours.dtype == dtype and ours.is_contiguous() and ours.shape == theirs.shape
    return (ours - theirs).abs().max().item()


# Values


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("height", "width", "size", "n"), [(32, 32, 32, 40), (256, 256, 224, 12), (40, 27, 33, 20)])
def test_crop_flip_resize(height: int, width: int, size: int, n: int, channels: int, interpolation: Any) -> None:
    views = Views(size, interpolation=interpolation, grayscale=0)
    images = smooth(n, channels, height, width)
    parameters = views.draw(n, height, width, generator())
    assert parameters.flip.any() and not parameters.flip.all()
    assert deviation(views, images, parameters) <= (5e-7 if interpolation == "bilinear" else 2e-6)


def test_bicubic_as_in_tensorflow_has_the_values_of_tensorflow() -> None:
    """tf.image.resize(crop, [5, 5], method=BICUBIC) of TensorFlow 2.21.0, for the box of 11 x 7 pixels at (1, 2)."""
    expected = """
        0.3553541 0.6087766 0.1214673 0.5981809 0.6279407
        0.2190573 0.7190886 0.3079544 0.7604308 0.4865723
        0.2081746 0.2538491 0.5294118 0.8049744 0.850649
        0.520058  0.6330169 0.0675305 0.4187027 0.5868396
        0.7230187 0.1441191 0.7381872 0.4613854 0.7041865"""
    i, j = torch.meshgrid(torch.arange(13), torch.arange(9), indexing="ij")
    image = ((37 * i * i + 11 * i * j + 53 * j) % 256).byte()[None, None]
    box = {"top": 1, "left": 2, "height": 11, "width": 7}
    parameters = replace(still(1, 13, 9), **{name: torch.tensor([side]) for name, side in box.items()})
    found = Views(5, interpolation="bicubic_tf").apply(image, parameters)[0, 0]
    assert float((found - torch.tensor([float(x) for x in expected.split()]).view(5, 5)).abs().max()) < 1e-6


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("size", "n"), [(32, 20), (224, 3)])
def test_blur(size: int, n: int, channels: int) -> None:
    views = Views(size, scale=(1, 1), ratio=(1, 1), flip=0, grayscale=0, blur=1)
    parameters = views.draw(n, size, size, generator())
    assert views.blur_kernel == {32: 3, 224: 23}[size]
    assert deviation(views, smooth(n, channels, size, size), parameters) <= 1.5e-6


def test_blur_with_the_widest_kernel_reflects_as_in_torchvision() -> None:
    views = Views(8, blur=1, blur_kernel=15, blur_sigma=(5, 6), grayscale=0)
    assert deviation(views, smooth(10, 3, 8, 8), views.draw(10, 8, 8, generator())) <= 1e-6
    weights = blur_matrix(torch.tensor([0.1, 2.0, 50.0]), 15, 8, torch.float32)
    assert (weights.sum(2) - 1).abs().max() < 1e-6


def recipe(name: str, size: int) -> Views:
    node = yaml.safe_load((AUGMENT / f"{name}.yaml").read_text())
    assert node.pop("_target_") == "ssl_bench.data.views.Views"
    dataset = {key: node.pop(key) for key in ("size", "mean", "std")}
    assert dataset == {key: f"${{dataset.{key}}}" for key in dataset}
    return Views(size, **node)


# Options with one recipe for all views; the others combine these.
RECIPES = sorted(path.stem for path in AUGMENT.glob("*.yaml") if "_target_" in yaml.safe_load(path.read_text()))


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize(("height", "size", "n", "channels"), [(32, 32, 60, 3), (32, 32, 30, 1), (256, 224, 3, 3)])
def test_whole_recipe(name: str, height: int, size: int, n: int, channels: int) -> None:
    views = recipe(name, size)
    parameters = views.draw(n, height, height, generator())
    assert deviation(views, smooth(n, channels, height, height), parameters) <= 5e-6


def test_each_channel_is_normalised() -> None:
    images, views, plain = smooth(5, 3, 32, 32), Views(32, mean=MEAN, std=STD, **ON), Views(32, **ON)
    parameters = views.draw(5, 32, 32, generator())
    expected = F.normalize(plain.apply(images, parameters), MEAN, STD)
    assert torch.allclose(views.apply(images, parameters), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 3])
def test_evaluation_view(channels: int) -> None:
    images = smooth(6, channels, 20, 30)
    view = EvalView(mean=MEAN[:channels], std=STD[:channels])
    expected = torch.stack([F.normalize(image / 255, MEAN[:channels], STD[:channels]) for image in images])
    assert torch.equal(view(images), expected) and view(images).is_contiguous()
    assert torch.equal(EvalView()(images), images / 255)
    assert view(images, torch.bfloat16).dtype == torch.bfloat16


def test_other_dtypes() -> None:
    images = smooth(40, 3, 32, 32)
    views = Views(32, jitter=(0.8, 0.8, 0.8, 0), blur=0.5)  # no hue: torchvision turns it in float32 always
    parameters = views.draw(40, 32, 32, generator())
    assert deviation(views, images, parameters, torch.float64) <= 1e-13
    precise = views.apply(images, parameters, torch.float64)
    assert (precise - views.apply(images, parameters)).abs().max() <= 3e-6
    assert (precise - views.apply(images, parameters, torch.float64, masked=True)).abs().max() <= 1e-13
    for dtype in (torch.float16, torch.bfloat16):
        assert torch.equal(views.apply(images, parameters, dtype), views.apply(images, parameters).to(dtype))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(views.apply(images, parameters), views.apply(images, parameters, masked=True))
        assert torch.equal(views.apply(images, parameters, torch.float64), precise)


# The two forms, rows and determinism


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "bicubic_tf"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("height", "size", "n"), [(40, 18, 60), (96, 96, 20)])
def test_both_forms_are_equal_and_rows_are_independent(
    height: int, size: int, n: int, channels: int, interpolation: Any
) -> None:
    """To the last bit, but large views of the two forms are cropped in different ways."""
    views = Views(size, interpolation=interpolation, mean=MEAN[:channels], std=STD[:channels], **ON)
    images = smooth(n, channels, height, height)
    parameters = views.draw(n, height, height, generator())
    unmasked = views.apply(images, parameters, masked=False)
    assert torch.equal(views.apply(images, parameters), unmasked)
    tolerance = 0.0 if size < LARGE else 2e-5
    torch.testing.assert_close(views.apply(images, parameters, masked=True), unmasked, rtol=0, atol=tolerance)
    assert torch.equal(views.apply(images.contiguous(), parameters), unmasked)
    some = torch.tensor([n - 1, 3, 3, 7])
    for rows in (slice(5, 19), slice(n - 1, n), slice(1, None, 3), some):
        assert torch.equal(views.apply(images[rows], parameters[rows]), unmasked[rows])


def test_the_masked_form_never_waits_for_the_data() -> None:
    """Fake tensors refuse operations that wait for a device: .item(), nonzero, a mask as an index."""
    views = Views(16, interpolation="bicubic", mean=MEAN, std=STD, **ON)
    with FakeTensorMode():
        images = torch.empty(6, 3, 20, 20, dtype=torch.uint8)
        parameters = views.draw(6, 20, 20, torch.Generator())
        assert views.apply(images, parameters, masked=True).shape == (6, 3, 16, 16)
        with pytest.raises(Exception, match=r"nonzero|data"):
            views.apply(images, parameters, masked=False)


def test_several_views_at_once_are_the_views_one_by_one() -> None:
    views, images = Views(16, mean=MEAN, std=STD, **ON), smooth(7, 3, 16, 16)
    uniform = [views.uniform(7, generator(seed)) for seed in range(3)]
    for made, numbers in zip(views.make(images, uniform, torch.float32), uniform, strict=True):
        assert torch.equal(made, views.apply(images, views.parameters(numbers, 16, 16)))


def test_what_follows_the_crops_of_photos_is_compiled_once_for_all_sizes() -> None:
    """One graph without a break for two batches of photos, and the views of the eager form, bit for bit."""
    views, counter = Views(16, mean=MEAN, std=STD, **ON), CompileCounter()
    views._compiled = {"_from_crops": torch.compile(views._from_crops, fullgraph=True, dynamic=False, backend=counter)}
    for number, sides in enumerate(([(20, 30), (40, 16), (200, 31)], [(17, 19), (300, 40), (16, 16)])):
        photos = [smooth(1, 3, *side)[0] for side in sides]
        uniform = [views.uniform(3, generator(seed)) for seed in (number, 7 + number)]
        for made, numbers in zip(views.make(photos, uniform, torch.float32), uniform, strict=True):
            assert torch.equal(made, views.apply(photos, views.parameters(numbers, *sizes(photos)), masked=True))
    assert counter.frame_count == 1 and counter.op_count > 100


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_compiled_views_equal_eager_ones() -> None:
    """The compiled function has no graph break, and fewer kernels than a tenth of the eager operations."""
    from torch._inductor import metrics

    views, images = Views(16, **ON), smooth(7, 3, 16, 16)
    uniform = [views.uniform(7, generator(seed)) for seed in range(2)]
    with Operations() as operations:
        eager = views.make(images, uniform, torch.float32)
    metrics.reset()
    views.compile()
    compiled = views.make(images, uniform, torch.float32)
    assert views._compiled
    assert max(float((a - b).abs().max()) for a, b in zip(eager, compiled, strict=True)) <= 2e-6
    assert 0 < metrics.generated_kernel_count <= len(operations.calls) / 5


def test_views_that_cannot_be_compiled_stay_eager(caplog: pytest.LogCaptureFixture) -> None:
    views, images = Views(16), smooth(2, 3, 16, 16)
    uniform = [views.uniform(2, generator())]
    eager = views.make(images, uniform, torch.float32)
    views._compiled = {"_joint": broken}
    assert torch.equal(views.make(images, uniform, torch.float32)[0], eager[0])
    assert torch.equal(views.make(images, uniform, torch.float32)[0], eager[0])
    (record,) = (each for each in caplog.records if each.levelname == "WARNING")
    assert "(RuntimeError: no C compiler was found)" in record.message


def broken(*_: object) -> Tensor:
    raise RuntimeError("no C compiler\n was found")


# Distributions

N = 20_000
P = 0.001  # the seeds fix every p-value; a wrong distribution gives far smaller ones


def uniform_parameters(parameters: ViewParameters) -> dict[str, Tensor]:
    """All parameters by name, [n] each."""
    named = {f.name: getattr(parameters, f.name) for f in fields(parameters) if f.name not in ("order", "strength")}
    strengths = dict(zip(("brightness", "contrast", "saturation", "hue"), parameters.strength.unbind(1), strict=True))
    positions = {f"position of {part}": parameters.order.argsort(1)[:, part] for part in range(4)}
    return {**named, **strengths, **positions}


@pytest.mark.parametrize(
    ("height", "width", "least"),
    [(32, 32, 0.08), (60, 40, 0.2), (10, 20, 0.5)],  # in the last one, a quarter of the boxes are central
)
def test_boxes_are_distributed_as_in_torchvision(height: int, width: int, least: float) -> None:
    torch.manual_seed(height)
    image, scale, ratio = torch.empty(3, height, width), [least, 1.0], [3 / 4, 4 / 3]
    boxes = [RandomResizedCrop.get_params(image, scale, ratio) for _ in range(4000)]
    theirs = dict(zip(("top", "left", "height", "width"), torch.tensor(boxes).unbind(1), strict=True))
    parameters = Views(32, scale=scale, ratio=ratio).draw(N, height, width, generator(height))
    ours = {name: getattr(parameters, name) for name in theirs}
    for box in (ours, theirs):
        box["area"] = box["height"] * box["width"]
        box["bottom"] = box["top"] + box["height"]
        box["right"] = box["left"] + box["width"]
    for name in ours:
        assert stats.ks_2samp(ours[name], theirs[name]).pvalue > P, name
    assert ours["bottom"].max() == height and ours["right"].max() == width and min(ours["top"]) == 0


def test_strengths_and_sigma_are_distributed_as_in_torchvision() -> None:
    torch.manual_seed(0)
    jitter = ColorJitter(0.4, 1.5, 0.8, 0.2)  # a strength above 1 cuts the range at 0
    arguments = [jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue]
    theirs = torch.tensor([ColorJitter.get_params(*arguments)[1:] for _ in range(4000)])  # [4000, 4]
    parameters = Views(32, jitter=(0.4, 1.5, 0.8, 0.2), blur=0.5).draw(N, 32, 32, generator())
    for part in range(4):
        assert stats.ks_2samp(parameters.strength[:, part], theirs[:, part]).pvalue > P
    sigma = [GaussianBlur.get_params(0.1, 2.0) for _ in range(4000)]
    assert stats.ks_2samp(parameters.sigma[parameters.blur], sigma).pvalue > P  # among the blurred images


def test_all_orders_are_equally_likely() -> None:
    order = Views(32, **ON).draw(N, 32, 32, generator()).order
    assert torch.equal(order.sort(1).values, torch.arange(4).expand(N, 4))
    counts = (order @ torch.tensor([64, 16, 4, 1])).unique(return_counts=True)[1]
    assert len(counts) == 24 and stats.chisquare(counts).pvalue > P


def test_probabilities() -> None:
    expected = {"flip": 0.3, "jitter": 0.8, "grayscale": 0.2, "blur": 0.6}
    parameters = Views(32, flip=0.3, jitter=(0.4, 0.4, 0.4, 0.1), jitter_p=0.8, grayscale=0.2, blur=0.6).draw(
        N, 32, 32, generator()
    )
    for name, p in expected.items():
        yes = int(getattr(parameters, name).sum())
        assert stats.chisquare([yes, N - yes], [N * p, N * (1 - p)]).pvalue > P, name
    always = Views(32, flip=1, jitter=(0.4, 0, 0, 0), jitter_p=1, grayscale=1, blur=1).draw(N, 32, 32, generator())
    never = Views(32, flip=0, jitter=(0.4, 0, 0, 0), jitter_p=0, grayscale=0, blur=0).draw(N, 32, 32, generator())
    for name in expected:
        assert getattr(always, name).all() and not getattr(never, name).any()


def test_parameters_are_independent() -> None:
    """Rank correlations of two parameters, or of neighbouring images, stay within five standard errors."""
    values = uniform_parameters(Views(32, **ON).draw(N, 32, 32, generator()))
    ranks = np.stack([stats.rankdata(v) for v in values.values()])  # [K, N]
    names, bound = list(values), 5 / math.sqrt(N)
    same, neighbour = np.corrcoef(ranks), np.corrcoef(ranks[:, 1:], ranks[:, :-1])[len(names) :, : len(names)]
    boxes = {("top", "height"), ("left", "width"), ("height", "width"), ("top", "width"), ("left", "height")}
    for i, j in itertools.product(range(len(names)), repeat=2):
        assert abs(neighbour[i, j]) < bound, (names[i], names[j])
        # The size of a box restricts its place, and the position of one part restricts the positions of the others.
        linked = {(names[i], names[j]), (names[j], names[i])} & boxes or {names[i], names[j]} == {"top", "left"}
        if i != j and not linked and not (names[i].startswith("position") and names[j].startswith("position")):
            assert abs(same[i, j]) < bound, (names[i], names[j])


# Refusals


WRONG: dict[str, Any] = {"size": 0, "scale": (0.5, 0.2), "interpolation": "nearest", "flip": 1.5, "blur_kernel": 4}
WRONG |= {"jitter": (0.4, 0.4, 0.4, 0.6), "blur_sigma": (0.0, 2.0), "mean": (0.5,) * 33, "std": (0.5, 0.5, 0.0)}


@pytest.mark.parametrize("name", WRONG)
def test_an_invalid_argument_is_refused(name: str) -> None:
    with pytest.raises(InvalidValue) as refusal:
        Views(**{"size": 32, "blur": 0.5, "mean": MEAN, "std": STD, name: WRONG[name]})
    assert refusal.value.key == name


@pytest.mark.parametrize(
    "images", [torch.zeros(2, 3, 8, 8), torch.zeros(3, 8, 8, dtype=torch.uint8), torch.zeros(2, 2, 8, 8).byte()]
)
def test_wrong_images_are_refused(images: Tensor) -> None:
    with pytest.raises(ValueError, match="uint8"):
        Views(8).apply(images, still(2, 8, 8))


# Solarisation, extra channels, images of many sizes


def test_solarize_equals_torchvision() -> None:
    from torchvision.transforms.functional import solarize

    images = smooth(6, 3, 16, 16)
    rows = torch.tensor([True, False] * 3)
    parameters = replace(still(6, 16, 16), solarize=rows)
    x = Views(16, solarize=0.5, grayscale=0).apply(images, parameters)
    plain = images / 255
    expected = torch.where(rows[:, None, None, None], solarize(plain, 0.5), plain)
    torch.testing.assert_close(x, expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("channels", [0, 1, 3])
def test_extra_channels_are_constant_in_every_view(channels: int, masked: bool) -> None:
    bits = torch.tensor([[0, 255], [255, 255], [255, 0]], dtype=torch.uint8)
    picture = smooth(3, max(1, channels), 20, 20)[:, :channels]
    images = torch.cat([picture, bits[..., None, None].expand(-1, -1, 20, 20)], 1)
    views = Views(12, **ON, mean=MEAN[:channels], std=STD[:channels])
    parameters = views.draw(3, 20, 20, generator())
    x = views.apply(images, parameters, masked=masked)
    assert x.shape == (3, channels + 2, 12, 12)
    assert x.is_contiguous(memory_format=torch.channels_last)  # else the network would copy it in both passes
    assert torch.equal(x[:, channels:], (bits / 255)[..., None, None].expand(-1, -1, 12, 12))
    if channels:
        assert torch.equal(x[:, :channels], views.apply(picture, parameters, masked=masked))
    seen = EvalView(mean=MEAN[:channels], std=STD[:channels])(images)
    assert torch.equal(seen[:, channels:], images[:, channels:] / 255)


def test_images_of_many_sizes_have_the_same_views_as_each_image_alone() -> None:
    sizes = [(20, 31), (44, 18), (25, 25)]
    images = [smooth(1, 3, height, width, seed=i)[0] for i, (height, width) in enumerate(sizes)]
    views = Views(16, **ON, mean=MEAN, std=STD)
    numbers = views.uniform(3, generator())
    parameters = views.parameters(numbers, *torch.tensor(sizes).unbind(1))
    for masked in (False, True):
        x = views.apply(images, parameters, masked=masked)
        for i, (height, width) in enumerate(sizes):
            alone = views.apply(images[i][None], views.parameters(numbers[i : i + 1], height, width))
            torch.testing.assert_close(x[i : i + 1], alone, rtol=0, atol=5e-6)
