"""The selection of tables, rows and columns."""

import pytest

from ssl_bench.papers import tables
from ssl_bench.papers.selection import Selection


def rows(table: str, wanted: str) -> list[str]:
    """Names of the rows that ``row=wanted`` selects."""
    (found,) = tables.find(table)
    selected = {cell.row for cell in Selection.read([table], False, [f"row={wanted}"]).cells(found)}
    return [row for row in found.rows() if row in selected]


@pytest.mark.parametrize(
    ("table", "wanted", "expected"),
    [
        ("dcl/table1", "CIFAR-10 DCL", ["CIFAR-10 DCL"]),  # the exact name
        ("dcl/table1", "CIFAR-10*", ["CIFAR-10 SimCLR", "CIFAR-10 DCL", "CIFAR-100 SimCLR", "CIFAR-100 DCL"]),
        ("dcl/table1", "DCL", ["ImageNet-100 DCL", "CIFAR-10 DCL", "CIFAR-100 DCL", "STL-10 DCL"]),  # a word
        ("dcl/table1", "CIFAR-10", ["CIFAR-10 SimCLR", "CIFAR-10 DCL"]),  # not CIFAR-100
        ("dcl/table4", "SimCLR", ["SimCLR"]),  # an exact name comes before words: not SimCLR + DCL
        ("eqco/table2", "SiMo", ["SiMo, alpha 256, 16 negatives", "SiMo, alpha 65536, 16 negatives"]),
        ("eqco/table7", "2x", ["ResNet-50 (2x)"]),
    ],
)
def test_rows_are_selected_by_name_pattern_or_words(table: str, wanted: str, expected: list[str]) -> None:
    assert rows(table, wanted) == expected


def test_columns_are_selected_by_words_too() -> None:
    (table,) = tables.find("macl/table2")
    cells = Selection.read(["macl/table2"], False, ["col=tau 0.1", "row=DCL"]).cells(table)
    assert {(cell.row, cell.column) for cell in cells} == {("DCL", "STL-10 tau 0.1")}  # not 0.15
    (table,) = tables.find("dcl/table2")
    cells = Selection.read(["dcl/table2"], False, ["col=DCL"]).cells(table)
    assert {cell.column for cell in cells} == {"DCL"}  # not DCLW


def test_a_paper_is_all_of_its_tables_only_where_that_is_asked_for() -> None:
    assert [t.name for t in Selection.read(["dcl"], True, []).tables()] == [t.name for t in tables.find("dcl")]
    assert len(Selection.read([], True, []).tables()) == len(tables.every())
    assert [t.name for t in Selection.read(["dcl/fig3"], False, []).tables()] == ["dcl/fig3a", "dcl/fig3b"]
