"""The look and the parts of all figures; of a run, learning curves and the evaluators' artifacts, as PNG beside data.

Matplotlib is imported when a plot is drawn, and used without pyplot: no window, no global state. The colours are those
of Okabe and Ito, which are distinct for every kind of colour vision; lines differ in dashes and markers too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ssl_bench import files
from ssl_bench.disk.patience import make_folder
from ssl_bench.evaluate.artifacts import Artifact, Curve, Distribution, Histogram, Regions
from ssl_bench.record import rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

log = logging.getLogger(__name__)

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe-Ito without yellow
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DPI = 120
STYLE = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3}
STYLE |= {"text.parse_math": False}  # names of users are no formulas
LABELS = {"loss": "loss (nats)", "information": "information (nats)", "images_per_second": "speed (images/s)"}
F = TypeVar("F", bound="Figure")
CLOCKS = ("step", "epoch", "seconds")


def write_artifacts(folder: Path, artifacts: Mapping[str, Artifact], record: Path | None = None) -> dict[str, Path]:
    """Write each artifact as ``<name>.json`` and draw it as ``<name>.png``; return the PNG files by name.

    Args:
        folder: created if there is something to write. A ``/`` in a name becomes ``-`` in the file name.
        record: the ``metrics.jsonl`` whose learning curves are drawn as ``curves.png``.

    A plot that cannot be drawn is a warning, since its data is there. A file that cannot be written is an OSError.
    """
    pictures: dict[str, Path] = {}

    def picture(name: str, make: Callable[..., Figure | None], *given: Any) -> None:
        path = folder / f"{_file(name)}.png"
        try:
            png = render(make, *given)
        except Exception as error:  # a broken matplotlib raises many kinds of errors
            log.warning("%s was not drawn: %s", path, error)
            return
        if png:
            files.write_bytes(path, png)
            pictures[name] = path

    recorded = [] if record is None else rows.read(record)
    if artifacts or recorded:
        make_folder(folder)
    for name, artifact in artifacts.items():
        data = {"kind": type(artifact).__name__.lower(), **dataclasses.asdict(artifact)}
        files.write_json(folder / f"{_file(name)}.json", data)
        picture(name, draw, artifact, name)
    if recorded:
        picture("curves", learning_curves, recorded)
    return pictures


def _file(name: str) -> str:
    return name.replace("/", "-")


def render(make: Callable[..., Figure | None], *given: Any) -> bytes:
    """Draw a figure as PNG with matplotlib's defaults and our style, ignoring the machine's matplotlibrc."""
    import matplotlib.style

    with matplotlib.style.context(["default", STYLE]):
        buffer, figure = io.BytesIO(), make(*given)
        if figure is not None:
            figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


@contextlib.contextmanager
def panels(
    make: Callable[..., F], size: tuple[float, float], widths: Sequence[float] = (1,)
) -> Iterator[tuple[F, list[Axes]]]:
    """In matplotlib's defaults and our style, a figure of that class and size in inches, with panels side by side.

    Args:
        widths: of the panels, relative to each other.
    """
    import matplotlib.style

    with matplotlib.style.context(["default", STYLE]):
        figure = make(size, layout="constrained")
        yield figure, list(figure.subplots(1, len(widths), squeeze=False, width_ratios=widths)[0])


def line(axis: Any, number: int, x: Any, y: Any, halves: Any = None, **changed: Any) -> None:
    """Draw a line in the colour, dashes and markers of its number.

    Args:
        x, y: sequences of numbers, and ``halves`` of the error bars.
        changed: matplotlib's settings of another look.
    """
    look: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
    look |= {"linestyle": DASHES[number % len(DASHES)]} | changed
    axis.plot(x, y, **look) if halves is None else axis.errorbar(x, y, halves, **{"capsize": 3} | look)


def ticks(axis: Any, places: Sequence[float], names: Sequence[str], doubling: bool = False) -> None:
    """Put a text at each place of the x axis, which has powers of two if the places are ``doubling``."""
    if doubling:
        axis.set_xscale("log", base=2)
    axis.set_xticks(places, names)
    axis.minorticks_off()


def draw(artifact: Artifact, title: str) -> Figure:
    """Figure of an artifact."""
    kinds = {Histogram: _histogram, Regions: _regions, Distribution: _distribution, Curve: _curve}
    made: Figure = kinds[type(artifact)](artifact, title)  # type: ignore[operator]
    return made


def learning_curves(recorded: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Plot every number that is in the rows at two steps or more over the steps; None if there is none."""
    series: dict[str, tuple[list[float], list[float]]] = {}
    for row in recorded:
        for name, value in row.items():
            if name not in CLOCKS and isinstance(value, int | float):
                x, y = series.setdefault(name, ([], []))
                x.append(row["step"])
                y.append(value)
    series = {name: (x, y) for name, (x, y) in series.items() if len(set(x)) > 1}
    if not series:
        return None
    figure, panels = _grid(len(series), 4, fixed=True)
    for i, (panel, (name, (x, y))) in enumerate(zip(panels, series.items(), strict=True)):
        panel.plot(x, y, color=COLOURS[0], linewidth=1, marker="." if len(x) <= 50 else "")
        panel.set_ylabel(LABELS.get(name, name))
        if i + 4 >= len(series):
            panel.set_xlabel("step")
    return figure


def share_range(axes: Sequence[Any]) -> None:
    """Give the panels of one quantity, which the first line of their label says, one range of the y axis."""
    names = [axis.get_ylabel().partition("\n")[0] for axis in axes]
    for axis, name in zip(axes, names, strict=True):
        ends = [end for other, its in zip(axes, names, strict=True) if its == name for end in other.get_ylim()]
        axis.set_ylim(min(ends), max(ends))


def _histogram(histogram: Histogram, title: str) -> Figure:
    """Groups over each other as long as there are colours for them, else in panels side by side."""
    shares = {name: [n / max(1, sum(counts)) for n in counts] for name, counts in histogram.counts.items()}
    of, edges = f"share of the {histogram.of}", histogram.edges
    if len(shares) > len(COLOURS):
        figure, panels = _grid(len(shares), 4, shared=True)
        for panel, (name, share) in zip(panels, shares.items(), strict=True):
            panel.stairs(share, edges, fill=True, color=COLOURS[0])
            panel.set_title(f"{histogram.groups} {name}", fontsize="medium")
        figure.supxlabel(histogram.label, fontsize="medium")
        figure.supylabel(of, fontsize="medium")
        figure.suptitle(title)
        return figure
    figure, (panel,) = _grid(1, 1)
    for i, (name, share) in enumerate(shares.items()):
        panel.stairs(share, edges, color=COLOURS[i], linestyle=DASHES[i], linewidth=1.5, label=name)
    panel.set(xlabel=histogram.label, ylabel=of, title=title)
    panel.legend(title=histogram.groups, frameon=False)
    return figure


def _distribution(distribution: Distribution, title: str) -> Figure:
    """Values as points, quartiles as a box, the median as a bar."""
    figure, (panel,) = _grid(1, 1)
    for i, values in enumerate(distribution.values.values()):
        panel.boxplot(
            values, positions=[i], widths=0.5, whis=(0, 100), medianprops={"color": COLOURS[1], "linewidth": 2}
        )
        # Spread sideways in the order given, so that equal values stay visible.
        places = [i + 0.4 * ((k + 0.5) / len(values) - 0.5) for k in range(len(values))]
        panel.plot(places, values, "o", color=COLOURS[0], markersize=4, alpha=0.7)
    names = [f"{name} ({len(values)} {distribution.of})" for name, values in distribution.values.items()]
    panel.set_xticks(range(len(names)), names)
    panel.set(ylabel=distribution.label, title=title)
    return figure


def _curve(curve: Curve, title: str) -> Figure:
    figure, panels = _grid(len(curve.lines), 2)
    for i, (panel, (name, y)) in enumerate(zip(panels, curve.lines.items(), strict=True)):
        line(panel, i, curve.x, y)
        if curve.doubling:
            ticks(panel, curve.x, [f"{x:g}" for x in curve.x], doubling=True)
        panel.set(xlabel=curve.label, ylabel=name)
    figure.suptitle(title)
    return figure


def _regions(regions: Regions, title: str) -> Figure:
    """The photo with its instances below, and the maps to the right in rows of ``columns``."""
    from matplotlib.colors import to_rgb
    from matplotlib.figure import Figure
    from PIL import Image

    bright = [to_rgb(colour) for colour in (*COLOURS, "#F0E442")]
    digits = [*bright, *(tuple(0.5 * c for c in colour) for colour in bright)]
    colours = {f"{i:x}": colour for i, colour in enumerate(digits)} | {".": (1.0, 1.0, 1.0), "x": (0.8, 0.8, 0.8)}
    painted = {name: [[colours[c] for c in line] for line in lines] for name, lines in regions.maps.items()}
    rows = -(-len(painted) // regions.columns)
    figure = Figure((1.7 * (1 + regions.columns), 1.9 * max(2, rows)), layout="constrained")
    panels = figure.subplots(max(2, rows), 1 + regions.columns, squeeze=False)
    for panel in panels.flatten():
        panel.set_axis_off()

    def show(panel: Axes, image: Any, name: str) -> None:
        panel.imshow(image, interpolation="nearest")
        panel.set_title(name, fontsize="small")

    with Image.open(regions.photo) as photo:
        show(panels[0, 0], photo.convert("RGB").resize((448, 448)), "photo")
    if regions.instances is not None:
        show(panels[1, 0], [[colours[c] for c in line] for line in regions.instances], "instances (grey: crowd)")
    for panel, (name, image) in zip(panels[:, 1:].flatten(), painted.items(), strict=False):
        show(panel, image, name)
    figure.suptitle(title)
    return figure


def _grid(count: int, columns: int, shared: bool = False, fixed: bool = False) -> tuple[Figure, list[Axes]]:
    """Figure with ``count`` panels, row by row.

    Args:
        shared: the panels share their axes.
        fixed: the margins are, instead of fitted to the texts: every run draws such a figure, and fitting takes half of
            the time.
    """
    from matplotlib.figure import Figure

    columns = min(count, columns)
    rows = -(-count // columns)
    width, height = (5.5, 3.8) if count == 1 else (3.0, 2.0) if columns > 2 else (4.0, 3.2)  # inches
    across, up = width * columns, height * rows + (0.4 if shared else 0)
    figure = Figure((across, up), layout=None if fixed else "constrained")
    axes = figure.subplots(rows, columns, sharex=shared, sharey=shared, squeeze=False).flatten()
    for unused in axes[count:]:
        unused.remove()
    if fixed:
        left, below, gap = 0.75, 0.45, 0.15  # inches, of each panel
        blank = (left + gap) / (width - left - gap), (below + gap) / (height - below - gap)
        figure.subplots_adjust(left / across, below / up, 1 - gap / across, 1 - gap / up, *blank)
    return figure, list(axes[:count])
