"""``ssl-bench status [OUTPUTS] [--watch | --json | --failed]``: every run and grid, from the files alone.

``--json`` prints a list of objects, one for each run and for each run that a grid has still to make:

    folder, run_id          null if there is no directory yet
    state                   done, running, waiting, partial or failed
    label                   the settings that distinguish it from the others of its parent directory
    overrides               its overrides in its grid; null for a single run
    epoch, epochs           epochs done, epochs of the whole training
    images_per_second       of its last row of metrics
    eta_seconds             until it is done; only of a running one
    best                    {metric: value}: a finished run's result, else the best so far; accuracies in [0, 1]
    host, pid               of the process; only of a running one
    reason                  why it failed, else ""
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from ssl_bench.commands.arguments import Parser, refuse
from ssl_bench.status.entries import Entry, Status
from ssl_bench.status.labels import labels
from ssl_bench.status.scan import Scan
from ssl_bench.status.view import view

PAUSE = 2.0  # seconds between two updates


def main(arguments: Sequence[str]) -> int:
    """Print a table of the runs; return 0, or 2 if there is no such folder."""
    parser = Parser("status", "Show the runs and grids under a results folder.")
    parser.add_argument("outputs", nargs="?", default="outputs", type=Path, help="results folder (default: outputs)")
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--watch", action="store_true", help="update the table every two seconds, until Ctrl-C")
    forms.add_argument("--json", action="store_true", help="print a list of objects, one for each run")
    forms.add_argument("--failed", action="store_true", help="print the commands that start the failed runs again")
    options = parser.parse_args(arguments)  # the name of the folder may contain "="
    if not options.outputs.is_dir():
        return refuse(f"there is no folder {options.outputs}: name the folder that paths.outputs was set to")
    scan = Scan(options.outputs)
    if options.watch:
        return _watch(scan)
    entries, left = scan.update(time.time())
    if options.json:
        records = [_record(entry, label) for entry, label in zip(entries, labels(entries), strict=True)]
        print(json.dumps(records, indent=2))
    elif options.failed:
        _print_commands([entry for entry in entries if entry.state is Status.FAILED])
    else:
        _print_table(scan.outputs, entries, left)
    return 0


def _record(entry: Entry, label: str) -> dict[str, Any]:
    run, owner = entry.run, entry.run.owner if entry.run and entry.state is Status.RUNNING else None
    return {
        "folder": str(run.folder) if run else None,
        "run_id": run.folder.name if run else None,
        "state": entry.state.value,
        "label": label,
        "overrides": entry.overrides,
        "epoch": run.metrics.epoch if run else None,
        "epochs": run.end if run else None,
        "images_per_second": run.metrics.speed if run else None,
        "eta_seconds": entry.left,
        "best": entry.best,
        "host": owner.host if owner else None,
        "pid": owner.pid if owner else None,
        "reason": entry.reason,
    }


def _print_commands(failed: Sequence[Entry]) -> None:
    for command in dict.fromkeys(entry.command for entry in failed if entry.command):
        print(command)
    for entry in failed:
        if entry.run and not entry.command:
            print(f"ssl-bench: the command of {entry.run.folder} was not recorded: enter it again", file=sys.stderr)


def _print_table(outputs: Path, entries: Sequence[Entry], left: float | None) -> None:
    """Print the columns that fit on a terminal; to a file or pipe print all, one line for each entry."""
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(view(outputs, entries, labels(entries), left, console.width))
        return
    unlimited = Console(width=2**16, color_system=None, highlight=False)
    with unlimited.capture() as captured:
        unlimited.print(view(outputs, entries, labels(entries), left))
    print(*(line.rstrip() for line in captured.get().splitlines()), sep="\n")


def _watch(scan: Scan) -> int:
    """Show the table and update it until Ctrl-C."""
    console = Console(highlight=False)
    try:
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                entries, left = scan.update(time.time())
                names, rows = labels(entries), min(len(entries), console.height)
                while True:  # leave out rows until the counts below the table fit on the terminal
                    table = view(scan.outputs, entries, names, left, console.width, rows)
                    excess = len(console.render_lines(table)) - (console.height - 1)
                    if excess <= 0 or rows == 0:
                        break
                    rows -= max(1, excess // 2)
                live.update(table, refresh=True)
                time.sleep(PAUSE)
    except KeyboardInterrupt:
        return 0
