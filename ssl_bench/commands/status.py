"""``ssl-bench status [WORD ...] [--watch | --json | --csv]``: experiments and their runs, read from their files.

Each experiment is one line; the runs follow if they are few; a single run has its warnings and the reason of its
failure too. ``--json`` prints a list of objects, one for each run, also for runs of a grid that have not begun:

    folder, run_id          null if there is no directory yet
    state                   finished, busy, failed, diverged, damaged, interrupted, evaluation missing or not begun
    doing                   training or evaluating; only of a busy one
    label                   the settings that distinguish it from the other selected runs of its experiment
    overrides               its overrides in its grid; null for a single run
    epoch, epochs           epochs done, epochs of the whole training
    images_per_second       of its last row of metrics
    eta_seconds             until it is done; only of a busy one
    best                    {metric: value}: the main ones of a finished run
    metrics                 {metric: value}: all of a finished run; accuracies in [0, 1]
    host, pid               of the process; only of a busy one
    watched                 kNN accuracy on its sample of training images; only of a busy one
    warnings                sentences about its result
    reason                  why the run failed or cannot be read, else ""

``--csv`` has the same fields with the overrides joined by blanks, and in place of ``best`` and ``metrics`` a
column for each setting, the seed, the seconds of the run and a column for each metric, of a finished run all.
"""

from __future__ import annotations

import contextlib
import json
import time
from argparse import Namespace
from collections.abc import Sequence
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from ssl_bench.commands.arguments import Parser, in_sentences
from ssl_bench.record.printing import LONGEST, Sheet, plain, text_of
from ssl_bench.results import table as runs_table
from ssl_bench.results.status import doing, screen, time_left
from ssl_bench.results.table import chosen

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.console import Console
    from rich.text import Text

PAUSE = 2.0  # seconds between two updates
LISTED = 40  # more runs than these are listed on a terminal only if that is asked for
SORT = "list the runs by state, experiment, seed, a metric (best first), a setting; -KEY: reversed"


@in_sentences
def main(arguments: Sequence[str]) -> int:
    """Print a table of the runs; return 0, or 2 for wrong arguments."""
    parser = Parser("status", "Show the experiments and runs of a results folder.")
    parser.add_words("; state=failed, knn/top1>60")
    parser.add_argument("--runs", action="store_true", help=f"list the runs, also if there are more than {LISTED}")
    parser.add_argument("--sort", metavar="KEY", help=SORT)
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--watch", action="store_true", help="update the table every two seconds, until Ctrl-C")
    forms.add_argument("--json", action="store_true", help="print a JSON object for each run")
    forms.add_argument(
        "--csv", action="store_true", help="print a row for each run: the same fields, settings and metrics"
    )
    options = parser.read_words(arguments)
    given = options.words, options.outputs, options.sort
    if options.json:
        print(json.dumps(records(chosen(*given)), indent=2))
    elif options.csv:
        print(text_of([Sheet([], records=_rows(chosen(*given)))], "csv"), end="")
    else:
        from rich.console import Console

        console = Console(highlight=False)
        if options.watch:
            _watch(options, console)
        else:
            shown = _screen(options, console)
            console.print(shown) if console.is_terminal else print(shown.plain)  # rich ends a closed pipe with 1
    return 0


def _screen(options: Namespace, console: Console, live: bool = False) -> Text:
    """The text with experiments, runs and totals; on a terminal many runs are listed only with --runs or --sort."""
    table = chosen(options.words, options.outputs, options.sort)
    listed = bool(options.runs or options.sort) or len(table) <= LISTED or not console.is_terminal
    width = console.width if live else get_terminal_size((LONGEST, 0)).columns  # a file needs no line breaks
    return screen(table, listed, time.time(), width, live)


def _watch(options: Namespace, console: Console) -> None:
    from rich.live import Live

    with contextlib.suppress(KeyboardInterrupt), Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(_screen(options, console, live=True), refresh=True)
            time.sleep(PAUSE)


def records(table: DataFrame) -> list[dict[str, Any]]:
    """The objects of ``--json``, as the head of this module has them."""
    names, seconds_left = runs_table.name_numbers(table["run"]), time_left(table, time.time())
    objects, columns = list[dict[str, Any]](), table[["run", "run_id", "path", "state", "reason"]]
    labels = runs_table.labels(table)
    for (place, run, run_id, path, state, reason), label in zip(columns.itertuples(), labels, strict=True):
        at, owner = run.progress, run.owner
        record = {"folder": path, "run_id": run_id, "state": state, "doing": doing(run) or None, "label": label}
        record |= {"overrides": run.overrides, "epoch": at.epoch, "epochs": run.end, "images_per_second": at.speed}
        record |= {"eta_seconds": seconds_left.get(place), "host": owner and owner.host, "pid": owner and owner.pid}
        record |= {"watched": owner and at.watched, "warnings": run.warnings, "reason": reason}
        record["best"] = runs_table.main(run, names)
        objects.append(record | {"metrics": {names[key]: plain(value) for key, value in run.numbers.items()}})
    return objects


def _rows(table: DataFrame) -> list[dict[str, Any]]:
    """The rows of ``--csv``."""
    columns, rows = [*runs_table.settings(table), "seed", *runs_table.numbers(table)], list[dict[str, Any]]()
    for record, run, values in zip(records(table), table["run"], table[columns].to_dict("records"), strict=True):
        del record["best"], record["metrics"]
        record |= {name: " ".join(record[name] or ()) for name in ("overrides", "warnings")}
        values = {str(name): plain(value) for name, value in values.items() if name not in record}
        rows.append(record | values | {"seconds": run.seconds})
    return rows
