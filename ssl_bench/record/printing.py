"""A sheet of rows and columns, printed for a terminal, as Markdown, LaTeX, CSV or JSON, each with all that it says."""

from __future__ import annotations

import html as hypertext
import json
import math
import os
import re
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ssl_bench.errors import printable

FORMS = ("rich", "md", "tex", "csv", "json")
SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
GAP = 2  # blank characters between two columns of a terminal
NARROWEST, LEAST = 20, 8  # characters of a column of folded words beside one of numbers, and of any
LONGEST = 10**6  # characters of a line in a file
BOLD = "\x1b[1m{}\x1b[0m"
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
    """

    text: str = ""
    notes: tuple[int, ...] = ()
    best: bool = False


@dataclass
class Sheet:
    """Rows of entries.

    Attributes:
        columns: headings of all columns; the first ``left`` ones name a row.
        words: headings of further columns of words, which stand at the left, numbers at the right.
        spared: headings of columns that a narrow terminal leaves out, one after another until the others fit.
        title: the line above it, and a comment in LaTeX.
        notes: the footnotes.
        below: paragraphs after them, which may have lines.
        records: rows of CSV and JSON, if they are not those of the sheet.
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


class Markup(NamedTuple):
    """How a language writes any text of a user, a bold one, and the number of a footnote in a row and below."""

    escape: Callable[[str], str]
    bold: str
    raised: str
    number: str

    def table(self, sheet: Sheet) -> list[list[str]]:
        """The headings and the rows."""

        def text(entry: SheetEntry) -> str:
            marks = self.raised.format(", ".join(map(str, entry.notes))) if entry.notes else ""
            return (self.bold if entry.best else "{}").format(self.escape(entry.text)) + marks

        return [list(map(self.escape, sheet.columns)), *(list(map(text, row)) for row in sheet.rows)]

    def below(self, sheet: Sheet) -> list[list[str]]:
        """The lines of the footnotes and paragraphs."""
        notes = [[f"{self.number.format(number)} {self.escape(note)}"] for number, note in enumerate(sheet.notes, 1)]
        return notes + [list(map(self.escape, paragraph.splitlines())) for paragraph in sheet.below if paragraph]


def tex(text: str) -> str:
    """A text for LaTeX; a minus sign before a number is longer than a hyphen."""
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", printable(text).translate(str.maketrans(TEX)))


RAISED = "<sup>{}</sup>"
MARKDOWN = Markup(lambda text: re.sub(r"([\\<])", r"\\\1", printable(text)), "**{}**", RAISED, RAISED)
HTML = Markup(lambda text: hypertext.escape(printable(text)), "<b>{}</b>", RAISED, RAISED)
LATEX = Markup(tex, "\\textbf{{{}}}", "\\rlap{{$^{{{}}}$}}", "$^{{{}}}$")


def text_of(sheets: Sequence[Sheet], form: str, width: int | None = None) -> str:
    """The text of sheets in one of FORMS: as CSV one table, as JSON one list, or the only one's object.

    No form has characters of a user's text that control a terminal.

    Args:
        width: characters of a line of ``rich``; None: of the terminal.
    """
    if form == "csv":
        return _csv(sheets)
    if form == "json":
        objects = [_object(sheet) if sheet.data is None else sheet.data for sheet in sheets]
        return json.dumps(objects if len(objects) != 1 else objects[0], indent=2) + "\n"
    if form == "md":
        return "\n".join(f"### {MARKDOWN.escape(s.title)}\n\n" * bool(s.title) + markdown(s) for s in sheets)
    return "\n".join(_latex(sheet) if form == "tex" else _rich(sheet, width) for sheet in sheets)


def _rich(sheet: Sheet, width: int | None) -> str:
    """The text on a terminal; a file needs no line breaks, so that its tables are not divided."""
    from rich.console import Console

    terminal = Console()
    width = width or (terminal.width if terminal.is_terminal or "COLUMNS" in os.environ else None)
    bold = terminal.color_system is not None and not terminal.no_color
    wrap = textwrap.TextWrapper(min(width or WIDEST, WIDEST), break_long_words=False, break_on_hyphens=False)
    title = wrap.fill(printable(sheet.title))
    table = [BOLD.format(title) if bold else title] * bool(title) + lines(sheet, width, bold)
    notes = "\n".join(f"{number} {note}" for number, note in enumerate(sheet.notes, 1))
    below = (map(wrap.fill, map(printable, part.splitlines())) for part in (notes, *sheet.below) if part)
    return "\n\n".join(map("\n".join, [table, *below])) + "\n"


def lines(sheet: Sheet, width: int | None = None, bold: bool = False) -> list[str]:
    """The headings and rows of a sheet as lines of a terminal.

    What is too wide loses its ``spared`` columns and has its words folded; without such columns its numbers stand in
    several blocks.

    Args:
        width: the most characters of a line; None: as many as it needs.
        bold: print the best numbers bold, by the codes of a terminal.
    """
    from rich.cells import cell_len
    from tabulate import tabulate

    widths, width = [max(map(cell_len, _texts(sheet, place))) for place in range(len(sheet.columns))], width or LONGEST
    columns = [_texts(sheet, place, bold) for place in range(len(sheet.columns))]
    words = {place for place, name in enumerate(sheet.columns) if place < sheet.left or name in sheet.words}

    def taken(places: Sequence[int], most: int = LONGEST) -> int:
        cells = (min(widths[place], most if place in words else LONGEST) for place in places)
        return sum(cells) + GAP * (len(places) - 1)

    places = [*range(len(widths))]
    for heading in sheet.spared:
        if taken(places) > width:
            places = [place for place in places if sheet.columns[place] != heading]
    names = [place for place in places if place < sheet.left]
    blocks, printed = [list(names)], list[str]()
    for place in places[len(names) :]:
        if not sheet.spared and taken([*blocks[-1], place], NARROWEST) > width and len(blocks[-1]) > len(names):
            blocks.append(list(names))
        blocks[-1].append(place)
    for block in blocks:
        most = next((n for n in range(max(widths, default=0), LEAST, -1) if taken(block, n) <= width), LEAST)
        rows = zip(*(_folded(columns[place], most if place in words else LONGEST) for place in block), strict=True)
        sides = ["left" if place in words else "right" for place in block]
        table = tabulate(rows, tablefmt="plain", colalign=sides, disable_numparse=True, preserve_whitespace=True)
        printed += [""] * bool(printed) + [line.rstrip() for line in table.split("\n")]
    return printed


def _texts(sheet: Sheet, place: int, bold: bool = False) -> list[str]:
    """The heading and the texts of a column; numbers of footnotes do not move its digits out of line."""
    entries = [row[place] for row in sheet.rows]
    raised = [" ".join(map(str, entry.notes)).translate(SUPERSCRIPT) for entry in entries]
    longest = max(map(len, raised), default=0)
    texts = [printable(e.text) + marks.ljust(longest) for e, marks in zip(entries, raised, strict=True)]
    marked = (BOLD.format(text) if bold and e.best else text for e, text in zip(entries, texts, strict=True))
    return [printable(sheet.columns[place]), *marked]


def _folded(texts: Sequence[str], most: int) -> list[str]:
    """Texts with line breaks where they are wider than ``most`` characters."""
    from rich.cells import cell_len

    sizes = [(text, cell_len(text)) for text in texts]
    return [textwrap.fill(text, most // (1 + (size > len(text)))) if size > most else text for text, size in sizes]


def markdown(sheet: Sheet) -> str:
    """The rows and notes of a sheet as Markdown, without its title."""
    headings, *rows = MARKDOWN.table(sheet)
    sides = ["---"] * sheet.left + ["---:"] * (len(headings) - sheet.left)
    cells = ([cell.replace("|", r"\|") for cell in line] for line in (headings, sides, *rows))
    table = "".join(f"| {' | '.join(line)} |\n" for line in cells)
    return table + "".join(f"\n{paragraph}\n" for paragraph in map("\n".join, MARKDOWN.below(sheet)))


def html(sheet: Sheet) -> str:
    """A sheet as HTML, for a notebook."""
    from tabulate import tabulate

    table = tabulate(HTML.table(sheet), "firstrow", "unsafehtml", disable_numparse=True)
    return "".join(
        [f"<p>{HTML.escape(sheet.title)}</p>{table}", *(f"<p>{'<br>'.join(p)}</p>" for p in HTML.below(sheet))]
    )


def _latex(sheet: Sheet) -> str:
    """A ``tabular`` with the rules of the package booktabs."""
    from pandas import DataFrame

    headings, *rows = LATEX.table(sheet)
    sides = "l" * sheet.left + "r" * (len(headings) - sheet.left)
    table = DataFrame(rows, columns=headings).to_latex(index=False, escape=False, column_format=sides)
    about = f"% {printable(sheet.title)}\n" * bool(sheet.title) + "% needs \\usepackage{booktabs}\n"
    below = (line for part in LATEX.below(sheet) for line in part if line)
    return about + table + "".join(f"\n{{\\footnotesize {line}}}\n" for line in below)


def records(sheet: Sheet) -> list[dict[str, Any]]:
    """The rows as plain data, by the headings, with the texts of their footnotes as ``notes``."""
    if sheet.records is not None:
        return [dict(record) for record in sheet.records]
    rows = list[dict[str, Any]]()
    for row in sheet.rows:
        notes = dict.fromkeys(sheet.notes[number - 1] for entry in row for number in entry.notes)
        texts = dict(zip(sheet.columns, (entry.text for entry in row), strict=True))
        rows.append(texts | ({"notes": "; ".join(notes)} if sheet.notes else {}))
    return rows


def plain(value: Any) -> Any:
    """A value as JSON can have it: a number that is not finite is None."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _object(sheet: Sheet) -> dict[str, Any]:
    return {"title": sheet.title, "rows": records(sheet), "notes": sheet.notes, "below": sheet.below}


def _csv(sheets: Sequence[Sheet]) -> str:
    """The rows of all sheets under all their headings; the first row of each has its title and paragraphs, too."""
    from pandas import DataFrame

    rows = list[dict[str, Any]]()
    for sheet in sheets:
        rows += (of_sheet := records(sheet))
        about = " ".join(" ".join([sheet.title, *sheet.below]).split())
        if about and of_sheet:
            of_sheet[0]["about"] = about
    headings = dict.fromkeys(name for row in rows for name in row) or sheets[0].columns
    order = sorted(headings, key=lambda name: name == "about")
    cells = [[_harmless(row.get(name)) for name in order] for row in rows]
    return DataFrame(cells, columns=list(map(_harmless, order)), dtype=object).to_csv(index=False, lineterminator="\n")


def _harmless(value: Any) -> Any:
    """A value that is no formula for a spreadsheet: a text that looks like one and is no number gets an apostrophe."""
    text = printable(value) if isinstance(value, str) else ""
    return f"'{text}" if re.match(r"[=@]|[+-](?![\d.]+(e[+-]?\d+)?$)", text) else text or value
