"""The look and the parts of all figures, and the evaluators' artifacts as PNG beside data.

Matplotlib is imported when a plot is drawn, and used without pyplot: no window, no global state. The colours are those
of Okabe and Ito, which are distinct for every kind of colour vision; lines differ in dashes and markers too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.evaluate.artifacts import Artifact, Curve, Histogram, Regions

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe-Ito without yellow
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
STYLE = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3}
# A name of a user is no formula.
STYLE |= {"text.parse_math": False, "legend.frameon": False, "axes.titlesize": 9, "figure.titlesize": 9}
PLACES = "0a1b2c3d4e5f6-7x8-9-"  # of the digits of Regions in the colour map tab20, whose pairs are dark and light


def write_artifacts(folder: Path, artifacts: Mapping[str, Artifact]) -> dict[str, Path]:
    """Write each artifact as ``<name>.json`` and draw it as ``<name>.png``; return the PNG files by name.

    Args:
        folder: created if there is something to write. A ``/`` in a name becomes ``-`` in the file name.

    A plot that cannot be drawn is a warning, since its data is there. A file that cannot be written is an OSError.
    """
    pictures: dict[str, Path] = {}
    for name, artifact in artifacts.items():
        path = folder / f"{name.replace('/', '-')}.png"
        files.make_folder(folder)
        data = {"kind": type(artifact).__name__.lower(), **dataclasses.asdict(artifact)}
        files.write_json(path.with_name(f"{path.stem}.json"), data)
        try:
            png = render(draw, artifact, name)
        except Exception as error:  # a broken matplotlib raises many kinds of errors
            logging.getLogger(__name__).warning("%s was not drawn: %s", path, error)
            continue
        files.write_bytes(path, png)
        pictures[name] = path
    return pictures


def render(make: Callable[..., Any], *given: Any) -> bytes:
    """Draw a figure as PNG."""
    buffer = io.BytesIO()
    make(*given).savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


@contextlib.contextmanager
def panels(
    count: int, size: tuple[float, float], across: int = 99, layout: Any = "constrained", kind: Any = None, **of: Any
) -> Iterator[tuple[Any, list[Any]]]:
    """In our style, whatever the machine's matplotlibrc has, a figure with panels row by row.

    Args:
        size: of a panel, in inches.
        across: the most panels in a row.
        layout: how the figure makes room for texts; None: it does not, which is fast.
        kind: the class of the figure, if not matplotlib's.
        of: options of ``Figure.subplots``.
    """
    import matplotlib.style
    from matplotlib.figure import Figure

    across, up = min(count, across), -(-count // min(count, across))
    with matplotlib.style.context(["default", STYLE]):
        figure = (kind or Figure)((size[0] * across, size[1] * up), layout=layout)
        axes = figure.subplots(up, across, squeeze=False, **of).flatten()
        for unused in axes[count:]:
            unused.remove()
        yield figure, list(axes[:count])


def line(axis: Any, number: int, x: Any, y: Any, halves: Any = None, **changed: Any) -> None:
    """Draw a line in the colour, dashes and markers of its number.

    Args:
        x, y: sequences of numbers, and ``halves`` of the error bars.
        changed: matplotlib's settings of another look.
    """
    look: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
    look |= {"linestyle": DASHES[(number + number // len(COLOURS)) % len(DASHES)]} | changed
    axis.plot(x, y, **look) if halves is None else axis.errorbar(x, y, halves, **{"capsize": 3} | look)


def ticks(axis: Any, places: Sequence[float], names: Sequence[str], doubling: bool = False) -> None:
    """Put a text at each place of the x axis, which has powers of two if the places are ``doubling``."""
    if doubling:
        axis.set_xscale("log", base=2)
    axis.set_xticks(places, names)
    axis.minorticks_off()


def draw(artifact: Artifact, title: str) -> Any:
    """Figure of an artifact."""
    if isinstance(artifact, Regions):
        return _regions(artifact, title)
    lines = artifact.lines if isinstance(artifact, Curve) else {}
    with panels(len(lines) or 1, (4.0, 3.2) if lines else (5.5, 3.8), 2) as (figure, axes):
        figure.suptitle(title)
        axis = axes[0]
        if isinstance(artifact, Curve):
            for i, (axis, (name, y)) in enumerate(zip(axes, lines.items(), strict=True)):
                line(axis, i, artifact.x, y)
                if artifact.doubling:
                    ticks(axis, artifact.x, [f"{x:g}" for x in artifact.x], doubling=True)
                axis.set(xlabel=artifact.label, ylabel=name)
        elif isinstance(artifact, Histogram):
            for i, (name, counts) in enumerate(artifact.counts.items()):
                shares = [n / max(1, sum(counts)) for n in (*counts, counts[-1])]
                line(axis, i, artifact.edges, shares, drawstyle="steps-post", marker="", label=name)
            axis.set(xlabel=artifact.label, ylabel=f"share of the {artifact.of}")
            axis.legend(title=artifact.groups)
        else:
            names = [f"{name} ({len(values)} {artifact.of})" for name, values in artifact.values.items()]
            axis.boxplot(list(artifact.values.values()), widths=0.5, whis=(0, 100), tick_labels=names)
            for i, values in enumerate(artifact.values.values(), 1):
                axis.plot([i] * len(values), values, "o", color=COLOURS[0], markersize=4, alpha=0.5)
            axis.set_ylabel(artifact.label)
    return figure


def _regions(regions: Regions, title: str) -> Any:
    """The photo and its instances, and below them the maps in rows of ``columns``."""
    from PIL import Image

    blank = {" " * (i + 1): ["."] for i in range(regions.columns - 2)}  # titles that nobody sees
    texts = {"instances (grey: crowd)": regions.instances or ["."], **blank, **regions.maps}
    with Image.open(regions.photo) as photo:
        images: dict[str, Any] = {"photo": photo.convert("RGB")}
    for name, lines in texts.items():
        images[name] = [[math.nan if digit == "." else PLACES.index(digit) for digit in line] for line in lines]
    with panels(len(images), (1.7, 1.9), max(2, regions.columns)) as (figure, axes):
        figure.suptitle(title)
        for axis, (name, image) in zip(axes, images.items(), strict=True):
            axis.imshow(image, "tab20", vmin=0, vmax=19, interpolation="nearest")
            axis.set_title(name, fontsize="small")
            axis.set_axis_off()
    return figure
