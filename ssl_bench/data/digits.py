"""Scattered digits: the task that needs no download and that pixels alone do not solve.

scikit-learn's 1,797 handwritten digits of 8 x 8 are rotated, scaled and moved over a larger canvas, once and for all
per image, under noise. Raw pixels classify the plain digits at 97%, these at about 63% (kNN).
"""

import math
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from ssl_bench.data.arrays import Dataset, Images

TRAIN = 1347  # images to train on; the other 450 are the test set


class ScatteredDigits(Dataset):
    """The scattered digits at ``size`` x ``size`` pixels."""

    def check(self) -> int:
        if self.size < 12 or self.channels != 1:
            raise ValueError(f"size={self.size} must be at least 12, and channels 1")
        return TRAIN

    def pretrain(self) -> Images:
        return self.split("train")

    def split(self, name: str) -> Images:
        images, labels = scatter(self.size)
        rows = slice(0, TRAIN) if name == "train" else slice(TRAIN, None)
        return Images([images[rows]], labels[rows])


def scatter(size: int) -> tuple[Tensor, Tensor]:
    """All digits in scikit-learn's order: uint8 [1797, 1, size, size] and int64 [1797], the same on every machine."""
    bundled = _bundled()
    digits = bundled[:, :-1].float().view(-1, 1, 8, 8) / 16  # [N, 1, 8, 8] in [0, 1]
    n, generator = len(digits), torch.Generator().manual_seed(0)
    uniform = torch.rand(n, 4, generator=generator) * 2 - 1  # [N, 4] in [-1, 1)
    angle = uniform[:, 0] * math.radians(25)
    scale = 1.7 * 1.2 ** uniform[:, 1]  # of the 8 x 8 digit: 1.4 to 2.0 times
    # Half-widths are in units of the canvas (-1 .. 1); the digit stays inside it.
    half = 8 * scale / size  # [N]
    shift = 0.3 * uniform[:, 2:] * (1 - half).clamp(min=0)[:, None]  # [N, 2]
    cos, sin = torch.cos(angle) / half, torch.sin(angle) / half
    rotation = torch.stack([torch.stack([cos, sin], -1), torch.stack([-sin, cos], -1)], 1)  # [N, 2, 2] canvas to digit
    theta = torch.cat([rotation, -rotation @ shift[..., None]], -1)  # [N, 2, 3]
    canvas = grid_sample(digits, affine_grid(theta, [n, 1, size, size], align_corners=False), align_corners=False)
    noise = 0.25 * torch.randn(canvas.shape, generator=generator)
    pixels = ((canvas + noise).clamp(0, 1) * 255).round().to(torch.uint8)
    return pixels.contiguous(memory_format=torch.channels_last), bundled[:, -1].long()


def _bundled() -> Tensor:
    """Scikit-learn's digits, [1797, 65]: 64 pixels from 0 to 16, and the label.

    Read from its file: importing the package would take half a second, a good part of a short run's start.
    """
    (package,) = find_spec("sklearn").submodule_search_locations  # type: ignore[union-attr, misc]
    return torch.from_numpy(np.loadtxt(Path(package) / "datasets" / "data" / "digits.csv.gz", delimiter=","))
