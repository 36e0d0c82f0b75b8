"""Columns of a sheet as lines of a terminal, in as many blocks as its width needs."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

GAP = 2  # blank characters between two columns; one if all columns name a row
NARROWEST = 20  # characters of a column of words that is narrowed to fit
BOLD, PLAIN = "\x1b[1m", "\x1b[0m"


@dataclass(frozen=True)
class Column:
    """A column of a sheet.

    Attributes:
        texts: the heading, then that of each row.
        words: whether they are words, which stand at the left and may be broken into lines, or numbers at the right.
        bold: the rows whose text is bold; the heading is row 0.
    """

    texts: Sequence[str]
    words: bool
    bold: Collection[int] = ()

    @cached_property
    def width(self) -> int:
        """Characters of its longest text, as a terminal counts them."""
        return max(map(_width, self.texts))

    def lines(self, row: int, width: int) -> list[str]:
        """The text of a row as lines of ``width`` characters."""
        text, printed = self.texts[row], list[str]()
        for line in textwrap.wrap(text, width) if self.words and _width(text) > width else [text]:
            blanks = " " * (width - _width(line))
            marked = f"{BOLD}{line}{PLAIN}" if row in self.bold else line
            printed.append(marked + blanks if self.words else blanks + marked)
        return printed


def lines(names: Sequence[Column], others: Sequence[Column], spared: Sequence[str], width: int | None) -> list[str]:
    """The headings and rows of columns as lines.

    Args:
        names: columns that name a row; each block has them.
        others: further columns, which are divided into blocks until each fits.
        spared: headings of columns that are left out one after another, as long as the whole is too wide for one block;
            empty: divide it.
        width: the most characters of a line; None: as many as it needs.
    """
    gap = GAP if others else 1
    if width is None:
        return _block([*names, *others], gap, None)
    for heading in spared:
        if _total([*names, *others], gap) > width:
            names, others = ([column for column in part if column.texts[0] != heading] for part in (names, others))
    printed = list[str]()
    for block in [others] if spared else _halved(names, others, gap, width):
        printed += [""] * bool(printed) + _block([*names, *block], gap, width)
    return printed


def _halved(names: Sequence[Column], others: Sequence[Column], gap: int, width: int) -> Iterator[Sequence[Column]]:
    """Blocks of columns, halved until each fits beside the names."""
    if len(others) <= 1 or _total([*names, *others], gap) <= width:
        yield others
        return
    half = (len(others) + 1) // 2
    yield from _halved(names, others[:half], gap, width)
    yield from _halved(names, others[half:], gap, width)


def _block(columns: Sequence[Column], gap: int, width: int | None) -> list[str]:
    """The lines of columns side by side; of those that are too wide the widest one of words is narrowed."""
    widths = [column.width for column in columns]
    excess = 0 if width is None else _total(columns, gap) - width
    if excess > 0 and (words := [place for place, column in enumerate(columns) if column.words]):
        widest = max(words, key=widths.__getitem__)
        widths[widest] = max(NARROWEST, widths[widest] - excess)
    printed = list[str]()
    for row in range(len(columns[0].texts)):
        cells = [column.lines(row, room) for column, room in zip(columns, widths, strict=True)]
        height = max(map(len, cells))
        filled = [[*cell, *[" " * room] * (height - len(cell))] for cell, room in zip(cells, widths, strict=True)]
        printed += [(" " * gap).join(line).rstrip() for line in zip(*filled, strict=True)]
    return printed


def _total(columns: Sequence[Column], gap: int) -> int:
    """Characters of columns side by side."""
    return sum(column.width for column in columns) + gap * (len(columns) - 1)


def _width(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)
