"""``ssl-bench figure dcl/fig3 --out fig3.png``: plot our points over those of a paper's figure."""

from collections.abc import Sequence
from pathlib import Path

from ssl_bench import files
from ssl_bench.commands.arguments import Parser, in_sentences, show_progress
from ssl_bench.errors import ConfigError, require
from ssl_bench.papers import tables
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.fill import fill
from ssl_bench.papers.selection import HELP, Selection

SUFFIXES = (".png", ".pdf", ".svg")


@in_sentences
def main(arguments: Sequence[str]) -> int:
    """Write a picture; 0, or 2 for wrong arguments."""
    parser = Parser("figure", "Plot our points over those of a paper's figure.")
    parser.add_argument("names", nargs="*", metavar="TABLE", help="such as dcl/fig3; a paper alone lists its tables")
    parser.add_argument("--all", action="store_true", help="all figures of a paper without tables")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="a .png, .pdf or .svg file; default: the figure's name and .png"
    )
    parser.epilog = f"{HELP} paths.outputs=FOLDER is where the runs are."
    options = parser.read(arguments)
    selection = Selection.read(options.names, options.all, options.overrides)
    path = options.out or Path(f"{'-'.join(options.names or ['figures']).replace('/', '-')}.png")
    selection.check_reading()
    selected = [(table, selection.cells(table)) for table in selection.tables()]
    for table, _ in selected:
        if not table.x:
            figures = [other.name for other in tables.load(table.paper) if other.x]
            raise ConfigError(f"{table.name} is no figure: set it to one of {', '.join(figures)}")
    require(path.suffix in SUFFIXES, "--out", path, "a .png, .pdf or .svg file")
    require(path.parent.is_dir(), "--out", path, f"a file in a folder that exists: there is no {path.parent}")
    results = Results(selection.outputs, [cell for _, cells in selected for cell in cells], show_progress)
    filled = [(table, fill(table, cells, results)) for table, cells in selected]
    from ssl_bench.papers.drawing import draw, panels

    figure = draw([panel for table, cells in filled for panel in panels(table, cells, results)])
    files.write(path, lambda file: figure.savefig(file, format=path.suffix[1:], dpi=150))
    print(path)
    return 0
