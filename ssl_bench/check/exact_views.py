"""Views on the device against those of the CPU, with the same random numbers, and compiled ones against eager ones.

Errors are in units of a pixel's range [0, 1], before normalisation. A crop is two matrix products of pixels and weights
that sum to 1, and a blur two more: each rounds two factors and its result. Operations of the colour jitter enlarge an
error by at most 1 + strength each, and the turn of the hue by 2: below 32 u p with p the product of 1 + strength.
The corner of a box of H pixels is rounded by H u32, which changes a pixel by as much times the difference of its two
neighbours, at most 1, in rows and columns. So the bound is

    (32 u + 2 H u32) p      u: of the format of the products, H: side of the images

A view that is off by one pixel differs by about 0.3 on the noise that is compared here.
"""

import math
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import partial

import torch
from torch import Tensor

from ssl_bench.check.bounds import U32, UNITS, WRONG_RESULT, Difference, computing, difference, formats, judged
from ssl_bench.check.finding import Check, Finding, Level, Verdict
from ssl_bench.config.compose import load
from ssl_bench.data.views import ViewParameters, Views
from ssl_bench.parts import Parts

SETS = {
    "digits": [],
    "photos": ["dataset=stl10", "augment=simclr"],
    "multi-crop": ["dataset=cifar10", "augment=multicrop_cifar"],
}
IMAGES = 24
COMPILER = "install a C++ compiler (g++) and Python's headers; until then views and networks stay eager"


def view_checks(device: torch.device, level: Level) -> Iterator[Check]:
    """The views of several recipes; compiled ones on a GPU, and on a CPU at the levels that have a minute for them."""
    for name in SETS:
        yield Check(f"views {name}", partial(views_of, name, device), 3)
    if device.type == "cuda":
        yield Check("compiled views", partial(compiled, "photos", device), 60)
    elif level > Level.QUICK:
        yield Check("compiled views", partial(compiled, "digits", device), 60)


def makers(name: str) -> tuple[list[Views], Tensor]:
    """The different views of a recipe, and images for them: uint8 noise [n, C, H, W], channels last."""
    config = load(SETS[name])
    channels, size = config["dataset"]["channels"], config["dataset"]["size"]
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (IMAGES, size, size, channels), generator=generator, dtype=torch.uint8)
    return list(dict.fromkeys(Parts(config).views)), images.permute(0, 3, 1, 2)


def pixel_bound(views: Views, side: int, unit: float) -> float:
    """The bound above, divided by the smallest deviation that the views are normalised by."""
    enlarged = math.prod(1 + strength for strength in views.jitter[:3])
    deviations = views.normalize.std
    return (32 * unit + 2 * side * U32) * enlarged / min(deviations or [1.0])


def views_of(name: str, device: torch.device) -> Finding:
    """Parameters and pixels of the views of a recipe."""
    found = []
    recipe, images = makers(name)
    height, width = images.shape[-2:]
    units = {"fp32": U32} | ({"tf32": UNITS["tf32"]} if "tf32" in [form.name for form in formats(device)] else {})
    for number, views in enumerate(recipe):
        uniform = views.uniform(IMAGES, torch.Generator().manual_seed(number))
        parameters = views.parameters(uniform, height, width)
        found += _parameters(views.parameters(uniform.to(device), height, width), parameters, f"view {number}")
        exact = views.apply(images, parameters, torch.float64, masked=False)
        for form, unit in units.items():
            with computing(form == "tf32"):
                made = views.apply(images.to(device), parameters.to(device), torch.float32, masked=True)
            bound = pixel_bound(views, max(height, width), unit)
            found.append(difference(f"pixels of view {number} in {form}", made, exact, bound))
    return judged(found, "parameters and pixels of views")


def _parameters(found: ViewParameters, expected: ViewParameters, view: str) -> list[Difference]:
    """Differences of the parameters. The box of one image may be rounded to the neighbouring pixel.

    A side is the rounded root of an exponential, which devices compute to a few units of the last place; a side of 100
    pixels is that near to a half once in 10^5 images.
    """
    differences, moved = [], torch.zeros(IMAGES, dtype=torch.bool)
    for field in fields(ViewParameters):
        a, b = getattr(found, field.name).cpu(), getattr(expected, field.name)
        if field.name in ("top", "left", "height", "width"):
            moved |= (a - b).abs() == 1
            a = torch.where((a - b).abs() == 1, b, a)
        bound = 4 * U32 * b.abs().double() if b.is_floating_point() else 0.0
        differences.append(difference(f"{field.name} of {view}", a, b, bound))
    places = f"{int(moved.sum())} of {IMAGES} boxes are off by one pixel"
    return [*differences, Difference(f"boxes of {view}", float(moved.sum()), 1.0, places)]


def compiled(name: str, device: torch.device) -> Finding:
    """Compiled views against eager ones on the same device. The box of one image may be rounded otherwise."""
    recipe, images = makers(name)
    views, images = recipe[0], images.to(device)
    uniform = [views.uniform(IMAGES, torch.Generator().manual_seed(seed)).to(device) for seed in range(2)]
    with computing(tf32=False):
        eager = torch.cat(views.make(images, uniform, torch.float32))
        views.compile()
        made = torch.cat(views.make(images, uniform, torch.float32))
    if views._compiled is None:
        return Finding("eager", Verdict.SLOW, "torch.compile fails for the views, which stay eager", COMPILER)
    errors = (made - eager).abs().flatten(1).amax(1)
    bound = 2 * pixel_bound(views, max(images.shape[-2:]), U32)
    worst = int(errors.nan_to_num(math.inf).argsort()[-2])
    result = difference("pixels of compiled views", made[worst], eager[worst], bound)
    return judged(
        [replace(result, place=f"image {worst % IMAGES}, {result.place}")],
        "views",
        f"{WRONG_RESULT}; \
until then set compile_views=false",
    )
