"""``ssl-bench status [OUTPUTS] [--watch | --json | --csv | --failed]``: every run and grid, from the files alone.

On a terminal each grid is one line, then come the runs if they are few. ``--json`` prints a list of objects, one for
each run and for each run that a grid has still to make:

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

``--csv`` has the same fields, with one column ``best.<metric>`` for each metric and the overrides joined by blanks.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ssl_bench.commands.arguments import Parser, refuse
from ssl_bench.errors import ConfigError, printable
from ssl_bench.status.cache import no_collection
from ssl_bench.status.entries import Entry, Status
from ssl_bench.status.groups import summaries
from ssl_bench.status.labels import labels
from ssl_bench.status.scan import Scan
from ssl_bench.status.select import RunFilter
from ssl_bench.status.view import lines, listing, overview, totals, view

if TYPE_CHECKING:
    from rich.console import Group

PAUSE = 2.0  # seconds between two updates
LISTED = 40  # more runs than these are listed on a terminal only if that is asked for
WHERE = (
    "only runs with this value: a group or key such as loss=dcl or optimizer.lr=0.3, or state=failed; may be repeated"
)
WATCH = "update the table every two seconds, with the last losses and accuracies of running runs"
SORT = "list the runs by state, folder, label, epoch, speed, a metric (best first), a group or a key; -KEY reverses"


def main(arguments: Sequence[str]) -> int:
    """Print a table of the runs; return 0, or 2 for wrong arguments."""
    parser = Parser("status", "Show the runs and grids under a results folder.")
    parser.add_argument("outputs", nargs="?", default="outputs", type=Path, help="results folder (default: outputs)")
    parser.add_argument("--runs", action="store_true", help=f"list the runs, also if there are more than {LISTED}")
    parser.add_argument("--where", action="append", default=[], metavar="KEY=VALUE[,VALUE]", help=WHERE)
    parser.add_argument("--sort", metavar="KEY", help=SORT)
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--watch", action="store_true", help=f"{WATCH}, until Ctrl-C")
    forms.add_argument("--json", action="store_true", help="print a list of objects, one for each run")
    forms.add_argument("--csv", action="store_true", help="print a table of the same fields")
    forms.add_argument("--failed", action="store_true", help="print the commands that start the failed runs again")
    options = parser.parse_args(_with_reversed_key(arguments))  # the name of the folder may contain "="
    if isinstance(sys.stdout, io.TextIOWrapper):  # a folder may have any bytes as its name
        if options.csv or options.failed:
            sys.stdout.reconfigure(encoding=sys.getfilesystemencoding(), errors="surrogateescape")
        else:
            sys.stdout.reconfigure(errors="backslashreplace")
    if not options.outputs.is_dir():
        return refuse(f"there is no folder {options.outputs}: name the folder that paths.outputs was set to")
    try:
        selection, listed = RunFilter(options.where, options.sort), options.runs or bool(options.sort)
        shown = Shown(options.outputs, selection, listed, options.watch)
        if options.watch:
            return _watch(shown)
        if options.json or options.csv:
            shown.update(named=True)
            records = [_record(entry, label) for entry, label in zip(shown.entries, shown.labels, strict=True)]
            _print_csv(records) if options.csv else print(json.dumps(records, indent=2))
        elif options.failed:
            shown.update()
            _print_commands(options.outputs, [entry for entry in shown.entries if entry.state is Status.FAILED])
        elif sys.stdout.isatty():
            from rich.console import Console

            shown.update()
            console = Console(highlight=False)
            console.print(shown.screen(console.width))
        else:
            shown.update(named=True)
            print(*lines(options.outputs, shown.entries, shown.labels, shown.left), sep="\n")
        for sentence in shown.refusals():
            refuse(sentence)
        return 0
    except ConfigError as error:
        return refuse(error)


def _with_reversed_key(arguments: Sequence[str]) -> list[str]:
    """``--sort=-KEY`` for ``--sort -KEY``, which argparse takes for two flags."""
    words = list(arguments)
    for place in range(len(words) - 1):
        if words[place] == "--sort" and words[place + 1].startswith("-"):
            words[place : place + 2] = [f"--sort={words[place + 1]}"]
            break
    return words


class Shown:
    """The runs that are shown.

    Args:
        outputs: the results folder.
        selection: which runs, and their order.
        listed: list them on a terminal, also if they are many.
        live: show the last losses and accuracies of running runs, and list these also if there are many other runs.

    Attributes:
        entries, labels: of the runs; the labels are empty texts unless they are needed.
        left: seconds until all are done; None if that is not known, or nothing is running.
    """

    def __init__(self, outputs: Path, selection: RunFilter, listed: bool, live: bool = False) -> None:
        self.outputs, self._selection, self._always, self._live = outputs, selection, listed, live
        self._scan = Scan(outputs)
        self.entries: list[Entry] = []
        self.labels: list[str] = []
        self.left: float | None = None

    def refusals(self) -> list[str]:
        """Say in a sentence what could not be read, if there is any."""
        return self._scan.refusals()

    @property
    def listed(self) -> bool:
        """Whether the runs are listed on a terminal."""
        return self._always or len(self.entries) <= LISTED

    @no_collection()
    def update(self, named: bool = False) -> None:
        """Look at the files again; the runs have labels if they are ``named`` or listed.

        Raises:
            ConfigError: no run has a key of the selection.
        """
        entries, left = self._scan.update(time.time())
        few = len(entries) <= LISTED
        names = labels(entries) if named or few or self._always or self._selection.conditions else [""] * len(entries)
        self.entries, self.labels = self._selection(entries, names)
        going = any(entry.state in (Status.RUNNING, Status.WAITING) for entry in self.entries)
        self.left = left if going else None

    def screen(self, width: int, rows: int | None = None) -> Group:
        """The tables for a terminal.

        Args:
            width: of the terminal, in characters.
            rows: the largest number of runs that are listed, or of grids if there are no runs; None: all.
        """
        from rich.console import Group
        from rich.text import Text

        groups = summaries(self.entries)
        if self.listed:
            table = view(self.outputs, self.entries, self.labels, self.left, width, rows, self._live)
            return Group(overview(groups, width), Text(""), table) if len(groups) > 1 and rows is None else table
        running = [entry for entry in self.entries if self._live and entry.state is Status.RUNNING]
        parts = listing(self.outputs, running, labels(running), width, rows, live=True) if running else []
        last = Text(f"{totals(self.entries, self.left)}; --runs lists the runs")
        return Group(overview(groups, width, rows), Text(""), *parts, last)


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


def _print_csv(records: Sequence[dict[str, Any]]) -> None:
    import csv

    metrics = dict.fromkeys(metric for record in records for metric in record["best"])
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for place, record in enumerate(records):
        row = dict[str, Any]()
        for name, value in record.items():
            if name == "best":
                row |= {f"best.{metric}": value.get(metric) for metric in metrics}
            else:
                row[name] = " ".join(value) if isinstance(value, list) else value
        if place == 0:
            writer.writerow(row)
        writer.writerow(row.values())


def _print_commands(outputs: Path, failed: Sequence[Entry]) -> None:
    if not failed:
        print(f"ssl-bench: no run under {printable(str(outputs))} has failed", file=sys.stderr)
    for command in dict.fromkeys(entry.command for entry in failed if entry.command):
        print(command)
    for entry in failed:
        if entry.run and not entry.command:
            print(
                f"ssl-bench: the command of {printable(str(entry.run.folder))} was not recorded: enter it again",
                file=sys.stderr,
            )


def _watch(shown: Shown) -> int:
    """Show the tables and update them until Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    try:
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                shown.update()
                rows: int | None = None
                while True:  # leave out rows until the counts below the table fit on the terminal
                    screen = shown.screen(console.width, rows)
                    excess = len(console.render_lines(screen)) - (console.height - 1)
                    if excess <= 0 or rows == 0:
                        break
                    rows = console.height if rows is None else max(0, rows - max(1, excess // 2))
                live.update(screen, refresh=True)
                time.sleep(PAUSE)
    except KeyboardInterrupt:
        return 0
