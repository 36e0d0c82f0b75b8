"""``ssl-bench prepare dataset=multi_digits --show sheet.png``: some images and the views that training makes of them.

A column is an image of the first batch: as it is, then its views. Further channels, which are constants of an image
(see bits.py), are a strip of bars below each, the first on the left and white for 1.

C channels of the picture  E further channels
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from ssl_bench import files
from ssl_bench import parts as assemble
from ssl_bench.data.arrays import Source
from ssl_bench.data.loader import Loader
from ssl_bench.data.views import Views

LEAST, STRIP, GAP = 112, 16, 4  # pixels: the side of a tile at least, the height of its bars, what lies between tiles
FRAME = 96  # the grey between and around images


def show(config: dict[str, Any], path: Path, count: int = 8) -> str:
    """Writes the sheet as a PNG and says what is on it.

    Raises:
        ConfigError: the dataset is not there.
        OSError: the file cannot be written.
    """
    from PIL import Image

    dataset, views = assemble.dataset(config), assemble.views(config)
    count = min(count, dataset.check())
    image = Image.fromarray(sheet(dataset.pretrain(), views, config["seed"], count).permute(1, 2, 0).numpy())
    files.write(path, lambda file: image.save(file, "PNG"))
    return f"{path} shows {count} images of dataset={config['choices']['dataset']}, each above its {len(views)} views"


def sheet(images: Source, views: Sequence[Views], seed: int, count: int) -> Tensor:
    """The first images of a training and their views, uint8 [3, height, width]."""
    step = next(Loader(images, views, count, torch.device("cpu"), seed, torch.float32).steps(0, 1))
    rows = [step.images, *(pixels(x, view) for x, view in zip(step.batch().views, views, strict=True))]
    picture, _ = views[0].normalize.split(step.images)
    side = views[0].size * -(-LEAST // views[0].size)
    return torch.cat([torch.cat([tile(image, picture, side) for image in row], 2) for row in rows], 1)


def pixels(x: Tensor, views: Views) -> Tensor:
    """A view [n, C + E, S, S] as it was before it was normalised, uint8."""
    x = x.clone()
    for channel, (mean, std) in enumerate(zip(views.normalize.mean or (), views.normalize.std, strict=True)):
        x[:, channel].mul_(std).add_(mean)
    return x.mul_(255).round_().clamp_(0, 255).to(torch.uint8)


def tile(image: Tensor, picture: int, side: int) -> Tensor:
    """uint8 [C + E, h, w] -> uint8 [3, height, width]: the picture in a square and its constants as bars below."""
    parts = []
    if picture:
        scale = side / max(image.shape[1:])
        size = [round(length * scale) for length in image.shape[1:]]
        # Small images are magnified with their pixels to be seen.
        how: dict[str, Any] = {"mode": "nearest"} if scale >= 1 else {"mode": "bilinear", "antialias": True}
        square = interpolate(image[None, :picture].float(), size, **how)[0].round().to(torch.uint8).expand(3, -1, -1)
        parts.append(pad(square, (0, side - size[1], 0, side - size[0]), value=FRAME))
    if len(image) > picture:
        bars = image[None, picture:, 0, 0][None].float()  # [1, 1, E]
        parts.append(interpolate(bars, side).to(torch.uint8).expand(3, STRIP, side))
    return torch.cat([pad(part, (0, GAP, 0, GAP), value=FRAME) for part in parts], 1)
