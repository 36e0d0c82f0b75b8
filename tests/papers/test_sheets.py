"""The text of filled tables in every format and width."""

import csv
import io
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ssl_bench.papers import measurements, tables
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.cells import Table
from ssl_bench.papers.fill import Filled
from ssl_bench.papers.sheets import sheet_of, whole
from ssl_bench.record.printing import FORMS, text_of

PAPER = """
paper: mine
title: A Paper
cite: Doe & Roe, 50% of {a_b}
tables:
  table1:
    title: two losses
    metric: knn/top1
    set: [dataset=mnist]
    note: a note of the table
    columns: [32, 64]
    rows:
      SimCLR: {values: [80.5, {is: 81.0, note: another run}]}
      DCL: {values: [84.0 code, 83 code]}
      BYOL: {missing: a predictor}
  figure:
    title: without numbers
    metric: loss
    columns: [1, 2, 3, 4, 5, 6, 7, 8, 9]
    rows: {"tau <0.1>": [], "tau 0.2": []}
    x: {label: epoch}
    y: loss
  best:
    title: best of each column
    best: column
    metrics: {kNN: knn/top1, LE: linear/top1}
    columns: {A: [dataset=mnist], B: [dataset=cifar10]}
    rows:
      one: {values: {kNN: [70, 80], LE: [71, 90]}}
      two: {values: {kNN: [70, 79], LE: [72, 91]}}
"""


@pytest.fixture(autouse=True)
def papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").write_text(PAPER)
    monkeypatch.setenv("SSL_BENCH_PAPERS", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")


def mine(name: str = "table1") -> Table:
    return tables.find(f"mine/{name}")[0]


def fill(table: Table, **values: Sequence[float]) -> list[Filled]:
    """Fill the cells of a table; ``values`` are by row and column, such as ``DCL_32``."""
    of = {f"{c.label}_{c.column}".replace(" ", "_"): c for c in table.cells}
    return [Filled(cell, list(values.get(key, [])), []) for key, cell in of.items()]


def text(form: str, table: Table, filled: Sequence[Filled]) -> str:
    return text_of([whole(table, filled, Results(Path("outputs"), []), table.name)], form)


def printed(form: str, table: Table, filled: Sequence[Filled]) -> list[str]:
    return [line.rstrip() for line in text(form, table, filled).splitlines()]


def test_the_numbers_of_a_cell_stand_below_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    filled = fill(mine(), SimCLR_32=[80.0, 82.0], SimCLR_64=[81.25])
    assert printed("rich", mine(), filled) == [
        "mine/table1: two losses",
        "                                   32          64",
        "SimCLR   paper                   80.5       81.0¹",
        "         ours        81.00 ± 1.41 (2)  81.25 (1)",
        "         difference             +0.50      +0.25",
        "DCL²     paper                   84.0       83.0",
        "BYOL³    ours",
        "",
        "1 another run",
        "2 from a public repository, not from the text",
        "3 needs a predictor",
        "",
        "a note of the table",
        "",
        "Source: Doe & Roe, 50% of {a_b}",
        "",
        "To fill the empty cells, `ssl-bench reproduce",
        "mine/table1`: 1 configuration without a run.",
    ]


def test_many_columns_are_split_into_blocks() -> None:
    figure = mine("figure")
    empty = printed("rich", figure, fill(figure))
    assert empty[1].split() == list("123456789") and [line.split() for line in empty[2:4]] == [
        ["tau", "<0.1>", "ours"],
        ["tau", "0.2", "ours"],
    ]
    lines = printed("rich", figure, [Filled(cell, [0.5, 0.75], []) for cell in figure.cells])
    assert max(map(len, lines)) <= 80
    headings = [line.split() for line in lines if re.fullmatch(r"[\d ]+", line)]
    assert headings == [list("123"), list("456"), list("789")]
    assert sum(line.count("0.625 ± 0.177 (2)") for line in lines) == 18


def test_numbers_of_the_project_have_lines_of_their_own() -> None:
    table = mine()
    filled = fill(table, DCL_32=[84.5])
    for i, cell in enumerate(table.cells):
        if cell.row == "DCL":
            filled[i] = Filled(cell, filled[i].values, [84.25])
    lines = printed("md", table, filled)
    assert lines[lines.index("| SimCLR | paper | 80.5 | 81.0<sup>1</sup> |") + 1 :][:8] == [
        "| DCL<sup>2</sup> | paper | 84.0 | 83.0 |",
        "|  | ours | 84.50 (1) |  |",
        "|  | difference | +0.50 |  |",
        "|  | project | 84.25 (1) | 84.25 (1) |",
        "| BYOL<sup>3</sup> | ours |  |  |",
        "",
        "<sup>1</sup> another run",
        "",
    ]
    records = json.loads(text("json", table, filled))["cells"]
    (own,) = (each for each in records if (each["row"], each["column"]) == ("DCL", "32"))
    assert [own[name] for name in ("mean", "n", "project", "project_std", "project_n")] == [84.5, 1, 84.25, None, 1]


def test_the_best_numbers_are_bold() -> None:
    """Of numbers with the same metric and dataset, so that the columns of different datasets are not compared."""
    table = mine("best")
    filled = fill(table, one_kNN_A=[60.0], two_kNN_A=[61.0], one_LE_A=[62.0])
    lines = [line for line in printed("md", table, filled) if "paper" in line or "ours" in line]
    assert lines == [
        "| one kNN | paper | **70.0** | **80.0** |",
        "|  | ours | 60.00 (1) |  |",
        "| one LE | paper | 71.0 | 90.0 |",
        "|  | ours | 62.00 (1) |  |",
        "| two kNN | paper | **70.0** | 79.0 |",
        "|  | ours | **61.00 (1)** |  |",
        "| two LE | paper | **72.0** | **91.0** |",
    ]
    assert "two LE & paper & \\textbf{72.0} & \\textbf{91.0} \\\\" in printed("tex", table, fill(table))
    assert "**" not in "".join(printed("md", replace(table, best="row"), filled))


def test_latex_is_escaped() -> None:
    lines = printed("tex", mine(), fill(mine(), SimCLR_32=[79.0, 80.0]))
    assert lines == [
        "% mine/table1: two losses",
        "% needs \\usepackage{booktabs}",
        "\\begin{tabular}{llrr}",
        "\\toprule",
        " &  & 32 & 64 \\\\",
        "\\midrule",
        "SimCLR & paper & 80.5 & 81.0\\rlap{$^{1}$} \\\\",
        " & ours & 79.50 $\\pm$ 0.71 (2) &  \\\\",
        " & difference & $-$1.00 &  \\\\",
        "DCL\\rlap{$^{2}$} & paper & 84.0 & 83.0 \\\\",
        "BYOL\\rlap{$^{3}$} & ours &  &  \\\\",
        "\\bottomrule",
        "\\end{tabular}",
        "",
        "{\\footnotesize $^{1}$ another run}",
        "",
        "{\\footnotesize $^{2}$ from a public repository, not from the text}",
        "",
        "{\\footnotesize $^{3}$ needs a predictor}",
        "",
        "{\\footnotesize a note of the table}",
        "",
        "{\\footnotesize Source: Doe \\& Roe, 50\\% of \\{a\\_b\\}}",
        "",
        "{\\footnotesize To fill the empty cells, `ssl-bench reproduce mine/table1`: 1 configuration without a run.}",
    ]
    assert "tau \\ensuremath{<}0.1\\ensuremath{>}" in "".join(printed("tex", mine("figure"), fill(mine("figure"))))


def test_every_form_has_what_the_others_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "read", lambda table: {"errata": "one seed"})
    monkeypatch.setenv("COLUMNS", "200")
    table = replace(mine(), best="column")
    filled = [replace(each, remarks=["seed 1: late"]) for each in fill(table, SimCLR_32=[80.0])]
    filled[2] = replace(filled[2], values=[84.5], measured=[84.25])
    words = ["SimCLR", "DCL", "BYOL", "80.5", "84.0", "needs a predictor", "another run", "from a public repository"]
    words += ["80.00", "84.50", "+0.50", "84.25", "seed 1: late", "a note of the table"]
    words += ["two losses", "Doe & Roe, 50% of {a_b}", "Errata of the project's numbers: one seed", "1 configuration"]
    for form in FORMS:
        found = re.sub(r"\\([&%_#${}])", r"\1", text(form, table, filled))
        for word in words:  # CSV and JSON have numbers in place of their texts
            short = re.sub(r"^\+?(-?\d+\.\d+?)0*$", r"\1", word) if form in ("csv", "json") else word
            assert short in found, (form, word)
    rows = list(csv.DictReader(io.StringIO(text("csv", table, filled))))
    own = next(row for row in rows if (row["row"], row["column"]) == ("DCL", "32"))
    assert (own["project"], own["project_n"], own["best"]) == ("84.25", "1", "paper, ours")
    assert [bool(row["about"]) for row in rows] == [True, *[False] * 5]


@pytest.fixture
def all_tables(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Table, list[Filled]]]:
    """Every table of the package, with a number in every cell."""
    monkeypatch.delenv("SSL_BENCH_PAPERS")
    return [(t, [Filled(cell, [60.5, 61.5], [60.0]) for cell in t.cells]) for t in tables.every()]


def test_every_table_fits_on_a_terminal(
    all_tables: list[tuple[Table, list[Filled]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for width in (80, 140):
        monkeypatch.setenv("COLUMNS", str(width))
        for table, filled in all_tables:
            lines = printed("rich", table, filled)
            count = len(table.cells)
            assert max(map(len, lines)) <= width, table.name
            assert len(re.findall(r"61\.00+ ± 0\.7\d+ \(2\)", "\n".join(lines))) == count, table.name


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("pdflatex"), reason="there is no pdflatex: install texlive-latex-base")
def test_latex_compiles(all_tables: list[tuple[Table, list[Filled]]], tmp_path: Path) -> None:
    body = text_of([sheet_of(*each) for each in all_tables], "tex")
    (tmp_path / "all.tex").write_text(f"\\documentclass{{article}}\n\\begin{{document}}\n{body}\n\\end{{document}}\n")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "all.pdf").stat().st_size > 10000
