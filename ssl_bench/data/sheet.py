"""A picture of some images and the views that training makes of them: ``ssl-bench prepare ... --show sheet.png``.

A column has an image of the first batch and, below it, its views. Floats are drawn from the lowest to the highest value
of each channel in the images of the sheet.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from ssl_bench import files
from ssl_bench.data.loader import Loader
from ssl_bench.data.source import Source
from ssl_bench.data.views import Views

if TYPE_CHECKING:
    from PIL.Image import Image

LEAST, GAP = 112, 4  # pixels: the smallest side of a tile, the gap between tiles
FRAME = 96  # grey level between and around images


def sheet(images: Source, views: Sequence[Views], seed: int, count: int) -> "Image":
    """Draw the first ``count`` images of a training and their views."""
    from PIL import Image

    step = next(Loader(images, views, count, torch.device("cpu"), seed, torch.float32).steps(0, 1))
    taken, made = step.images, [x.clone() for x in step.batch().views]
    for x, view in zip(made, views, strict=True):
        for channel, (mean, std) in enumerate(zip(view.normalize.mean or (), view.normalize.std, strict=True)):
            x[:, channel].mul_(std).add_(mean)
    low, high = torch.zeros(()), torch.ones(())
    if isinstance(taken, Tensor) and taken.is_floating_point():
        low, high = taken.amin((0, 2, 3), keepdim=True), taken.amax((0, 2, 3), keepdim=True)  # [1, C, 1, 1]
        taken = in_bytes(taken, low, high)
    rows = [taken, *(in_bytes(x, low, high) for x in made)]
    side = views[0].size * -(-LEAST // views[0].size)
    channels = drawn_channels(views[0].normalize.split(step.images)[0] or len(step.images[0]))
    tiles = torch.cat([torch.cat([tile(image[:channels], side) for image in row], 2) for row in rows], 1)
    return Image.fromarray(tiles.permute(1, 2, 0).numpy())


def write_png(path: Path, picture: "Image") -> None:
    """Write a picture as a PNG.

    Raises:
        OSError: the file cannot be written.
    """
    files.write(path, lambda file: picture.save(file, "PNG"))


def in_bytes(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Values as uint8, ``low`` as 0 and ``high`` as 255."""
    return ((x - low) / (high - low)).nan_to_num_().mul_(255).round_().clamp_(0, 255).to(torch.uint8)


def drawn_channels(channels: int) -> int:
    """How many channels of a picture are drawn: three as colours, or one as grey."""
    return 3 if channels > 2 else 1


def tile(image: Tensor, side: int) -> Tensor:
    """uint8 [C, h, w], C 1 or 3 -> uint8 [3, side + GAP, side + GAP], with a longer side of ``side``."""
    scale = side / max(image.shape[1:])
    height, width = (max(1, round(length * scale)) for length in image.shape[1:])
    # Small images are magnified so that their pixels can be seen.
    mode: dict[str, Any] = {"mode": "nearest"} if scale >= 1 else {"mode": "bilinear", "antialias": True}
    scaled = interpolate(image[None].float(), (height, width), **mode)[0].round().to(torch.uint8).expand(3, -1, -1)
    return pad(scaled, (0, side + GAP - width, 0, side + GAP - height), value=FRAME)
