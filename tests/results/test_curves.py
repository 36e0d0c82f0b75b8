"""``ssl-bench figure --x epoch``: mean and deviation over seeds at the epochs that all runs of a line have."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import ssl_bench
from ssl_bench.commands import figure, table
from ssl_bench.record.evaluations import asked
from ssl_bench.results.curves import curves
from ssl_bench.results.former_select import runs_where
from tests.door.door import refuses
from tests.results.folders import make


@pytest.fixture
def grid() -> None:
    """Two losses of three seeds; one run has stopped after two of four epochs."""
    for loss, start in (("dcl", 3.0), ("infonce", 5.0)):
        for seed in range(3):
            epochs = 2 if (loss, seed) == ("dcl", 2) else 4
            of_run: list[dict[str, Any]] = [
                {"step": 2 * e, "epoch": float(e), "loss": start - e / 4 + seed, "knn/top1": 0.1 * e + 0.01 * seed}
                for e in range(1, epochs + 1)
            ]
            words: dict[str, Any] = {"loss": {"_target_": loss}, "evaluate": {"knn": {}}, "name": "g", "seed": seed}
            folder = make(f"g/{loss}{seed}", of_run, choices={"loss": loss}, **words)
            (folder / "command.txt").write_text(f"ssl-bench train name=g loss={loss} seed={seed}")


def test_mean_and_deviation_over_the_seeds(grid: None) -> None:
    dcl, infonce = curves(runs_where(Path("outputs"), ["g"]))[0]
    assert (dcl.label, infonce.label, dcl.seeds) == ("loss=dcl", "loss=infonce", 3)
    assert dcl.x.tolist() == [1, 2] and infonce.x.tolist() == [1, 2, 3, 4]
    assert dcl.legend == "loss=dcl (3 seeds, to epoch 2 of 4: one has no more)" and infonce.legend.endswith("(3 seeds)")
    assert infonce.mean == pytest.approx(5 - np.arange(1, 5) / 4 + 1) and infonce.deviation == pytest.approx([1] * 4)
    (of_dcl, _), label = curves(runs_where(Path("outputs"), []), "knn/top1")
    assert label == "knn/top1 (%)" and of_dcl.mean == pytest.approx([11, 21])


def test_the_figure(grid: None, capfd: pytest.CaptureFixture[str]) -> None:
    assert figure.main(["g", "--x", "epoch", "--out", "c.png"]) == 0 and Path("c.png").stat().st_size > 10_000
    (axis,) = ssl_bench.figure(x="epoch", where={"loss": "infonce"}, metric="knn/top1").axes
    (line,) = axis.lines
    assert line.get_ydata() == pytest.approx([11, 21, 31, 41]) and line.get_label() == "all (3 seeds)"


def test_evaluations_that_differ_are_no_line(grid: None, capfd: pytest.CaptureFixture[str]) -> None:
    path = Path("outputs/g/dcl0/metrics.jsonl")
    path.write_text(path.read_text().replace('"knn/top1"', '"evaluations": ["0123456789"], "knn/top1"'))
    assert figure.main(["g", "--x", "epoch", "--out", "c.png"]) == 0 and capfd.readouterr()
    refuses("figure g --x epoch --metric knn/top1", "knn/top1", capfd)


@pytest.fixture
def shares() -> None:
    """Two losses of two seeds, whose networks were fine-tuned and probed with a tenth of the labels and with all."""
    node: dict[str, Any] = {"labels": [0.1, 1.0], "baselines": ["init"]}
    node["linear"] = {"_target_": "ssl_bench.evaluate.linear.LinearProbe"}
    node["finetune"] = {"_target_": "ssl_bench.evaluate.finetune.FineTune", "epochs": None}
    for number, (loss, seed) in enumerate(itertools.product(("dcl", "infonce"), (0, 1))):
        words: dict[str, Any] = {"loss": {"_target_": loss}, "evaluate": node, "name": "g", "seed": seed}
        folder = make(f"g/{loss}{seed}", choices={"loss": loss}, **words)
        (folder / "command.txt").write_text(f"ssl-bench train name=g loss={loss} seed={seed}")
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
