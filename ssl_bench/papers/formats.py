"""Print filled tables: for a terminal, as Markdown, LaTeX, CSV or JSON.

The first three have the paper's shape, or with ``long`` a row for each cell (:mod:`ssl_bench.papers.sheet`). CSV and
JSON always have a row for each cell.
"""

from __future__ import annotations

import csv
import io
import json
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from ssl_bench.papers.cells import Table
from ssl_bench.papers.fill import Filled, commands, deviation, record
from ssl_bench.papers.sheet import Sheet, SheetEntry, listed, shaped

if TYPE_CHECKING:
    from rich.table import Table as Columns

GAP = 2  # blank characters between two columns on a terminal
WIDEST = 120  # characters of a line of text on a terminal
PAGE, TEX_GAP = 66, 3  # characters on a line of a LaTeX page, and between two of its columns
SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
TEX: dict[str, str | int | None] = {c: f"\\{c}" for c in "&%_#${}"}
TEX |= {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "±": "$\\pm$"}
TEX |= {"<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}"}


def formatted(form: str, filled: Sequence[tuple[Table, Sequence[Filled]]], long: bool = False) -> str:
    """Tables as text in a format of FORMATS. Several tables as JSON are one list.

    Args:
        long: a row for each cell, instead of the paper's shape.
    """
    if form == "json" and len(filled) > 1:
        return json.dumps([record(table, cells) for table, cells in filled], indent=2) + "\n"
    return "\n".join(FORMATS[form](table, cells, long) for table, cells in filled)


def _rich(table: Table, filled: Sequence[Filled], long: bool) -> str:
    from rich.console import Console
    from rich.text import Text

    terminal, file = Console(), io.StringIO()
    width = terminal.width
    console = Console(file=file, highlight=False, width=width, force_terminal=terminal.is_terminal)
    console.print(Text(f"{table.name}: {table.title}", "bold"))
    sheet = listed(table, filled) if long else shaped(table, filled)
    blocks = [list(range(len(sheet.headings)))] if long else list(sheet.blocks(width, GAP, _raised))
    for place, block in enumerate(blocks):
        console.print(*[""] * (place > 0), _columns(sheet, block, long), sep="\n")
    notes = (f"{number} {note}" for number, note in enumerate(sheet.notes, 1))
    wrap = textwrap.TextWrapper(min(width, WIDEST), break_long_words=False, break_on_hyphens=False)
    footnotes = "\n".join(map(wrap.fill, notes))
    to_fill = _to_fill(table, filled, long, "")
    below = [footnotes, wrap.fill(table.note), to_fill if long else wrap.fill(to_fill)]
    text = "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"
    return text + "".join(f"\n{paragraph}\n" for paragraph in below if paragraph)


def _columns(sheet: Sheet, block: Sequence[int], long: bool) -> Columns:
    """Columns of a sheet for a terminal; footnotes do not move the digits of a column out of line."""
    from rich.table import Table as Columns
    from rich.text import Text

    columns = Columns(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for column in block:
        side: Literal["left", "right"] = "left" if long or column < sheet.labels else "right"
        heading = Text("\n".join(sheet.folded(column, _raised)))
        columns.add_column(heading, justify=side, vertical="bottom", no_wrap=not long and column > 0, overflow="fold")
    marks = {column: max((len(_raised(row[column])) for row in sheet.rows), default=0) for column in block}
    for row in sheet.rows:
        texts = ((row[column], _raised(row[column]).ljust(marks[column])) for column in block)
        columns.add_row(*(Text(entry.text + mark, "bold" if entry.best else "") for entry, mark in texts))
    return columns


def _raised(entry: SheetEntry) -> str:
    """The numbers of an entry's footnotes as superscripts."""
    return " ".join(map(str, entry.notes)).translate(SUPERSCRIPT)


def _md(table: Table, filled: Sequence[Filled], long: bool) -> str:
    sheet = listed(table, filled) if long else shaped(table, filled)

    def text(entry: SheetEntry) -> str:
        escaped = entry.text.replace("|", "\\|")
        marks = f"<sup>{', '.join(map(str, entry.notes))}</sup>" if entry.notes else ""
        return (f"**{escaped}**" if entry.best else escaped) + marks

    sides = ["---" if long or column < sheet.labels else "---:" for column in range(len(sheet.headings))]
    lines = [
        [text(SheetEntry(heading)) for heading in sheet.headings],
        sides,
        *([text(entry) for entry in row] for row in sheet.rows),
    ]
    notes = "".join(f"\n<sup>{number}</sup> {note}\n" for number, note in enumerate(sheet.notes, 1))
    body = "".join(f"| {' | '.join(line)} |\n" for line in lines) + notes
    below = (table.note, _to_fill(table, filled, long, "    "))
    return f"### {table.name}: {table.title}\n\n{table.cite}\n\n{body}" + "".join(f"\n{b}\n" for b in below if b)


def _tex(table: Table, filled: Sequence[Filled], long: bool) -> str:
    """A ``tabular`` for each block of columns that fits on a page; no package is needed."""
    sheet = listed(table, filled) if long else shaped(table, filled)
    blocks = [list(range(len(sheet.headings)))] if long else sheet.blocks(PAGE, TEX_GAP)

    def text(entry: SheetEntry) -> str:
        escaped = _escaped(entry.text)
        marks = f"\\rlap{{$^{{{','.join(map(str, entry.notes))}}}$}}" if entry.notes else ""
        return (f"\\textbf{{{escaped}}}" if entry.best else escaped) + marks

    tabulars = []
    for block in blocks:
        sides = "".join("l" if column < sheet.labels or sheet.headings[column] == "note" else "r" for column in block)
        headings = " & ".join(_stacked([_escaped(line) for line in sheet.folded(column)]) for column in block)
        body = "".join(" & ".join(text(row[column]) for column in block) + " \\\\\n" for row in sheet.rows)
        tabulars.append(
            f"\\begin{{tabular}}{{{sides}}}\n\\hline\n{headings} \\\\\n\\hline\n{body}\\hline\n\\end{{tabular}}\n"
        )
    notes = "".join(f"\n{{\\footnotesize $^{{{n}}}$ {_escaped(note)}}}\n" for n, note in enumerate(sheet.notes, 1))
    return f"% {table.name}: {table.cite}\n" + "\n".join(tabulars) + notes


def _stacked(lines: Sequence[str]) -> str:
    """Lines of a heading, one above the other."""
    stacked = " \\\\ ".join(lines)
    return stacked if len(lines) < 2 else f"\\shortstack[r]{{{stacked}}}"


def _escaped(text: str) -> str:
    """A text for LaTeX; a minus sign before a number is longer than a hyphen."""
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", text.translate(str.maketrans(TEX)))


def _csv(table: Table, filled: Sequence[Filled], long: bool) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["table", "row", "column", "metric", "paper", "mean", "std", "n", "reduced", "note"])
    for each in filled:
        cell = each.cell
        numbers = [cell.paper, each.mean, deviation(each.values), len(each.values)]
        writer.writerow([table.name, cell.label, cell.column, cell.metric, *numbers, each.reduced, each.note])
    return file.getvalue()


def _json(table: Table, filled: Sequence[Filled], long: bool) -> str:
    return json.dumps(record(table, filled), indent=2) + "\n"


Format = Callable[[Table, Sequence[Filled], bool], str]
FORMATS: dict[str, Format] = {"rich": _rich, "md": _md, "tex": _tex, "csv": _csv, "json": _json}


def _to_fill(table: Table, filled: Sequence[Filled], long: bool, indent: str) -> str:
    """How to fill the empty cells; with ``long``, the command of each one."""
    todo = commands(filled)
    if not todo:
        return ""
    together = f"To fill the empty cells, `ssl-bench reproduce {table.name}`"
    if not long:
        return f"{together}: {len(todo)} configuration{'s' * (len(todo) != 1)} without a run."
    return f"{together}, or one by one:\n\n" + "\n".join(indent + command for command in todo)
