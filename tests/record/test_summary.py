"""The table at the end of a grid."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ssl_bench.record.summary import print_grid
from tests.evaluated import with_evaluations


def finished(tmp_path: Path, name: str, written: Mapping[str, Any] | None = None, **metrics: float) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    values = {metric.replace("_top1", "/top1"): value for metric, value in metrics.items()}
    config: dict[str, Any] = {"evaluate": {"knn": {}, "linear": {}}}
    content = {"run_id": name, "config": config, "metrics": values, "seconds": 1.0, **(written or {})}
    (folder / "results.json").write_text(json.dumps(with_evaluations(content)))
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
    print_grid({name: [(run, None) for run in runs] for name, runs in groups.items()})
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("loss=")]
    assert [line.split()[0] for line in lines] == ["loss=dcl", "loss=infonce", "loss=eqco"]
    bold = [[part for part in ("60.0%", "50.0%", "75.0%", "70.0%", "90.0%") if f"\x1b[1m{part}" in x] for x in lines]
    assert bold == [["60.0%"], ["75.0%"], []]


def test_footnotes_say_what_a_mean_mixes_and_what_its_runs_warn_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(name: str, threads: int, **environment: Any) -> Path:
        common = {"device": "a CPU", "instructions": "AVX2", "threads": threads, "ranks": 1, "torch": "2.6.0"}
        written: dict[str, Any] = {"environment": common | environment, "config": {"evaluate": {}, "seed": int(name)}}
        written |= {"warnings": ["the embeddings have collapsed"]} if name == "5" else {}
        return finished(tmp_path, name, written, knn_top1=0.5)

    gpu = {"device": "a GPU", "cuda": "12.6"}
    groups = {
        "a": [run("0", 1), run("1", 1)],
        "b": [run("2", 1), run("3", 2, torch="2.15.0")],
        "c": [run("4", 1), run("5", 1)],
        "d": [run("6", 1, **gpu), run("7", 2, **gpu)],  # where threads change nothing
        "e": [run("8", 1), run("9", 1, **gpu)],
    }
    print_grid({name: [(run, None) for run in runs] for name, runs in groups.items()})
    lines = capsys.readouterr().out.splitlines()
    counts = {line.split()[0]: line.split()[1] for line in lines[1:6]}
    assert counts == {"a": "2", "b": "2¹", "c": "2²", "d": "2", "e": "2³"}
    assert lines[-2] == "2 seed 5: the embeddings have collapsed"
    assert lines[-3].endswith("threads (1, 2), versions of torch (2.15.0, 2.6.0)") and lines[-3].startswith("1 ")
    assert lines[-1].endswith("processors (a CPU, a GPU)") and lines[-1].startswith("3 ")
