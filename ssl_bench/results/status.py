"""The tables of ``ssl-bench status``: plain text, or in colours on a terminal."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from ssl_bench.errors import printable
from ssl_bench.evaluate.metric import heading
from ssl_bench.record import printing
from ssl_bench.record.printing import Sheet, SheetEntry
from ssl_bench.record.progress import clock
from ssl_bench.results.differing import distinct, labels
from ssl_bench.results.former_select import Labelled
from ssl_bench.results.grids import GridFolder
from ssl_bench.results.numbers import Numbers
from ssl_bench.results.scan import URGENT, Entry, Status

if TYPE_CHECKING:
    from rich.console import Group

COLOURS = {
    Status.DONE: "green",
    Status.EVALUATED: "green",
    Status.RUNNING: "cyan",
    Status.WAITING: "dim",
    Status.PARTIAL: "yellow",
    Status.FAILED: "red",
}
WORDS = ("folder", "run", "state", "reason", "grid", "started", "best", "best run")  # columns of text, not of numbers
# Left out by a narrow terminal, one after another.
SPARED = ("best run", "started", "runs", "images/s", "folder", "ETA", "loss", "watched kNN", "epoch")

Columns = dict[str, list[str]]  # texts by heading


def lines(outputs: Path, shown: Sequence[Labelled], left: float | None) -> list[str]:
    """The table of runs as plain text, and a line with the number of runs in each state."""
    rows = printing.lines(_sheet(runs_table(shown))) if shown else [nothing(outputs)]
    return [*rows, "", totals([entry for entry, _ in shown], left)]


def screen(
    outputs: Path, shown: Sequence[Labelled], left: float | None, listed: bool, width: int, live: bool = False
) -> Group:
    """The tables for a terminal: of the grids if there are several, of the runs if they are ``listed``, the totals.

    A ``live`` screen begins with the totals and has the most urgent runs first: its end may be cut off.
    """
    from rich.console import Group
    from rich.text import Text

    entries = [entry for entry, _ in shown]
    rows, reasons = list[str](), list[Text]()
    if entries and (len(grouped(entries)) > 1 or not listed):
        rows += [*printing.lines(_sheet(overview(entries)), width), ""]
    if not listed:
        shown = [pair for pair in shown if live and pair[0].state is Status.RUNNING]
    if live:
        shown = sorted(shown, key=lambda pair: URGENT.index(pair[0].state))
    if shown:
        columns = runs_table(shown)
        columns.pop("reason", None)  # a sentence, which stands below the table
        rows += [*printing.lines(_sheet(columns), width), ""]
    elif not entries:
        rows += [nothing(outputs), ""]
    for entry, label in shown:
        for sentence in filter(None, [entry.reason, *entry.warnings]):
            name = printable(f"{entry.run.path}: " if entry.run else "") + printable(label)
            colour = COLOURS[Status.FAILED if entry.reason else Status.PARTIAL]
            reasons.append(Text.assemble((name, "bold"), ": ", (printable(sentence), colour)))
    tables = Text("\n".join(rows), no_wrap=True, overflow="ellipsis")
    for state, colour in COLOURS.items():
        tables.highlight_words([state.value], colour)
    tables.highlight_words(["training", "evaluating"], COLOURS[Status.RUNNING])
    last = Text(totals(entries, left) + ("" if listed else "; --runs lists the runs"))
    return Group(last, Text(""), tables, *reasons) if live else Group(tables, *reasons, last)


def runs_table(shown: Sequence[Labelled]) -> Columns:
    """A row for each run; columns that would be empty are left out."""
    numbers = Numbers(entry.run for entry, _ in shown if entry.run)
    best = [numbers.main(entry.run) for entry, _ in shown]
    columns = {
        "folder": [printable(entry.run.path or ".") if entry.run else "" for entry, _ in shown],
        "run": [printable(label) for _, label in shown],
        "state": [_state(entry) for entry, _ in shown],
        "epoch": [_epoch(entry) for entry, _ in shown],
        "images/s": [_speed(entry) for entry, _ in shown],
        "ETA": [clock(entry.left) if entry.left is not None else "" for entry, _ in shown],
        "loss": [_loss(entry) for entry, _ in shown],
        "watched kNN": [_watched(entry) for entry, _ in shown],
        **{
            heading(name): [numbers.meaning(name).text(of[name]) if name in of else "" for of in best]
            for name in dict.fromkeys(name for of in best for name in of)
        },
        "reason": [printable(entry.reason or "; ".join(entry.warnings)) for entry, _ in shown],
    }
    return {name: texts for name, texts in columns.items() if any(texts)}


def grouped(entries: Sequence[Entry]) -> dict[GridFolder | str, list[Entry]]:
    """The entries by their grid, or by the directory of single runs."""
    groups: dict[GridFolder | str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.grid or (entry.run.parent if entry.run else ""), []).append(entry)
    return groups


def overview(entries: Sequence[Entry]) -> Columns:
    """A row for each grid, and for the single runs of each directory, sorted by start.

    The best run is by the main metric that most runs have, of those that the group has.
    """
    groups, rows = grouped(entries), list[tuple[float, dict[str, str]]]()
    numbers = Numbers(entry.run for entry in entries if entry.run)
    main = {id(entry): numbers.main(entry.run) for entry in entries}
    names = numbers.usual(entry.run for entry in entries)
    grids = [group for group in groups if isinstance(group, GridFolder)]
    shared = frozenset(grids[0].common).intersection(*(grid.common for grid in grids)) if len(grids) > 1 else None
    for group, members in groups.items():
        chosen = next((name for name in names if any(name in main[id(entry)] for entry in members)), "")
        sign = numbers.meaning(chosen).sign
        ranked = [entry for entry in members if chosen in main[id(entry)]] if sign else []
        best = max(ranked, key=lambda entry: sign * main[id(entry)][chosen], default=None)
        if isinstance(group, GridFolder):
            name, started, left = _name(group, shared), group.started, group.left
            label = distinct(best.overrides or [], group.common) if best else ""
        else:
            name, started = f"{group}/" if group else "./", min(e.run.began for e in members if e.run)
            left = max((e.left for e in members if e.left is not None), default=None)
            label = labels(members)[members.index(best)] if best else ""
        counts = Counter(entry.state for entry in members)
        row = {
            "grid": printable(name),
            "started": time.strftime("%b %d %H:%M", time.localtime(started)),
            "runs": str(len(members)),
            **{state.value: str(counts[state] or "") for state in Status},
            "ETA": "" if left is None else clock(left),
            "best": f"{heading(chosen)} {numbers.meaning(chosen).text(main[id(best)][chosen])}" if best else "",
            "best run": printable(label),
        }
        rows.append((started, row))
    rows.sort(key=lambda pair: pair[0])
    columns = {name: [row[name] for _, row in rows] for name in rows[0][1]}
    return {name: texts for name, texts in columns.items() if any(texts)}


def axes(grid: GridFolder) -> list[str]:
    """How many values each setting of a grid has, if they are several: ``loss x3``."""
    keys = Counter(o.partition("=")[0].lstrip("+") for o in dict.fromkeys(chain.from_iterable(grid.runs)))
    return [f"{key} x{count}" for key, count in keys.items() if count > 1]


def _name(grid: GridFolder, shared: frozenset[str] | None) -> str:
    """A grid's settings that differ from those of the other grids, then its axes."""
    first = grid.runs[0] if shared is not None and grid.runs else []
    fixed = [override for override in first if override in grid.common and override not in (shared or ())]
    return ", ".join([*fixed, *axes(grid)]) or " ".join(grid.runs[0] if grid.runs else [])


def _sheet(columns: Columns) -> Sheet:
    rows = [[SheetEntry(text) for text in row] for row in zip(*columns.values(), strict=True)]
    return Sheet([*columns], rows, words=WORDS, spared=SPARED)


def totals(entries: Sequence[Entry], left: float | None) -> str:
    """The number of runs in each state, and the time left."""
    counts, always = Counter(entry.state for entry in entries), (Status.DONE, Status.PARTIAL, Status.FAILED)
    text = ", ".join(f"{counts[state]} {state.value}" for state in Status if counts[state] or state in always)
    return text if left is None else f"{text}; about {clock(left)} to go"


def nothing(outputs: Path) -> str:
    """The sentence in place of an empty table."""
    return f"there are no runs to show under {printable(str(outputs))}"


def _state(entry: Entry) -> str:
    """The state: of a running one what it is doing, and where if elsewhere; with a sign if its run warns."""
    owner = entry.run.owner if entry.run and entry.state is Status.RUNNING else None
    where = f" on {printable(owner.host)}" if owner and owner.host != socket.gethostname() else ""
    return (entry.doing or entry.state.value) + where + " !" * bool(entry.warnings)


def _epoch(entry: Entry) -> str:
    epoch, end = (entry.run.epoch, entry.run.end) if entry.run else (None, None)
    if end is None:
        return "" if epoch is None else f"{epoch:.1f}"
    return f"{epoch or 0.0:.1f}/{end:.0f}" if float(end).is_integer() else f"{epoch or 0.0:.2g}/{end:.2g}"


def _speed(entry: Entry) -> str:
    speed = entry.run.speed if entry.run else None
    return "" if speed is None else f"{speed:.0f}" if speed >= 100 else f"{speed:.1f}"


def _loss(entry: Entry) -> str:
    loss = entry.run.loss if entry.run and entry.state is Status.RUNNING else None
    return "" if loss is None else f"{loss:.4g}"


def _watched(entry: Entry) -> str:
    watched = entry.run.watched if entry.run and entry.state is Status.RUNNING else None
    return "" if watched is None else f"{100 * watched:.1f}%"
