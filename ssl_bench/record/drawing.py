"""Draw every figure of the package with matplotlib, from plain data.

Matplotlib is imported when a figure is drawn, and used without pyplot: no window, no global state. The colours are
those of Okabe and Ito, which people with any colour vision can tell apart; lines differ in dashes and markers too.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np

from ssl_bench.evaluate.artifacts import Artifact, Curve, Histogram, Regions

log = logging.getLogger("ssl_bench")

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe-Ito without yellow
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
STYLE = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3}
# A dollar sign in a name does not begin a formula.
STYLE |= {"text.parse_math": False, "legend.frameon": False, "axes.titlesize": 9, "figure.titlesize": 9}
TAB20 = "0a1b2c3d4e5f6-7x8-9-"  # a digit of Regions has the colour of its place here in the colour map tab20
Settings = Mapping[str, Any]  # keyword arguments of matplotlib
Samples = Sequence[Sequence[float]] | np.ndarray  # [P, any number]
Panel = Callable[[Any], None]  # draws in matplotlib's axes: one of the functions below with its data


@dataclass(frozen=True)
class Line:
    """Points, joined by a line in the colour, dashes and markers of its number.

    Attributes:
        number: selects colour, dashes and marker.
        x, y: coordinates of the points [P].
        style: arguments of ``Axes.plot``, which replace those of the number; ``label`` is the text in the legend.
        error: length of an error bar above and below its point, one number or one for each point [P]; None: no bars.
        band: draw a band in place of error bars.
        values: the values whose mean y is, drawn as small points [P, any number]; empty: draw none.
        shift: points (1/72 inch) by which the line is moved to the right, so that the error bars of several lines do
            not cover each other. The axes end where they would end without the shift.
    """

    number: int
    x: Sequence[float] | np.ndarray
    y: Sequence[float] | np.ndarray
    style: Settings = field(default_factory=dict)
    error: Any = None
    band: bool = False
    values: Samples = ()
    shift: float = 0.0

    def draw(self, axis: Any) -> Any:
        """Draw the line in some axes; return what stands for it in a legend."""
        from matplotlib.transforms import offset_copy

        turn, n = divmod(self.number, len(COLOURS))
        style = {"color": COLOURS[n], "marker": MARKERS[n], "linestyle": DASHES[(n + turn) % len(DASHES)], **self.style}
        every = style.get("markevery", 1)
        points = [(x, y) for x, ys in zip(self.x[::every], self.values[::every], strict=False) for y in ys]
        small = {"linestyle": "", "marker": ".", "markersize": 4, "alpha": 0.5, "markevery": None, "label": None}
        dots = axis.plot(*zip(*points, strict=True), **{**style, **small}) if points else []
        if self.band:
            ends = np.subtract(self.y, self.error), np.add(self.y, self.error)
            axis.fill_between(self.x, *ends, color=style["color"], alpha=0.2, linewidth=0)
        drawn = axis.errorbar(self.x, np.asarray(self.y), None if self.band else self.error, **{"capsize": 3, **style})
        for artist in (*dots, *drawn.get_children()):  # after the ends of the axes have been computed
            artist.set_transform(offset_copy(axis.transData, axis.figure, self.shift, units="points"))
        return drawn


def pooled(samples: Samples) -> float | None:
    """Standard deviation of the values [P, any number] around the mean of their sample, pooled over the samples.

    None if no sample has two values.
    """
    squares, degrees = sum(np.var(one) * len(one) for one in samples), sum(len(one) - 1 for one in samples)
    return float(np.sqrt(squares / degrees)) if degrees else None


def through_means(number: int, x: Any, samples: Samples, style: Settings, **more: Any) -> Line:
    """A line through the means of samples [P, any number], with their values and their pooled deviation as error."""
    values = () if (deviation := pooled(samples)) is None else samples
    return Line(number, x, [float(np.mean(one)) for one in samples], style, deviation, values=values, **more)


def plot(axis: Any, lines: Sequence[Line], axes: Settings, doubling: bool = False, legend: Any = None) -> None:
    """Draw lines.

    Args:
        axes: arguments of ``Axes.set``, such as ``title`` and ``xlabel``.
        doubling: the x axis is logarithmic, with powers of two.
        legend: arguments of ``Axes.legend``; None: draw none.
    """
    drawn = [line.draw(axis) for line in lines]
    if doubling:
        axis.set_xscale("log", base=2)
    axis.set(**axes)
    if legend is not None:  # by itself it would leave out names that begin with _
        axis.legend(drawn, [line.style["label"] for line in lines], **legend)


def of_seeds(label: str, counts: Sequence[int]) -> str:
    """The label of the y axis of lines through means, by the numbers of their seeds."""
    few, many = min(counts), max(counts)
    return f"{label}\nmean ± pooled deviation of {f'{few} to ' * (few < many)}{many} seeds" if many > 1 else label


def boxes(axis: Any, values: Sequence[Sequence[float]], axes: Settings) -> None:
    """Draw a box plot of each list of values, at x = 1, 2, ...; whiskers reach from the lowest to the highest value."""
    axis.boxplot(values, widths=0.5, whis=(0, 100))
    for x, of_box in enumerate(values, 1):
        axis.plot([x] * len(of_box), of_box, "o", color=COLOURS[0], markersize=4, alpha=0.5)
    axis.set(**axes)


def intervals(axis: Any, ends: Sequence[tuple[float, float, float]], strong: Sequence[bool], axes: Settings) -> None:
    """Draw a row for each (value, lower end, upper end): a point with its interval, grey unless it is ``strong``."""
    for y, ((x, low, high), coloured) in enumerate(zip(ends, strong, strict=True)):
        colour = COLOURS[0] if coloured else "grey"
        axis.errorbar([x], [y], xerr=[[x - low], [high - x]], fmt="o", color=colour, capsize=3)
    axis.axvline(0, color="black", linewidth=0.8)
    axis.set(ylim=(len(ends) - 0.5, -0.5), **axes)
    axis.grid(axis="y", visible=False)


def heat_map(axis: Any, values: Any, texts: dict[Any, str], ends: Sequence[float], label: str, axes: Settings) -> None:
    """Draw values [y, x] as colours between the lowest and highest of the scale, ``ends``, and ``texts`` at (y, x)."""
    image = axis.imshow(values, origin="lower", aspect="auto", vmin=ends[0], vmax=ends[1])
    for (y, x), text in texts.items():
        colour = "white" if values[y, x] < sum(ends) / 2 else "black"
        axis.text(x, y, text, ha="center", va="center", color=colour, fontsize="small")
    axis.set(**axes)
    axis.grid(visible=False)
    axis.figure.colorbar(image, ax=axis, label=label)


def picture(axis: Any, image: Any, title: Settings, **shown: Any) -> None:
    """Draw colours [h, w, 3] or values [h, w]; ``title``: arguments of ``set_title``, ``shown``: of ``imshow``."""
    axis.imshow(image, **shown)
    axis.set_title(**title)
    axis.set(xticks=[], yticks=[], frame_on=False)


def figure_of(
    panels: Sequence[Panel], size: tuple[float, float], across: int = 99, title: str = "", below: Any = None, **of: Any
) -> Any:
    """Draw panels row by row in the style of the package, whatever matplotlibrc says; a notebook shows the figure.

    Panels of lines whose y axes have the same label have the same range there; an axis of shares ends within 0 and 100.

    Args:
        size: width and height of a panel, inches.
        across: largest number of panels in a row.
        below: sentences that stand below the panels; None: no space is kept for any.
        of: arguments of ``Figure.subplots``; with ``gridspec_kw`` the margins are not computed from the texts, which is
            fast.
    """
    import matplotlib.style
    from matplotlib.figure import Figure

    across, up = min(len(panels), across), -(-len(panels) // min(len(panels), across))
    with matplotlib.style.context(["default", STYLE]):
        drawn: Any = Figure((size[0] * across, size[1] * up), layout=None if "gridspec_kw" in of else "constrained")
        axes = drawn.subplots(up, across, squeeze=False, **of).flatten()
        for panel, axis in zip_longest(panels, axes, fillvalue=lambda axis: axis.remove()):
            panel(axis)
        for axis in (axis for axis in drawn.axes if axis.lines and not axis.yaxis_inverted()):
            ends = [other.get_ylim() for other in drawn.axes if other.get_ylabel() == axis.get_ylabel()]
            most = (0, 100) if "(%)" in axis.get_ylabel() else (-np.inf, np.inf)
            axis.set_ylim(np.clip([np.min(ends), np.max(ends)], *most))
        if title:
            drawn.suptitle(title, **({} if drawn.get_layout_engine() else {"x": 0.01, "ha": "left"}))
        if below is not None:
            sentences = dict.fromkeys("\n".join(below).splitlines())
            drawn.supxlabel("\n".join(sentences), fontsize="x-small", x=0.02, ha="left", wrap=True)
        _take_fonts(drawn)
    drawn._repr_png_ = partial(as_png, drawn)  # for notebooks
    return drawn


def _take_fonts(drawn: Any) -> None:
    """Use installed fonts for characters that the default font lacks; a warning names those that no font has."""
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
        log.warning("install a font that has the characters %s: they are drawn as boxes", " ".join(sorted(lacking)))


def as_png(drawn: Any) -> bytes:
    """The content of a PNG file of a figure."""
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


def of_artifact(artifact: Artifact, title: str) -> Any:
    """Draw an artifact of an evaluation."""
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
        styles = ({"drawstyle": "steps-post", "marker": "", "label": name} for name in shares)
        lines = [Line(i, artifact.edges, *of) for i, of in enumerate(zip(shares.values(), styles, strict=True))]
        axes = {"xlabel": artifact.label, "ylabel": f"share of the {artifact.of}"}
        panel: Panel = partial(plot, lines=lines, axes=axes, legend={"title": artifact.groups})
    else:
        names = [f"{name} ({len(values)} {artifact.of})" for name, values in artifact.values.items()]
        axes = {"xticks": range(1, len(names) + 1), "xticklabels": names, "ylabel": artifact.label}
        panel = partial(boxes, values=[*artifact.values.values()], axes=axes)
    return figure_of([panel], (5.5, 3.8), title=title)


def _regions(regions: Regions) -> list[Panel]:
    """Panels of the photo and its annotated objects, and in the rows below them of the maps."""
    from PIL import Image

    blank = {" " * (i + 1): ["."] for i in range(regions.columns - 2)}  # fill the first row
    texts = {"instances (grey: crowd)": regions.instances or ["."], **blank, **regions.maps}
    photo: dict[str, Any] = {"photo": Image.open(regions.photo).convert("RGB")}
    maps = {n: [[np.nan if d == "." else TAB20.index(d) for d in of] for of in lines] for n, lines in texts.items()}
    shown: Any = {"cmap": "tab20", "vmin": 0, "vmax": 19, "interpolation": "nearest"}
    return [
        partial(picture, image=i, title={"label": n, "fontsize": "small"}, **shown) for n, i in (photo | maps).items()
    ]
