"""The tables of ``ssl-bench status``: plain text, or fitted to a terminal."""

from __future__ import annotations

import shutil
import socket
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ssl_bench.errors import printable
from ssl_bench.record.progress import clock
from ssl_bench.status.entries import URGENT, Entry, Status
from ssl_bench.status.groups import Summary
from ssl_bench.status.sparkline import sparkline

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

COLOURS = {
    Status.DONE: "green",
    Status.RUNNING: "cyan",
    Status.WAITING: "dim",
    Status.PARTIAL: "yellow",
    Status.FAILED: "red",
}
FIXED = ("folder", "run", "state", "epoch", "images/s", "ETA", "loss", "reason")  # columns that are no metrics
GAP = 2  # blank characters between two columns
PIPED = 120  # width without a terminal, unless COLUMNS is set
SPARKS = 12  # characters of a sparkline
NARROWEST = 20  # to which a column of texts is shortened: a run_id and the end of its parent directory


@dataclass(frozen=True)
class Column:
    """A column of a table; its texts may be folded to a width of ``fold``, if that is given.

    ``style`` is rich's style of all texts, or that of each.
    """

    name: str
    texts: list[str]
    right: bool = False
    fold: int | None = None
    style: str | list[str] = ""

    @property
    def unfolded(self) -> int:
        """Width without folding."""
        return max(map(len, [self.name, *self.texts]))

    @property
    def width(self) -> int:
        """Width on a terminal."""
        return self.unfolded if self.fold is None else min(self.unfolded, self.fold)


def overview(groups: Sequence[Summary], width: int, rows: int | None = None) -> Group:
    """Make the table of the grids and of the directories with single runs.

    Args:
        width: of the terminal, in characters.
        rows: how many to show: those that are running, then the newest; None: all.
    """
    from rich.console import Group
    from rich.text import Text

    newest = sorted(groups, key=lambda group: (group.counts[Status.RUNNING] > 0, group.started), reverse=True)
    shown = sorted(newest[:rows], key=lambda group: group.started)
    best = [f"{g.metric.removesuffix('/top1')} {100 * g.value:.1f}%" if g.value is not None else "" for g in shown]
    states = [state for state in Status if any(group.counts[state] for group in shown)]
    columns = [
        Column("grid", [printable(group.name) for group in shown], fold=40),
        Column("started", [time.strftime("%b %d %H:%M", time.localtime(group.started)) for group in shown]),
        Column("runs", [str(group.counts.total()) for group in shown], right=True),
        *(
            Column(s.value, [str(group.counts[s] or "") for group in shown], right=True, style=COLOURS[s])
            for s in states
        ),
        Column("ETA", [clock(group.left) if group.left is not None else "" for group in shown], right=True),
        Column("best", best),
        Column("best run", [printable(group.label) for group in shown], fold=40),
    ]
    columns = [column for column in columns if any(column.texts)]
    table = _table(_fitting(columns, width, ("best run", "started", "runs", "ETA")))
    return Group(table, *([Text(f"and {len(groups) - len(shown)} more")] if len(shown) < len(groups) else []))


def view(
    outputs: Path,
    entries: Sequence[Entry],
    labels: Sequence[str],
    left: float | None,
    width: int | None = None,
    rows: int | None = None,
    live: bool = False,
) -> Group:
    """Make the table, the reasons of failures that have no column, and a line with the number of runs in each state.

    Args:
        labels: of the entries.
        left: seconds until all are done, if that is known.
        width: of the terminal, in characters; None: unlimited.
        rows: how many entries to show, the most urgent ones; None: all.
        live: of running runs, show the losses and the last accuracies instead of the best ones.
    """
    from rich.console import Group
    from rich.text import Text

    return Group(*listing(outputs, entries, labels, width, rows, live), Text(totals(entries, left)))


def listing(
    outputs: Path,
    entries: Sequence[Entry],
    labels: Sequence[str],
    width: int | None = None,
    rows: int | None = None,
    live: bool = False,
) -> list[Table | Text]:
    """The same without the last line."""
    from rich.text import Text

    by_urgency = sorted(range(len(entries)), key=lambda index: URGENT.index(entries[index].state))
    indices = sorted(by_urgency[:rows])
    shown, shown_labels = [entries[index] for index in indices], [printable(labels[index]) for index in indices]
    columns = _columns(shown, shown_labels, live)
    if width is not None:
        metrics = [column.name for column in columns if column.name not in FIXED]
        order = ("reason", "folder", *reversed(metrics[1:]), "images/s", "ETA", "loss", *metrics[:1])
        columns = _fitting(columns, width, order)
    names = {column.name for column in columns}
    parents = [printable(entry.run.folder.parent.name) if entry.run else "" for entry in shown]
    if "folder" not in names and len({entry.run.parent for entry in shown if entry.run}) > 1:
        full = [f"{parent}: {label}" if parent else label for parent, label in zip(parents, shown_labels, strict=True)]
        columns = [replace(column, texts=full) if column.name == "run" else column for column in columns]
    parts: list[Table | Text] = [_table(columns) if shown else Text(_nothing(outputs)), Text("")]
    hidden = Counter(entries[index].state for index in by_urgency[len(shown) :])
    if hidden:
        parts.append(Text(f"and {hidden.total()} more: {_counts(hidden)}"))
    for label, entry in zip(shown_labels, shown, strict=True):
        if entry.reason and "reason" not in names:
            parts.append(Text.assemble((label, "bold"), ": ", (printable(entry.reason), COLOURS[Status.FAILED])))
    return parts


def lines(outputs: Path, entries: Sequence[Entry], labels: Sequence[str], left: float | None) -> Iterator[str]:
    """The same without a terminal: all columns, one line for each entry.

    Where that is wider than PIPED or COLUMNS, the reasons follow below the table, and the longest folders and labels
    are shortened in their middle.
    """
    columns, width = _columns(entries, labels), shutil.get_terminal_size((PIPED, 1)).columns
    below = _total_width(columns) > width
    if below:
        columns = _shortened([column for column in columns if column.name != "reason"], width)
    form = (" " * GAP).join(f"%{'' if column.right else '-'}{column.unfolded}s" for column in columns)
    yield (form % tuple(column.name for column in columns)).rstrip() if entries else _nothing(outputs)
    for cells in zip(*(column.texts for column in columns), strict=True):
        yield (form % cells).rstrip()
    yield ""
    for entry, label in zip(entries, labels, strict=True):
        if below and entry.reason:
            yield f"{printable(entry.run.path if entry.run else label)}: {printable(entry.reason)}"
    yield totals(entries, left)


def totals(entries: Sequence[Entry], left: float | None) -> str:
    """The number of runs in each state, and the time left."""
    counts = _counts(Counter(entry.state for entry in entries), (Status.DONE, Status.PARTIAL, Status.FAILED))
    return counts if left is None else f"{counts}; about {clock(left)} to go"


def _nothing(outputs: Path) -> str:
    return f"there are no runs to show under {printable(str(outputs))}"


def _table(columns: Sequence[Column]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for column in columns:
        side: Literal["left", "right"] = "right" if column.right else "left"
        table.add_column(Text(column.name), justify=side, no_wrap=column.fold is None, overflow="fold")
    for row in range(len(columns[0].texts)):
        cells = ((column.texts[row], column.style) for column in columns)
        table.add_row(*(Text(text, style if isinstance(style, str) else style[row]) for text, style in cells))
    return table


def _columns(entries: Sequence[Entry], labels: Sequence[str], live: bool = False) -> list[Column]:
    """All columns that are not empty; ``live`` is that of :func:`view`."""
    best = dict.fromkeys(metric for entry in entries for metric in entry.best)
    accuracies = [_latest(entry) if live else entry.best for entry in entries]
    columns = [
        Column("folder", [printable(entry.run.path or ".") if entry.run else "" for entry in entries]),
        Column("run", list(map(printable, labels)), fold=28),
        Column("state", [_state(entry) for entry in entries], style=[COLOURS[entry.state] for entry in entries]),
        Column("epoch", [_epoch(entry) for entry in entries], right=True),
        Column("images/s", [_speed(entry) for entry in entries], right=True),
        Column("ETA", [clock(entry.left) if entry.left is not None else "" for entry in entries], right=True),
        Column("loss", [_losses(entry) if live else "" for entry in entries], right=True),
        *(Column(name.removesuffix("/top1"), [_number(name, of) for of in accuracies], right=True) for name in best),
        Column("reason", [printable(entry.reason) for entry in entries], fold=40, style=COLOURS[Status.FAILED]),
    ]
    return [column for column in columns if any(column.texts)]


def _fitting(columns: list[Column], width: int, order: Sequence[str]) -> list[Column]:
    """The columns that fit beside each other; those in ``order`` are left out until they do."""
    for name in order:
        if sum(column.width + GAP for column in columns) - GAP <= width:
            break
        columns = [column for column in columns if column.name != name]
    return columns


def _total_width(columns: Sequence[Column]) -> int:
    """Width of a table without folding."""
    return sum(column.unfolded + GAP for column in columns) - GAP


def _shortened(columns: Sequence[Column], width: int) -> list[Column]:
    """The columns with folders and labels shortened as far as needed for a table of ``width``, the widest first."""
    texts = sorted(column.unfolded for column in columns if column.name in ("folder", "run"))
    left = width - (_total_width(columns) - sum(texts))
    limit = max([NARROWEST, left // max(1, len(texts)), left - sum(texts[:1])])
    return [
        replace(column, texts=[_cut(text, limit) for text in column.texts])
        if column.name in ("folder", "run")
        else column
        for column in columns
    ]


def _cut(text: str, limit: int) -> str:
    """``text`` in at most ``limit`` characters: its beginning and, twice as long, its end."""
    head = (limit - 3) // 3
    return text if len(text) <= limit else f"{text[:head]}...{text[head + 3 - limit :]}"


def _state(entry: Entry) -> str:
    owner = entry.run.owner if entry.run and entry.state is Status.RUNNING else None
    return f"running on {printable(owner.host)}" if owner and owner.host != socket.gethostname() else entry.state.value


def _epoch(entry: Entry) -> str:
    epoch, end = (entry.run.metrics.epoch, entry.run.end) if entry.run else (None, None)
    if end is None:
        return "" if epoch is None else f"{epoch:.1f}"
    return f"{epoch or 0.0:.1f}/{end:.0f}" if float(end).is_integer() else f"{epoch or 0.0:.2g}/{end:.2g}"


def _speed(entry: Entry) -> str:
    speed = entry.run.metrics.speed if entry.run else None
    return "" if speed is None else f"{speed:.0f}" if speed >= 100 else f"{speed:.1f}"


def _latest(entry: Entry) -> Mapping[str, float]:
    """The accuracies of an entry: the last ones of a running run, else the result or the best ones."""
    return entry.run.metrics.latest if entry.run and entry.state is Status.RUNNING else entry.best


def _losses(entry: Entry) -> str:
    """The last losses of a running run as a sparkline, and the last one."""
    losses = list(entry.run.metrics.losses) if entry.run and entry.state is Status.RUNNING else []
    return f"{sparkline(losses, SPARKS)} {losses[-1]:.4g}" if losses else ""


def _number(metric: str, values: Mapping[str, float]) -> str:
    value = values.get(metric)
    return "" if value is None else f"{100 * value:.1f}%" if metric.endswith("/top1") else f"{value:.4g}"


def _counts(counts: Counter[Status], always: Collection[Status] = ()) -> str:
    return ", ".join(f"{counts[state]} {state.value}" for state in Status if counts[state] or state in always)
