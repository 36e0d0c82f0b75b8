"""Comparisons of a table's rows with a reference: intervals and p-values of scipy, Holm's correction."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from scipy import stats

from ssl_bench import files
from ssl_bench.papers import comparison, drawing, measurements, tables
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.cells import Cell
from ssl_bench.papers.fill import fill

SEEDS = range(10, 15)
SHIFTS = {"NT-Xent": 0.0, "DCL": 3.0, "DCLW": -3.0, "EqCo": 0.01, "MACL": 0.3}  # of the accuracy
NOISE = {"NT-Xent": 0.0, "DCL": 0.3, "DCLW": 0.3, "EqCo": 0.02, "MACL": 0.5}


def values(table: Any) -> dict[Cell, dict[int, float]]:
    """Five rows in the first two columns, with noise that the seeds of a column share."""
    random, numbers = np.random.default_rng(0), dict[Cell, dict[int, float]]()
    shared = {column: random.normal(size=len(SEEDS)) for column in table.columns()}
    for cell in table.cells:
        own = random.normal(size=len(SEEDS)) * NOISE.get(cell.row, 0.0)
        known = cell.row in SHIFTS and cell.column != table.columns()[-1]
        accuracies = 90 + shared[cell.column] + own + SHIFTS.get(cell.row, 0.0)
        numbers[cell] = dict(zip(SEEDS, accuracies, strict=True)) if known else {}
    return numbers


def test_differences_are_paired_and_corrected_for_their_number() -> None:
    (table,) = tables.find("losses/batch")
    numbers = values(table)
    found = comparison.compare(table, lambda cell: numbers[cell])
    ran = [each for each in found if each.numbers]
    assert len(ran) == 8 and {each.verdict for each in found if not each.numbers} == {"not run"}
    reference = {cell.column: [*numbers[cell].values()] for cell in table.cells if cell.row == "NT-Xent"}
    p: dict[str, list[float]] = {"differs": [], "equals": []}
    for each in ran:
        test = stats.ttest_rel([*numbers[each.cell].values()], reference[each.cell.column])
        assert [each.low, each.high] == pytest.approx(test.confidence_interval(0.95))
        sides = [
            stats.ttest_1samp(each.numbers, d, alternative=a).pvalue for d, a in ((-0.5, "greater"), (0.5, "less"))
        ]
        p["differs"].append(test.pvalue)
        p["equals"].append(max(sides))
    rejected = {}
    for name, values_of in p.items():  # Holm: all smaller p-values must pass, too
        order = np.argsort(values_of)
        passed = np.cumprod([values_of[i] <= 0.05 / (8 - rank) for rank, i in enumerate(order)])
        rejected[name] = {int(i) for i, good in zip(order, passed, strict=True) if good}
    for i, each in enumerate(ran):
        words = [("better" if each.mean > 0 else "worse")] * (i in rejected["differs"])
        words += ["no difference larger than 0.5"] * (i in rejected["equals"])
        assert each.verdict == (", ".join(words) or "undecided")
    of = {each.cell.row: each.verdict for each in ran if each.cell.column == "32"}
    assert of == {"DCL": "better", "DCLW": "worse", "EqCo": "no difference larger than 0.5", "MACL": "undecided"}


def test_a_figure_has_the_differences_with_their_intervals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "losses.yaml").write_bytes((tables.directory() / "losses.yaml").read_bytes())
    monkeypatch.setenv("SSL_BENCH_PAPERS", str(tmp_path))
    (table,) = tables.find("losses/batch")
    numbers = values(table)
    place = {cell: {"row": cell.row, "column": cell.column, "metric": cell.metric} for cell in numbers}
    cells = [place[cell] | {"seed": seed, "value": each} for cell in numbers for seed, each in numbers[cell].items()]
    (tmp_path / "measured").mkdir()
    files.write_json(measurements.path_of(table), {"cells": cells})
    none = Results(tmp_path / "outputs", table.cells)
    curves, differences = drawing.draw(list(drawing.panels(table, fill(table, table.cells, none), none))).axes
    assert curves.get_ylabel() == table.y
    assert [text.get_text() for text in differences.get_yticklabels()] == ["DCL", "DCLW", "EqCo", "MACL"]
    legend = differences.get_legend()
    assert legend is not None and [text.get_text() for text in legend.get_texts()] == ["32", "128"]
    bars = [each for each in differences.collections if isinstance(each, LineCollection)]
    found = comparison.compare(table, lambda cell: numbers[cell])
    for column, drawn in zip(("32", "128"), bars, strict=True):
        expected = [(each.low, each.high) for each in found if each.numbers and each.cell.column == column]
        assert np.allclose([np.asarray(segment)[:, 0] for segment in drawn.get_segments()], expected)
