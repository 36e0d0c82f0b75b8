"""``ssl-bench figure dcl/fig3 --out fig3.png``: our points over the paper's, the columns of a table being places."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssl_bench import files
from ssl_bench.errors import ConfigError
from ssl_bench.papers import runs, tables
from ssl_bench.papers.formats import Filled, fill, option
from ssl_bench.papers.plan import Asked
from ssl_bench.papers.tables import Table
from ssl_bench.record.plots import COLOURS, MARKERS, STYLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

USAGE = "usage: ssl-bench figure FIGURE [row=PATTERN] [col=PATTERN] [paths.outputs=FOLDER] [--out FILE.png|.pdf|.svg]\n"


def main(arguments: Sequence[str]) -> int:
    """Writes a picture; 0, or 2 for wrong arguments."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if arguments else 2
    try:
        arguments, out = option(arguments, "--out", "")
        asked = Asked.read(arguments, ("--all",))
        chosen = [(table, asked.cells(table)) for table in asked.tables()]
        for table, _ in chosen:
            if not table.x:
                figures = [t.name for t in tables.find(table.name.split("/")[0]) if t.x]
                raise ConfigError(f"{table.name} is no figure: set it to one of {', '.join(figures)}")
        path = Path(out or f"{'-'.join(asked.names or ['figures']).replace('/', '-')}.png")
        if path.suffix not in (".png", ".pdf", ".svg"):
            raise ConfigError(f"--out {path}: set it to a .png, .pdf or .svg file")
        if not path.parent.is_dir():
            raise ConfigError(f"--out {path}: there is no folder {path.parent}")
        finished = runs.finished(asked.outputs())
        filled = [(table, fill(table, cells, finished)) for table, cells in chosen]
    except ConfigError as error:
        print(f"ssl-bench: {error}", file=sys.stderr)
        return 2
    figure = draw(filled)
    files.write(path, lambda file: figure.savefig(file, format=path.suffix[1:], dpi=150))
    print(path)
    return 0


def draw(panels: Sequence[tuple[Table, Sequence[Filled]]]) -> Figure:
    """The panels side by side: hollow markers and dashes for the paper, filled ones with error bars for ours."""
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(["default", STYLE]):
        figure = Figure((5.2 * len(panels), 3.8), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, (table, filled) in zip(axes, panels, strict=True):
            _panel(axis, table, filled)
        return figure


def _panel(axis: Any, table: Table, filled: Sequence[Filled]) -> None:
    for i, label in enumerate(dict.fromkeys(each.cell.label for each in filled)):
        own = [each for each in filled if each.cell.label == label and each.cell.x is not None]
        look = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "label": label}
        reported = [(each.cell.x, each.cell.paper) for each in own if each.cell.paper is not None]
        measured = [(each.cell.x, each.mean, each.std or 0.0) for each in own if each.mean is not None]
        if reported:
            axis.plot(*zip(*reported, strict=True), **look | {"label": f"{label} (paper)"}, linestyle="--", mfc="white")
        if measured:
            x, mean, std = zip(*measured, strict=True)
            axis.errorbar(x, mean, std, **look, capsize=3)
        if not reported and not measured:
            axis.plot([], [], **look | {"label": f"{label} (no numbers yet)"}, linestyle="none")
    if table.doubling:
        axis.set_xscale("log", base=2)
    places = {each.cell.x: each.cell.column for each in filled if each.cell.x is not None}
    axis.set_xticks(list(places), list(places.values()))
    axis.minorticks_off()
    axis.set(xlabel=table.x, ylabel=table.y)
    axis.set_title("\n".join([table.name, *textwrap.wrap(table.title, 60)]), fontsize="medium")
    axis.legend(frameon=False)
