"""A sheet of rows and columns, printed for a terminal, as Markdown, LaTeX, CSV or JSON, each with all that it says."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from ssl_bench.record.summary import SUPERSCRIPT

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

FORMS = ("rich", "md", "tex", "csv", "json")
GAP = 2  # blank characters between two columns of numbers on a terminal; columns of text have one
WIDEST = 120  # characters of a line of text on a terminal
TEX: dict[str, str | int | None] = {c: f"\\{c}" for c in "&%_#${}"}
TEX |= {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "±": "$\\pm$"}
TEX |= {"<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}"}


@dataclass(frozen=True)
class SheetEntry:
    """A text of a sheet.

    Attributes:
        notes: numbers of its footnotes, from 1.
        best: whether it is the best number of those that it is compared with; it is printed bold.
        value: what CSV and JSON have in place of the text; None: the text.
    """

    text: str = ""
    notes: tuple[int, ...] = ()
    best: bool = False
    value: Any = None


@dataclass
class Sheet:
    """Rows of entries.

    Attributes:
        columns: headings of all columns; the first ``left`` ones name a row.
        title: the line above it, and a comment in LaTeX.
        notes: the footnotes.
        below: paragraphs after them, which may have lines.
        records: rows of CSV and JSON, if they are not those of the sheet; all with the same keys.
        data: the object of JSON, if it is not {"title", "rows", "notes", "below"}.
    """

    columns: list[str]
    rows: list[list[SheetEntry]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left: int = 1
    title: str = ""
    below: list[str] = field(default_factory=list)
    records: Sequence[Mapping[str, Any]] | None = None
    data: Any = None

    def numbers(self, notes: Sequence[str]) -> tuple[int, ...]:
        """The numbers of footnotes, which are added if they are new."""
        self.notes += [note for note in dict.fromkeys(notes) if note not in self.notes]
        return tuple(self.notes.index(note) + 1 for note in notes)


def text_of(sheets: Sequence[Sheet], form: str, width: int | None = None) -> str:
    """The text of sheets in one of FORMS: as CSV one table, as JSON one list, or the only one's object.

    Args:
        width: characters of a line of ``rich``; None: of the terminal.
    """
    if form == "csv":
        return _csv(sheets)
    if form == "json":
        found = [_object(sheet) for sheet in sheets]
        return json.dumps(found if len(found) != 1 else found[0], indent=2) + "\n"
    return "\n".join(map({"md": _md, "tex": _tex}.get(form, partial(_rich, width=width)), sheets))


def _rich(sheet: Sheet, width: int | None = None) -> str:
    from rich.console import Console
    from rich.text import Text

    terminal, file = Console(), io.StringIO()
    width = width or terminal.width
    console = Console(file=file, highlight=False, width=width, force_terminal=terminal.is_terminal)
    if sheet.title:
        console.print(Text(sheet.title, "bold"))
    for block in _blocks(sheet, list(range(sheet.left, len(sheet.columns))), console):
        console.print(block, "")
    text = "\n".join(line.rstrip() for line in file.getvalue().splitlines())
    wrap = textwrap.TextWrapper(min(width, WIDEST), break_long_words=False, break_on_hyphens=False)
    footnotes = "\n".join(wrap.fill(f"{number} {note}") for number, note in enumerate(sheet.notes, 1))
    below = ("\n".join(map(wrap.fill, paragraph.splitlines())) for paragraph in sheet.below)
    return "\n\n".join([text.rstrip("\n"), *filter(None, [footnotes, *below])]) + "\n"


def _blocks(sheet: Sheet, chosen: list[int], console: Console) -> Iterator[Table]:
    """Tables of some columns, halved until each fits on the terminal."""
    table = _table(sheet, chosen)
    whole = console.measure(table, options=console.options.update(width=10_000)).maximum
    if whole <= console.width or len(chosen) <= 1:
        yield table
        return
    half = (len(chosen) + 1) // 2
    yield from _blocks(sheet, chosen[:half], console)
    yield from _blocks(sheet, chosen[half:], console)


def _table(sheet: Sheet, chosen: Sequence[int]) -> Table:
    """Columns of a sheet for a terminal; footnotes do not move the digits of a column out of line."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, GAP if chosen else 1, 0, 0))
    places = [*range(sheet.left), *chosen]
    for place in places:
        table.add_column(
            Text(sheet.columns[place]), justify="left" if place < sheet.left else "right", vertical="bottom"
        )
    marks = {place: max((len(_raised(row[place])) for row in sheet.rows), default=0) for place in places}
    for row in sheet.rows:
        texts = ((row[place], _raised(row[place]).ljust(marks[place])) for place in places)
        table.add_row(*(Text(entry.text + mark, "bold" if entry.best else "") for entry, mark in texts))
    return table


def _raised(entry: SheetEntry) -> str:
    """The numbers of an entry's footnotes as superscripts."""
    return " ".join(map(str, entry.notes)).translate(SUPERSCRIPT)


def _md(sheet: Sheet) -> str:
    return (f"### {sheet.title}\n\n" if sheet.title else "") + markdown(sheet)


def markdown(sheet: Sheet) -> str:
    """The rows and notes of a sheet as Markdown, without its title."""

    def text(entry: SheetEntry) -> str:
        escaped = entry.text.replace("|", "\\|")
        marks = f"<sup>{', '.join(map(str, entry.notes))}</sup>" if entry.notes else ""
        return (f"**{escaped}**" if entry.best else escaped) + marks

    headings = [text(SheetEntry(column)) for column in sheet.columns]
    sides = ["---"] * sheet.left + ["---:"] * (len(sheet.columns) - sheet.left)
    lines = [headings, sides, *([text(entry) for entry in row] for row in sheet.rows)]
    notes = [f"<sup>{number}</sup> {note}" for number, note in enumerate(sheet.notes, 1)]
    body = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return body + "".join(f"\n{each}\n" for each in (*notes, *sheet.below) if each)


def _tex(sheet: Sheet) -> str:
    """A ``tabular``, for which no package is needed."""

    def text(entry: SheetEntry) -> str:
        escaped = tex(entry.text)
        marks = f"\\rlap{{$^{{{','.join(map(str, entry.notes))}}}$}}" if entry.notes else ""
        return (f"\\textbf{{{escaped}}}" if entry.best else escaped) + marks

    body = "".join(" & ".join(map(text, row)) + " \\\\\n" for row in sheet.rows)
    notes = [f"$^{{{number}}}$ {tex(note)}" for number, note in enumerate(sheet.notes, 1)]
    notes += [tex(line) for paragraph in sheet.below for line in paragraph.splitlines() if line]
    lines = "".join(f"\n{{\\footnotesize {each}}}\n" for each in notes)
    return (
        (f"% {sheet.title}\n" if sheet.title else "")
        + f"\\begin{{tabular}}{{{'l' * sheet.left}{'r' * (len(sheet.columns) - sheet.left)}}}\n\\hline\n"
        + f"{' & '.join(map(tex, sheet.columns))} \\\\\n\\hline\n{body}\\hline\n\\end{{tabular}}\n{lines}"
    )


def tex(text: str) -> str:
    """A text for LaTeX; a minus sign before a number is longer than a hyphen."""
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", text.translate(str.maketrans(TEX)))


def records(sheet: Sheet) -> list[dict[str, Any]]:
    """The rows as plain data, by the headings, with the texts of their footnotes as ``notes``."""
    if sheet.records is not None:
        return [dict(each) for each in sheet.records]
    found = []
    for row in sheet.rows:
        values = [plain(entry.text if entry.value is None else entry.value) for entry in row]
        notes = dict.fromkeys(sheet.notes[number - 1] for entry in row for number in entry.notes)
        found.append(
            dict(zip(sheet.columns, values, strict=True)) | ({"notes": "; ".join(notes)} if sheet.notes else {})
        )
    return found


def plain(value: Any) -> Any:
    """A value as JSON can have it: a number that is not finite is None."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _csv(sheets: Sequence[Sheet]) -> str:
    """The rows of all sheets under all their headings; the first row of each has its title and paragraphs, too."""
    rows = list[dict[str, Any]]()
    for sheet in sheets:
        about = " ".join(" ".join([sheet.title, *sheet.below]).split())
        rows += [{**each, **({"about": about} if about and not n else {})} for n, each in enumerate(records(sheet))]
    headings = dict.fromkeys(name for row in rows for name in row) or dict.fromkeys(sheets[0].columns if sheets else ())
    order = sorted(headings, key=lambda name: name == "about")
    file = io.StringIO()
    writer = csv.DictWriter(file, order, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _object(sheet: Sheet) -> Any:
    own = {"title": sheet.title, "rows": records(sheet), "notes": sheet.notes, "below": sheet.below}
    return own if sheet.data is None else sheet.data
