"""``ssl-bench figure dcl/fig3``: plot our points over a paper's; ``figure grid --x k --lines loss``: any runs."""

import re
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.commands.arguments import WORDS, Parser, in_sentences, output, show_progress, taken_outputs
from ssl_bench.errors import ConfigError, require
from ssl_bench.papers import tables
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.fill import fill
from ssl_bench.papers.selection import HELP, Selection, selects_runs
from ssl_bench.results.arrange import arrange
from ssl_bench.results.former_select import chosen

EPOCH = "epoch"  # in place of a setting: curves over the training
SUFFIXES = (".png", ".pdf", ".svg")
OWN = {"Software": "ssl-bench figure"}  # in a .png file that the command has made


@in_sentences
def main(arguments: Sequence[str]) -> int:
    """Write a picture; 0, or 2 for wrong arguments."""
    parser = Parser("figure", "Plot our points over those of a paper's figure.")
    about = f"a paper's figure, such as dcl/fig3; a paper alone lists its tables; or {WORDS}"
    parser.add_argument("names", nargs="*", metavar="FIGURE|WORD", help=about)
    parser.add_argument("--all", action="store_true", help="all figures of a paper without tables")
    out = "a .png, .pdf or .svg file; default: the figure's name and .png"
    parser.add_argument("--out", type=Path, metavar="FILE", help=out)
    parser.add_argument("--x", metavar="KEY", help="of runs: setting on the x axis, such as k; epoch: curves")
    lines = parser.add_mutually_exclusive_group()
    lines.add_argument("--lines", metavar="KEY", help="of runs: a line for each value, such as loss")
    lines.add_argument("--y", metavar="KEY", help="of runs: the setting on the y axis of a heat map")
    parser.add_argument("--metric", metavar="NAME", help="of runs: such as linear/top1; default: what most have")
    text = "of runs: a bar for each setting's share of the variance, and the means of its values"
    parser.add_argument("--what-matters", action="store_true", help=text)
    parser.add_outputs()
    parser.add_config_dir()
    parser.epilog = HELP
    options = parser.read(arguments)
    names = [re.sub(r"(.*/)?([^/]+)\.ya?ml(?=/|$)", r"\2", name) for name in options.names] or ["figures"]
    path = output(options.out, f"{'-'.join(names).replace('/', '-')}.png", OWN["Software"].encode())
    require(path.suffix in SUFFIXES, "--out", path, "a .png, .pdf or .svg file")
    if options.what_matters or options.x == EPOCH or selects_runs(options):
        return _write(_of_runs(options), path)
    selection = Selection.read(options.names, options.all, options.overrides, options.config_dir)
    selection.check_reading()
    selected = [(table, selection.cells(table)) for table in selection.tables()]
    for table, _ in selected:
        if not table.x:
            figures = [selection.call(other) for other in tables.read(table.source)[0] if other.x]
            one = f"set it to one of {', '.join(figures)}" if figures else "set its key x to a mapping with label"
            raise ConfigError(f"{table.name} is no figure: {one}")
    every = [cell for _, cells in selected for cell in cells]
    results = Results(selection.outputs, every, show_progress, selection.folder)
    filled = [(table, fill(table, cells, results)) for table, cells in selected]
    from ssl_bench.papers.drawing import draw, panels

    return _write(draw([panel for table, cells in filled for panel in panels(table, cells, results)]), path)


def _of_runs(options: Namespace) -> Any:
    """The picture of runs that words select."""
    outputs = taken_outputs(options.overrides)
    entries, _ = chosen([*options.names, *options.overrides], outputs)
    from ssl_bench.results import drawing

    if options.what_matters:
        from ssl_bench.results.matters import what_matters

        return drawing.draw_matters(what_matters(entries, options.metric))
    if options.x == EPOCH:
        require(not (options.lines or options.y), "--x", options.x, "a setting, or leave out --lines and --y")
        from ssl_bench.results.curves import curves

        return drawing.draw_curves(*curves(entries, options.metric))
    flags = "--y" if options.y else "--lines", "--x"
    pivots = arrange(entries, options.y or options.lines, options.x, options.metric, flags)
    return drawing.draw(pivots, bool(options.y))


def _write(figure: Any, path: Path) -> int:
    own = OWN if path.suffix == ".png" else {}
    files.write(path, lambda file: figure.savefig(file, format=path.suffix[1:], dpi=150, metadata=own))
    print(path)
    return 0
