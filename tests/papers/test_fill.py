"""The forms of a metric: one recorded value, the best one, and means over an epoch, with numbers."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from ssl_bench.errors import ConfigError
from ssl_bench.papers import tables
from ssl_bench.papers.cell_runs import Results, value
from ssl_bench.papers.fill import fill
from ssl_bench.results.statistics import deviation
from tests.papers.test_commands import write_result

STEPS, EPOCHS = 7, 4  # of an epoch; epochs that are no sum of few halves, so that their numbers are rounded
COLUMNS = [1, 2, 4]
FORMS = ["knn/top1@best", "knn/top1", "knn/top1@2", "information@mean", "information@mean{column}", "information"]
FORMS += ["information@{column}", "information@best"]


@pytest.fixture
def curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tables.Table:
    """A figure with a row for each form of a metric, over epochs."""
    common = ["dataset=scattered_digits", "backbone.width=4", f"epochs={EPOCHS}", "evaluate=[knn]", "evaluate.every=1"]
    rows: dict[str, Any] = {form: {"metric": form} for form in FORMS}
    figure = {"title": "t", "set": common, "seeds": [0, 1], "columns": COLUMNS, "x": {"label": "epoch"}, "rows": rows}
    paper = {"paper": "made_up", "title": "t", "cite": "nobody", "tables": {"fig1": figure}}
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "made_up.yaml").write_text(yaml.safe_dump(paper, sort_keys=False))
    monkeypatch.setenv("SSL_BENCH_PAPERS", str(tmp_path / "papers"))
    (table,) = tables.find("made_up/fig1")
    return table


def information(seed: int, step: int) -> float:
    return math.sin(step) + seed


def accuracy(seed: int, epoch: int) -> float:
    return [0.2, 0.5 + seed / 10, 0.4, 0.3][epoch - 1]


def write_run(table: tables.Table, seed: int) -> Path:
    """A run with a row at every second step of the training, evaluations after each epoch, and a damaged row."""
    rows: list[dict[str, Any]] = []
    for step in range(1, STEPS * EPOCHS + 1):
        epoch = step / STEPS
        if step % 2 == 0:
            rows.append({"step": step, "epoch": epoch, "loss": 1.0, "information": information(seed, step)})
        if step % STEPS == 0:
            rows.append({"step": step, "epoch": epoch, "knn/top1": accuracy(seed, round(epoch))})
    rows.insert(3, {"step": 6, "epoch": 6 / STEPS, "information": "none"})
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


def test_cells_hold_the_last_the_best_and_the_mean_values(curves: tables.Table) -> None:
    for seed in (0, 1):
        write_run(curves, seed)
    for filled in fill(curves, curves.cells, Results(Path("outputs"), curves.cells)):
        form, column = filled.cell.row, filled.cell.column
        values = [expected(form, seed, int(column)) for seed in (0, 1)]
        wanted = [number for number in values if number is not None]
        assert filled.values == pytest.approx(wanted, rel=1e-12), (form, column)
        if wanted:
            assert filled.mean == pytest.approx(sum(wanted) / 2, rel=1e-12)
            assert deviation(filled.values) == pytest.approx(
                abs(wanted[0] - wanted[1]) / math.sqrt(2), rel=1e-9, abs=1e-12
            )


def test_an_epoch_without_a_value_leaves_the_cell_empty_and_a_changed_file_is_read_again(curves: tables.Table) -> None:
    folder = write_run(curves, 0)
    (run,) = Results(Path("outputs"), curves.cells).of_cell(curves.cells[0])
    assert value(run, "information@mean9") is None and value(run, "loss@mean") == 1.0
    assert value(run, "nothing@best") is value(run, "nothing@mean") is value(run, "nothing") is None
    values = (3.5, 0.25), (4.0, 0.75), (4.0, math.nan)
    rows = [{"step": 1, "epoch": epoch, "knn/top1": number} for epoch, number in values]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert value(run, "knn/top1@best") == 75.0 and value(run, "knn/top1@3.5") == 25.0
    assert value(run, "information@mean") is None
    (folder / "metrics.jsonl").unlink()
    assert value(run, "knn/top1@best") is None and value(run, "knn/top1") == 30.0


@pytest.mark.parametrize("metric", ["a@", "a@last", "a@best50", "@50", "a@50mean", "a@mean-1", "a@b@50", "a@mean50x"])
def test_other_forms_are_refused(curves: tables.Table, metric: str) -> None:
    file = tables.directory() / "made_up.yaml"
    content = yaml.safe_load(file.read_text())
    content["tables"]["fig1"]["rows"]["knn/top1"]["metric"] = metric
    file.write_text(yaml.safe_dump(content))
    with pytest.raises(ConfigError, match=r"\bmetric\b.*name@50, name@best, name@mean .*name@mean50"):
        tables.find("made_up/fig1")
