"""A picture of features: the nearest neighbours of some images.

Shapes: N images; D features; Q drawn images; k neighbours of each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ssl_bench import files
from ssl_bench.data.prepare import drawn_channels, in_bytes
from ssl_bench.data.source import Source
from ssl_bench.errors import reason
from ssl_bench.evaluate.knn import SHORTEST
from ssl_bench.record.drawing import COLOURS, Panel, as_png, figure_of, picture
from ssl_bench.seeding import stream

NAME = "neighbours.png"
QUERIES, NEIGHBOURS = 12, 8  # Q and k at most


def write_picture(folder: Path, features: Tensor, images: Source, label: Callable[[int], str], seed: int) -> str:
    """Draw ``neighbours.png`` of features [N, D]; return a sentence that says what it shows, or why it was not drawn.

    Args:
        images: N, in their order.
        label: of an image by its number; empty: it has none.
        seed: draws the images.
    """
    drawn = torch.randperm(len(images), generator=torch.Generator().manual_seed(stream("pictures", seed)))[:QUERIES]
    try:
        files.write_bytes(folder / NAME, as_png(_draw(features, label, drawn, images)))
    except Exception as error:  # of matplotlib; the features are there
        return f"{NAME} was not drawn: {reason(error)}"
    return f"{NAME}: {len(drawn)} images and the nearest of all {len(images):,} by cosine, drawn by seed {seed}"


def nearest(features: Tensor, drawn: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the nearest other images of some images by the cosine of their features [N, D].

    Args:
        drawn: [Q] their numbers.
        k: at most as many neighbours as there are.

    Returns:
        Cosines, float32, and numbers [Q, min(k, N - 1)], the nearest first; of equal ones the lower number.
    """
    cosines = F.normalize(features[drawn], dim=1) @ features.T / features.norm(dim=1).clamp_min(SHORTEST)  # [Q, N]
    cosines[range(len(drawn)), drawn] = -torch.inf
    best, k = cosines.sort(dim=1, descending=True, stable=True), min(k, len(features) - 1)
    return best.values[:, :k], best.indices[:, :k]


def _picture(image: Tensor) -> np.ndarray:
    """An image as uint8 [h, w, 3]: the first three channels of more, the first one of two.

    Numbers other than uint8 are drawn from the lowest to the highest value of a channel.
    """
    x = image[: drawn_channels(len(image))]
    if x.dtype != torch.uint8:
        x = in_bytes(x.float(), x.amin((1, 2), keepdim=True), x.amax((1, 2), keepdim=True))
    return x.expand(3, -1, -1).permute(1, 2, 0).numpy()


def _draw(features: Tensor, label: Callable[[int], str], drawn: Tensor, images: Source) -> Any:
    """A row for each drawn image, which stands on its left."""
    cosines, index = nearest(features, drawn, NEIGHBOURS)
    numbers, panels = torch.cat([drawn[:, None], index], 1), list[Panel]()  # [Q, 1 + k]
    for place, image in enumerate(images.take(numbers.flatten())):
        row, column = divmod(place, numbers.shape[1])
        own, its = label(int(drawn[row])), label(int(numbers[row, column]))
        cosine = f"{cosines[row, column - 1]:.3f}\n" if column else ""
        colour = COLOURS[its != own] if column and own else "black"
        title = {"label": f"{cosine}{its:.16}", "fontsize": 7, "color": colour}
        panels.append(partial(picture, image=_picture(image), title=title))
    words = "; blue: of the same class" * any(map(label, drawn.tolist()))
    text = f"An image, and right of it its nearest neighbours with the cosine{words}"
    sides = {"left": 0.01, "bottom": 0.01, "right": 0.99, "top": 1 - 0.8 / (1.36 * len(drawn)), "wspace": 0.05}
    return figure_of(panels, (0.95, 1.36), numbers.shape[1], text, gridspec_kw={**sides, "hspace": 0.3})
