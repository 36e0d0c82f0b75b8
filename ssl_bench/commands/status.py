"""``ssl-bench status [WORD ...] [--watch | --json | --csv]``: every run and grid, from the files alone.

On a terminal each grid is one line, then come the runs if they are few. ``--json`` prints a list of objects, one for
each run and for each run that a grid has still to make:

    folder, run_id          null if there is no directory yet
    state                   done, running, waiting, partial or failed
    doing                   training or evaluating; only of a running one
    label                   the settings that distinguish it from the others of its parent directory
    overrides               its overrides in its grid; null for a single run
    epoch, epochs           epochs done, epochs of the whole training
    images_per_second       of its last row of metrics
    eta_seconds             until it is done; only of a running one
    best                    {metric: value}: the main ones of a finished run, else the best so far
    metrics                 {metric: value}: all of a finished run; accuracies in [0, 1]
    host, pid               of the process; only of a running one
    watched                 kNN accuracy of its last watching; only of a running one
    warnings                what it says about its result, in sentences
    reason                  why it failed, else ""

``--csv`` has the same fields with the overrides joined by blanks, and in place of ``best`` and ``metrics`` a
column for each setting, the seed, the seconds of the run and a column for each metric, of a finished run all.
"""

import io
import json
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from ssl_bench.commands.arguments import Parser, in_sentences, refuse
from ssl_bench.record.printing import Sheet, text_of
from ssl_bench.results.former_select import Labelled, located, selected
from ssl_bench.results.numbers import Numbers
from ssl_bench.results.rows import rows
from ssl_bench.results.scan import Entry, Scan, Status
from ssl_bench.results.status import lines, screen

PAUSE = 2.0  # seconds between two updates
LISTED = 40  # more runs than these are listed on a terminal only if that is asked for
SORT = (
    "list the runs by state, folder, label, epoch, speed, a metric (best first), a group, a key; --sort=-KEY: reversed"
)


@in_sentences
def main(arguments: Sequence[str]) -> int:
    """Print a table of the runs; return 0, or 2 for wrong arguments."""
    parser = Parser("status", "Show the runs and grids under a results folder.")
    parser.add_words("; state=failed, knn/top1>60")
    parser.add_argument("--runs", action="store_true", help=f"list the runs, also if there are more than {LISTED}")
    parser.add_argument("--sort", metavar="KEY", help=SORT)
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--watch", action="store_true", help="update the table every two seconds, until Ctrl-C")
    forms.add_argument("--json", action="store_true", help="print a list of objects, one for each run")
    forms.add_argument("--csv", action="store_true", help="print a table of these fields, settings and metrics")
    options = parser.read_words(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper) and options.csv:  # not for people to read
        sys.stdout.reconfigure(encoding=sys.getfilesystemencoding(), errors="surrogateescape")
    options.outputs, options.words = located(options.words, options.outputs)
    options.scan = Scan(options.outputs)
    return _watch(options) if options.watch else _print(options)


def _look(scan: Scan, options: Namespace) -> tuple[list[Labelled], float | None, bool]:
    """The selected runs with their labels, the seconds left of those that run, and whether to list them."""
    shown, left = selected(scan, options.outputs, options.words, options.sort)
    going = any(entry.state in (Status.RUNNING, Status.WAITING) for entry, _ in shown)
    return shown, left if going else None, bool(options.runs or options.sort or len(shown) <= LISTED)


def _print(options: Namespace) -> int:
    scan = options.scan
    shown, left, listed = _look(scan, options)
    if options.json:
        numbers = Numbers(entry.run for entry, _ in shown if entry.run)
        metrics = [{"best": numbers.main(entry.run), "metrics": numbers.of(entry.run)} for entry, _ in shown]
        print(json.dumps([_record(*pair) | of for pair, of in zip(shown, metrics, strict=True)], indent=2))
    elif options.csv:
        _print_csv(shown)
    elif sys.stdout.isatty():
        from rich.console import Console

        console = Console(highlight=False)
        console.print(screen(options.outputs, shown, left, listed, console.width))
    else:
        print(*lines(options.outputs, shown, left), sep="\n")
    for sentence in scan.refusals():
        refuse(sentence)
    return 0


def _watch(options: Namespace) -> int:
    from rich.console import Console
    from rich.live import Live

    scan, console = options.scan, Console(highlight=False)
    try:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                now = screen(options.outputs, *_look(scan, options), console.width, live=True)
                live.update(now, refresh=True)
                time.sleep(PAUSE)
    except KeyboardInterrupt:
        return 0


def _record(entry: Entry, label: str) -> dict[str, Any]:
    run, owner = entry.run, entry.run.owner if entry.run and entry.state is Status.RUNNING else None
    return {
        "folder": str(run.folder) if run else None,
        "run_id": run.folder.name if run else None,
        "state": entry.state.value,
        "doing": entry.doing or None,
        "label": label,
        "overrides": entry.overrides,
        "epoch": run.epoch if run else None,
        "epochs": run.end if run else None,
        "images_per_second": run.speed if run else None,
        "eta_seconds": entry.left,
        "host": owner.host if owner else None,
        "pid": owner.pid if owner else None,
        "watched": run.watched if run and owner else None,
        "warnings": entry.warnings,
        "reason": entry.reason,
    }


def _print_csv(shown: Sequence[Labelled]) -> None:
    records = list[dict[str, Any]]()
    for (entry, label), values in zip(shown, rows([entry for entry, _ in shown]), strict=True):
        record = {n: " ".join(v) if isinstance(v, list) else v for n, v in _record(entry, label).items()}
        del values["path"]
        records.append(record | {name: value for name, value in values.items() if name not in record})
    if records:
        print(text_of([Sheet([], records=records)], "csv"), end="")
