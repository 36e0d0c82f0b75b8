"""A sheet as lines of a terminal that it fits, and as texts of other programs, which no text of a user controls."""

import csv
import json

import pytest
from rich.cells import cell_len

from ssl_bench.record.printing import FORMS, Sheet, SheetEntry, lines, markdown, text_of

ROWS = [["loss=dcl", "漢字", "1.5", "10.25"], ["infonce", "b", "22.5", "9.5"]]
EVIL = "<img src=x>|\\\x1b[2J\nline"


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


def test_a_narrow_terminal_has_blocks_or_spares_columns_and_folds_words() -> None:
    assert lines(sheet(), 22) == [
        *("run       state     k", "loss=dcl  漢字    1.5", "infonce   b      22.5", ""),
        *("run         top1", "loss=dcl  10.25¹", "infonce     9.5"),
    ]
    assert lines(sheet(spared=("k", "top1")), 23)[0].split() == ["run", "state", "top1"]
    long = sheet(spared=("state", "k"))
    long.rows[1][0] = SheetEntry("a run with a label that is too long, " + "漢字" * 20)
    folded = lines(long, 28)
    assert len(folded) > 6 and all(cell_len(line) <= 28 for line in folded)
    words = Sheet(["claim", "effect", "hours"], [[SheetEntry("several words of " + "x" * 30)] * 3], left=3)
    assert all(len(line) <= 40 for line in lines(words, 40))


def test_a_file_needs_no_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = Sheet(["", *map(str, range(60))], [[SheetEntry("row"), *[SheetEntry("0.123")] * 60]])
    assert len(text_of([wide], "rich").splitlines()) == 2
    eight = Sheet([*"abcdefgh"], [[SheetEntry("1")] * 8], words=("h",), spared=("g", "b", "c"))
    assert "{lrrrrl}" in text_of([eight], "tex") and "a & c & d & e & f & h " in text_of([eight], "tex")
    monkeypatch.setenv("COLUMNS", "80")
    assert len(text_of([wide], "rich").splitlines()) > 2


def test_no_text_of_a_user_is_more_than_text() -> None:
    made = Sheet([EVIL, "x_1%"], [[SheetEntry(EVIL), SheetEntry("a|b")]], [EVIL], title=EVIL, below=[f"{EVIL} one"])
    every = {form: text_of([made], form) for form in FORMS}
    assert not any("\x1b" in text or "]\nline" in text for text in every.values())
    assert "\n<img" not in every["md"] and " <img" not in every["md"]
    heading, _, row, *_ = markdown(made).splitlines()
    assert row == r"| \<img src=x>\|\\\\x1b[2J\\nline | a\|b |" and heading.endswith(r" | x_1% |")
    assert "x\\_1\\%" in every["tex"] and "|" not in every["tex"].split("\n", 1)[1]
    assert json.loads(every["json"])["rows"][0][EVIL] == EVIL


def test_a_spreadsheet_gets_no_formula_and_each_number() -> None:
    texts = {"text": "=1+1", "minus": "-x", "spread": "-0.3 ± 0.1 (2)", "mail": "@x", "plus": "+cmd"}
    numbers = {"whole": 3, "below": -0.1234567890123, "words": "-1.5e-3", "plus one": "+1", "no": None, "yes": True}
    (row,) = csv.DictReader(text_of([Sheet([], records=[texts | numbers | {"=name": ""}])], "csv").splitlines())
    assert all(row[name] == f"'{text}" for name, text in texts.items()) and "'=name" in row
    assert [row[name] for name in numbers] == ["3", "-0.1234567890123", "-1.5e-3", "+1", "", "True"]
