"""Folders of photos that are made by hand, and the datasets of them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from ssl_bench.config.compose import load
from ssl_bench.training.parts import Parts

SIZE = ["dataset.size=16", "dataset.workers=2"]


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
