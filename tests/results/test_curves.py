"""``ssl-bench figure --x epoch``: mean and deviation over seeds at the epochs that all runs of a line have."""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import ssl_bench
from ssl_bench.commands import figure, table
from ssl_bench.errors import ConfigError
from ssl_bench.record.drawing import pooled
from ssl_bench.record.evaluations import asked, mark
from ssl_bench.results.curves import curves
from ssl_bench.results.table import chosen
from tests.results.folders import make, run


@pytest.fixture
def grid() -> None:
    """Two losses of three seeds; one run has stopped after two of four epochs."""
    for loss, start in (("dcl", 3.0), ("infonce", 5.0)):
        for seed in range(3):
            epochs = 2 if (loss, seed) == ("dcl", 2) else 4
            of_run: list[dict[str, Any]] = [
                {"step": 2 * e, "epoch": float(e), "loss": start - e / 4 + seed, "knn/top1": 0.1 * e + 0.01 * seed}
                | {"watch/knn_top1": 0.05 * e + 0.02 * seed}
                for e in range(1, epochs + 1)
            ]
            run("g/", None, of_run, loss=loss, seed=seed)


def test_mean_and_deviation_over_the_seeds(grid: None) -> None:
    dcl, infonce = curves(chosen(["g"]), "loss")[0]
    assert (dcl.label, dcl.x.tolist()) == ("loss=dcl (3 seeds)", [1, 2]) and infonce.x.tolist() == [1, 2, 3, 4]
    assert infonce.values.mean(1) == pytest.approx(5 - np.arange(1, 5) / 4 + 1) and pooled(infonce.values) == 1
    (of_dcl, _), label, _ = curves(chosen([]), "knn/top1")
    assert label == "knn/top1 (%)" and of_dcl.values.mean(1) == pytest.approx([11, 21])


def test_the_figure(grid: None, capfd: pytest.CaptureFixture[str]) -> None:
    assert figure.main(["g", "--x", "epoch", "--out", "c.pdf"]) == 0 and Path("c.pdf").stat().st_size > 5_000
    (axis,) = ssl_bench.figure(x="epoch", where={"loss": "infonce"}).axes  # kNN of the watch, not the loss
    seeds, line = axis.lines
    assert line.get_ydata() == pytest.approx([7, 12, 17, 22])
    assert [*np.asarray(seeds.get_ydata())[:3]] == pytest.approx([5, 7, 9])
    assert axis.get_legend_handles_labels()[1] == ["all (3 seeds)"]


KNN = {"_target_": "ssl_bench.evaluate.knn.KNN", "temperature": 0.1}


def evaluated(seed: int, epochs: int, k: int) -> dict[str, Any]:
    """Keys of a configuration that evaluates on the way."""
    node = {"every": 1, "knn": {**KNN, "k": k}}
    return {"evaluate": node, "name": "g", "seed": seed, "epochs": epochs, "optimizer": {"schedule": "constant"}}


def test_a_line_has_points_of_one_evaluation() -> None:
    """A run was finished after an epoch with k = 20 and goes on with k = 1; another was begun with k = 1."""

    (first,), (second,) = (asked(evaluated(0, 1, k)) for k in (20, 1))
    for seed in (0, 1):
        points: list[dict[str, Any]] = [{"step": 2, "epoch": 1.0, "knn/top1": 0.5}]
        points.append({"step": 4, "epoch": 2.0, "knn/top1": 0.7 + 0.1 * seed, "evaluations": [mark(second)]})
        folder = make(f"g/{seed}", points, **evaluated(seed, 2, 1))
        entries = [{**one, "epochs": epoch, "metrics": {"knn/top1": 0.5}} for epoch, one in ((1, first), (2, second))]
        content: dict[str, Any] = {"run_id": folder.name, "metrics": {}, "seconds": 1.0, "evaluations": entries}
        content["config"] = yaml.safe_load((folder / "config.yaml").read_text())
        (folder / "results.json").write_text(json.dumps(content))
    make(
        "g/2",
        [{"step": 2 * e, "epoch": float(e), "knn/top1": 0.9, "evaluations": [mark(second)]} for e in (1, 2)],
        **evaluated(2, 2, 1),
    )
    by_k = {line.label: line for line in curves(chosen(["g"]), "knn/top1")[0]}
    assert {*by_k} == {"knn[k=20]/top1 (2 seeds)", "knn[k=1]/top1 (3 seeds)"}
    of_20, of_1 = by_k["knn[k=20]/top1 (2 seeds)"], by_k["knn[k=1]/top1 (3 seeds)"]
    assert (of_20.x.tolist(), of_20.values.tolist()) == ([1], [[50, 50]])
    assert of_1.x.tolist() == [2] and of_1.values.mean() == pytest.approx(80)


def test_a_copy_counts_once_and_runs_without_points_are_counted(grid: None) -> None:
    (folder, *_) = (run.folder for run in chosen(["g", "loss=dcl", "seed=2"])["run"])
    shutil.copytree(folder, Path("outputs/h") / folder.name)
    (run("g/", None, loss="dcl", seed=3) / "metrics.jsonl").unlink()
    (dcl, _), _, below = curves(chosen([]), "loss")
    assert dcl.values.shape == (2, 3) and len(below) == 1 and "1 of 8 runs" in below[0] and "seed=3" in below[0]
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 2, "epoch": 1.0, "loss": 9.0}) + "\n")
    with pytest.raises(ConfigError, match=r"^loss of one training and seed differs in outputs/[gh]/"):
        curves(chosen([]), "loss")


@pytest.fixture
def shares() -> None:
    """Two losses of two seeds, whose networks were fine-tuned and probed with a tenth of the labels and with all."""
    node: dict[str, Any] = {"labels": [0.1, 1.0], "baselines": ["init"]}
    node["linear"] = {"_target_": "ssl_bench.evaluate.linear.LinearProbe"}
    node["finetune"] = {"_target_": "ssl_bench.evaluate.finetune.FineTune", "epochs": None}
    for number, (loss, seed) in enumerate(itertools.product(("dcl", "infonce"), (0, 1))):
        folder = run("g/", None, loss=loss, evaluate=node, seed=seed)
        config, made = yaml.safe_load((folder / "config.yaml").read_text()), list[dict[str, Any]]()
        for entry in asked(config):
            labels = entry["settings"].get("labels", 1.0)
            name = f"{entry['evaluator']}{entry['network']}{'' if labels == 1 else f'/labels{labels}'}/top1"
            better = 0.1 * (entry["evaluator"] == "finetune") - 0.2 * (entry["network"] == "_init")
            made.append({**entry, "metrics": {name: 0.5 + 0.2 * (labels == 1) + better + 0.01 * number}})
        metrics = {name: value for entry in made for name, value in entry["metrics"].items()}
        content = {"run_id": folder.name, "config": config, "metrics": metrics, "seconds": 1.0, "evaluations": made}
        (folder / "results.json").write_text(json.dumps(content))


def test_a_table_over_the_labels(shares: None, capfd: pytest.CaptureFixture[str]) -> None:
    """A row for each loss, and a column for each share of the labels."""

    def means(*words: str) -> dict[tuple[str, float], float]:
        assert table.main(["g", "--rows", "loss", "--columns", "labels", *words, "--format", "json"]) == 0
        rows = json.loads(capfd.readouterr().out)["rows"]
        return {(row["loss"], row["labels"]): row["mean"] for row in rows}

    expected = {("dcl", 0.1): 50.5, ("dcl", 1.0): 70.5, ("infonce", 0.1): 52.5, ("infonce", 1.0): 72.5}
    assert means("--metric", "linear/top1") == pytest.approx(expected)
    tuned = {place: mean + 10 for place, mean in expected.items()}
    assert means() == means("--metric", "finetune/labels0.1/top1") == pytest.approx(tuned)
    frame = ssl_bench.table(rows="loss", columns="labels", metric="finetune_init/top1")
    assert frame["mean"].tolist() == pytest.approx([40.5, 60.5, 42.5, 62.5]) and frame["n"].tolist() == [2] * 4
