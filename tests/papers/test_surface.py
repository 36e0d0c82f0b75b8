"""Designs of points in a table, and what is fitted to them."""

import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy.stats import qmc

from ssl_bench.commands import reproduce, table
from ssl_bench.errors import ConfigError
from ssl_bench.papers import design, measurements, read_table, surface, tables, variance
from ssl_bench.papers.cell_runs import Results
from ssl_bench.papers.fill import Filled
from tests.conftest import SMALL

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
import commit_numbers

Output = pytest.CaptureFixture[str]
OVER = {"optimizer.lr": [0.03, 10], "temperature.tau": [0.05, 1]}
TABLE: dict[str, Any] = {
    "title": "t",
    "metrics": {"chosen": "knn_val/top1", "tested": "knn/top1"},
    "set": ["dataset=scattered_digits", "max_steps=2", "evaluate.baselines=[]"]
    + [o for o in SMALL if not o.startswith("evaluate")]
    + ["evaluate=[knn_val,knn]"],
    "seeds": [7],
    "points": 4,
    "over": OVER,
    "columns": [64, 32],
    "each": ["batch_size=b{column}"],
    "rows": {
        "NT-Xent": {"set": ["loss=infonce"]},
        "spectral": {"set": ["loss=spectral"], "over": {"optimizer.lr": [0.1, 1], "loss.weight": [0.5, 2]}},
    },
}


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a paper with the table ``mine/surface``."""
    monkeypatch.setenv("SSL_BENCH_PAPERS", str(tmp_path))
    return write(tmp_path / "mine.yaml")


def write(path: Path, **changed: Any) -> Path:
    content = {key: value for key, value in {**TABLE, **changed}.items() if value is not None}
    whole = {"paper": "mine", "title": "t", "cite": "nobody", "tables": {"surface": content}}
    path.write_text(yaml.safe_dump(whole, sort_keys=False))
    return path


def test_the_points_are_those_of_sobol() -> None:
    """As scipy gives them; each of 4 x 4 equal parts of the square has one, and of the first 8 each of 4 x 2."""
    points = list(zip(*read_table.SOBOL, strict=True))
    assert points == [tuple(point) for point in qmc.Sobol(2, scramble=False).random(16) * 16]
    assert len({(x // 4, y // 4) for x, y in points}) == 16
    assert len({(x // 4, y // 8) for x, y in points[:8]}) == 8


def test_a_design_has_its_points_in_each_row_and_column(paper: Path) -> None:
    (mine,) = tables.find("mine/surface")
    assert len(mine.cells) == 2 * 2 * 2 * 4 and mine.rows() == ["NT-Xent", "spectral"]
    assert mine.columns() == ["64", "32"] and {cell.seeds for cell in mine.cells} == {(7,)}
    of = [cell for cell in mine.cells if cell.column == "32" and cell.metric == "knn/top1"]
    # 1/32, 17/32, 25/32 and 9/32 of the way from 0.03 to 10, and 1/32, 17/32, 9/32, 25/32 of that from 0.05 to 1
    assert [cell.overrides[-2:] for cell in of if cell.row == "NT-Xent"] == [
        ("optimizer.lr=0.036", "temperature.tau=0.0549"),
        ("optimizer.lr=0.657", "temperature.tau=0.246"),
        ("optimizer.lr=2.81", "temperature.tau=0.116"),
        ("optimizer.lr=0.154", "temperature.tau=0.519"),
    ]
    first = next(cell for cell in of if cell.row == "spectral")
    assert first.overrides[-2:] == ("optimizer.lr=0.107", "loss.weight=0.522")
    assert first.label == "spectral tested optimizer.lr=0.107 loss.weight=0.522"


def test_a_row_without_keys_has_one_point(paper: Path) -> None:
    write(paper, rows={"raw": {"set": ["loss=infonce"], "metric": "knn_raw/top1", "over": {}}, "NT-Xent": []})
    (mine,) = tables.find("mine/surface")
    assert [cell.label for cell in mine.cells if cell.row == "raw"] == ["raw", "raw"]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"points": 17}, "points=17: set points to 4, 8 or 16"),
        ({"points": None}, "mine/surface row NT-Xent: over needs points"),
        ({"over": {"optimizer.lr": [0.1, 1]}}, "row NT-Xent: set over to two keys with their ranges"),
        ({"over": {**OVER, "temperature.tau": [1, 0.1]}}, "set temperature.tau to two positive numbers in ascending"),
        ({"over": {**OVER, "temperature.tau": 0.1}}, "over: set temperature.tau to two numbers, the ends of its range"),
        ({"x": {"label": "batch size"}}, "mine/surface: leave out x and best"),
    ],
)
def test_a_wrong_design_is_refused(paper: Path, changed: dict[str, Any], sentence: str) -> None:
    write(paper, **changed)
    with pytest.raises(ConfigError) as error:
        tables.find("mine/surface")
    assert sentence in str(error.value)


@pytest.mark.slow
def test_a_design_is_trained_and_gone_on_with(paper: Path, capsys: Output) -> None:
    assert reproduce.main(["mine/surface", "row=NT-Xent", "col=32", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "0/1 seeds  mine/surface NT-Xent chosen optimizer.lr=0.036 temperature.tau=0.0549 | 32" in out
    assert "4 runs to go in 4 cells" in out
    assert reproduce.main(["mine/surface", "row=NT-Xent", "col=32"]) == 0
    assert "4 runs: 4 trained, 0 done before, 0 failed" in capsys.readouterr().out
    assert reproduce.main(["mine/surface", "row=NT-Xent", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "4 cells  done" in out and "4 runs to go in 4 cells" in out


RATES, SECOND = 10 ** np.array([-1, -0.5, 0, 0.5]), np.array([0.1, 0.2, 0.5])  # of a grid
TOP = 53.0
NOISE = 0.3  # of a run


def accuracy(optimum: np.ndarray, place: Sequence[Any], cliff: bool) -> np.ndarray:
    """A surface without noise: TOP at the optimum, whose place is in logarithms; a cliff is beside it."""
    u, v = (np.log10(values) - best for values, best in zip(place, optimum, strict=True))
    below = 6 * u**2 + 8 * v**2 + 3 * u * v
    fallen = 18 + 5 * np.exp(-5 * (u + 0.3 * v - 0.55))
    return np.where(u + 0.3 * v > 0.55, fallen, 28 + (TOP - 28) * np.exp(-below / 25)) if cliff else TOP - below


def simulated(
    random: np.random.Generator, cliff: bool, diverge: bool = False
) -> tuple[tables.Table, np.ndarray, list[Filled]]:
    """A table of 8 rows, their optima, and its filled cells; with ``diverge`` what is below the cliff has no number."""
    mine = tables.find("mine/surface")[0]
    mine = replace(mine, cells=tuple(replace(cell, against="0" * (cell.row != "0")) for cell in mine.cells))
    optima = np.stack([random.uniform(0, 0.5, 8), random.uniform(-0.9, -0.4, 8)], axis=1)
    filled = []
    for cell in mine.cells:
        place = [float(cell.settings[key]) for key, *_ in cell.over]
        value = float(accuracy(optima[int(cell.row)], place, cliff)) + random.normal(0, NOISE)
        lost = diverge and value < 25
        filled.append(Filled(cell, [] if lost else [value], [], "", [], diverged=lost))
    return mine, optima, filled


@pytest.mark.parametrize(("cliff", "diverge"), [(False, False), (True, False), (True, True)])
def test_fits_find_known_optima(paper: Path, cliff: bool, diverge: bool) -> None:
    """The settings that a fit chooses are better than those of a grid, the standard error of a difference is right."""
    write(paper, metrics=None, metric="knn/top1", points=16, columns=[64], rows={f"{i}": [] for i in range(8)})
    random = np.random.default_rng(0)
    lost, off, of_grid, differences, errors = [], [], [], [], []
    for _ in range(25):
        mine, optima, filled = simulated(random, cliff, diverge)
        for arm, optimum in zip(surface.arms(mine, filled), optima, strict=True):
            assert arm.fit is not None and arm.fit.ends == []
            place = [*arm.fit.at.values()]
            off.append(np.log10(place) - optimum)
            lost.append(TOP - float(accuracy(optimum, place, cliff)))
            true = accuracy(optimum, np.meshgrid(RATES, SECOND), cliff).ravel()
            finalists = np.argsort(true + random.normal(0, NOISE, true.size))[-3:]
            chosen = finalists[np.argmax(true[finalists] + random.normal(0, NOISE / np.sqrt(3), 3))]
            of_grid.append(TOP - true[chosen])
            if arm.fit.difference:
                differences.append(arm.fit.difference[0])
                errors.append(arm.fit.difference[1])
    near, grid = (np.std(each) * 2**0.5 for each in (lost, of_grid))  # deviation of a difference by choice alone
    assert near < 0.02 and 0.2 < grid < 0.25 and np.mean(lost) < 0.015
    assert np.abs(np.mean(off, axis=0)).max() < 4 * 0.03 / len(off) ** 0.5  # of a decade
    assert 0.12 < np.std(differences) < 0.18 and abs(np.mean(differences)) < 0.03
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(differences), rel=0.15)


def test_without_the_rule_a_cliff_moves_the_optimum(paper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(paper, metrics=None, metric="knn/top1", points=16, columns=[64], rows={f"{i}": [] for i in range(8)})
    mine, optima, filled = simulated(np.random.default_rng(0), cliff=True)
    lost = []
    for rule in (surface.CLIFF, 100.0):
        monkeypatch.setattr(surface, "CLIFF", rule)
        places = [[*arm.fit.at.values()] for arm in surface.arms(mine, filled) if arm.fit]
        lost.append(TOP - np.mean([accuracy(o, place, True) for o, place in zip(optima, places, strict=True)]))
    assert lost[0] < 0.03 and lost[1] > 1


def test_shares_of_variance_and_their_intervals(paper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Effects of known size: the shares are right on average, and the intervals hold them in about 95 of 100 tables."""
    write(paper, metrics=None, metric="knn/top1", points=16, columns=[64, 32, 128], rows={f"{i}": [] for i in range(4)})
    (mine,) = tables.find("mine/surface")
    monkeypatch.setattr(variance, "DRAWS", 300)
    random, found, held = np.random.default_rng(0), [], []
    strata = [place // 4 for place in read_table.SOBOL[0]]
    effect = {cell: float(int(cell.row) == 0) + 2 * (cell.column == "64") for cell in mine.cells}
    for row, column in {(cell.row, cell.column) for cell in mine.cells}:
        for cell, stratum in zip([c for c in mine.cells if (c.row, c.column) == (row, column)], strata, strict=True):
            effect[cell] += stratum * (1.5 if row == "1" else 1)
    signal = np.array([*effect.values()])
    variances: dict[str, Any] = {
        "rows": np.var([2.5, 2.25, 1.5, 1.5]),
        "columns": np.var([2, 0, 0]),
        "optimizer.lr": 1.125**2 * 1.25,
    }
    variances |= {"rows x optimizer.lr": np.var([1, 1.5, 1, 1]) * 1.25}
    assert sum(variances.values()) == pytest.approx(signal.var())
    for _ in range(40):
        values = signal + random.normal(0, 1, signal.size)
        filled = [Filled(cell, [value], [], "", []) for cell, value in zip(effect, values, strict=True)]
        shares = {name: numbers for name, *numbers in variance.shares(surface.arms(mine, filled))}
        true = [100 * variances.get(name, 0) / (signal.var() + 1) for name in shares]
        assert len(shares) == 10
        found.append([share for share, _, _ in shares.values()])
        held.append([low <= share <= high for share, (_, low, high) in zip(true, shares.values(), strict=True)])
    assert np.abs(np.mean(found, axis=0) - true).max() < 1
    assert 0.9 <= np.mean(np.array(held)[:, np.array(true) > 1]) <= 1


def test_a_placebo_of_a_design_is_compared_with_what_it_equals_and_is_no_row_of_the_shares(paper: Path) -> None:
    placebo = {"set": ["loss=flatnce"], "placebo": "DCL", "seeds": [1]}
    rows = {"NT-Xent": ["loss=infonce"], "DCL": ["loss=dcl"], "FlatNCE": placebo}
    write(paper, metrics=None, metric="knn/top1", points=8, columns=[64, 32], rows=rows, compare={"to": "NT-Xent"})
    (mine,) = tables.find("mine/surface")
    heights = {"NT-Xent": 50.0, "DCL": 52.0, "FlatNCE": 52.5}
    filled = [Filled(c, [heights[c.row]], [], "", []) for c in mine.cells if c.over]
    differences = {arm.cell.row: arm.fit and arm.fit.difference for arm in surface.arms(mine, filled)}
    assert differences["NT-Xent"] is None
    assert differences["DCL"] == pytest.approx((2.0, 0), abs=1e-9)
    assert differences["FlatNCE"] == pytest.approx((0.5, 0), abs=1e-9)
    (rows_share,) = [share for name, share, *_ in variance.shares(surface.arms(mine, filled)) if name == "rows"]
    without = [each for each in filled if each.cell.row != "FlatNCE"]
    assert (
        [rows_share] == [s for name, s, *_ in variance.shares(surface.arms(mine, without)) if name == "rows"] == [100]
    )
    assert "to the optimum of NT-Xent, of FlatNCE to that of DCL" in design.lines(mine, filled)[0]


def test_the_best_of_n_points() -> None:
    """Of all samples, by brute force; the value is that of another metric."""
    random = np.random.default_rng(0)
    chosen, tested = random.normal(size=(2, 8))
    found = surface.expected(chosen, tested)
    assert found.keys() == {1, 2, 4, 8}
    for n, value in found.items():
        samples = [list(sample) for sample in itertools.combinations(range(8), n)]
        assert value == pytest.approx(np.mean([tested[s][np.argmax(chosen[s])] for s in samples]))


@pytest.mark.slow
def test_a_run_that_diverges_is_counted(paper: Path, tmp_path: Path, capsys: Output) -> None:
    """From the folder of the runs, and from committed numbers; what else fails is still to run."""
    rows = {"VICReg": {"set": ["loss=vicreg", "negatives=none", "head.final_norm=none", "optimizer=sgd"]}}
    over = {"optimizer.lr": [1e6, 1e8], "loss.invariance": [1, 2]}
    write(paper, rows=rows, over=over, columns=[64])
    assert reproduce.main(["mine/surface"]) == 1
    capsys.readouterr()
    assert table.main(["mine/surface", "--format", "md"]) == 0
    assert "0 of 4 points have run, 4 more diverged." in capsys.readouterr().out
    (mine,) = tables.find("mine/surface")
    content = commit_numbers.record(mine, Results(Path("outputs"), mine.cells))
    assert [cell["value"] for cell in content["cells"]] == 8 * [None]
    commit_numbers.write(measurements.path_of(mine), content)
    results = Results(Path("outputs"), mine.cells)
    assert commit_numbers.joined(mine, content, results) == content
    assert commit_numbers.joined(mine, content | {"cells": content["cells"][2:]}, results) == content
    other = content | {"cells": [cell | {"run_id": "of another training"} for cell in content["cells"]]}
    commit_numbers.write(measurements.path_of(mine), other)
    with pytest.raises(ValueError, match=r"8 numbers of .*mine_surface\.json are of another training"):
        commit_numbers.joined(mine, content | {"cells": []}, results)
    commit_numbers.write(measurements.path_of(mine), content)
    failed = next(Path("outputs/mine").glob("*/failed.json"))
    failed.write_text('{"reason": "no space left"}')
    assert table.main(["mine/surface", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["surface"][0]["diverged"] == 4
    measurements.path_of(mine).unlink()
    assert table.main(["mine/surface", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["surface"][0]["diverged"] == 3


def test_images_of_several_machines_are_counted_together() -> None:
    half, third = np.array([1.0, 0.5, 0.0]), np.array([1 / 3, 0, 1])
    place = {"of": ["NT-Xent", "64", "knn/top1"]}
    one = place | measurements.packed([0, 1], half)
    (both,) = commit_numbers._all_images(
        [one],
        [place | measurements.packed([4, 2, 3], third), {"of": ["DCL", "64", "knn/top1"], "seeds": [9], "right": ""}],
        {("NT-Xent", "64", "knn/top1", seed) for seed in (2, 3, 4)},
    )
    assert both == place | measurements.packed([0, 1, 2, 3, 4], np.array([3, 1, 3]) / 5)
