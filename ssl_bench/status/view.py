"""``ssl-bench status [OUTPUTS] [--watch | --json | --failed]``: every run and grid, from the files alone.

``--json`` prints a list of objects, one for each cell:

    folder, run_id          of the run; null where a cell of a grid has none
    state                   done, running, waiting, partial or failed
    cell                    what sets it apart from the others of its folder
    overrides               in its grid; null for a run by itself
    epoch, epochs           how far it is, and where it ends
    images_per_second       of its last row of metrics
    eta_seconds             until it is done, of a running one
    best                    {metric: value}: a finished run's result, else the best on the way; accuracies in [0, 1]
    host, pid               of a running one's process
    reason                  why it failed, else ""
"""

import argparse
import json
import operator
import socket
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ssl_bench.record.progress import clock
from ssl_bench.status.names import names
from ssl_bench.status.scan import Cell, Survey

COLOURS = {"done": "green", "running": "cyan", "waiting": "dim", "partial": "yellow", "failed": "red"}
URGENT = ("running", "failed", "partial", "waiting", "done")  # what is shown first where there is little room
PAUSE = 2.0  # seconds between two looks
GAP = 2  # blank characters between two columns


def main(arguments: Sequence[str]) -> int:
    """Prints a table of the runs; 0, or 2 where there is no such folder."""
    parser = argparse.ArgumentParser("ssl-bench status", description="The runs and grids under a results folder.")
    parser.add_argument("outputs", nargs="?", default="outputs", type=Path, help="default: outputs")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--watch", action="store_true", help="look again every two seconds, until Ctrl-C")
    ways.add_argument("--json", action="store_true", help="a list of objects, one for each cell")
    ways.add_argument("--failed", action="store_true", help="the commands that try again what has failed")
    asked = parser.parse_args(arguments)
    if not asked.outputs.is_dir():
        print(f"ssl-bench: there is no folder {asked.outputs}: give the one that paths.outputs named", file=sys.stderr)
        return 2
    survey = Survey(asked.outputs)
    if asked.watch:
        return _watch(survey)
    cells, left = survey.look(time.time())
    if asked.json:
        print(json.dumps([_record(cell, name) for cell, name in zip(cells, names(cells), strict=True)], indent=2))
    elif asked.failed:
        _again([cell for cell in cells if cell.state == "failed"])
    else:
        _show(survey.outputs, cells, left)
    return 0


def _record(cell: Cell, name: str) -> dict[str, Any]:
    run, owner = cell.run, cell.run.owner if cell.run and cell.state == "running" else None
    return {
        "folder": str(run.folder) if run else None,
        "run_id": run.folder.name if run else None,
        "state": cell.state,
        "cell": name,
        "overrides": cell.overrides,
        "epoch": run.journal.epoch if run else None,
        "epochs": run.end if run else None,
        "images_per_second": run.journal.speed if run else None,
        "eta_seconds": cell.left,
        "best": cell.best,
        "host": owner.host if owner else None,
        "pid": owner.pid if owner else None,
        "reason": cell.reason,
    }


def _again(failed: Sequence[Cell]) -> None:
    for command in dict.fromkeys(cell.command for cell in failed if cell.command):
        print(command)
    for cell in failed:
        if cell.run and not cell.command:
            print(f"ssl-bench: nobody kept the command of {cell.run.folder}: give it again by hand", file=sys.stderr)


# ---- the table


@dataclass(frozen=True)
class Column:
    """A column of the table; its text may be folded to a width of ``fold``, if that is given."""

    name: str
    texts: list[str]
    right: bool = False
    fold: int | None = None

    @property
    def width(self) -> int:
        natural = max(map(len, [self.name, *self.texts]))
        return natural if self.fold is None else min(natural, self.fold)


def _columns(outputs: Path, found: Sequence[Cell], called: Sequence[str]) -> list[Column]:
    """All columns that have something to say."""
    best = dict.fromkeys(metric for cell in found for metric in cell.best)
    columns = [
        Column("run", [str(cell.run.folder.relative_to(outputs)) if cell.run else "" for cell in found]),
        Column("cell", list(called), fold=28),
        Column("state", [_state(cell) for cell in found]),
        Column("epoch", [_epoch(cell) for cell in found], right=True),
        Column("images/s", [_speed(cell) for cell in found], right=True),
        Column("ETA", [clock(cell.left) if cell.left is not None else "" for cell in found], right=True),
        *(Column(name.removesuffix("/top1"), [_value(name, cell) for cell in found], right=True) for name in best),
        Column("reason", [cell.reason for cell in found], fold=40),
    ]
    return [column for column in columns if any(column.texts)]


def _state(cell: Cell) -> str:
    owner = cell.run.owner if cell.run else None
    elsewhere = cell.state == "running" and owner is not None and owner.host != socket.gethostname()
    return f"running on {owner.host}" if owner and elsewhere else cell.state


def _epoch(cell: Cell) -> str:
    epoch, end = (cell.run.journal.epoch, cell.run.end) if cell.run else (None, None)
    if end is None:
        return "" if epoch is None else f"{epoch:.1f}"
    return f"{epoch or 0.0:.1f}/{end:.0f}" if float(end).is_integer() else f"{epoch or 0.0:.2g}/{end:.2g}"


def _speed(cell: Cell) -> str:
    speed = cell.run.journal.speed if cell.run else None
    return "" if speed is None else f"{speed:.0f}" if speed >= 100 else f"{speed:.1f}"


def _value(metric: str, cell: Cell) -> str:
    value = cell.best.get(metric)
    return "" if value is None else f"{100 * value:.1f}%" if metric.endswith("/top1") else f"{value:.4g}"


def _fitting(columns: list[Column], width: int) -> list[Column]:
    """The columns that fit beside each other: the least needed go first."""
    usual = ("run", "cell", "state", "epoch", "images/s", "ETA", "reason")
    metrics = [column.name for column in columns if column.name not in usual]
    for name in ("reason", "run", *reversed(metrics[1:]), "images/s", "ETA", *metrics[:1]):
        if sum(column.width + GAP for column in columns) - GAP <= width:
            break
        columns = [column for column in columns if column.name != name]
    return columns


def view(
    outputs: Path,
    found: Sequence[Cell],
    called: Sequence[str],
    left: float | None,
    width: int | None = None,
    rows: int | None = None,
) -> Any:
    """What is printed, for rich.

    Args:
        called: the names of the cells.
        left: seconds until all are done, if that is known.
        width: of the terminal, in characters; None: everything has room.
        rows: how many cells to show, the most urgent ones; None: all.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    urgent = sorted(range(len(found)), key=lambda index: URGENT.index(found[index].state))
    shown = sorted(urgent[:rows])
    some = [found[index] for index in shown]
    columns = _columns(outputs, some, [called[index] for index in shown])
    fitting = columns if width is None else _fitting(columns, width)
    homes = {cell.run.folder.parent for cell in some if cell.run}
    if len(homes) > 1 and "run" not in {column.name for column in fitting}:
        places = [f"{cell.run.folder.parent.name}: " if cell.run else "" for cell in some]
        fitting = [
            replace(c, texts=list(map(operator.add, places, c.texts))) if c.name == "cell" else c for c in fitting
        ]
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for column in fitting:
        side: Literal["left", "right"] = "right" if column.right else "left"
        table.add_column(Text(column.name), justify=side, no_wrap=column.fold is None, overflow="fold")
    for number, cell in enumerate(some):
        styles = {"state": COLOURS[cell.state], "reason": COLOURS["failed"]}
        table.add_row(*(Text(column.texts[number], styles.get(column.name, "")) for column in fitting))
    parts: list[Any] = [table if some else Text(f"there are no runs under {outputs} yet"), ""]
    hidden = Counter(found[index].state for index in urgent[len(shown) :])
    if hidden:
        parts.append(Text(f"and {sum(hidden.values())} more: {_counted(hidden, ())}"))
    if "reason" not in {column.name for column in fitting}:
        for index in shown:
            if found[index].reason:
                parts.append(Text.assemble((called[index], "bold"), ": ", (found[index].reason, COLOURS["failed"])))
    to_go = f"; about {clock(left)} to go" if left is not None else ""
    parts.append(Text(f"{_counted(Counter(cell.state for cell in found), ('done', 'partial', 'failed'))}{to_go}"))
    return Group(*parts)


def _counted(counts: Counter[str], always: Sequence[str]) -> str:
    return ", ".join(f"{counts[state]} {state}" for state in COLOURS if counts[state] or state in always)


def _show(outputs: Path, found: Sequence[Cell], left: float | None) -> None:
    """On a terminal as much as fits beside each other; else everything, a line for each cell."""
    from rich.console import Console

    console = Console(highlight=False)
    if console.is_terminal:
        console.print(view(outputs, found, names(found), left, console.width))
        return
    wide = Console(width=2**16, color_system=None, highlight=False)
    with wide.capture() as captured:
        wide.print(view(outputs, found, names(found), left))
    print(*(line.rstrip() for line in captured.get().splitlines()), sep="\n")


def _watch(survey: Survey) -> int:
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False)
    try:
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            while True:
                found, left = survey.look(time.time())
                called, rows = names(found), min(len(found), console.height)
                while True:  # so that the counts below the table stay in sight
                    shown = view(survey.outputs, found, called, left, console.width, rows)
                    over = len(console.render_lines(shown)) - (console.height - 1)
                    if over <= 0 or rows == 0:
                        break
                    rows -= max(1, over // 2)
                live.update(shown, refresh=True)
                time.sleep(PAUSE)
    except KeyboardInterrupt:
        return 0
