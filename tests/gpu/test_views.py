"""The view of a plugin on a GPU: its hole is in every view, however a step makes them."""

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch

from ssl_bench.data.batch import Step
from ssl_bench.data.pixels import pad
from tests.door.test_plugins import parts  # noqa: F401  # writes the files of the example

COUNT, CHUNKS = 6, 3


def share_of_holes() -> dict[str, float]:
    """The share of pixels in a hole, by the sizes of the images and by how the views are made."""
    import my_parts  # type: ignore[import-not-found]  # in the working directory

    shares = {}
    for name, sides in {"one size": [(24, 24)], "many sizes": [(20, 31), (44, 18)]}.items():
        photos: Any = [
            torch.full((1, *sides[i % len(sides)]), 255, dtype=torch.uint8, device="cuda") for i in range(COUNT)
        ]
        images = torch.stack(photos) if len(sides) == 1 else pad(photos)
        for compiled in (False, True):
            hole = my_parts.Hole(6, size=16, flip=0.0)
            with patch.object(torch, "compile", partial(torch.compile, backend="eager")):
                hole.compile() if compiled else None
            uniform = [hole.uniform(COUNT, torch.Generator("cuda").manual_seed(seed)) for seed in range(2)]
            labels = torch.zeros(COUNT, device="cuda").long()
            step = Step(labels, labels, images, uniform, [hole] * 2, torch.float32)
            made = {"at once": [step.batch()], "in chunks": [step.batch(slice(c, None, CHUNKS)) for c in range(CHUNKS)]}
            for way, batches in made.items():
                x = torch.cat([view for batch in batches for view in batch.views])
                shares[f"{name}, {way}{', compiled' * compiled}"] = float((x == 0).float().mean())
    return shares


@pytest.mark.usefixtures("parts")
def test_a_view_of_a_plugin_has_its_hole_on_every_path(gpu: Callable[..., Any]) -> None:
    shares = gpu(share_of_holes)
    assert len(shares) == 8 and shares == dict.fromkeys(shares, 36 / 256)
