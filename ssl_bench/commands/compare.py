"""``ssl-bench compare``: what matters in a grid; is a setting better than another, in runs that differ in nothing else?

ssl-bench compare grid                               what matters: the largest difference of each setting
ssl-bench compare grid --by loss --to infonce        each value against one
ssl-bench compare runs.csv --metric acc --seed seed  the same of any table with a row for each run
"""

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from ssl_bench.commands.arguments import Parser, in_sentences
from ssl_bench.errors import ConfigError, require
from ssl_bench.record.printing import FORMS, text_of
from ssl_bench.results import any_table
from ssl_bench.results.table import chosen, read_condition, select


@in_sentences
def main(arguments: Sequence[str]) -> int:
    """Print what matters or a comparison; return 0, with ``--expect`` 1 or 3 if it is not so or undecided, or 2."""
    parser = Parser("compare", "Say what matters in a grid, or compare runs that differ in one setting and the seed.")
    parser.add_words()
    parser.add_argument(
        "--by", action="append", default=[], metavar="KEY", help="compare this setting's values; may be repeated"
    )
    parser.add_argument("--to", metavar="VALUE", help="what the others are compared with (default: what most have)")
    parser.add_argument("--metric", metavar="NAME", help="such as linear/top1 (default: the main metric of most runs)")
    parser.add_argument("--seed", metavar="NAME", default="seed", help="the column of the seed in a CSV file")
    parser.add_argument("--margin", type=float, help="a difference that does not matter, of accuracies in percent")
    expect = "end with 0 if the first verdict is this, 1 if it is shown not to be so, 3 if it is undecided"
    parser.add_argument("--expect", choices=("better", "not-worse", "equivalent"), help=expect)
    parser.add_argument("--format", choices=FORMS, default="rich")
    options = parser.read_words(arguments)
    of_pairs = [f"--{name}" for name in ("to", "expect") if getattr(options, name) is not None]
    if of_pairs and not options.by:
        raise ConfigError(f"{' and '.join(of_pairs)}: say what to compare, such as --by loss")
    table, code = _table(options), 0
    if options.by:
        from ssl_bench.results.comparison import compare

        compared = compare(table, options.by, options.to, options.metric, options.margin)
        code, sheet = compared.code(options.expect) if options.expect else 0, compared.sheet()
    else:
        from ssl_bench.results.matters import what_matters

        sheet = what_matters(table, options.metric, options.margin).sheet()
    print(text_of([sheet], options.format), end="")
    return code


def _table(options: Namespace) -> Any:
    """The runs that the words select, or the rows of a CSV file for which conditions hold."""
    if not (files := [word for word in options.words if word.endswith(".csv")]):
        return chosen(options.words, options.outputs)
    conditions = [one for word in options.words if (one := read_condition(word))]
    alone = len(conditions) + 1 == len(options.words)
    require(alone, "WORD", " ".join(options.words), "one CSV file, and conditions such as loss=dcl")
    return select(any_table.runs_of(files[0], options.metric, options.seed), conditions)
