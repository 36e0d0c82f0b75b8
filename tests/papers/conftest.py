"""A paper of tiny cells, and the configurations of cells."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from ssl_bench.config.compositions import Composition, compositions
from ssl_bench.config.identity import run_id
from ssl_bench.papers.cells import Cell
from tests.conftest import SMALL


def composed(overrides: Sequence[str], seed: int = 0) -> dict[str, Any]:
    """The configuration of overrides and a seed."""
    result = compositions([tuple(overrides)])[tuple(overrides)]
    assert isinstance(result, Composition), result
    return result.config(seed)


def cell_run_id(cell: Cell, seed: int) -> str:
    """The run_id of a cell's run with a seed."""
    return run_id(composed(cell.overrides, seed))


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A paper ``tiny``: two cells on scattered digits, a row without a dataset, and a row that needs a method."""
    common = ["dataset=scattered_digits", "max_steps=2", "evaluate.baselines=[]"]
    common += [o for o in SMALL if not o.startswith("evaluate")] + ["evaluate=[knn]"]
    rows: dict[str, Any] = {
        "digits": {"values": [50.0, 60.0]},
        "other": {"set": ["dataset=nowhere"]},
        "npid": {"missing": "npid"},
    }
    table: dict[str, Any] = {"title": "t", "metric": "knn/top1", "set": common, "seeds": [0, 1]}
    table |= {"columns": {"infonce": ["loss=infonce"], "dcl": ["loss=dcl"]}}
    tables = {"table1": {**table, "rows": rows}, "table2": {**table, "rows": {"digits": []}, "title": "costs $5"}}
    paper = {"paper": "tiny", "title": "t", "cite": "nobody", "tables": tables}
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "tiny.yaml").write_text(yaml.safe_dump(paper, sort_keys=False))
    monkeypatch.setenv("SSL_BENCH_PAPERS", str(tmp_path / "papers"))
