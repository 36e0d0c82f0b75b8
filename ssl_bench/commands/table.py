"""``ssl-bench table dcl/table1``: a paper's numbers beside those of the runs; ``table grid``: any runs."""

from collections.abc import Sequence

from ssl_bench.commands.arguments import WORDS, Parser, in_sentences, show_progress, taken_outputs
from ssl_bench.errors import ConfigError
from ssl_bench.papers import verdicts
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.fill import fill
from ssl_bench.papers.selection import HELP, Selection, selects_runs
from ssl_bench.papers.sheets import whole
from ssl_bench.record.printing import FORMS, text_of
from ssl_bench.results.arrange import arrange
from ssl_bench.results.former_select import chosen

ABOUT_NUMBERS = """A cell has the paper's number, ours (mean ± standard deviation, number of runs), their difference,
and that of the project, which is committed with this package."""


@in_sentences
def main(arguments: Sequence[str]) -> int:
    """Print tables; 0, or 2 for wrong arguments."""
    parser = Parser("table", "Print a paper's numbers beside those of the runs on disk.")
    about = f"a paper's, such as dcl/table1; a paper alone lists its tables; or {WORDS}"
    parser.add_argument("names", nargs="*", metavar="TABLE|WORD", help=about)
    parser.add_argument("--all", action="store_true", help="all tables of a paper")
    parser.add_argument("--claims", action="store_true", help="the claims of the papers, with verdicts")
    parser.add_argument("--format", choices=FORMS, default="rich")
    parser.add_argument("--rows", metavar="KEY", help="of runs: a table with a row for each value, such as loss")
    parser.add_argument(
        "--columns", metavar="KEY", help="of runs: a column for each value, such as batch_size; or labels"
    )
    parser.add_argument("--metric", metavar="NAME", help="of runs: such as linear/top1; default: what most have")
    parser.add_outputs()
    parser.add_config_dir()
    parser.epilog = f"{ABOUT_NUMBERS} {HELP}"
    options = parser.read(arguments)
    if selects_runs(options):
        outputs = taken_outputs(options.overrides)
        entries, _ = chosen([*options.names, *options.overrides], outputs)
        pivots = arrange(entries, options.rows, options.columns, options.metric)
        print(text_of([pivot.sheet() for pivot in pivots], options.format), end="")
        return 0
    selection = Selection.read(options.names, options.all, options.overrides, options.config_dir)
    if options.claims and selection.changes:
        raise ConfigError(f"{selection.changes[0]}: leave it out: claims have the settings of their file")
    selection.check_reading()
    if options.claims:
        claims = verdicts.claims_of(selection.names)
        cells = [cell for claim in claims for cell in claim.cells]
        results = Results(selection.outputs, cells, show_progress, selection.folder)
        judged = [verdicts.judge(claim, results) for claim in claims]
        print(text_of([verdicts.sheet(judged, options.format == "rich")], options.format), end="")
        return 0
    selected = [(table, selection.cells(table)) for table in selection.tables()]
    every = [cell for _, cells in selected for cell in cells]
    results = Results(selection.outputs, every, show_progress, selection.folder)
    changes = selection.changes
    made = [whole(t, fill(t, cells, results), results, selection.call(t), changes) for t, cells in selected]
    print(text_of(made, options.format), end="")
    return 0
