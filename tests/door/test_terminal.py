"""Output of the commands: exact lines of tables, at most as wide as they should be, with folders of any name."""

import io
import json
import os
import re
import sys

import pytest

from ssl_bench.commands import status
from ssl_bench.errors import printable
from ssl_bench.results.pivot import spread
from tests.door.door import enter
from tests.results.folders import finish, make, rows

Capture = pytest.CaptureFixture[str]


# ---- grids


def table_of(printed: str) -> list[list[str]]:
    """The cells of each row of a grid's table, which follows its headings."""
    lines = printed.splitlines()
    start = next(number for number, line in enumerate(lines) if "/" in line.split("  ")[-1])
    return [re.split(r"  +", line) for line in lines[start + 1 :] if re.search(r"\S  +\S", line)]


@pytest.mark.slow
def test_a_repeated_grid_counts_the_finished_runs_and_prints_one_table(capfd: Capture) -> None:
    settings = "framework=frozen loss=infonce temperature=fixed evaluate=gradient_weight"
    command = f"train -m {settings} temperature.tau=0.2,0.5"
    assert enter(command, capfd).code == 0
    again = enter(command, capfd)
    counts = [re.findall(r"\d+", line) for line in again.out.splitlines()[:2]]
    assert again.code == 0 and counts == [["2", "2"], ["2", "0", "2", "0"]]
    assert {"0.2", "0.5"} <= {row[0] for row in table_of(again.out)}


# ---- small numbers


def test_small_weights_have_significant_digits(capfd: Capture) -> None:
    settings = "framework=frozen loss=infonce temperature=fixed temperature.tau=0.1 evaluate.gradient_weight.k=1"
    answer = enter(f"train evaluate=gradient_weight {settings}", capfd)
    assert answer.code == 0 and "2.061e-09" in answer.out  # sigmoid(-2 / 0.1)


@pytest.mark.parametrize(
    ("values", "digits", "expected"),
    [
        ([60.0, 62.0, 64.0], 2, "62.00 ± 2.00 (3)"),
        ([0.0000454], 3, "4.54e-05 (1)"),
        ([-0.00004663, -0.0000454, -0.00004417], 3, "-4.54e-05 ± 1.23e-06 (3)"),
        ([0.0, 0.0], 3, "0.000 ± 0.000 (2)"),
        ([0.5 - 1e-16, 0.5, 0.5], 3, "0.500 ± 0.000 (3)"),
        ([], 3, ""),
    ],
)
def test_numbers_of_tables(values: list[float], digits: int, expected: str) -> None:
    assert spread(values, digits) == expected


# ---- status


def test_text_of_tables_has_no_character_that_controls_a_terminal() -> None:
    assert printable("plain ä 漢") == "plain ä 漢"
    assert printable("a\nb\x1b[31m\udcff\u202e") == r"a\nb\x1b[31m\udcff\u202e"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_folders_whose_names_are_no_text(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = os.fsdecode(b"\xff\x1b[31m\n")
    finish(make(f"{odd}/x", choices={"dataset": "bunté"}), 1.0, knn_top1=0.5)
    failed = make(f"{odd}/y", choices={"dataset": "plain"})
    (failed / "failed.json").write_text('{"reason": "a\\u001b[2J b"}')

    def printed(form: str) -> bytes:
        with monkeypatch.context() as context:
            context.setattr(sys, "stdout", io.TextIOWrapper(stream := io.BytesIO(), encoding, "backslashreplace"))
            assert status.main([form]) == 0
            sys.stdout.flush()
            return stream.getvalue()

    accent = "é" if encoding == "utf-8" else r"\xe9"
    make("b/", rows(1), seed=0)
    text = printed("--runs").decode(encoding)
    assert f"dataset=bunt{accent}" in text and text.count(r"\udcff\x1b[31m\n") == 3 and "\x1b" not in text
    assert json.loads(printed("--json"))[1]["folder"].startswith(f"outputs/{odd}/")
    rows_of = printed("--csv").decode(encoding)
    assert r"outputs/\udcff\x1b[31m\n/" in rows_of and f"dataset=bunt{accent}" in rows_of and "\x1b" not in rows_of
