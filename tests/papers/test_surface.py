"""Designs of points in a table."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from scipy.stats import qmc

from ssl_bench.commands import reproduce
from ssl_bench.errors import ConfigError
from ssl_bench.papers import tables
from tests.conftest import SMALL

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
    table = {key: value for key, value in {**TABLE, **changed}.items() if value is not None}
    content = {"paper": "mine", "title": "t", "cite": "nobody", "tables": {"surface": table}}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def test_the_points_are_those_of_sobol() -> None:
    """As scipy gives them; each of 4 x 4 equal parts of the square has one, and of the first 8 each of 4 x 2."""
    points = list(zip(*tables.SOBOL, strict=True))
    assert points == [tuple(point) for point in qmc.Sobol(2, scramble=False).random(16) * 16]
    assert len({(x // 4, y // 4) for x, y in points}) == 16
    assert len({(x // 4, y // 8) for x, y in points[:8]}) == 8


def test_a_design_has_its_points_in_each_row_and_column(paper: Path) -> None:
    (table,) = tables.find("mine/surface")
    assert len(table.cells) == 2 * 2 * 2 * 4 and table.rows() == ["NT-Xent", "spectral"]
    assert table.columns() == ["64", "32"] and {cell.seeds for cell in table.cells} == {(7,)}
    of = [cell for cell in table.cells if cell.column == "32" and cell.metric == "knn/top1"]
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
    (table,) = tables.find("mine/surface")
    assert [cell.label for cell in table.cells if cell.row == "raw"] == ["raw", "raw"]


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"points": 17}, "points=17: set points to an integer from 4 to 16"),
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
    assert capsys.readouterr().out.count("1 trained, 0 done before, 0 failed") == 4
    assert reproduce.main(["mine/surface", "row=NT-Xent"]) == 0
    out = capsys.readouterr().out
    assert "4 cells  done" in out and "4 runs to go in 4 cells" in out and out.count("1 trained") == 4
