"""A sheet of rows and columns, printed for a terminal, as Markdown, LaTeX, CSV or JSON, each with all that it says."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from typing import Any

from ssl_bench.errors import printable

FORMS = ("rich", "md", "tex", "csv", "json")
SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
GAP = 2  # blank characters between two columns of a terminal; one if all columns name a row
NARROWEST, LONGEST = 20, 10**6  # characters of a column of words that is cut off, and of a line in a file
BOLD, PLAIN = "\x1b[1m", "\x1b[0m"
WIDEST = 120  # characters of a line of text on a terminal
CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
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
        words: headings of further columns of words, which stand at the left, numbers at the right.
        spared: headings of columns that a narrow terminal leaves out, one after another until the others fit; then it
            cuts off the widest column of words. A sheet without such columns is divided into blocks.
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
    words: Collection[str] = ()
    spared: Sequence[str] = ()
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

    Texts of a user have no characters that control a terminal; in CSV for another program they are as they were.

    Args:
        width: characters of a line of ``rich``; None: of the terminal.
    """
    if form == "csv":
        text = _csv(sheets)
        return text.translate(CONTROLS) if sys.stdout.isatty() else text
    if form == "json":
        objects = [_object(sheet) for sheet in sheets]
        return json.dumps(objects if len(objects) != 1 else objects[0], indent=2) + "\n"
    if form in ("md", "tex"):
        return "\n".join(map(_md if form == "md" else _tex, sheets)).translate(CONTROLS)
    return "\n".join(map(partial(_rich, width=width), sheets))


def _rich(sheet: Sheet, width: int | None = None) -> str:
    """The text on a terminal; a file needs no line breaks, so that its tables are not divided."""
    from rich.console import Console

    terminal = Console()
    width = width or (terminal.width if terminal.is_terminal or "COLUMNS" in os.environ else None)
    bold = terminal.color_system is not None and not terminal.no_color
    wrap = textwrap.TextWrapper(min(width or WIDEST, WIDEST), break_long_words=False, break_on_hyphens=False)
    title = wrap.fill(printable(sheet.title))
    table = [*([f"{BOLD}{title}{PLAIN}" if bold else title] if title else []), *lines(sheet, width, bold)]
    footnotes = "\n".join(wrap.fill(printable(f"{number} {note}")) for number, note in enumerate(sheet.notes, 1))
    below = ("\n".join(wrap.fill(printable(line)) for line in part.splitlines()) for part in sheet.below)
    return "\n\n".join(["\n".join(table), *filter(None, [footnotes, *below])]) + "\n"


def lines(sheet: Sheet, width: int | None = None, bold: bool = False) -> list[str]:
    """The headings and rows of a sheet as lines of a terminal.

    Args:
        width: the most characters of a line; None: as many as it needs.
        bold: print the best numbers bold, by the codes of a terminal.
    """
    from rich.cells import cell_len

    texts = [_texts(sheet, place) for place in range(len(sheet.columns))]
    widths = [max(map(cell_len, column)) for column in texts]
    names, others = list(range(sheet.left)), list(range(sheet.left, len(widths)))
    gap = GAP if others else 1

    def excess(places: Sequence[int]) -> int:
        return sum(widths[place] for place in places) + gap * (len(places) - 1) - (width or LONGEST)

    for heading in sheet.spared:
        if excess([*names, *others]) > 0:
            names, others = ([place for place in part if sheet.columns[place] != heading] for part in (names, others))
    words = [place for place in names + others if place < sheet.left or sheet.columns[place] in sheet.words]
    if sheet.spared and excess([*names, *others]) > 0:
        widest = max(words, key=widths.__getitem__)
        widths[widest] = max(NARROWEST, widths[widest] - excess([*names, *others]))
    printed = list[str]()
    for block in [others] if sheet.spared else _halved(others, lambda part: excess([*names, *part]) <= 0):
        printed += [""] * bool(printed)
        for row in range(len(sheet.rows) + 1):
            cells = list[str]()
            for place in (*names, *block):
                text = texts[place][row]
                text = text if cell_len(text) <= widths[place] else f"{text[: widths[place] - 1]}…"
                blanks = " " * (widths[place] - cell_len(text))
                marked = f"{BOLD}{text}{PLAIN}" if bold and row > 0 and sheet.rows[row - 1][place].best else text
                cells.append(marked + blanks if place in words else blanks + marked)
            printed.append((" " * gap).join(cells).rstrip())
    return printed


def _texts(sheet: Sheet, place: int) -> list[str]:
    """The heading and the texts of a column; numbers of footnotes do not move its digits out of line."""
    entries = [row[place] for row in sheet.rows]
    longest = max((len(_raised(entry)) for entry in entries), default=0)
    texts = (printable(entry.text) + _raised(entry).ljust(longest) for entry in entries)
    return [printable(sheet.columns[place]), *texts]


def _halved(columns: list[int], fit: Callable[[list[int]], bool]) -> Iterator[list[int]]:
    """Blocks of columns, halved until each fits."""
    if len(columns) <= 1 or fit(columns):
        yield columns
        return
    half = (len(columns) + 1) // 2
    yield from _halved(columns[:half], fit)
    yield from _halved(columns[half:], fit)


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
    return body + "".join(f"\n{paragraph}\n" for paragraph in (*notes, *sheet.below) if paragraph)


def html(sheet: Sheet) -> str:
    """A sheet as HTML, for a notebook."""

    def cell(entry: SheetEntry, tag: str = "td") -> str:
        text = escape(printable(entry.text))
        marks = f"<sup>{', '.join(map(str, entry.notes))}</sup>" if entry.notes else ""
        return f"<{tag}>{f'<b>{text}</b>' if entry.best else text}{marks}</{tag}>"

    head = "".join(cell(SheetEntry(column), "th") for column in sheet.columns)
    rows = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in sheet.rows)
    notes = [f"<sup>{number}</sup> {escape(printable(note))}" for number, note in enumerate(sheet.notes, 1)]
    below = ["<br>".join(escape(printable(line)) for line in part.splitlines()) for part in sheet.below]
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f"<p>{escape(printable(sheet.title))}</p>{table}" + "".join(f"<p>{part}</p>" for part in [*notes, *below])


def _tex(sheet: Sheet) -> str:
    """A ``tabular`` with the rules of the package booktabs."""

    def text(entry: SheetEntry) -> str:
        escaped = tex(entry.text)
        marks = f"\\rlap{{$^{{{','.join(map(str, entry.notes))}}}$}}" if entry.notes else ""
        return (f"\\textbf{{{escaped}}}" if entry.best else escaped) + marks

    body = "".join(" & ".join(map(text, row)) + " \\\\\n" for row in sheet.rows)
    notes = [f"$^{{{number}}}$ {tex(note)}" for number, note in enumerate(sheet.notes, 1)]
    notes += [tex(line) for paragraph in sheet.below for line in paragraph.splitlines() if line]
    lines = "".join(f"\n{{\\footnotesize {note}}}\n" for note in notes)
    return (
        (f"% {sheet.title}\n" if sheet.title else "")
        + "% needs \\usepackage{booktabs}\n"
        + f"\\begin{{tabular}}{{{'l' * sheet.left}{'r' * (len(sheet.columns) - sheet.left)}}}\n\\toprule\n"
        + f"{' & '.join(map(tex, sheet.columns))} \\\\\n\\midrule\n{body}\\bottomrule\n\\end{{tabular}}\n{lines}"
    )


def tex(text: str) -> str:
    """A text for LaTeX; a minus sign before a number is longer than a hyphen."""
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", text.translate(str.maketrans(TEX)))


def records(sheet: Sheet) -> list[dict[str, Any]]:
    """The rows as plain data, by the headings, with the texts of their footnotes as ``notes``."""
    if sheet.records is not None:
        return [dict(record) for record in sheet.records]
    rows = list[dict[str, Any]]()
    for row in sheet.rows:
        values = [plain(entry.text if entry.value is None else entry.value) for entry in row]
        notes = dict.fromkeys(sheet.notes[number - 1] for entry in row for number in entry.notes)
        footnotes = {"notes": "; ".join(notes)} if sheet.notes else {}
        rows.append(dict(zip(sheet.columns, values, strict=True)) | footnotes)
    return rows


def plain(value: Any) -> Any:
    """A value as JSON can have it: a number that is not finite is None."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _csv(sheets: Sequence[Sheet]) -> str:
    """The rows of all sheets under all their headings; the first row of each has its title and paragraphs, too."""
    rows = list[dict[str, Any]]()
    for sheet in sheets:
        about = " ".join(" ".join([sheet.title, *sheet.below]).split())
        of_sheet = records(sheet)
        if about and of_sheet:
            of_sheet[0]["about"] = about
        rows += of_sheet
    headings = dict.fromkeys(name for row in rows for name in row) or dict.fromkeys(sheets[0].columns if sheets else ())
    order = sorted(headings, key=lambda name: name == "about")
    file = io.StringIO()
    writer = csv.DictWriter(file, order, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def _object(sheet: Sheet) -> Any:
    if sheet.data is not None:
        return sheet.data
    return {"title": sheet.title, "rows": records(sheet), "notes": sheet.notes, "below": sheet.below}
