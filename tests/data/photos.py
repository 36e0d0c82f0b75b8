"""Make folders of photos and of arrays, and open them as datasets."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ssl_bench.config.compose import load
from ssl_bench.training import build

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
    return build.dataset(own(root, *overrides))


def names(source: Any) -> list[str]:
    return [source.name(i) for i in range(len(source))]


def patches(count: int, channels: int = 5, dtype: str = "uint8", seed: int = 0, side: int = 12) -> tuple[Any, Any]:
    """Noise with a bright patch somewhere in one channel, which is the class of the image."""
    random, labels = np.random.default_rng([seed, channels]), np.arange(count) % channels
    images = random.standard_normal((count, side, side, channels))
    for image, label in zip(images, labels, strict=True):
        top, left = random.integers(0, side - 3, 2)
        image[top : top + 4, left : left + 4, label] += 3
    return (128 + 20 * images.clip(-6, 6)).astype(dtype), labels


def arrays_in(root: Path, counts: tuple[int, ...] = (60, 30), **options: Any) -> Path:
    """Write the arrays of a training and of a test split, if there are two counts."""
    root.mkdir(exist_ok=True)
    for seed, (split, count) in enumerate(zip(("train", "test"), counts, strict=False)):
        for kind, array in zip(("images", "labels"), patches(count, seed=seed, **options), strict=True):
            np.save(root / f"{split}_{kind}.npy", array)
    return root
