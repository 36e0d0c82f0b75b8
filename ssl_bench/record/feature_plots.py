"""Pictures of a file of features: the nearest neighbours of some images, and a map of many in two dimensions.

Shapes: N images; D features; Q drawn images; k neighbours of each; M images on the map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ssl_bench import files
from ssl_bench.data.sheet import drawn_channels, in_bytes, scaled
from ssl_bench.data.source import Source
from ssl_bench.data.splits import in_order
from ssl_bench.errors import reason
from ssl_bench.evaluate.knn import nearest_entries, read_keys
from ssl_bench.record.plots import COLOURS, render
from ssl_bench.seeding import stream

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

QUERIES, NEIGHBOURS, MAPPED = 12, 8, 2000  # Q, k, M at most
LEAST = 5  # images of a map
PIECE = 4096  # rows in memory at once
TILE, THUMBNAIL = 112, 64  # pixels of the longer side
LONGEST = 16  # characters of a label in a picture
APART = 0.1  # between two thumbnails, as a share of the map's sides
THUMBNAILS = 60
COLLAPSED = 1e-6  # range of each number of the unit vectors
MOST_NAMED = 20  # classes in a legend
Label = Callable[[int], str]


def write_pictures(path: Path, images: Source, label: Label, seed: int) -> Iterator[str]:
    """Draw ``neighbours.png`` and ``map.png`` beside a file of features; say what they show.

    Of fewer than LEAST images there are none.

    Args:
        path: of the file.
        images: in the order of its rows.
        label: of an image by its number; empty: it has none.
        seed: draws the images.
    """
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(stream("pictures", seed)))
    some, many, count = order[:QUERIES], order[:MAPPED], f"{len(images):,}"
    title = f"{_method()[0]} of {f'all {count}' if len(many) == len(images) else f'{len(many):,} of {count}'} images"
    sentences: dict[str, tuple[str, Callable[..., Figure], Tensor]] = {
        "neighbours.png": (f"{len(some)} images and the nearest of all {count} by cosine", _neighbours, some),
        "map.png": (title, partial(_map, title, seed), many),
    }
    for name, (sentence, draw, drawn) in sentences.items():
        if len(images) < LEAST:
            continue
        try:
            files.write_bytes(path.with_name(name), render(draw, path, images, label, drawn))
        except Exception as error:  # of matplotlib or scikit-learn; the features are there
            yield f"{name} was not drawn: {reason(error)}"
        else:
            yield f"{name}: {sentence}, drawn by seed {seed}"


def nearest(path: Path, drawn: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Find the nearest other images of some images by the cosine of their features, some rows of the file at a time.

    Args:
        drawn: [Q] their numbers.
        k: at most as many neighbours as there are.

    Returns:
        Cosines, float32, and numbers [Q, min(k, N - 1)], the nearest first; of equal ones the lower number.
    """
    queries = torch.cat([_rows(path, i, i + 1) for i in drawn.tolist()])
    count = len(np.load(path, mmap_mode="r"))
    best = torch.empty(len(drawn), 0, dtype=torch.int64)
    for start in range(0, count, PIECE):
        found = nearest_entries(queries, _rows(path, start, start + PIECE), k + 1, first=start)
        best = torch.cat([best, found], 1).topk(k + 1, 1).values
    cosines, index = read_keys(best[:, : min(k + 1, count)])
    others = index != drawn[:, None]
    others[:, -1] &= ~others.all(1)  # of more than k + 1 equal images, an image may not be among its own neighbours
    return cosines[others].view(len(drawn), -1), index[others].view(len(drawn), -1)


def _rows(path: Path, start: int, stop: int) -> Tensor:
    """Some rows of a file of features; no other part of it stays in memory."""
    return torch.from_numpy(np.array(np.load(path, mmap_mode="r")[start:stop]))


def mapped(features: Tensor, seed: int) -> np.ndarray:
    """Places [M, 2] of the unit vectors of features [M, D] in the plane.

    Raises:
        ValueError: all features are the same, for which scikit-learn 1.9 ends the process.
    """
    unit = normalize(features, dim=1).numpy()
    if np.ptp(unit, axis=0).max() < COLLAPSED:
        raise ValueError("the features of all images point in one direction")
    method, make = _method()
    settings: dict[str, Any] = {"perplexity": min(30, (len(features) - 1) / 3), "init": "pca"}
    if method == "UMAP":
        settings = {"n_neighbors": min(15, len(features) - 1)}
    places: np.ndarray = make(**settings, random_state=seed % 2**32).fit_transform(unit)
    return places


def _method() -> tuple[str, Any]:
    """What makes a map, with its name."""
    try:
        from umap import UMAP
    except ImportError:
        from sklearn.manifold import TSNE

        return "t-SNE", TSNE
    return "UMAP", UMAP


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _pictures(images: Source, numbers: Tensor, side: int) -> list[np.ndarray]:
    """Some images as uint8 [h, w, 3]: the first three channels of more, the first one of two.

    Numbers other than uint8 are drawn from the lowest to the highest value of a channel of an image.
    """
    read = (_in_bytes(image[: drawn_channels(len(image))]) for image in images.take(numbers))
    return [scaled(image, side).permute(1, 2, 0).numpy() for image in read]


def _in_bytes(image: Tensor) -> Tensor:
    x = image.float()
    ends = x.amin((1, 2), keepdim=True), x.amax((1, 2), keepdim=True)
    return image if image.dtype == torch.uint8 else in_bytes(x, *ends)


def _neighbours(path: Path, images: Source, label: Label, drawn: Tensor) -> Figure:
    """A row for each drawn image, which stands on its left."""
    from matplotlib.figure import Figure

    cosines, index = nearest(path, drawn, NEIGHBOURS)
    numbers = torch.cat([drawn[:, None], index], 1)  # [Q, 1 + k]
    across, up, gap, labelled = numbers.shape[1], len(numbers), 0.4, any(map(label, drawn.tolist()))
    height = 1.36 if labelled else 1.22  # of a row, with its captions
    figure = Figure((0.95 * (across + gap), 0.95 * (up * height + 0.5)))
    panel = figure.add_axes((0, 0, 1, 1), xlim=(-0.1, across + gap), ylim=(up * height, -0.5))
    panel.set_axis_off()
    words = "its nearest neighbours, with the cosine" + ("; blue: of the same class" if labelled else "")
    for x, text in ((0.0, "image"), (1 + gap, words)):
        panel.text(x, -0.12, text, fontsize=10)
    pictures = iter(_pictures(images, numbers.flatten(), TILE))
    for row, of_row in enumerate(numbers.tolist()):
        own = label(of_row[0])
        for column, number in enumerate(of_row):
            x, y, its = column + gap * (column > 0), row * height, label(number)
            _show(panel, next(pictures), x, y)
            cosine = "" if column == 0 else f"{cosines[row, column - 1]:.3f}"
            colour = "black" if column == 0 or not own else COLOURS[0] if its == own else COLOURS[1]
            caption = "\n".join(filter(None, (cosine, _short(its))))
            panel.text(x + 0.45, y + 0.94, caption, fontsize=7, color=colour, ha="center", va="top")
    panel.set_aspect("auto")
    return figure


def _show(panel: Axes, picture: np.ndarray, x: float, y: float) -> None:
    """Show a picture in the square with a side of 0.9 whose upper left corner is at (x, y)."""
    height, width = (0.9 * side / max(picture.shape[:2]) for side in picture.shape[:2])
    left, top = x + (0.9 - width) / 2, y + (0.9 - height) / 2
    panel.imshow(picture, extent=(left, left + width, top + height, top), interpolation="antialiased")


def _map(title: str, seed: int, path: Path, images: Source, label: Label, drawn: Tensor) -> Figure:
    """Points coloured by class, and thumbnails of some that do not cover each other."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage

    places = mapped(torch.from_numpy(np.load(path, mmap_mode="r")[drawn.numpy()]), seed)
    of_points = [label(number) for number in drawn.tolist()]
    names = in_order({*of_points} - {""})
    palette: Any = COLOURS
    if len(names) > len(COLOURS):
        table = "tab10" if len(names) <= 10 else "tab20" if len(names) <= MOST_NAMED else "turbo"
        palette = colormaps[table].resampled(len(names))(range(len(names)))
    colours = dict(zip(names, palette, strict=False)) | {"": "#999999" if names else COLOURS[0]}
    figure = Figure((9.6, 7.6), layout="constrained")
    panel = figure.subplots()
    panel.set_axis_off()
    panel.set_title(f"{title}, coloured by class" if names else title)
    for name in ["", *names]:
        here = places[[i for i, other in enumerate(of_points) if other == name]]
        if len(here):
            panel.scatter(here[:, 0], here[:, 1], 9, [colours[name]], linewidths=0, label=_short(name) or "no class")
    if 1 < len(names) <= MOST_NAMED:
        figure.legend(loc="outside right upper", markerscale=2, frameon=False, fontsize=8)
    shares = (places - places.min(0)) / np.maximum(np.ptp(places, axis=0), 1e-9)
    chosen = list[int]()
    for i in range(len(drawn)):
        if len(chosen) < THUMBNAILS and (abs(shares[chosen] - shares[i]).max(1, initial=0) > APART).all():
            chosen.append(i)
    for i, picture in zip(chosen, _pictures(images, drawn[chosen], THUMBNAIL), strict=True):
        frame = {"edgecolor": colours[of_points[i]], "linewidth": 1.5}
        panel.add_artist(AnnotationBbox(OffsetImage(picture, zoom=0.45), places[i], pad=0.1, bboxprops=frame))
    return figure
