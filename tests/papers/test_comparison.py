"""Comparisons of a table's rows with a reference: numbers of scipy, baselines, placebos, images."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from matplotlib.collections import LineCollection
from scipy import stats

from ssl_bench import files
from ssl_bench.config.identity import run_id
from ssl_bench.errors import ConfigError
from ssl_bench.evaluate.accuracy import Accuracy
from ssl_bench.papers import comparison, drawing, measurements, tables
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.cells import BASELINES, Cell
from ssl_bench.papers.comparison import CellComparison
from ssl_bench.papers.fill import fill
from ssl_bench.record import evaluations, hits
from tests.papers.conftest import composed

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
import commit_numbers

SEEDS = list(range(10, 18))
SHIFTS = {"NT-Xent": 0.0, "DCL": 3.0, "EqCo": 0.02, "BYOL": -4.0, "MACL": 0.5}  # of the accuracy
SHIFTS |= {"raw pixels": -20.0, "random initialisation": -22.0, "ceiling": 10.0, "FlatNCE": 3.0, "twin": 0.0}
COMPARE = {"to": "NT-Xent", "margin": "5%"}
ROWS: dict[str, Any] = {"NT-Xent": {}, "DCL": {}, "EqCo": {}, "MACL": {}, "BYOL": {"spread": "other"}}
ROWS |= {"ceiling": {"compared": False}, "FlatNCE": {"placebo": "DCL"}, "twin": {"placebo": True}}
Values = dict[Cell, dict[int, float]]


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tables.Table]:
    """Writes the table ``mine/batch`` and reads it."""
    monkeypatch.setenv("SSL_BENCH_PAPERS", str(tmp_path))

    def write(**changed: Any) -> tables.Table:
        table: dict[str, Any] = {"title": "t", "metric": "knn/top1", "seeds": SEEDS, "columns": [32, 128], "each": []}
        table |= {"compare": COMPARE, "rows": ROWS, "x": {"label": "batch size"}, "y": "accuracy"} | changed
        content = {"paper": "mine", "title": "t", "cite": "nobody", "tables": {"batch": table}}
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
        return tables.find("mine/batch")[0]

    return write


def numbers(table: tables.Table, **shifts: float) -> Values:
    """Accuracies of all cells; BYOL deviates more than the others."""
    random, found = np.random.default_rng(0), Values()
    for cell in table.cells:
        deviation = 1.0 if cell.row == "BYOL" else 0.2
        centre = 50 + SHIFTS[cell.row] + shifts.get(cell.row.replace(" ", "_"), 0)
        found[cell] = dict(zip(SEEDS, random.normal(centre, deviation, len(SEEDS)), strict=True))
    return found


def compared(table: tables.Table, values: Values) -> dict[tuple[str, str], CellComparison]:
    rows = comparison.compare_rows(table, lambda cell: values[cell]).rows
    return {(row.cell.row, row.cell.column): row for row in rows}


def test_the_variance_is_pooled_and_every_planned_comparison_counts(paper: Callable[..., tables.Table]) -> None:
    table = paper()
    values = numbers(table) | {cell: {} for cell in table.cells if (cell.row, cell.column) == ("MACL", "32")}
    found = compared(table, values)
    of = {(cell.row, cell.column): np.array([*values[cell].values()]) for cell in table.cells}
    rows = ["NT-Xent", "DCL", "EqCo", "FlatNCE", "twin"]  # which are pooled at 32, where MACL is not run
    degrees, reference = 7 * len(rows), of["NT-Xent", "32"]
    variance = np.mean([of[row, "32"].var(ddof=1) for row in rows])
    dcl, byol = found["DCL", "32"], found["BYOL", "32"]
    half = stats.t.isf(0.025, degrees) * np.sqrt(variance * 2 / 8)
    assert [dcl.low, dcl.high] == pytest.approx([dcl.difference - half, dcl.difference + half])
    assert (dcl.n, dcl.to_n) == (8, 8)
    parts = of["BYOL", "32"].var(ddof=1) / 8, variance / 8
    half = stats.t.isf(0.025, sum(parts) ** 2 / (parts[0] ** 2 / 7 + parts[1] ** 2 / degrees)) * np.sqrt(sum(parts))
    assert byol.low == pytest.approx(of["BYOL", "32"].mean() - reference.mean() - half)
    margin = 0.05 * (reference.mean() - of["raw pixels", "32"].mean())
    verdicts = {row: found[row, "32"].verdict for row in [*SHIFTS] if (row, "32") in found}
    assert verdicts == {
        "DCL": "better",
        "EqCo": f"no difference larger than {margin:.3g}",
        "BYOL": "worse",
        "MACL": "not run",
        "FlatNCE": "holds",
        "twin": "holds",
    }
    assert comparison.compare_rows(table, lambda cell: values[cell]).planned == 8  # four rows at two batch sizes


def test_holm_is_over_the_planned_comparisons(paper: Callable[..., tables.Table]) -> None:
    """A p-value of 0.02 decides alone, and not among three that are planned, of which the others have no runs."""
    noise, verdicts = np.array([-0.2, 0.0, 0.2]), []
    shift = stats.t.isf(0.01, 4) * np.sqrt(noise.var(ddof=1) * 2 / 3)
    for rows in (["NT-Xent", "DCL"], ["NT-Xent", "DCL", "EqCo", "MACL"]):
        table, values = paper(rows={row: {} for row in rows}, columns=[32], seeds=[1, 2, 3]), Values()
        for cell in table.cells:
            ran = cell.row not in ("EqCo", "MACL")
            centre = 50 + SHIFTS[cell.row] * (cell.row != "DCL") + shift * (cell.row == "DCL")
            values[cell] = dict(zip([1, 2, 3], centre + noise, strict=True)) if ran else {}
        verdicts.append(compared(table, values)["DCL", "32"].verdict)
    assert [each.split(",")[0] for each in verdicts] == ["better", "undecided"]


@pytest.mark.parametrize(
    ("shifts", "reason"),
    [
        ({"raw_pixels": 12.0}, "32: raw pixels 4"),
        ({"random_initialisation": 30.0}, "32: random initialisation 5"),
        ({"FlatNCE": 1.0}, "placebo FlatNCE less DCL, 32: does not hold"),
    ],
)
def test_nothing_is_decided(paper: Callable[..., tables.Table], shifts: dict[str, float], reason: str) -> None:
    table = paper()
    values = numbers(table, **shifts)
    assert {each.verdict for each in compared(table, values).values() if not each.cell.placebo} == {"no verdict"}
    reasons = comparison.compare_rows(table, lambda cell: values[cell]).reasons
    assert any(each.startswith(reason) for each in reasons), reasons


def test_baselines_are_rows_that_the_runs_of_the_reference_fill(paper: Callable[..., tables.Table]) -> None:
    table = paper()
    cells = {(cell.row, cell.column): cell for cell in table.cells}
    assert cells["raw pixels", "32"].metric == "knn_raw/top1" and cells["random initialisation", "32"].measure == ""
    assert cells["random initialisation", "128"].overrides == cells["NT-Xent", "128"].overrides
    values = numbers(table) | {cell: {} for cell in table.cells if cell.row == "raw pixels"}
    found = comparison.compare_rows(table, lambda cell: values[cell])
    assert [*found.reasons][-1] == "128: no numbers of raw pixels"
    assert {each.verdict for each in found.rows if not each.cell.placebo} == {"no verdict"}
    without = paper(compare={"to": "NT-Xent", "margin": 0.5, "gap": 0}, rows={"NT-Xent": {}, "DCL": {}})
    assert without.rows() == ["NT-Xent", "DCL"]


def test_a_row_that_deviates_more_is_named(paper: Callable[..., tables.Table]) -> None:
    table = paper(rows={**ROWS, "BYOL": {}})
    values = numbers(table)
    (first, _) = comparison.compare_rows(table, lambda cell: values[cell]).deviations
    assert "which does not hold for BYOL: set its spread" in first


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"compare": {**COMPARE, "margin": 0}}, "compare: set margin to a positive number, or to a share such as 10%"),
        ({"compare": {**COMPARE, "to": "SimCLR"}}, "compare: set to to the name of a row"),
        ({"compare": {**COMPARE, "gap": 0}}, "compare: set gap to a positive number"),
        ({"rows": {**ROWS, "twin": {"placebo": "SimCLR"}}}, "row twin: placebo=SimCLR: set placebo to the row"),
        ({"compare": None}, "row ceiling: leave out placebo and compared"),
    ],
)
def test_a_wrong_comparison_is_refused(
    paper: Callable[..., tables.Table], changed: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError) as error:
        paper(**changed)
    assert sentence in str(error.value)


def write_runs(table: tables.Table, outputs: Path) -> dict[str, list[np.ndarray]]:
    """Runs of all cells with the bits of 400 images, by which rows differ more than by seeds; the bits by row."""
    bits: dict[str, list[np.ndarray]] = {}
    random = np.random.default_rng(0)
    image = random.normal(size=400)
    for cell in table.cells:
        own = random.normal(0, 0.5, 400)
        for seed in cell.seeds if cell.row not in BASELINES else ():
            right = torch.from_numpy(image + own + random.normal(0, 0.1, 400) > 0)
            bits.setdefault(cell.row, []).append(right.numpy())
            config = composed(cell.overrides, seed)
            folder = outputs / "mine" / run_id(config)
            folder.mkdir(parents=True)
            found = []
            for entry in evaluations.asked(config):
                value = Accuracy.of(right) if not entry["network"] else 0.1
                name = f"knn{entry['network']}/top1"
                found.append(hits.written(folder, {**entry, "metrics": {name: value}}))
            known = {"run_id": folder.name, "name": "mine", "config": config, "evaluations": found, "seconds": 1.0}
            files.write_json(folder / "results.json", known | {"metrics": evaluations.flat(found, config["epochs"])})
    return bits


def test_images_are_in_the_interval(
    paper: Callable[..., tables.Table], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the runs, and of the committed numbers; without the bits of one run the interval is of the seeds."""
    monkeypatch.chdir(tmp_path)
    setting = ["dataset=mnist", "evaluate=[knn]", "evaluate.baselines=[raw,init]"]
    rows = {"NT-Xent": {"set": ["loss=infonce"]}, "DCL": {"set": ["loss=dcl"]}}
    table = paper(set=setting, rows=rows, columns=[32], seeds=[1, 2, 3], each=["batch_size=b{column}"])
    bits = {row: np.array(each) for row, each in write_runs(table, Path("outputs")).items()}
    results = Results(Path("outputs"), table.cells)
    (row,) = comparison.measured(table, results)[0].rows
    seeds, joint = 0.0, 0.0
    for each in bits.values():
        rest = each - each.mean(1, keepdims=True) - each.mean(0) + each.mean()
        joint += (rest**2).sum() / (2 * 399) / 3
        seeds += each.mean(1).var(ddof=1) / 3
    images = ((bits["DCL"].mean(0) - bits["NT-Xent"].mean(0)).var(ddof=1) - joint) / 400
    degrees = (seeds + images) ** 2 / (seeds**2 / 4 + images**2 / 399)
    half = 100 * stats.t.isf(0.025, degrees) * np.sqrt(seeds + images)
    assert row.difference == pytest.approx(100 * (bits["DCL"].mean() - bits["NT-Xent"].mean()))
    assert images > seeds and row.high == pytest.approx(row.difference + half)
    assert "n = 3 and 3, mostly images" in row.line
    lines = comparison.lines(table, results)
    commit_numbers.main(["mine/batch"])
    empty = Results(tmp_path / "nowhere", table.cells)
    committed = [line.replace(" (project)", "") for line in comparison.lines(table, empty)]
    assert committed == lines
    next(Path("outputs").glob("*/*/hits/*.bits")).unlink()
    (row,) = comparison.measured(table, Results(Path("outputs"), table.cells))[0].rows
    assert "seeds only" in row.line and row.verdict != "no verdict"


def test_a_figure_has_the_differences_with_their_intervals(paper: Callable[..., tables.Table], tmp_path: Path) -> None:
    table = paper()
    values = numbers(table)
    place = {cell: {"row": cell.row, "column": cell.column, "metric": cell.metric} for cell in values}
    cells = [place[cell] | {"seed": seed, "value": each} for cell in values for seed, each in values[cell].items()]
    (tmp_path / "measured").mkdir()
    files.write_json(measurements.path_of(table), {"cells": cells})
    none = Results(tmp_path / "outputs", table.cells)
    curves, differences = drawing.draw(list(drawing.panels(table, fill(table, table.cells, none), none))).axes
    assert curves.get_ylabel() == table.y
    assert [text.get_text() for text in differences.get_yticklabels()] == ["DCL", "EqCo", "MACL", "BYOL", "twin"]
    legend = differences.get_legend()
    assert legend is not None and [text.get_text() for text in legend.get_texts()] == ["32", "128"]
    bars = [each for each in differences.collections if isinstance(each, LineCollection)]
    found = [each for each in compared(table, values).values() if each.cell.against == "NT-Xent"]
    for column, drawn in zip(("32", "128"), bars, strict=True):
        expected = [(each.low, each.high) for each in found if each.cell.column == column]
        assert np.allclose([np.asarray(segment)[:, 0] for segment in drawn.get_segments()], expected)
