"""Every cell of the papers can be trained: two steps of it on a few generated images give its metric."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from ssl_bench.commands import train
from ssl_bench.papers import tables
from ssl_bench.papers.cells import Cell, CellMetric, merge
from tests.papers import small
from tests.papers.conftest import composed

CELLS = {t.name: [cell for cell in t.cells if cell.available] for t in tables.every()}
FIRST = ("dcl/table1", "intriguing/fig7_mnist")  # tried by default: a folder of photos, and digits in arrays
ONE_A_PAPER = {paper.partition("/")[0]: paper for paper in reversed(CELLS)}.values()  # tried by the slow tests


def marks(name: str) -> tuple[pytest.MarkDecorator, ...]:
    return () if name in FIRST else (pytest.mark.slow if name in ONE_A_PAPER else pytest.mark.exhaustive,)


NAMES = [pytest.param(name, marks=marks(name)) for name, cells in CELLS.items() if cells]


def measured(cell: Cell, folder: Path, done: dict[tuple[str, ...], set[str]]) -> set[str]:
    """The names of the numbers and the pictures that two steps of a cell give, computed once for equal ``words``."""
    words = tuple(merge(cell.overrides, small.overrides(composed(cell.overrides), folder / "data")))
    if words not in done:
        small.write(composed(words))
        outputs = folder / str(len(done))
        assert train.main([*words, "seed=0", f"paths.outputs={outputs}"]) == 0, words
        (path,) = outputs.glob("*/*/results.json")
        rows = (path.parent / "metrics.jsonl").read_text().splitlines()
        done[words] = set(json.loads(path.read_text())["metrics"]).union(*map(json.loads, rows))
        done[words] |= {picture.stem for picture in path.parent.glob("figures/**/*.*")}
    return done[words]


def is_given(metric: str, names: set[str]) -> bool:
    """Whether a metric is among the names; where it names a size, which is small here, any of its evaluator counts."""
    name = CellMetric.read(metric).name
    evaluator = name.partition("/")[0]
    sized = evaluator in ("npc", "local_features", "projections")
    return name in names or (sized and any(each.startswith(evaluator) for each in names))


@pytest.mark.parametrize("name", NAMES)
def test_two_steps_of_the_first_cell_of_each_table_have_its_metric(name: str, tmp_path: Path) -> None:
    cell = CELLS[name][0]
    assert is_given(cell.metric, measured(cell, tmp_path, {}))


@pytest.mark.exhaustive
@pytest.mark.timeout(6 * 3600)
def test_two_steps_of_every_cell_have_its_metric(tmp_path: Path) -> None:
    done: dict[tuple[str, ...], set[str]] = {}
    for cell in (cell for cells in CELLS.values() for cell in cells):
        if find_spec("pycocotools") or "detection" not in cell.metric:
            assert is_given(cell.metric, measured(cell, tmp_path, done)), (cell.row, cell.column)
