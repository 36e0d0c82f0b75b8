"""``ssl-bench compare``: what matters in a grid; is one setting better than another, by pairs of runs with one seed?

ssl-bench compare grid                               what matters: each setting's share of the variance
ssl-bench compare grid --by loss --to infonce        each value against one
ssl-bench compare loss=dcl loss=infonce              one value against the last one
ssl-bench compare A B                                the runs of one folder below outputs/ against those of another
"""

from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ssl_bench.commands.arguments import Parser, in_sentences
from ssl_bench.commands.words import placed
from ssl_bench.config.identity import is_hashed
from ssl_bench.errors import ConfigError
from ssl_bench.record.printing import FORMS, text_of
from ssl_bench.results.compared import EXPECTED, Comparisons, check_margin
from ssl_bench.results.comparison import compare
from ssl_bench.results.matters import Matters, what_matters
from ssl_bench.results.runs import RunFolder
from ssl_bench.results.select import Condition, chosen, finished_where

FORMATS = ("text", *FORMS[1:])


@in_sentences
def main(arguments: Sequence[str]) -> int:
    """Print what matters or a comparison; return 0, with ``--expect`` 1 or 3 if it is not so or undecided, or 2."""
    about = "Say what matters in a grid, or compare runs that differ in one setting and the seed, in pairs by seed."
    parser = Parser("compare", about)
    parser.add_words("; to compare, KEY=VALUE twice or two experiments")
    by = "compare the values of this setting; may be repeated; without it: what matters"
    parser.add_argument("--by", action="append", default=[], metavar="KEY", help=by)
    parser.add_argument("--to", metavar="VALUE", help="what the others are compared with (default: what most have)")
    parser.add_argument("--metric", metavar="NAME", help="such as linear/top1 (default: the main metric of most runs)")
    parser.add_argument("--margin", type=float, help="a difference that does not matter, of accuracies in percent")
    expect = "end with 0 if the first verdict is this, 1 if it is shown not to be so, 3 if it is undecided"
    parser.add_argument("--expect", choices=EXPECTED, help=expect)
    parser.add_outputs()
    parser.add_argument("--format", choices=FORMATS, default="text")
    options = parser.read_words(arguments)
    check_margin(options.margin)
    result = _result(options)
    of_pairs = [f"--{name}" for name in ("to", "margin", "expect") if getattr(options, name) is not None]
    if isinstance(result, Matters) and of_pairs:
        raise ConfigError(f"{' and '.join(of_pairs)}: say what to compare, such as --by loss")
    code = result.code(options.expect) if options.expect and isinstance(result, Comparisons) else 0
    print(text_of([result.sheet()], "rich" if options.format == "text" else options.format), end="")
    return code


def _result(options: Namespace) -> Comparisons | Matters:
    outputs, words = placed(options.words, options.outputs)
    conditions = [word for word in words if Condition.read(word)]
    folders = [word for word in words if word not in conditions]
    counts = Counter(one.key for one in map(Condition.read, conditions) if one and one.sign == "=")
    twice = [key for key, count in counts.items() if count > 1]
    by: list[str] = options.by
    to: str | RunFolder | None = options.to
    if len(folders) < 2 and not twice:
        entries, _ = chosen(words, outputs)
        if not by:
            return what_matters(entries, options.metric)
        runs = [entry.run for entry in entries if entry.run and entry.run.done]
    elif len(twice) == 1 and not by and not folders:
        by, values = twice, [word.partition("=")[2] for word in conditions if word.startswith(f"{twice[0]}=")]
        where = [word for word in conditions if not word.startswith(f"{twice[0]}=")]
        runs, to = finished_where(outputs, [*where, f"{by[0]}={','.join(values)}"]), to or values[-1]
    elif len(folders) == 2 and not by and not twice:
        if to is not None:
            raise ConfigError(f"--to {to}: leave it out: the first folder is compared with the second")
        runs, by, to = _folders(outputs, folders, conditions)
    else:
        remedy = "loss=dcl loss=infonce, or --by loss --to infonce, or two folders below the results'"
        raise ConfigError(f"say what to compare: {remedy}")
    return compare(runs, by, to, options.metric, options.margin)


def _folders(
    outputs: Path, folders: Sequence[str], where: Sequence[str]
) -> tuple[list[RunFolder], list[str], RunFolder]:
    """The runs of two folders, the settings of which no value is in both, and what the second has of the first one."""
    sides = []
    for folder in folders:
        sides.append(finished_where(outputs, [*where, folder]))
        if not sides[-1]:
            raise ConfigError(f"{folder}: none of its runs is finished: wait for them, or name another experiment")
    names = dict.fromkeys(name for side in sides for run in side for name in run.shared.settings)
    of, its = ({name: {run.setting(name) for run in side} for name in names} for side in sides)
    by = [name for name in names if is_hashed(name) and not of[name] & its[name]]
    by = [name for name in by if name.partition(".")[0] not in by or "." not in name]
    if not by:
        raise ConfigError(f"{' and '.join(folders)} differ in no setting that all their runs have: use --by")
    return [*sides[0], *sides[1]], by, sides[1][0]
