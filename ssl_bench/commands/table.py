"""``ssl-bench table dcl/table1``: a paper's numbers beside those of the runs; ``table grid``: any runs.

``figure dcl/fig3`` and ``figure grid`` draw the same.
"""

import re
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ssl_bench import files
from ssl_bench.commands.arguments import WORDS, Parser, in_sentences, output, show_progress, take_outputs
from ssl_bench.errors import ConfigError, require
from ssl_bench.papers import tables, verdicts
from ssl_bench.papers.selection import HELP, Selection, selected
from ssl_bench.papers.sheets import drawn, printed
from ssl_bench.record.printing import FORMS, Sheet, text_of
from ssl_bench.results.pivot import draw, pivot
from ssl_bench.results.table import chosen

ABOUT_NUMBERS = """A cell has the paper's number, ours (mean ± standard deviation, number of runs), their difference,
and that of the project, which is committed with this package."""
SUFFIXES = (".png", ".pdf", ".svg")
OWN = {"Software": "ssl-bench figure"}  # in a .png file that the command has made


@in_sentences
def main(arguments: Sequence[str], command: str = "table") -> int:
    """Print tables or, as ``figure`` or with ``--out``, draw them; 0, or 2 for wrong arguments."""
    parser = Parser(command, "A paper's numbers beside those of the runs on disk, or any runs; figure draws them.")
    about = f"a table of a paper, such as dcl/table1 (a paper alone lists its tables), or runs: {WORDS}"
    parser.add_argument("names", nargs="*", metavar="TABLE|WORD", help=about)
    parser.add_argument("--all", action="store_true", help="all tables of a paper, or all of its figures")
    parser.add_argument("--claims", action="store_true", help="the claims of the papers, with verdicts")
    parser.add_argument("--format", choices=FORMS)
    out = "draw it: a .png, .pdf or .svg file; default of figure: the figure's name and .png"
    parser.add_argument("--out", type=Path, metavar="FILE", help=out)
    rows = parser.add_mutually_exclusive_group()
    rows.add_argument("--rows", "--lines", metavar="KEY", help="a row or line for each value of this setting")
    rows.add_argument("--y", metavar="KEY", help="the same on the y axis of a heat map")
    text = "a column or place on the x axis for each value of this setting; labels; or epoch, for curves"
    parser.add_argument("--columns", "--x", metavar="KEY", help=text)
    text = "such as linear/top1; default: the metric of most runs; for curves kNN on training images"
    parser.add_argument("--metric", metavar="NAME", help=text)
    parser.add_argument("--what-matters", action="store_true", help="draw each setting's largest difference")
    parser.add_outputs()
    parser.add_config_dir()
    parser.epilog = f"{ABOUT_NUMBERS} {HELP}"
    options = parser.read(arguments)
    of_runs = options.what_matters or options.columns == "epoch"  # curves over the training
    words = options.names, options.overrides, options.all or options.claims, options.config_dir
    selection = None if of_runs else selected(*words)
    if not (of_runs or options.out or command == "figure"):
        print(text_of(_sheets(options, selection), options.format or "rich"), end="")
        return 0
    if options.format or options.claims:
        raise ConfigError("--format and --claims: leave them out of a figure; each claim has one under its name")
    names = [re.sub(r"(.*/)?([^/]+)\.ya?ml(?=/|$)", r"\2", name) for name in options.names] or ["figures"]
    path = output(options.out, f"{'-'.join(names).replace('/', '-')}.png", OWN["Software"].encode())
    require(path.suffix in SUFFIXES, "--out", path, "a .png, .pdf or .svg file")
    figure, metadata = _figure(options, selection), OWN if path.suffix == ".png" else {}
    files.write(path, lambda file: figure.savefig(file, format=path.suffix[1:], dpi=150, metadata=metadata))
    print(path)
    return 0


def _sheets(options: Namespace, selection: Selection | None) -> list[Sheet]:
    """The tables of runs, of papers or of claims that are to be printed."""
    if selection is None:
        pivots = pivot(_runs(options), options.y or options.rows, options.columns, options.metric)
        return [one.sheet() for one in pivots]
    if options.claims:
        require(not selection.changes, "--claims", " ".join(selection.changes), "no settings: claims have their own")
        claims = verdicts.claims_of(selection.names)
        results = selection.results([cell for claim in claims for cell in claim.cells], show_progress)
        judged = [verdicts.judge(claim, results) for claim in claims]
        return [verdicts.sheet(judged, options.format in (None, "rich"), tables.dropped(selection.names))]
    return printed(selection, show_progress)


def _figure(options: Namespace, selection: Selection | None) -> Any:
    """The figure of runs or of a paper."""
    if selection is not None:
        return drawn(selection, show_progress)
    from ssl_bench.results.matters import what_matters

    runs = _runs(options)
    if options.what_matters:
        return what_matters(runs, options.metric).figure()
    return draw(runs, options.columns, options.rows, options.y, options.metric)


def _runs(options: Namespace) -> Any:
    """The table of the runs that the words select."""
    outputs = take_outputs(options.overrides)
    return chosen([*options.names, *options.overrides], outputs)
