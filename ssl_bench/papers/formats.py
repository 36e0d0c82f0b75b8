"""Print filled tables: for a terminal, as Markdown, LaTeX, CSV or JSON.

The first three have the rows and columns of the paper. A cell has up to five numbers there, a line each: the paper's,
ours, the difference, the project's, and ours of ``scale=reduced``. Numbers that no cell of a row has are left out.
Notes of cells are numbered footnotes; a note that a whole row has stands once, beside the name of the row.

CSV and JSON have a row for each cell.
"""

from __future__ import annotations

import csv
import io
import json
import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ssl_bench.papers import measurements, surface
from ssl_bench.papers.cells import Table
from ssl_bench.papers.fill import Filled, mean, record
from ssl_bench.record.summary import SUPERSCRIPT
from ssl_bench.results.printing import tex as _escaped

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as Columns

NUMBERS = ("paper", "ours", *surface.LINES, "project", "reduced")
GAP = 2  # blank characters between two columns on a terminal
WIDEST = 120  # characters of a line of text on a terminal


@dataclass(frozen=True)
class SheetEntry:
    """A text of a sheet.

    Attributes:
        notes: numbers of its footnotes, from 1.
        best: whether it is the best number of those that it is compared with.
    """

    text: str = ""
    notes: tuple[int, ...] = ()
    best: bool = False


@dataclass
class Sheet:
    """A filled table as text. Two columns on the left name the row and the number.

    Attributes:
        columns: headings of the other columns.
        notes: the footnotes.
    """

    columns: list[str]
    rows: list[list[SheetEntry]]
    notes: list[str]


def arrange(table: Table, filled: Sequence[Filled]) -> Sheet:
    """A filled table in the shape that the paper prints."""
    filled = surface.printed(table, filled) if table.design else filled
    by_row: dict[str, dict[str, Filled]] = {}  # which need not have a cell in every column
    for each in filled:
        by_row.setdefault(each.cell.label, {})[each.cell.column] = each
    best = _best(table, filled)
    sheet = Sheet(list(dict.fromkeys(each.cell.column for each in filled)), [], [])

    def numbered(notes: Sequence[str]) -> tuple[int, ...]:
        sheet.notes += [note for note in dict.fromkeys(notes) if note not in sheet.notes]
        return tuple(sheet.notes.index(note) + 1 for note in notes)

    for label, cells in by_row.items():
        common = [note for note in next(iter(cells.values())).notes if all(note in c.notes for c in cells.values())]
        texts = {column: each.texts for column, each in cells.items()}
        names = [name for name in NUMBERS if any(name in each for each in texts.values())] or ["ours"]
        for name in names:
            first = name == names[0]
            row = [SheetEntry(label, numbered(common)) if first else SheetEntry(), SheetEntry(name)]
            for column in sheet.columns:
                if (cell := cells.get(column)) is None:
                    row.append(SheetEntry())
                    continue
                text = texts[column].get(name, "")
                notes = [note for note in cell.notes if note not in common] if first else []
                notes += [cell.recipe] if text and name == "reduced" and cell.recipe else []
                notes += cell.remarks.get(name, ())
                row.append(SheetEntry(text, numbered(notes), (name, label, column) in best))
            sheet.rows.append(row)
    return sheet


def _best(table: Table, filled: Sequence[Filled]) -> set[tuple[str, str, str]]:
    """Name, row and column of the best numbers of each row or column, as the table says.

    Only cells with the same metric and dataset are compared, and a single number is not the best of anything.
    """
    groups: dict[tuple[str, object], list[tuple[float, str, str]]] = {}
    for each in filled if table.best else ():
        cell = each.cell
        place = cell.label if table.best == "row" else (cell.column, cell.measure)
        group = place, cell.metric.partition("@")[0], cell.settings.get("dataset")
        for name, number in (("paper", cell.paper), ("ours", each.mean), ("project", mean(each.measured))):
            if number is not None and math.isfinite(number):
                groups.setdefault((name, group), []).append((number, cell.label, cell.column))
    best: set[tuple[str, str, str]] = set()
    for (name, _), numbers in groups.items():
        if len(numbers) > 1:
            best |= {(name, row, column) for number, row, column in numbers if number == max(numbers)[0]}
    return best


def formatted(form: str, filled: Sequence[tuple[Table, Sequence[Filled]]]) -> str:
    """Tables as text in a format of FORMATS. Several tables as JSON are one list."""
    if form == "json" and len(filled) > 1:
        return json.dumps([_record(table, cells) for table, cells in filled], indent=2) + "\n"
    return "\n".join(FORMATS[form](table, cells) for table, cells in filled)


def _rich(table: Table, filled: Sequence[Filled]) -> str:
    from rich.console import Console
    from rich.text import Text

    terminal, file = Console(), io.StringIO()
    width = terminal.width
    console = Console(file=file, highlight=False, width=width, force_terminal=terminal.is_terminal)
    console.print(Text(f"{table.name}: {table.title}", "bold"))
    sheet = arrange(table, filled)
    for block in _blocks(sheet, list(range(len(sheet.columns))), console):
        console.print(block, "")
    text = "\n".join(line.rstrip() for line in file.getvalue().splitlines())
    wrap = textwrap.TextWrapper(min(width, WIDEST), break_long_words=False, break_on_hyphens=False)
    footnotes = "\n".join(wrap.fill(f"{number} {note}") for number, note in enumerate(sheet.notes, 1))
    below = [footnotes, *map(wrap.fill, (table.note, measurements.errata(table), _to_fill(table, filled)))]
    return "\n\n".join([text.rstrip("\n"), *filter(None, below)]) + "\n"


def _blocks(sheet: Sheet, chosen: list[int], console: Console) -> Iterator[Columns]:
    """Tables of some columns, halved until each fits on the terminal."""
    columns = _columns(sheet, chosen)
    whole = console.measure(columns, options=console.options.update(width=10_000)).maximum
    if whole <= console.width or len(chosen) == 1:
        yield columns
        return
    half = (len(chosen) + 1) // 2
    yield from _blocks(sheet, chosen[:half], console)
    yield from _blocks(sheet, chosen[half:], console)


def _columns(sheet: Sheet, chosen: Sequence[int]) -> Columns:
    """Columns of a sheet for a terminal; footnotes do not move the digits of a column out of line."""
    from rich.table import Table as Columns
    from rich.text import Text

    columns = Columns("", "", box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for column in chosen:
        columns.add_column(Text(sheet.columns[column]), justify="right", vertical="bottom")
    places = [0, 1, *(2 + column for column in chosen)]
    marks = {place: max((len(_raised(row[place])) for row in sheet.rows), default=0) for place in places}
    for row in sheet.rows:
        texts = ((row[place], _raised(row[place]).ljust(marks[place])) for place in places)
        columns.add_row(*(Text(entry.text + mark, "bold" if entry.best else "") for entry, mark in texts))
    return columns


def _raised(entry: SheetEntry) -> str:
    """The numbers of an entry's footnotes as superscripts."""
    return " ".join(map(str, entry.notes)).translate(SUPERSCRIPT)


def _md(table: Table, filled: Sequence[Filled]) -> str:
    todo = _to_fill(table, filled)
    body = markdown(table, filled) + (f"\n{todo}\n" if todo else "")
    return f"### {table.name}: {table.title}\n\n{table.cite}\n\n{body}"


def markdown(table: Table, filled: Sequence[Filled]) -> str:
    """The rows and notes of a table as Markdown."""
    sheet = arrange(table, filled)

    def text(entry: SheetEntry) -> str:
        escaped = entry.text.replace("|", "\\|")
        marks = f"<sup>{', '.join(map(str, entry.notes))}</sup>" if entry.notes else ""
        return (f"**{escaped}**" if entry.best else escaped) + marks

    headings = ["", "", *(text(SheetEntry(column)) for column in sheet.columns)]
    sides = ["---", "---", *("---:" for _ in sheet.columns)]
    lines = [headings, sides, *([text(entry) for entry in row] for row in sheet.rows)]
    body = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    notes = [f"<sup>{number}</sup> {note}" for number, note in enumerate(sheet.notes, 1)]
    return body + "".join(f"\n{each}\n" for each in (*notes, table.note, measurements.errata(table)) if each)


def _tex(table: Table, filled: Sequence[Filled]) -> str:
    """A ``tabular``, for which no package is needed."""
    sheet = arrange(table, filled)

    def text(entry: SheetEntry) -> str:
        escaped = _escaped(entry.text)
        marks = f"\\rlap{{$^{{{','.join(map(str, entry.notes))}}}$}}" if entry.notes else ""
        return (f"\\textbf{{{escaped}}}" if entry.best else escaped) + marks

    headings = " & ".join(["", "", *map(_escaped, sheet.columns)])
    body = "".join(" & ".join(map(text, row)) + " \\\\\n" for row in sheet.rows)
    notes = "".join(f"\n{{\\footnotesize $^{{{n}}}$ {_escaped(note)}}}\n" for n, note in enumerate(sheet.notes, 1))
    return (
        f"% {table.name}: {table.cite}\n\\begin{{tabular}}{{ll{'r' * len(sheet.columns)}}}\n\\hline\n"
        f"{headings} \\\\\n\\hline\n{body}\\hline\n\\end{{tabular}}\n{notes}"
    )


def _csv(table: Table, filled: Sequence[Filled]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    cells = record(table, filled)["cells"]
    writer.writerow(["table", *cells[0]])
    writer.writerows([table.name, *cell.values()] for cell in cells)
    return file.getvalue()


def _json(table: Table, filled: Sequence[Filled]) -> str:
    return json.dumps(_record(table, filled), indent=2) + "\n"


def _record(table: Table, filled: Sequence[Filled]) -> dict[str, Any]:
    return record(table, filled) | (surface.record(table, filled) if table.design else {})


FORMATS: dict[str, Callable[[Table, Sequence[Filled]], str]] = {
    "rich": _rich,
    "md": _md,
    "tex": _tex,
    "csv": _csv,
    "json": _json,
}


def _to_fill(table: Table, filled: Sequence[Filled]) -> str:
    """How to fill the empty cells; nothing if there are none that a run can fill."""
    empty = {(each.cell.command, *each.cell.overrides) for each in filled if each.cell.available and not each.values}
    todo = f"{len(empty)} configuration{'s' * (len(empty) != 1)} without a run"
    return f"To fill the empty cells, `ssl-bench reproduce {table.name}`: {todo}." if empty else ""
