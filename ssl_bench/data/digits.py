"""Scattered digits: a dataset without download that raw pixels do not solve.

Each of scikit-learn's 1,797 handwritten digits of 8 x 8 pixels is rotated, scaled and moved on a larger canvas, always
in the same way, and noise is added. kNN on raw pixels reaches 97% on the plain digits and about 63% on these.
"""

import math
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from ssl_bench.data.dataset import Dataset
from ssl_bench.data.source import Images
from ssl_bench.errors import require

TRAIN = 1347  # images to train on; the other 450 are the test set


class ScatteredDigits(Dataset):
    """The scattered digits at ``size`` x ``size`` pixels.

    Raises:
        InvalidValue: the size is below 12, or there is not one channel.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.size >= 12, "size", self.size, "12 or more")
        require(self.channels == 1, "channels", self.channels, "1")

    def check(self) -> int:
        return TRAIN

    def split(self, name: str) -> Images:
        images, labels = scatter(self.size)
        rows = slice(0, TRAIN) if name == "train" else slice(TRAIN, None)
        return Images([images[rows].clone()], labels[rows].clone())  # the next split is made of the same digits


@cache
def scatter(size: int) -> tuple[Tensor, Tensor]:
    """All digits in scikit-learn's order: uint8 [1797, 1, size, size] and int64 [1797], equal on every machine."""
    bundled = _bundled()
    digits = bundled[:, :-1].float().view(-1, 1, 8, 8) / 16  # [N, 1, 8, 8] in [0, 1]
    n, generator = len(digits), torch.Generator().manual_seed(0)
    uniform = torch.rand(n, 4, generator=generator) * 2 - 1  # [N, 4] in [-1, 1)
    angle = uniform[:, 0] * math.radians(25)
    scale = 1.7 * 1.2 ** uniform[:, 1]  # of the 8 x 8 digit: 1.4 to 2.0 times
    # Half-widths are in units of the canvas (-1 .. 1); the digit stays inside the canvas.
    half = 8 * scale / size  # [N]
    shift = 0.3 * uniform[:, 2:] * (1 - half).clamp(min=0)[:, None]  # [N, 2]
    cos, sin = torch.cos(angle) / half, torch.sin(angle) / half
    rotation = torch.stack([cos, sin, -sin, cos], -1).view(-1, 2, 2)  # [N, 2, 2] from canvas to digit
    theta = torch.cat([rotation, -rotation @ shift[..., None]], -1)  # [N, 2, 3]
    canvas = grid_sample(digits, affine_grid(theta, [n, 1, size, size], align_corners=False), align_corners=False)
    noise = 0.25 * torch.randn(canvas.shape, generator=generator)
    pixels = ((canvas + noise).clamp(0, 1) * 255).round().to(torch.uint8)
    return pixels.contiguous(memory_format=torch.channels_last), bundled[:, -1].long()


def _bundled() -> Tensor:
    """Read scikit-learn's digits, [1797, 65]: 64 pixels from 0 to 16, and the label.

    They come straight from the file, because importing the package takes half a second.
    """
    (package,) = find_spec("sklearn").submodule_search_locations  # type: ignore[union-attr, misc]
    return torch.from_numpy(np.loadtxt(Path(package) / "datasets" / "data" / "digits.csv.gz", delimiter=","))
