"""Pictures of features: the nearest neighbours of some images, and a map of many in two dimensions.

Shapes: N images; D features; Q drawn images; k neighbours of each; M images on the map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ssl_bench import files
from ssl_bench.data.prepare import drawn_channels, in_bytes
from ssl_bench.data.source import Source
from ssl_bench.data.splits import in_order
from ssl_bench.errors import reason
from ssl_bench.evaluate.knn import nearest_entries, read_keys
from ssl_bench.record.plots import COLOURS, panels, render
from ssl_bench.seeding import stream

QUERIES, NEIGHBOURS, MAPPED = 12, 8, 2000  # Q, k, M at most
LEAST = 5  # images of a map
Label = Callable[[int], str]


def write_pictures(folder: Path, features: Tensor, images: Source, label: Label, seed: int) -> Iterator[str]:
    """Draw ``neighbours.png`` and ``map.png`` of features [N, D]; say what they show.

    Of fewer than LEAST images there are none.

    Args:
        images: N, in their order.
        label: of an image by its number; empty: it has none.
        seed: draws the images.
    """
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(stream("pictures", seed)))
    some, many, count = order[:QUERIES], order[:MAPPED], f"{len(images):,}"
    of = f"t-SNE of {f'all {count}' if len(many) == len(images) else f'{len(many):,} of {count}'} images"
    sentences: dict[str, tuple[str, Callable[..., Any], Any]] = {
        "neighbours.png": (f"{len(some)} images and the nearest of all {count} by cosine", _neighbours, (some, images)),
        "map.png": (of, _map, (many, seed, of)),
    }
    for name, (sentence, draw, given) in sentences.items() if len(images) >= LEAST else ():
        try:
            files.write_bytes(folder / name, render(draw, features, label, *given))
        except Exception as error:  # of matplotlib or scikit-learn; the features are there
            yield f"{name} was not drawn: {reason(error)}"
        else:
            yield f"{name}: {sentence}, drawn by seed {seed}"


def nearest(features: Tensor, drawn: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the nearest other images of some images by the cosine of their features [N, D].

    Args:
        drawn: [Q] their numbers.
        k: at most as many neighbours as there are.

    Returns:
        Cosines, float32, and numbers [Q, min(k, N - 1)], the nearest first; of equal ones the lower number.
    """
    best = nearest_entries(features[drawn], features, k + 1)
    cosines, index = read_keys(best[:, : min(k + 1, len(features))])
    others = index != drawn[:, None]
    others[:, -1] &= ~others.all(1)  # of more than k + 1 equal images, an image may not be among its own neighbours
    return cosines[others].view(len(drawn), -1), index[others].view(len(drawn), -1)


def mapped(features: Tensor, seed: int) -> Any:
    """Places [M, 2] of the unit vectors of features [M, D] in the plane.

    Raises:
        ValueError: all features are the same, for which scikit-learn 1.9 ends the process.
    """
    unit = normalize(features, dim=1).numpy()
    if np.ptp(unit, axis=0).max() < 1e-6:
        raise ValueError("the features of all images point in one direction")
    from sklearn.manifold import TSNE

    tsne = TSNE(perplexity=min(30, (len(features) - 1) / 3), init="pca", random_state=seed % 2**32)
    return tsne.fit_transform(unit)


def _picture(image: Tensor) -> np.ndarray:
    """An image as uint8 [h, w, 3]: the first three channels of more, the first one of two.

    Numbers other than uint8 are drawn from the lowest to the highest value of a channel.
    """
    image = image[: drawn_channels(len(image))]
    if image.dtype != torch.uint8:
        x = image.float()
        image = in_bytes(x, x.amin((1, 2), keepdim=True), x.amax((1, 2), keepdim=True))
    return image.expand(3, -1, -1).permute(1, 2, 0).numpy()


def _neighbours(features: Tensor, label: Label, drawn: Tensor, images: Source) -> Any:
    """A row for each drawn image, which stands on its left."""
    cosines, index = nearest(features, drawn, NEIGHBOURS)
    numbers = torch.cat([drawn[:, None], index], 1)  # [Q, 1 + k]
    up, across = numbers.shape
    with panels(up * across, (0.95, 1.36), across, layout=None) as (figure, axes):
        figure.subplots_adjust(0.01, 0.01, 0.99, 1 - 0.8 / (1.36 * up), 0.05, 0.3)
        words = "; blue: of the same class" * any(map(label, drawn.tolist()))
        figure.suptitle(f"An image, and right of it its nearest neighbours with the cosine{words}", x=0.01, ha="left")
        for place, (axis, image) in enumerate(zip(axes, images.take(numbers.flatten()), strict=True)):
            row, column = divmod(place, across)
            own, its = label(int(drawn[row])), label(int(numbers[row, column]))
            cosine = f"{cosines[row, column - 1]:.3f}\n" if column else ""
            colour = "black" if column == 0 or not own else COLOURS[0] if its == own else COLOURS[1]
            axis.imshow(_picture(image), interpolation="antialiased")
            axis.set_title(f"{cosine}{its:.16}", fontsize=7, color=colour)
            axis.set_axis_off()
    return figure


def _map(features: Tensor, label: Label, drawn: Tensor, seed: int, title: str) -> Any:
    """Points coloured by class."""
    from matplotlib import colormaps

    places = mapped(features[drawn], seed)
    of_points = [label(number) for number in drawn.tolist()]
    names = in_order({*of_points} - {""}) + [""] * ("" in of_points)
    palette = colormaps["tab10" if len(names) <= 10 else "turbo"].resampled(len(names))
    with panels(1, (9.6, 7.6)) as (figure, (axis,)):
        axis.set_axis_off()
        axis.set_title(f"{title}, coloured by class" if len(names) > 1 else title)
        for i, name in enumerate(names):
            here = places[[other == name for other in of_points]]
            axis.scatter(*here.T, 9, [palette(i)], linewidths=0, label=f"{name:.16}" or "no class")
        if 1 < len(names) <= 20:
            figure.legend(loc="outside right upper", markerscale=2)
    return figure
