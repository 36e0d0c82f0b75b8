"""``ssl_bench.views`` by name against the views of a run, which Hydra composes."""

import pytest
import torch

from ssl_bench.api import options
from ssl_bench.api.views import views
from ssl_bench.config.compose import load
from ssl_bench.training import build
from tests.door.door import refused

IMAGES = torch.randint(256, (6, 3, 40, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", options.names("augment"))
def test_an_option_makes_the_views_of_a_run(name: str) -> None:
    """Bit for bit, with each image's draws from one generator."""
    run = build.build(load([f"augment={name}", "dataset=cifar10", "framework=simclr"]))
    colours = {key: run.config["dataset"][key] for key in ("mean", "std")}
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    found = views(name, size=32, **colours)(IMAGES, generators[0])
    expected = [make(IMAGES, generators[1]) for make in run.views]
    assert len(found) == len(expected) == (8 if "multicrop" in name else 2)
    for x, y in zip(found, expected, strict=True):
        assert torch.equal(x, y)


def test_options_count_and_the_global_generator() -> None:
    make = views("simclr", size=16, count=3, grayscale=1.0)
    torch.manual_seed(0)
    first = make(IMAGES)
    assert [list(x.shape) for x in first] == [[6, 3, 16, 16]] * 3
    assert all(torch.allclose(x[:, 0], x[:, 1]) for x in first) and not torch.equal(first[0], first[1])
    torch.manual_seed(0)
    assert all(torch.equal(x, y) for x, y in zip(first, make(IMAGES), strict=True))


def test_images_are_bytes() -> None:
    for images in (IMAGES / 255, IMAGES.movedim(1, 3), IMAGES[:0], IMAGES[0]):
        kind = f"{images.dtype} {[*images.shape]}"
        with refused(f"images={kind} uint8 [B, C, H, W] 1 3"):
            views("simclr", size=8)(images)


def test_images_of_numpy_in_any_order_and_a_generator() -> None:
    make = views("simclr", size=8)
    expected = make(IMAGES, torch.Generator().manual_seed(1))
    last = IMAGES.movedim(1, 3).contiguous()
    for images in (IMAGES.numpy(), last.movedim(3, 1), last.numpy().transpose(0, 3, 1, 2)):
        with torch.autocast("cpu", torch.bfloat16):
            found = make(images, torch.Generator().manual_seed(1))
        assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))
