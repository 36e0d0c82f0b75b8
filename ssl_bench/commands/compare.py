"""``ssl-bench compare``: is one setting better than another, by all runs that differ in nothing else but the seed?

ssl-bench compare loss=dcl loss=infonce              one value against the last one
ssl-bench compare --by loss --to infonce name=grid   each value against one, in the runs with this name
ssl-bench compare A B                                the runs of one folder below outputs/ against those of another
"""

import math
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ssl_bench.commands.arguments import Parser, in_sentences
from ssl_bench.config.identity import is_hashed
from ssl_bench.errors import ConfigError, require
from ssl_bench.record.printing import FORMS, text_of
from ssl_bench.results.compared import Comparisons
from ssl_bench.results.comparison import compare
from ssl_bench.results.runs import RunFolder
from ssl_bench.results.select import finished_where

FORMATS = ("text", *FORMS[1:])


@in_sentences
def main(arguments: Sequence[str]) -> int:
    """Print the comparison; return 0 whatever the verdict, or 2 for wrong arguments."""
    parser = Parser("compare", "Compare runs that differ in one setting and the seed, in pairs by seed.")
    parser.add_argument("words", nargs="*", metavar="WORD", help="KEY=VALUE twice, or conditions, or two folders")
    parser.add_argument("--by", action="append", default=[], metavar="KEY", help="the setting; may be repeated")
    parser.add_argument("--to", metavar="VALUE", help="what the others are compared with (default: what most have)")
    parser.add_argument("--metric", metavar="NAME", help="such as linear/top1 (default: the main metric of most runs)")
    parser.add_argument("--margin", type=float, help="a difference that does not matter, of accuracies in percent")
    parser.add_argument("--outputs", default="outputs", type=Path, help="results folder (default: outputs)")
    parser.add_argument("--format", choices=FORMATS, default="text")
    options = parser.parse_intermixed_args(list(arguments))
    positive = options.margin is None or 0 < options.margin < math.inf
    require(positive, "--margin", options.margin, "a positive number")
    comparison = _compare(options)
    print(text_of([comparison.sheet()], "rich" if options.format == "text" else options.format), end="")
    return 0


def _compare(options: Namespace) -> Comparisons:
    conditions = [word for word in options.words if "=" in word]
    folders = [word for word in options.words if "=" not in word]
    counts = Counter(word.partition("=")[0] for word in conditions)
    twice = [key for key, count in counts.items() if count > 1]
    by: list[str] = options.by
    to: str | RunFolder | None = options.to
    if by and not twice and not folders:
        runs = finished_where(options.outputs, conditions)
    elif len(twice) == 1 and not by and not folders:
        by, values = twice, [word.partition("=")[2] for word in conditions if word.partition("=")[0] in twice]
        where = [word for word in conditions if word.partition("=")[0] not in twice]
        runs, to = finished_where(options.outputs, [*where, f"{by[0]}={','.join(values)}"]), to or values[-1]
    elif len(folders) == 2 and not by and not twice:
        runs, by, to = _folders(options.outputs, folders, conditions)
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
        name = folder.removeprefix(f"{outputs}/").strip("/")
        sides.append([run for run in finished_where(outputs, where) if f"/{run.path}/".find(f"/{name}/") >= 0])
        if not sides[-1]:
            remedy = f"name a folder below {outputs}, such as that of name="
            raise ConfigError(f"{folder}: no finished run is there: {remedy}")
    names = dict.fromkeys(name for side in sides for run in side for name in run.shared.settings)
    of, its = ({name: {run.setting(name) for run in side} for name in names} for side in sides)
    by = [name for name in names if is_hashed(name) and not of[name] & its[name]]
    by = [name for name in by if name.partition(".")[0] not in by or "." not in name]
    if not by:
        raise ConfigError(f"{' and '.join(folders)} differ in no setting that all their runs have: use --by")
    return [*sides[0], *sides[1]], by, sides[1][0]
