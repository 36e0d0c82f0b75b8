"""The table at the end of a grid."""

import json
from pathlib import Path
from typing import Any

import pytest

from ssl_bench.record.summary import print_grid


def finished(tmp_path: Path, name: str, **metrics: float) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    values = {metric.replace("_top1", "/top1"): value for metric, value in metrics.items()}
    config: dict[str, Any] = {"evaluate": {"knn": {}, "linear": {}}}
    (folder / "results.json").write_text(
        json.dumps({"run_id": name, "config": config, "metrics": values, "seconds": 1.0})
    )
    return folder


def test_the_best_line_of_a_grid_is_first_and_the_best_accuracies_are_bold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    groups = {
        "loss=infonce": [finished(tmp_path, "1", knn_top1=0.5, linear_top1=0.75, knn_init_top1=0.9)],
        "loss=eqco": [finished(tmp_path, "2", linear_top1=0.5)],
        "loss=dcl": [finished(tmp_path, "3", knn_top1=0.6, linear_top1=0.7, knn_init_top1=0.1)],
    }
    print_grid(groups)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert [line.split()[1] for line in lines] == ["loss=dcl", "loss=infonce", "loss=eqco"]
    bold = [[part for part in ("60.0%", "50.0%", "75.0%", "70.0%", "90.0%") if f"\x1b[1m{part}" in x] for x in lines]
    assert bold == [["60.0%"], ["75.0%"], []]
