"""A sheet as lines of a terminal: aligned, divided into blocks, or without the columns that it can spare."""

import pytest

from ssl_bench.record.printing import Sheet, SheetEntry, html, lines, text_of

ROWS = [["loss=dcl", "漢字", "1.5", "10.25"], ["infonce", "b", "22.5", "9.5"]]


def sheet(**changed: object) -> Sheet:
    rows = [[SheetEntry(text) for text in row] for row in ROWS]
    rows[0][3] = SheetEntry("10.25", notes=(1,), best=True)
    return Sheet(["run", "state", "k", "top1"], rows, ["a note"], words=("state",), **changed)  # type: ignore[arg-type]


def test_words_stand_at_the_left_and_digits_below_each_other() -> None:
    assert lines(sheet()) == [
        "run       state     k    top1",
        "loss=dcl  漢字    1.5  10.25¹",  # two characters as wide as four
        "infonce   b      22.5    9.5",
    ]
    assert lines(sheet(), bold=True)[1].endswith("  \x1b[1m10.25¹\x1b[0m")


def test_html_has_each_text_as_it_is() -> None:
    made = sheet(title="a < b", below=["one\ntwo & three"])
    made.rows[1][0] = SheetEntry("<img src=x>\x1b[1m")
    assert html(made) == (
        "<p>a &lt; b</p><table>"
        "<thead><tr><th>run</th><th>state</th><th>k</th><th>top1</th></tr></thead><tbody>"
        "<tr><td>loss=dcl</td><td>漢字</td><td>1.5</td><td><b>10.25</b><sup>1</sup></td></tr>"
        "<tr><td>&lt;img src=x&gt;\\x1b[1m</td><td>b</td><td>22.5</td><td>9.5</td></tr></tbody></table>"
        "<p><sup>1</sup> a note</p><p>one<br>two &amp; three</p>"
    )


def test_a_narrow_terminal_has_blocks_or_spares_columns_and_cuts_words_off() -> None:
    assert lines(sheet(), 22) == [
        *("run       state     k", "loss=dcl  漢字    1.5", "infonce   b      22.5", ""),
        *("run         top1", "loss=dcl  10.25¹", "infonce     9.5"),
    ]
    assert lines(sheet(spared=("k", "top1")), 23) == [
        *("run       state    top1", "loss=dcl  漢字   10.25¹", "infonce   b        9.5"),
    ]
    long = sheet(spared=("state", "k"))
    long.rows[1][0] = SheetEntry("a run with a label that is too long")
    assert lines(long, 28) == [
        "run                     top1",
        "loss=dcl              10.25¹",
        "a run with a label …    9.5",
    ]


def test_a_file_needs_no_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    wide = Sheet(["", *map(str, range(60))], [[SheetEntry("row"), *[SheetEntry("0.123")] * 60]])
    assert len(text_of([wide], "rich").splitlines()) == 2
    monkeypatch.setenv("COLUMNS", "80")
    assert len(text_of([wide], "rich").splitlines()) > 2
