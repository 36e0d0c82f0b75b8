"""All that matplotlib draws: figures of panels, which their callers give as plain data.

Matplotlib is imported when a figure is drawn, and used without pyplot: no window, no global state. The colours are
those of Okabe and Ito, which are distinct for every kind of colour vision; lines differ in dashes and markers too.
"""

from __future__ import annotations

import io
import logging
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ssl_bench.evaluate.artifacts import Artifact, Curve, Histogram, Regions

log = logging.getLogger("ssl_bench")

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe-Ito without yellow
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
STYLE = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3}
# A name of a user is no formula.
STYLE |= {"text.parse_math": False, "legend.frameon": False, "axes.titlesize": 9, "figure.titlesize": 9}
PERCENT = "(%)"  # in the label of an axis of shares, which ends within 0 and 100
PLACES = "0a1b2c3d4e5f6-7x8-9-"  # of the digits of Regions in the colour map tab20, whose pairs are dark and light
Settings = Mapping[str, Any]  # of matplotlib
Panel = Callable[[Any], None]  # draws in axes: one of the functions below with its data


@dataclass(frozen=True)
class Line:
    """Points, joined by a line in the colour, dashes and markers of its number.

    Attributes:
        x, y: of the points [P].
        look: settings of another look, and the ``label`` in the legend.
        halves: half of the length of the error bars, of all or of each [P]; None: there are none.
        band: there is a band in place of the error bars.
        values: those of which each y is the mean, drawn as small points [P, any number]; empty: none are drawn.
        aside: by how many points (1/72 inch) the line is moved to the right, since error bars of several lines would
            cover each other. The range of the axes is that of the line where it is not moved. None: it is not moved.
    """

    number: int
    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    look: Settings = field(default_factory=dict)
    halves: Any = None
    band: bool = False
    values: Sequence[Sequence[float]] | np.ndarray = ()
    aside: float | None = None

    def draw(self, axis: Any) -> Any:
        """Draw it in a panel; return what stands for it in a legend."""
        turn, n = divmod(self.number, len(COLOURS))
        look = {"color": COLOURS[n], "marker": MARKERS[n], "linestyle": DASHES[(n + turn) % len(DASHES)], **self.look}
        ends = [] if self.halves is None else [np.subtract(self.y, self.halves), np.add(self.y, self.halves)]
        points = [(x, y) for x, values in zip(self.x, self.values, strict=False) for y in values]
        if self.aside is not None:
            from matplotlib.transforms import offset_copy

            look["transform"] = offset_copy(axis.transData, axis.figure, self.aside, units="points")
            for y in (self.y, *ends):
                axis.update_datalim([*zip(self.x, y, strict=True), *points])
        if points:
            small = {"linestyle": "", "marker": ".", "markersize": 4, "alpha": 0.5, "markevery": None, "label": None}
            axis.plot(*zip(*points, strict=True), **{**look, **small})
        if self.band:
            axis.fill_between(self.x, *ends, color=look["color"], alpha=0.2, linewidth=0)
        if self.band or not ends:
            return axis.plot(self.x, self.y, **look)[0]
        return axis.errorbar(self.x, np.asarray(self.y), self.halves, **{"capsize": 3, **look})


def pooled(samples: Sequence[Sequence[float]] | np.ndarray) -> float | None:
    """The standard deviation within all samples [P, any number] together; None if none has two values."""
    squares, degrees = sum(np.var(of) * len(of) for of in samples), sum(len(of) - 1 for of in samples)
    return float(np.sqrt(squares / degrees)) if degrees else None


def through_means(
    number: int,
    x: Sequence[float] | np.ndarray,
    samples: Sequence[Sequence[float]] | np.ndarray,
    look: Settings,
    **more: Any,
) -> Line:
    """A line through the means of samples [P, any number], with their pooled deviation and their values."""
    deviation = pooled(samples)
    return Line(
        number, x, [*map(np.mean, samples)], look, deviation, values=() if deviation is None else samples, **more
    )


def plot(axis: Any, lines: Sequence[Line], axes: Settings, doubling: bool = False, legend: Any = None) -> None:
    """Draw lines.

    Args:
        axes: settings of the axes, such as ``title`` and ``xlabel``.
        doubling: the x axis has powers of two.
        legend: settings of the legend; None: there is none.
    """
    drawn = [line.draw(axis) for line in lines]
    if doubling:
        axis.set_xscale("log", base=2)
    axis.set(**axes)
    if legend is not None:  # by itself it would leave out names that begin with _
        axis.legend(drawn, [line.look["label"] for line in lines], **legend)


def of_seeds(label: str, few: int, many: int) -> str:
    """The label of the y axis of lines whose points are means of so many seeds, or of some numbers between."""
    seeds = f"{few} seeds" if few == many else f"{few} to {many} seeds"
    return f"{label}\nmean ± pooled deviation of {seeds}" if many > 1 else label


def boxes(axis: Any, values: Sequence[Sequence[float]], axes: Settings) -> None:
    """Draw values at 1, 2, and so on, each with a box whose whiskers are their ends."""
    axis.boxplot(values, widths=0.5, whis=(0, 100))
    for i, of_box in enumerate(values, 1):
        axis.plot([i] * len(of_box), of_box, "o", color=COLOURS[0], markersize=4, alpha=0.5)
    axis.set(**axes)


def intervals(axis: Any, ends: Sequence[tuple[float, float, float]], strong: Sequence[bool], axes: Settings) -> None:
    """Draw horizontal intervals below each other, from value, lower and upper end; those that are strong in colour."""
    for y, ((x, low, high), coloured) in enumerate(zip(ends, strong, strict=True)):
        look: Any = {"fmt": "o", "color": COLOURS[0] if coloured else "#808080", "capsize": 3}
        axis.errorbar([x], [y], xerr=[[x - low], [high - x]], **look)
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set(ylim=(len(ends) - 0.5, -0.5), **axes)
    axis.grid(axis="y", visible=False)


def heat_map(axis: Any, values: Any, texts: dict[Any, str], ends: Sequence[float], label: str, axes: Settings) -> None:
    """Draw values [y, x] as colours between the ``ends``, with texts by their places (y, x)."""
    image = axis.imshow(values, origin="lower", aspect="auto", vmin=ends[0], vmax=ends[1])
    for (y, x), text in texts.items():
        colour = "white" if values[y, x] < sum(ends) / 2 else "black"
        axis.text(x, y, text, ha="center", va="center", color=colour, fontsize="small")
    axis.set(**axes)
    axis.grid(visible=False)
    axis.figure.colorbar(image, ax=axis, label=label)


def picture(axis: Any, image: Any, title: Settings, **shown: Any) -> None:
    """Draw colours [h, w, 3] or values [h, w], by settings of ``imshow``; ``title`` is its ``label`` and look."""
    axis.imshow(image, **shown)
    axis.set_title(**title)
    axis.set(xticks=[], yticks=[], frame_on=False)


def figure_of(
    panels: Sequence[Panel], size: tuple[float, float], across: int = 99, title: str = "", below: Any = None, **of: Any
) -> Any:
    """Draw panels row by row in our style, whatever the machine's matplotlibrc has; a notebook shows the figure.

    Lines with one label of the y axis have one range.

    Args:
        size: of a panel, in inches.
        across: the most panels in a row.
        below: sentences; None: there is no room for any.
        of: options of ``Figure.subplots``; with ``gridspec_kw`` texts have the room that it leaves, which is fast.
    """
    import matplotlib.style
    from matplotlib.figure import Figure

    across, up = min(len(panels), across), -(-len(panels) // min(len(panels), across))
    with matplotlib.style.context(["default", STYLE]):
        drawn: Any = Figure((size[0] * across, size[1] * up), layout=None if "gridspec_kw" in of else "constrained")
        axes = drawn.subplots(up, across, squeeze=False, **of).flatten()
        for panel, axis in zip(panels, axes, strict=False):
            panel(axis)
        for axis in axes[len(panels) :]:
            axis.remove()
        for axis in drawn.axes if len(panels) > 1 and axes[0].lines else ():
            ends = [other.get_ylim() for other in drawn.axes if other.get_ylabel() == axis.get_ylabel()]
            axis.set_ylim(np.min(ends), np.max(ends))
        for axis in (axis for axis in drawn.axes if PERCENT in axis.get_ylabel()):
            axis.set_ylim(max(axis.get_ylim()[0], 0), min(axis.get_ylim()[1], 100))
        if title:
            drawn.suptitle(title, **({} if drawn.get_layout_engine() else {"x": 0.01, "ha": "left"}))
        if below is not None:
            width, every = round(15 * drawn.get_figwidth()), "\n".join(below).splitlines()  # characters of a line
            sentences = [textwrap.fill(sentence, width, break_on_hyphens=False) for sentence in dict.fromkeys(every)]
            drawn.supxlabel("\n".join(sentences), fontsize="x-small", x=0.02, ha="left")
        _take_fonts(drawn)
    drawn._repr_png_ = partial(as_png, drawn)  # for notebooks
    return drawn


def _take_fonts(drawn: Any) -> None:
    """Draw characters that the usual font lacks in the first installed one that has them; name those that none has."""
    from matplotlib.font_manager import findfont, fontManager, get_font
    from matplotlib.text import Text

    ticks = [text for axis in drawn.axes for text in (*axis.get_xticklabels(), *axis.get_yticklabels())]
    texts, families = [*ticks, *drawn.findobj(Text)], list[str]()
    lacking = {one for text in texts for one in text.get_text() if one.isprintable() and not one.isspace()}
    for path in (findfont("DejaVu Sans"), *(font.fname for font in fontManager.ttflist)):
        if lacking and "LastResort" not in path:  # has a box for every character
            there = lacking & {*map(chr, get_font(path).get_charmap())}
            families, lacking = families + [get_font(path).family_name] * bool(there), lacking - there
    for text in texts if len(families) > 1 else ():
        text.set_fontfamily(families)
    if lacking:
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)  # one for each, and each drawing
        what = f"no installed font has the characters {' '.join(sorted(lacking))}"
        log.warning("%s: they are drawn as boxes; install a font that has them, such as Noto Sans CJK", what)


def as_png(drawn: Any) -> bytes:
    """A figure as a PNG file."""
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


def of_artifact(artifact: Artifact, title: str) -> Any:
    """Figure of an artifact."""
    if isinstance(artifact, Regions):
        return figure_of(_regions(artifact), (1.7, 1.9), max(2, artifact.columns), title)
    if isinstance(artifact, Curve):
        ticks: Settings = {"xticks": artifact.x, "xticklabels": [f"{x:g}" for x in artifact.x]}
        axes = {"xlabel": artifact.label, **(ticks if artifact.doubling else {})}
        panels = [
            partial(plot, lines=[Line(i, artifact.x, y)], axes={**axes, "ylabel": name}, doubling=artifact.doubling)
            for i, (name, y) in enumerate(artifact.lines.items())
        ]
        return figure_of(panels, (4.0, 3.2), 2, title)
    if isinstance(artifact, Histogram):
        shares = {name: [n / max(1, sum(of)) for n in (*of, of[-1])] for name, of in artifact.counts.items()}
        looks = ({"drawstyle": "steps-post", "marker": "", "label": name} for name in shares)
        lines = [Line(i, artifact.edges, *of) for i, of in enumerate(zip(shares.values(), looks, strict=True))]
        axes = {"xlabel": artifact.label, "ylabel": f"share of the {artifact.of}"}
        panel: Panel = partial(plot, lines=lines, axes=axes, legend={"title": artifact.groups})
    else:
        names = [f"{name} ({len(values)} {artifact.of})" for name, values in artifact.values.items()]
        axes = {"xticks": range(1, len(names) + 1), "xticklabels": names, "ylabel": artifact.label}
        panel = partial(boxes, values=[*artifact.values.values()], axes=axes)
    return figure_of([panel], (5.5, 3.8), title=title)


def _regions(regions: Regions) -> list[Panel]:
    """The photo and its instances, and below them the maps in rows of ``columns``."""
    from PIL import Image

    blank = {" " * (i + 1): ["."] for i in range(regions.columns - 2)}  # titles that nobody sees
    texts = {"instances (grey: crowd)": regions.instances or ["."], **blank, **regions.maps}
    images: dict[str, Any] = {"photo": Image.open(regions.photo).convert("RGB")}
    for name, lines in texts.items():
        images[name] = [[np.nan if digit == "." else PLACES.index(digit) for digit in line] for line in lines]
    shown: Any = {"cmap": "tab20", "vmin": 0, "vmax": 19, "interpolation": "nearest"}
    return [partial(picture, image=i, title={"label": n, "fontsize": "small"}, **shown) for n, i in images.items()]
