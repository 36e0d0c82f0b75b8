"""The table of ``ssl-bench status``, fitted to a terminal."""

import socket
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ssl_bench.record.progress import clock
from ssl_bench.status.entries import Entry, Status

COLOURS = {
    Status.DONE: "green",
    Status.RUNNING: "cyan",
    Status.WAITING: "dim",
    Status.PARTIAL: "yellow",
    Status.FAILED: "red",
}
URGENT = (Status.RUNNING, Status.FAILED, Status.PARTIAL, Status.WAITING, Status.DONE)  # most urgent first
GAP = 2  # blank characters between two columns


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


def view(
    outputs: Path,
    entries: Sequence[Entry],
    labels: Sequence[str],
    left: float | None,
    width: int | None = None,
    rows: int | None = None,
) -> Group:
    """Make the table, the reasons of failures that have no column, and a line with the number of runs in each state.

    Args:
        labels: of the entries.
        left: seconds until all are done, if that is known.
        width: of the terminal, in characters; None: unlimited.
        rows: how many entries to show, the most urgent ones; None: all.
    """
    by_urgency = sorted(range(len(entries)), key=lambda index: URGENT.index(entries[index].state))
    indices = sorted(by_urgency[:rows])
    shown, shown_labels = [entries[index] for index in indices], [labels[index] for index in indices]
    columns = _columns(outputs, shown, shown_labels)
    if width is not None:
        columns = _fitting(columns, width)
    names = {column.name for column in columns}
    parents = [entry.run.folder.parent.name if entry.run else "" for entry in shown]
    if "folder" not in names and len({entry.run.folder.parent for entry in shown if entry.run}) > 1:
        full = [f"{parent}: {label}" if parent else label for parent, label in zip(parents, shown_labels, strict=True)]
        columns = [replace(column, texts=full) if column.name == "run" else column for column in columns]
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for column in columns:
        side: Literal["left", "right"] = "right" if column.right else "left"
        table.add_column(Text(column.name), justify=side, no_wrap=column.fold is None, overflow="fold")
    for row, entry in enumerate(shown):
        styles = {"state": COLOURS[entry.state], "reason": COLOURS[Status.FAILED]}
        table.add_row(*(Text(column.texts[row], styles.get(column.name, "")) for column in columns))
    parts: list[Table | Text] = [table if shown else Text(f"there are no runs under {outputs} yet"), Text("")]
    hidden = Counter(entries[index].state for index in by_urgency[len(shown) :])
    if hidden:
        parts.append(Text(f"and {sum(hidden.values())} more: {_counts(hidden)}"))
    for label, entry in zip(shown_labels, shown, strict=True):
        if entry.reason and "reason" not in names:
            parts.append(Text.assemble((label, "bold"), ": ", (entry.reason, COLOURS[Status.FAILED])))
    counts = _counts(Counter(entry.state for entry in entries), (Status.DONE, Status.PARTIAL, Status.FAILED))
    parts.append(Text(counts if left is None else f"{counts}; about {clock(left)} to go"))
    return Group(*parts)


def _columns(outputs: Path, entries: Sequence[Entry], labels: Sequence[str]) -> list[Column]:
    """All columns that are not empty."""
    best = dict.fromkeys(metric for entry in entries for metric in entry.best)
    columns = [
        Column("folder", [str(entry.run.folder.relative_to(outputs)) if entry.run else "" for entry in entries]),
        Column("run", list(labels), fold=28),
        Column("state", [_state(entry) for entry in entries]),
        Column("epoch", [_epoch(entry) for entry in entries], right=True),
        Column("images/s", [_speed(entry) for entry in entries], right=True),
        Column("ETA", [clock(entry.left) if entry.left is not None else "" for entry in entries], right=True),
        *(Column(name.removesuffix("/top1"), [_best(name, entry) for entry in entries], right=True) for name in best),
        Column("reason", [entry.reason for entry in entries], fold=40),
    ]
    return [column for column in columns if any(column.texts)]


def _fitting(columns: list[Column], width: int) -> list[Column]:
    """The columns that fit beside each other; the least important ones are left out first."""
    fixed = ("folder", "run", "state", "epoch", "images/s", "ETA", "reason")
    metrics = [column.name for column in columns if column.name not in fixed]
    for name in ("reason", "folder", *reversed(metrics[1:]), "images/s", "ETA", *metrics[:1]):
        if sum(column.width + GAP for column in columns) - GAP <= width:
            break
        columns = [column for column in columns if column.name != name]
    return columns


def _state(entry: Entry) -> str:
    owner = entry.run.owner if entry.run and entry.state is Status.RUNNING else None
    return f"running on {owner.host}" if owner and owner.host != socket.gethostname() else entry.state.value


def _epoch(entry: Entry) -> str:
    epoch, end = (entry.run.metrics.epoch, entry.run.end) if entry.run else (None, None)
    if end is None:
        return "" if epoch is None else f"{epoch:.1f}"
    return f"{epoch or 0.0:.1f}/{end:.0f}" if float(end).is_integer() else f"{epoch or 0.0:.2g}/{end:.2g}"


def _speed(entry: Entry) -> str:
    speed = entry.run.metrics.speed if entry.run else None
    return "" if speed is None else f"{speed:.0f}" if speed >= 100 else f"{speed:.1f}"


def _best(metric: str, entry: Entry) -> str:
    value = entry.best.get(metric)
    return "" if value is None else f"{100 * value:.1f}%" if metric.endswith("/top1") else f"{value:.4g}"


def _counts(counts: Counter[Status], always: Collection[Status] = ()) -> str:
    return ", ".join(f"{counts[state]} {state.value}" for state in Status if counts[state] or state in always)
