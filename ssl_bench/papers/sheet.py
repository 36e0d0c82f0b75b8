"""Arrange a filled table as rows and columns of text: in the shape that the paper prints, or as a list of its cells.

In the paper's shape a cell has up to five numbers: that of the paper, ours, the difference, that of the project, and
ours of reduced scale. They are lines of the cell, or stand beside each other. Numbers that no cell has are left out.

Notes of cells are numbered footnotes. A note that a whole row has stands once, beside the name of the row.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ssl_bench.papers.cells import Metric, Table
from ssl_bench.papers.fill import Filled

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
    "project": lambda each: each.measured_mean,
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
    """Rows x columns as in the paper, with a line for each number of a cell, unless all cells have only one."""
    if len(_present(filled)) < 2:
        return beside(table, filled)
    shape = _Shape(table, filled)
    sheet = Sheet(2, ["", "", *shape.columns])
    for label, cells in shape.rows.items():
        head = shape.head(sheet, label)
        for place, name in enumerate(_present(cells.values()) or ["ours"]):
            numbers = [shape.entry(sheet, label, column, name, place == 0) for column in shape.columns]
            sheet.rows.append([SheetEntry() if place else head, SheetEntry(name), *numbers])
    return sheet


def beside(table: Table, filled: Sequence[Filled]) -> Sheet:
    """Rows x columns as in the paper, with the numbers of a cell beside each other."""
    shape, names = _Shape(table, filled), _present(filled) or ["ours"]
    places = [(column, place, name) for column in shape.columns for place, name in enumerate(names)]
    if len(names) == 1:
        sheet = Sheet(1, [names[0], *shape.columns])
    else:
        sheet = Sheet(1, ["", *(name if place else f"{column}\n{name}" for column, place, name in places)])
    for label in shape.rows:
        head = shape.head(sheet, label)
        numbers = [shape.entry(sheet, label, column, name, place == 0) for column, place, name in places]
        sheet.rows.append([head, *numbers])
    return sheet


class _Shape:
    """The cells of a table by row and column, which need not have a cell in every place."""

    def __init__(self, table: Table, filled: Sequence[Filled]) -> None:
        self.rows: dict[str, dict[str, Filled]] = {}
        for each in filled:
            self.rows.setdefault(each.cell.label, {})[each.cell.column] = each
        self.columns = list(dict.fromkeys(each.cell.column for each in filled))
        self._best = _best(table, filled)
        self._common = {label: _common(list(cells.values())) for label, cells in self.rows.items()}

    def head(self, sheet: Sheet, label: str) -> SheetEntry:
        """The name of a row, with the footnotes of all its cells."""
        return SheetEntry(label, sheet.number_of(self._common[label]))

    def entry(self, sheet: Sheet, label: str, column: str, name: str, first: bool) -> SheetEntry:
        """A number of a cell; the ``first`` one has the footnotes of the cell."""
        each = self.rows[label].get(column)
        if each is None:
            return SheetEntry()
        notes = [note for note in each.notes if first and note not in self._common[label]]
        if name == "reduced" and each.shortened:
            notes.append(f"trained for {each.length}")
        return SheetEntry(NUMBERS[name](each), sheet.number_of(notes), (label, column) in self._best[name])


def _present(cells: Iterable[Filled]) -> list[str]:
    """The names of the numbers that at least one of the cells has."""
    cells = list(cells)
    return [name for name, text in NUMBERS.items() if any(text(each) for each in cells)]


def _common(cells: Sequence[Filled]) -> list[str]:
    """The notes that all cells have."""
    return [note for note in cells[0].notes if all(note in each.notes for each in cells)]


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
