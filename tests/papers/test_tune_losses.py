"""scripts/tune_losses.py: it prints the best on held-out images, by the mean of three seeds, at no end of the rates."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ssl_bench import files
from tests.conftest import SMALL

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
import tune_losses

FIXED = ["dataset=scattered_digits", "epochs=2", "optimizer=sgd", *(o for o in SMALL if not o.startswith("evaluate"))]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_best_setting_of_held_out_images_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    table: dict[str, Any] = {
        "title": "t",
        "metric": "knn/top1",
        "set": FIXED,
        "columns": ["64"],
        "each": ["batch_size=b{column}"],
    }
    table |= {"rows": {"DCL": {"set": ["loss=dcl"], "values": [{"missing": "a tuned rate"}]}}}
    paper = {"paper": "mine", "title": "t", "cite": "nobody", "tables": {"batch": table}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(paper, sort_keys=False))
    monkeypatch.setenv("SSL_BENCH_PAPERS", str(tmp_path))
    tune_losses.main(["mine/batch", "temperature.tau=0.2", f"paths.outputs={tmp_path}"])
    printed = capfd.readouterr().out.splitlines()[-1]
    found: dict[float, dict[int, float]] = {}
    for path in (tmp_path / "tuning").glob("*/results.json"):
        results = files.read_json(path)
        config, value = results["config"], results["metrics"]["knn_val/top1"]
        found.setdefault(config["optimizer"]["lr"], {})[config["seed"]] = value
    means = {rate: sum(values.values()) / 3 for rate, values in found.items() if values.keys() == {0, 1, 2}}
    rate = max(means, key=lambda rate: means[rate])
    assert printed == f"DCL: 64: {{set: [optimizer.lr={rate:g}, temperature.tau=0.2]}}"
    trained = [yaml.safe_load(path.read_text())["optimizer"]["lr"] for path in tmp_path.glob("tuning/*/config.yaml")]
    assert len(found) < len({*trained}) and min(trained) < rate < max(trained)  # some were not trained to the end
