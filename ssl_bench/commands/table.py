"""``ssl-bench table dcl/table1``: a paper's numbers beside those of the runs; ``table name=grid``: any runs."""

from collections.abc import Sequence

from ssl_bench.commands.arguments import Parser, in_sentences, show_progress, taken_outputs
from ssl_bench.config.build import one_of
from ssl_bench.papers import comparison, formats, verdicts
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.cells import Table
from ssl_bench.papers.claims import PaperClaim
from ssl_bench.papers.fill import fill, record
from ssl_bench.papers.selection import HELP, Selection
from ssl_bench.results.arrange import arrange, text_of
from ssl_bench.results.printing import FORMS
from ssl_bench.results.select import runs_where

NUMBERS = """A cell has the paper's number, ours (mean ± standard deviation, number of runs), their difference, and that
of the project, which is committed with this package."""


@in_sentences
def main(arguments: Sequence[str]) -> int:
    """Print tables; 0, or 2 for wrong arguments."""
    parser = Parser("table", "Print a paper's numbers beside those of the runs on disk.")
    parser.add_argument("names", nargs="*", metavar="TABLE", help="such as dcl/table1; a paper alone lists its tables")
    parser.add_argument("--all", action="store_true", help="all tables of a paper")
    parser.add_argument("--claims", action="store_true", help="the claims of the papers, with verdicts")
    parser.add_argument("--format", default="rich", help="|".join(FORMS))
    parser.add_argument("--rows", metavar="KEY", help="of runs: a table with a row for each value, such as loss")
    parser.add_argument("--columns", metavar="KEY", help="of runs: a column for each value, such as batch_size")
    parser.add_argument("--metric", metavar="NAME", help="of runs: such as linear/top1; default: what most have")
    parser.add_argument("--wandb", action="store_true", help="also store the table as an artifact in Weights & Biases")
    parser.epilog = f"{NUMBERS} {HELP} paths.outputs=FOLDER is where the runs are."
    options = parser.read(arguments)
    one_of("--format", options.format, FORMS)
    if options.overrides and not options.names and not (options.all or options.claims):
        outputs = taken_outputs(options.overrides)
        pivots = arrange(runs_where(outputs, options.overrides), options.rows, options.columns, options.metric)
        print(text_of([pivot.sheet() for pivot in pivots], options.format), end="")
        return 0
    selection = Selection.read(options.names, options.all, options.overrides)
    selection.check_reading()
    if options.claims:
        return _claims(selection, options.format)
    selected = [(table, selection.cells(table)) for table in selection.tables()]
    results = Results(selection.outputs, [cell for _, cells in selected for cell in cells], show_progress)
    filled = [(table, fill(table, cells, results)) for table, cells in selected]
    text = formats.formatted(options.format, filled)
    if options.format in verdicts.FORMS:
        text = "\n".join(formats.formatted(options.format, [each]) + _below(each[0], results) for each in filled)
    print(text, end="", flush=True)
    if options.wandb:
        from ssl_bench.record.wandb import log_table

        for table, cells in filled:
            log_table(table.name, record(table, cells))
    return 0


def _below(table: Table, results: Results) -> str:
    """The criteria and the verdict of a claim, the comparisons of a table with a reference; else nothing."""
    of = verdicts.judge(table, results).lines() if isinstance(table, PaperClaim) else comparison.lines(table, results)
    return "\n" + "\n".join(of) + "\n" if of else ""


def _claims(selection: Selection, form: str) -> int:
    """Print the verdicts of the named papers, or of all."""
    one_of("--format", form, (*verdicts.FORMS, "json"))
    claims = verdicts.named(selection.names)
    results = Results(selection.outputs, [cell for claim in claims for cell in claim.cells], show_progress)
    judged = [verdicts.judge(claim, results) for claim in claims]
    print(verdicts.formatted(form, judged), end="")
    return 0
