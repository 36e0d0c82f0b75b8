"""A sheet of rows and columns, printed for a terminal, as Markdown, LaTeX, CSV or JSON, each with all that it says."""

from __future__ import annotations

import itertools
import json
import math
import re
import shutil
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rich.cells import cell_len

from ssl_bench.errors import printable

FORMS = ("rich", "md", "tex", "csv", "json")
SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
GAP = "  "  # between two columns of a terminal
NARROWEST, LEAST = 20, 8  # characters of a column of folded words beside one of numbers, and of any
LONGEST = 10**6  # characters of a line in a file
WIDEST = 120  # characters of a line of text on a terminal
WIDEST_LATEX = 6  # columns that fit on a page
Lines = list[list[str]]


class SheetEntry(NamedTuple):
    """A text of a sheet.

    Attributes:
        notes: numbers of its footnotes, from 1.
        best: whether it is the best number of those that it is compared with: bold in Markdown and LaTeX.
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
        spared: headings of columns that a narrow terminal leaves out, one after another until the others fit; LaTeX
            leaves out those beyond six columns.
        title: the line above it, and a comment in LaTeX.
        notes: the footnotes.
        below: paragraphs after them, which may have lines.
        bold: what a bold text says, in Markdown and LaTeX.
        commands: further paragraphs, that say what to run: LaTeX has none.
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
    bold: str = ""
    commands: list[str] = field(default_factory=list)
    records: Sequence[Mapping[str, Any]] | None = None
    data: Any = None

    def numbers(self, notes: Sequence[str]) -> tuple[int, ...]:
        """The numbers of footnotes, which are added if they are new."""
        self.notes += [note for note in dict.fromkeys(notes) if note not in self.notes]
        return tuple(self.notes.index(note) + 1 for note in notes)


def _marked(sheet: Sheet, escape: Callable[[str], str], bold: str, raised: str) -> tuple[Lines, Lines]:
    """The headings with the rows, and the lines of each footnote and paragraph, in a language.

    Args:
        escape: writes any text of a user.
        bold, raised: how a bold text and the number of a footnote are written.
    """

    def text(entry: SheetEntry) -> str:
        marks = raised.format(", ".join(map(str, entry.notes))) if entry.notes else ""
        return (bold if entry.best else "{}").format(escape(entry.text)) + marks

    notes = [[f"{raised.format(number)} {escape(note)}"] for number, note in enumerate(sheet.notes, 1)]
    below = [list(map(escape, paragraph.splitlines())) for paragraph in (sheet.bold, *sheet.below) if paragraph]
    return [list(map(escape, sheet.columns)), *(list(map(text, row)) for row in sheet.rows)], notes + below


def text_of(sheets: Sequence[Sheet], form: str, width: int | None = None) -> str:
    """The text of sheets in one of FORMS: as CSV one table, as JSON one list, or the only one's object.

    No form has characters of a user's text that control a terminal.

    Args:
        width: characters of a line of ``rich``; None: of the terminal.
    """
    if form != "tex":
        sheets = [replace(sheet, below=[*sheet.below, *sheet.commands]) for sheet in sheets]
    if form == "csv":
        return _csv(sheets)
    if form == "json":
        objects = [
            s.data or {"title": s.title, "rows": records(s), "notes": s.notes, "below": "\n".join(s.below).splitlines()}
            for s in sheets
        ]
        return json.dumps(objects if len(objects) != 1 else objects[0], indent=2) + "\n"
    if form == "md":
        return "\n".join(f"### {_md(s.title)}\n\n" * bool(s.title) + markdown(s) for s in sheets)
    return "\n".join(_latex(sheet) if form == "tex" else _terminal(sheet, width) for sheet in sheets)


def _terminal(sheet: Sheet, width: int | None) -> str:
    """The text on a terminal; a file needs no line breaks, so that its tables are not divided."""
    width = width or shutil.get_terminal_size((LONGEST, 0)).columns
    wrap = textwrap.TextWrapper(min(width, WIDEST), break_long_words=False, break_on_hyphens=False)
    notes = "\n".join(f"{number} {note}" for number, note in enumerate(sheet.notes, 1))
    below = (map(wrap.fill, map(printable, part.splitlines())) for part in (notes, *sheet.below) if part)
    table = [wrap.fill(printable(sheet.title))] * bool(sheet.title) + lines(sheet, width)
    return "\n\n".join(map("\n".join, [table, *below])) + "\n"


def lines(sheet: Sheet, width: int = LONGEST) -> list[str]:
    """The headings and rows of a sheet as lines of a terminal with ``width`` characters.

    What is too wide loses its ``spared`` columns; without such columns its numbers stand in several blocks. What is
    still too wide has its words folded.
    """
    columns = [_texts(sheet, place) for place in range(len(sheet.columns))]
    sizes = [max(map(cell_len, column)) for column in columns]
    words = [place < sheet.left or name in sheet.words for place, name in enumerate(sheet.columns)]

    def taken(block: Sequence[int], most: int = LONGEST) -> int:
        return sum((min(sizes[n], most) if words[n] else sizes[n]) + len(GAP) for n in block) - len(GAP)

    places = [*range(len(columns))]
    for heading in sheet.spared:
        if taken(places) > width:
            places = [place for place in places if sheet.columns[place] != heading]
    blocks, printed = [places[: sheet.left]], list[str]()
    for place in places[sheet.left :]:
        if not sheet.spared and len(blocks[-1]) > sheet.left and taken([*blocks[-1], place], NARROWEST) > width:
            blocks.append(places[: sheet.left])
        blocks[-1] = [*blocks[-1], place]
    for block in blocks:
        printed += [""] * bool(printed)
        most = next((n for n in range(max(sizes, default=0), LEAST, -1) if taken(block, n) <= width), LEAST)
        widths = [min(sizes[place], most) if words[place] else sizes[place] for place in block]
        for row in zip(*(columns[place] for place in block), strict=True):
            for line in itertools.zip_longest(*map(_folded, row, widths), fillvalue=""):
                blanks = (" " * (size - cell_len(text)) for text, size in zip(line, widths, strict=True))
                cells = (t + b if words[place] else b + t for t, b, place in zip(line, blanks, block, strict=True))
                printed.append(GAP.join(cells).rstrip())
    return printed


def _folded(text: str, size: int) -> list[str]:
    """The lines of a text in a column, whose characters may be as wide as two."""
    wide = cell_len(text)
    return [text] if wide <= size else textwrap.wrap(text, size * len(text) // wide, break_on_hyphens=False)


def _texts(sheet: Sheet, place: int) -> list[str]:
    """The heading and the texts of a column; numbers of footnotes do not move its digits out of line."""
    entries = [row[place] for row in sheet.rows]
    raised = [" ".join(map(str, entry.notes)).translate(SUPERSCRIPT) for entry in entries]
    longest = max(map(len, raised), default=0)
    texts = [printable(entry.text) + marks.ljust(longest) for entry, marks in zip(entries, raised, strict=True)]
    return [printable(sheet.columns[place]), *texts]


def _md(text: str) -> str:
    return re.sub(r"([\\<])", r"\\\1", printable(text))


def markdown(sheet: Sheet) -> str:
    """The rows and notes of a sheet as Markdown, without its title."""
    (headings, *rows), below = _marked(sheet, _md, "**{}**", "<sup>{}</sup>")
    sides = ["---"] * sheet.left + ["---:"] * (len(headings) - sheet.left)
    cells = ([cell.replace("|", r"\|") for cell in line] for line in (headings, sides, *rows))
    table = "".join(f"| {' | '.join(line)} |\n" for line in cells)
    return table + "".join(f"\n{paragraph}\n" for paragraph in map("\n".join, below))


def _tex(text: str) -> str:
    """A text for LaTeX; a minus sign before a number is longer than a hyphen."""
    from tabulate import LATEX_ESCAPE_RULES

    rules = str.maketrans(LATEX_ESCAPE_RULES | {"|": "\\textbar{}", "±": "$\\pm$"})
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", printable(text).translate(rules))


def _latex(sheet: Sheet) -> str:
    """A ``tabular`` with the rules of the package booktabs."""
    from pandas import DataFrame

    (headings, *rows), below = _marked(sheet, _tex, "\\textbf{{{}}}", "\\rlap{{$^{{{}}}$}}")
    spared = sheet.spared[: max(0, len(headings) - WIDEST_LATEX)]
    words = [n < sheet.left or name in sheet.words for n, name in enumerate(sheet.columns) if name not in spared]
    shown = DataFrame(rows, columns=headings).drop(columns=[*map(_tex, spared)])
    table = shown.to_latex(index=False, escape=False, column_format="".join("rl"[one] for one in words))
    about = f"% {printable(sheet.title)}\n" * bool(sheet.title) + "% needs \\usepackage{booktabs}\n"
    text = (re.sub(r"^\\rlap{(.*?\$)}", r"\1", line) for part in below for line in part if line)
    return about + table + "".join(f"\n{{\\footnotesize {line}}}\n" for line in text)


def records(sheet: Sheet) -> list[dict[str, Any]]:
    """The rows as plain data, by the headings, with the texts of their footnotes as ``notes``."""
    rows = list[dict[str, Any]](map(dict, sheet.records or ()))
    for row in sheet.rows if sheet.records is None else ():
        texts = dict(zip(sheet.columns, (entry.text for entry in row), strict=True))
        notes = dict.fromkeys(sheet.notes[number - 1] for entry in row for number in entry.notes)
        rows.append(texts | ({"notes": "; ".join(notes)} if sheet.notes else {}))
    return rows


def plain(value: Any) -> Any:
    """A value as JSON can have it: a number that is not finite is None."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _csv(sheets: Sequence[Sheet]) -> str:
    """The rows of all sheets under all their headings; the first row of each has its title and paragraphs, too."""
    from pandas import DataFrame

    rows = list[dict[Any, Any]]()
    for sheet in sheets:
        about = " ".join(" ".join([sheet.title, *sheet.below]).split())
        for n, record in enumerate(records(sheet)):
            record |= {"about": about} if about and not n else {}
            rows.append({_harmless(name): _harmless(value) for name, value in record.items()})
    table = DataFrame(rows, columns=None if rows else sheets[0].columns, dtype=object)
    return table.to_csv(index=False, lineterminator="\n")


def _harmless(value: Any) -> Any:
    """A value that is no formula for a spreadsheet: a text that looks like one and is no number gets an apostrophe."""
    text = printable(value) if isinstance(value, str) else ""
    return f"'{text}" if re.match(r"[=@]|[+-](?![\d.]+(e[+-]?\d+)?$)", text) else text or value
