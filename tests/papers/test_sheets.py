"""Filled tables: the forms of a metric, one sheet in every format, and the width of all tables of the papers."""

import csv
import io
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from ssl_bench.papers import measurements, tables
from ssl_bench.papers.cell_runs import Results, value
from ssl_bench.papers.cells import Table
from ssl_bench.papers.fill import Filled, fill
from ssl_bench.papers.sheets import whole
from ssl_bench.record.printing import FORMS, text_of
from ssl_bench.results.statistics import deviation
from tests.door.door import refused
from tests.papers.conftest import write_result

# ---- the forms of a metric

STEPS, EPOCHS = 7, 4  # of an epoch; epochs that are no sum of few halves, so that their numbers are rounded
METRICS = ["knn/top1@best", "knn/top1", "knn/top1@2", "information@mean", "information@mean{column}", "information"]
METRICS += ["information@{column}", "information@best"]


@pytest.fixture
def papers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only paper of the test, to be written."""
    monkeypatch.setenv("SSL_BENCH_PAPERS", str(tmp_path / "papers"))
    (tmp_path / "papers").mkdir()
    return tmp_path / "papers" / "mine.yaml"


def curves(papers: Path, metrics: Sequence[str] = METRICS) -> Table:
    """A figure with a row for each form of a metric, over epochs."""
    common = ["dataset=scattered_digits", "backbone.width=4", f"epochs={EPOCHS}", "evaluate=[knn]", "evaluate.every=1"]
    figure = {"title": "t", "set": common, "seeds": [0, 1], "columns": [1, 2, 4], "x": {"label": "epoch"}}
    figure["rows"] = {metric: {"metric": metric} for metric in metrics}
    papers.write_text(yaml.safe_dump({"paper": "mine", "title": "t", "cite": "me", "tables": {"fig1": figure}}))
    (table,) = tables.find("mine/fig1")
    return table


def information(seed: int, step: int) -> float:
    return math.sin(step) + seed


def accuracy(seed: int, epoch: int) -> float:
    return [0.2, 0.5 + seed / 10, 0.4, 0.3][epoch - 1]


def write_run(table: Table, seed: int) -> Path:
    """A run with a row at every second step of the training, evaluations after each epoch, and a damaged row."""
    rows: list[dict[str, Any]] = [{"step": 6, "epoch": 6 / STEPS, "information": "none"}]
    for step in range(1, STEPS * EPOCHS + 1):
        epoch = step / STEPS
        if step % 2 == 0:
            rows.append({"step": step, "epoch": epoch, "loss": 1.0, "information": information(seed, step)})
        if step % STEPS == 0:
            rows.append({"step": step, "epoch": epoch, "knn/top1": accuracy(seed, round(epoch))})
    folder = write_result(table.cells[0], seed, {"knn/top1": accuracy(seed, EPOCHS)})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def expected(form: str, seed: int, epoch: int) -> float | None:
    """A naive reference."""
    steps = range(2, STEPS * EPOCHS + 1, 2)
    of_epoch = {e: [information(seed, s) for s in steps if (s - 1) // STEPS == e - 1] for e in range(1, EPOCHS + 1)}
    means = {e: sum(values) / len(values) for e, values in of_epoch.items()}
    at_end = information(seed, epoch * STEPS) if epoch * STEPS % 2 == 0 else None  # other epochs end between two rows
    return {
        "knn/top1@best": 100 * max(accuracy(seed, e) for e in range(1, EPOCHS + 1)),
        "knn/top1": 100 * accuracy(seed, EPOCHS),
        "knn/top1@2": 100 * accuracy(seed, 2),
        "information@mean": means[EPOCHS],
        "information@mean{column}": means[epoch],
        "information": information(seed, STEPS * EPOCHS),
        "information@{column}": at_end,
        "information@best": max(information(seed, s) for s in steps),
    }[form]


def test_cells_hold_the_last_the_best_and_the_mean_values(papers: Path) -> None:
    table = curves(papers)
    folders = [write_run(table, seed) for seed in (0, 1)]
    for filled in fill(table, table.cells, Results(Path("outputs"), table.cells)):
        form, column = filled.cell.row, filled.cell.column
        values = [expected(form, seed, int(column)) for seed in (0, 1)]
        wanted = [number for number in values if number is not None]
        assert filled.values == pytest.approx(wanted, rel=1e-12), (form, column)
        if wanted:
            apart = abs(wanted[0] - wanted[1]) / math.sqrt(2)
            assert filled.mean == pytest.approx(sum(wanted) / 2, rel=1e-12)
            assert deviation(filled.values) == pytest.approx(apart, rel=1e-9, abs=1e-12)
    run = Results(Path("outputs"), table.cells).of_cell(table.cells[0])[0]
    assert value(run, "information@mean9") is None and value(run, "loss@mean") == 1.0
    assert value(run, "nothing@best") is value(run, "nothing@mean") is value(run, "nothing") is None
    damaged = (3.5, 0.25), (4.0, 0.75), (4.0, math.nan)
    rows = [{"step": 1, "epoch": epoch, "knn/top1": number} for epoch, number in damaged]
    (folders[0] / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))  # it is read again
    assert value(run, "knn/top1@best") == 75.0 and value(run, "knn/top1@3.5") == 25.0


@pytest.mark.parametrize("metric", ["a@", "a@last", "a@best50", "@50", "a@50mean", "a@mean-1", "a@b@50", "a@mean50x"])
def test_other_forms_are_refused(papers: Path, metric: str) -> None:
    with refused("metric name@50 name@best name@mean name@mean50"):
        curves(papers, [metric])


# ---- sheets

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
  best:
    title: best of each column
    best: column
    metrics: {kNN: knn/top1, LE: linear/top1}
    columns: {A: [dataset=mnist], B: [dataset=cifar10]}
    rows:
      one: {values: {kNN: [70, 80], LE: [71, 90]}}
      two: {values: {kNN: [70, 79], LE: [72, 91]}}
"""


def mine(papers: Path, name: str, **values: Sequence[float]) -> tuple[Table, list[Filled]]:
    """A table, filled; ``values`` are by row and column, such as ``DCL_32``."""
    papers.write_text(PAPER)
    (table,) = tables.find(f"mine/{name}")
    of = {f"{c.label}_{c.column}".replace(" ", "_"): c for c in table.cells}
    return table, [Filled(cell, list(values.get(key, [])), []) for key, cell in of.items()]


def text(form: str, table: Table, filled: Sequence[Filled]) -> str:
    return text_of([whole(table, filled, Results(Path("outputs"), []), table.name)], form)


def records(table: Table, filled: Sequence[Filled]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(cell["row"], cell["column"]): cell for cell in json.loads(text("json", table, filled))["cells"]}


def test_every_form_has_what_the_others_have(papers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "read", lambda table: {"errata": "one seed"})
    monkeypatch.setenv("COLUMNS", "200")
    table, filled = mine(papers, "table1", SimCLR_32=[80.0, 82.0])
    table, filled = replace(table, best="column"), [replace(each, remarks=["seed 1: late"]) for each in filled]
    filled[2] = replace(filled[2], values=[84.5], measured=[84.25])
    words = ["SimCLR", "DCL", "BYOL", "80.5", "84.0", "needs a predictor", "another run", "from a public repository"]
    words += ["81.00", "84.50", "+0.50", "84.25", "seed 1: late", "a note of the table"]
    words += ["two losses", "Doe & Roe, 50% of {a_b}", "one seed"]
    for form in FORMS:
        found = re.sub(r"\\([&%_#${}])", r"\1", text(form, table, filled))
        for word in words:  # CSV and JSON have numbers in place of their texts
            short = re.sub(r"^\+?(-?\d+\.\d+?)0*$", r"\1", word) if form in ("csv", "json") else word
            assert short in found, (form, word)
        assert ("1 configuration" in found) == (form != "tex")  # a command
    rows = list(csv.DictReader(io.StringIO(text("csv", table, filled))))
    own = next(row for row in rows if (row["row"], row["column"]) == ("DCL", "32"))
    assert (own["project"], own["project_n"], own["best"]) == ("84.25", "1", "paper, ours")
    assert own.keys() - records(table, filled)["DCL", "32"].keys() == {"table", "about"}
    lines = text("md", table, filled).splitlines()  # an empty line and a footnote stand once
    start = lines.index("| DCL<sup>3</sup> | paper | **84.0** | **83.0** |")
    assert lines[start + 1].startswith("|  | ours | **84.50 (1)**<sup>2</sup> |")
    assert lines[start + 3] == "|  | project | 84.25 (1) |  |"
    assert r"SimCLR & paper & 80.5 & 81.0\rlap{$^{1}$} \\" in text("tex", table, filled)


def test_the_best_numbers_are_of_the_same_metric_and_dataset(papers: Path) -> None:
    """So that the columns of different datasets are not compared."""
    table, filled = mine(papers, "best", one_kNN_A=[60.0], two_kNN_A=[61.0], one_LE_A=[62.0])
    best = {place: cell["best"] for place, cell in records(table, filled).items() if cell["best"]}
    papers_best = [("one kNN", "A"), ("one kNN", "B"), ("two LE", "A"), ("two LE", "B")]
    assert best == dict.fromkeys(papers_best, "paper") | {("two kNN", "A"): "paper, ours"}
    assert not any(cell["best"] for cell in records(replace(table, best="row"), filled).values())


def test_every_table_fits_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a number in every cell; many columns are split into blocks."""
    for width, table in ((width, table) for width in (80, 140) for table in tables.every()):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = text("rich", table, [Filled(cell, [60.5, 61.5], [60.0]) for cell in table.cells]).splitlines()
        assert max(len(line.rstrip()) for line in lines) <= width, table.name
        assert len(re.findall(r"61\.00+ ± 0\.7\d+ \(2\)", "\n".join(lines))) == len(table.cells), table.name
