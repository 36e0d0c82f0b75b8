"""Arrange a filled table as rows and columns of text: in the shape that the paper prints, or as a list of its cells.

In the paper's shape a cell has up to five numbers, a line each: that of the paper, ours, the difference, that of the
project, and ours of reduced scale. Numbers that no cell has are left out.

Notes of cells are numbered footnotes. A note that a whole row has stands once, beside the name of the row.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ssl_bench.papers.cells import Metric, Table
from ssl_bench.papers.fill import Filled, mean

NUMBERS: Mapping[str, Callable[[Filled], str]] = {  # of a cell, by name
    "paper": lambda each: each.cell.reported,
    "ours": lambda each: each.ours,
    "difference": lambda each: each.difference,
    "project": lambda each: each.project,
    "reduced": lambda each: each.shorter,
}
COMPARED: Mapping[str, Callable[[Filled], float | None]] = {  # the numbers of which the best is marked
    "paper": lambda each: each.cell.paper,
    "ours": lambda each: each.mean,
    "project": lambda each: mean(each.measured),
}
HEADINGS = ("row", "column", *NUMBERS, "note")  # of the list


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


Mark = Callable[[SheetEntry], str]


@dataclass
class Sheet:
    """A table of text.

    Attributes:
        labels: number of columns on the left that name a row; all other columns are numbers, unless it is a list.
        headings: of all columns.
        notes: the footnotes.
    """

    labels: int
    headings: list[str]
    rows: list[list[SheetEntry]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def blocks(self, width: int, gap: int, mark: Mark = lambda entry: "") -> Iterator[list[int]]:
        """Split the columns into blocks that fit into a width; each block begins with the labels.

        Args:
            width: in characters.
            gap: blank characters between two columns.
            mark: text of an entry's footnotes.
        """
        names, block = list(range(self.labels)), list[int]()
        left = taken = sum(self._width(column, mark) + gap for column in names)
        for column in range(self.labels, len(self.headings)):
            wide = self._width(column, mark)
            if block and taken + wide > width:
                yield names + block
                block, taken = [], left
            block.append(column)
            taken += wide + gap
        yield names + block

    def folded(self, column: int, mark: Mark = lambda entry: "") -> list[str]:
        """The lines of a heading, folded between words to the width of its column."""
        wrapper = textwrap.TextWrapper(max(1, self._width(column, mark)), break_long_words=False)
        return [part for line in self.headings[column].split("\n") for part in wrapper.wrap(line)]

    def _width(self, column: int, mark: Mark) -> int:
        """Width of a column in characters: that of its entries, or of the longest word of its heading."""
        words = (len(word) for word in self.headings[column].split())
        return max([0, *words, *(len(row[column].text) + len(mark(row[column])) for row in self.rows)])

    def number_of(self, notes: Iterable[str]) -> tuple[int, ...]:
        """The numbers of footnotes, which are added if they are new."""
        numbers = []
        for note in notes:
            if note not in self.notes:
                self.notes.append(note)
            numbers.append(self.notes.index(note) + 1)
        return tuple(numbers)


def shaped(table: Table, filled: Sequence[Filled]) -> Sheet:
    """Rows x columns as in the paper, with a line for each number of a cell; their names are left out if it is one."""
    by_row: dict[str, dict[str, Filled]] = {}  # which need not have a cell in every column
    for each in filled:
        by_row.setdefault(each.cell.label, {})[each.cell.column] = each
    columns, best = list(dict.fromkeys(each.cell.column for each in filled)), _best(table, filled)
    names = _present(filled) or ["ours"]
    several = len(names) > 1
    sheet = Sheet(1 + several, [*(["", ""] if several else names), *columns])
    for label, cells in by_row.items():
        common = [
            note for note in next(iter(cells.values())).notes if all(note in each.notes for each in cells.values())
        ]
        head = SheetEntry(label, sheet.number_of(common))
        for place, name in enumerate(_present(cells.values()) or ["ours"]):
            row = [SheetEntry() if place else head, *([SheetEntry(name)] if several else [])]
            for column in columns:
                if (found := cells.get(column)) is None:
                    row.append(SheetEntry())
                    continue
                notes = [note for note in found.notes if not place and note not in common]
                if name == "reduced" and found.shortened:
                    notes.append(f"trained for {found.length}")
                row.append(SheetEntry(NUMBERS[name](found), sheet.number_of(notes), (label, column) in best[name]))
            sheet.rows.append(row)
    return sheet


def _present(cells: Iterable[Filled]) -> list[str]:
    """The names of the numbers that at least one of the cells has."""
    cells = list(cells)
    return [name for name, text in NUMBERS.items() if any(text(each) for each in cells)]


def listed(table: Table, filled: Sequence[Filled]) -> Sheet:
    """A row for each cell, by HEADINGS, without empty columns."""
    lines = rows(filled)
    always = {"row", "column", "ours"} | ({"paper", "difference"} if _has_numbers(table) else set())
    kept = [i for i, name in enumerate(HEADINGS) if name in always or any(line[i] for line in lines)]
    return Sheet(2, [HEADINGS[i] for i in kept], [[SheetEntry(line[i]) for i in kept] for line in lines])


def rows(filled: Sequence[Filled]) -> list[tuple[str, ...]]:
    """The texts of each cell, by HEADINGS."""
    texts = {**NUMBERS, "reduced": lambda each: each.reduced}
    return [(e.cell.label, e.cell.column, *(text(e) for text in texts.values()), e.note) for e in filled]


def _has_numbers(table: Table) -> bool:
    return any(cell.paper is not None for cell in table.cells)


def _best(table: Table, filled: Sequence[Filled]) -> dict[str, set[tuple[str, str]]]:
    """By name of the number, the rows and columns of the best cells of each row or column, as the table says.

    Only cells with the same metric and dataset are compared, and a single number is not the best of anything.
    """
    groups: dict[tuple[str, ...], list[Filled]] = {}
    compared = table.best
    for each in filled if compared else ():
        cell = each.cell
        place = (cell.label,) if compared == "row" else (cell.column, cell.measure)
        metric = Metric.read(cell.metric).name if cell.metric else ""
        groups.setdefault((*place, metric, cell.settings.get("dataset", "")), []).append(each)
    best: dict[str, set[tuple[str, str]]] = {name: set() for name in NUMBERS}
    for group, (name, number) in itertools.product(groups.values(), COMPARED.items()):
        known = [(value, each.cell) for each in group if (value := number(each)) is not None and math.isfinite(value)]
        if len(known) > 1:
            largest = max(value for value, _ in known)
            best[name] |= {(cell.label, cell.column) for value, cell in known if value == largest}
    return best
