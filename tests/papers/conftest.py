"""A paper of tiny cells, a table of the user's own, configurations of cells, and results written by hand."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from ssl_bench.config.compositions import Composition, compositions
from ssl_bench.config.identity import run_id
from ssl_bench.papers.cells import Cell
from tests.conftest import SMALL
from tests.evaluated import with_evaluations

COMMON = ["dataset=scattered_digits", "max_steps=2", *(word for word in SMALL if not word.startswith("evaluate"))]
COMMON += ["evaluate=[knn]", "evaluate.baselines=[]"]


def composed(overrides: Sequence[str], seed: int = 0) -> dict[str, Any]:
    """The configuration of overrides and a seed."""
    result = compositions([tuple(overrides)])[tuple(overrides)]
    assert isinstance(result, Composition), result
    return result.config(seed)


def write_result(
    of: Cell, seed: int, metrics: Mapping[str, float], *extra: str, outputs: Path = Path("outputs"), **written: Any
) -> Path:
    """Write the results.json of a run with the overrides of a cell; ``written`` are further keys of the file."""
    config = composed([*of.overrides, *extra], seed)
    folder = outputs / config["name"] / run_id(config)
    folder.mkdir(parents=True, exist_ok=True)
    record = {"run_id": folder.name, "name": config["name"], "config": config, "metrics": metrics, "seconds": 3.4}
    (folder / "results.json").write_text(json.dumps(with_evaluations(record | written)))
    return folder


def content(stem: str = "mine", **changed: Any) -> dict[str, Any]:
    """A file with a table of two cells, of which the first needs an option ``loss=mine``."""
    table = {"title": "two losses", "metric": "knn/top1", "set": COMMON, "rows": {"digits": {"values": [50, 60]}}}
    table |= {"columns": {"mine": {"set": ["loss=mine"], "x": 1}, "DCL": {"set": ["loss=dcl"], "x": 2}}}
    table |= {"x": {"label": "loss"}, "y": "kNN"}
    return {"paper": stem, "cite": "me", "tables": {"table1": table | changed}}


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A paper ``tiny``: two cells on scattered digits, a row without a dataset, and a row that needs a method."""
    rows = {"digits": {"values": [50.0, 60.0]}, "other": {"set": ["dataset=nowhere"]}, "npid": {"missing": "npid"}}
    columns = {"infonce": ["loss=infonce"], "dcl": ["loss=dcl"]}
    table = {"title": "t", "metric": "knn/top1", "set": COMMON, "seeds": [0, 1], "columns": columns, "rows": rows}
    paper = {"paper": "tiny", "title": "t", "cite": "nobody", "tables": {"table1": table}}
    path = tmp_path / "papers" / "tiny.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump(paper, sort_keys=False))
    monkeypatch.setenv("SSL_BENCH_PAPERS", str(path.parent))
    return path
