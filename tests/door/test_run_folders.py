"""The configuration of a run on disk goes through the same checks as one of the command line."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ssl_bench.config.compose import load
from ssl_bench.training.finished import read_config
from tests.door.door import enter, refuses

RUN = Path("outputs/default/0123456789")

# A key and a value in its place, ``...`` for none; the refusal names it, but for the options that were chosen.
VARIANTS: list[tuple[str, Any]] = [
    ("choices", ...),
    ("choices.dataset", None),
    *[(key, ...) for key in ("paths", "seed", "evaluate", "paths.data")],
    *[("seed", "text"), ("paths", "text"), ("augment", None), ("loss", "text"), ("new", 3), ("name", "../up")],
]


def written(change: str = "", value: Any = ...) -> Path:
    """A run directory whose configuration has another value of a key, or no such key."""
    config = load(["tracking=off"])
    *groups, key = change.split(".")
    node = config
    for group in groups:
        node = node[group]
    node[key] = value
    if value is ...:
        del node[key]
    RUN.mkdir(parents=True)
    (RUN / "config.yaml").write_text(yaml.safe_dump(config))
    return RUN


@pytest.mark.parametrize(("key", "value"), VARIANTS)
def test_a_damaged_configuration_is_refused_by_its_key(key: str, value: Any, capfd: pytest.CaptureFixture[str]) -> None:
    named = "" if key.startswith("choices") else key
    refuses(f"evaluate {written(key, value)}", f"{RUN}/config.yaml {named}", capfd)


RESULTS: list[Any] = [None, [], {}, {"config": {}}, {"config": []}, {"evaluations": [1]}, {"evaluations": [{}]}]
RESULTS += [
    {"metrics": {"knn/top1": "x"}},
    {"metrics": {"knn/top1": 0.5}, "evaluations": []},
    {"config": {"evaluate": 3}},
]


@pytest.mark.parametrize("change", RESULTS, ids=str)
def test_a_run_with_damaged_results_is_named_and_not_taken(change: Any, capfd: pytest.CaptureFixture[str]) -> None:
    run = written()
    config = yaml.safe_load((run / "config.yaml").read_text())
    content = {"run_id": run.name, "config": config, "metrics": {}, "seconds": 1.0, "evaluations": []}
    (run / "results.json").write_text(json.dumps(content | change if isinstance(change, dict) and change else change))
    for command in ("evaluate", "export"):
        answer = enter(f"{command} {run}", capfd)
        *damaged, line = answer.err.splitlines()
        assert answer.code == 1 and str(run) in line and len(damaged) <= 1, answer
        assert all("results.json" in each for each in damaged)
    if change in (None, [], {"config": {}}, {"config": []}):
        refuses(f"train init={run}", "init", capfd)


def test_a_run_that_is_read_is_not_tracked() -> None:
    assert read_config(written("tracking"))["tracking"]["mode"] == "off"


def test_a_plugin_that_is_allowed_but_not_listed_is_not_run(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("my_losses.py").write_text("raise SystemExit('the code of the plugin ran')\n")
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.setenv("SSL_BENCH_PLUGINS", "my_losses")
    run = written("loss", {"_target_": "my_losses.Evil"})
    refuses(f"evaluate {run}", "loss._target_=my_losses.Evil plugins=[my_losses]", capfd)
    assert "my_losses" not in sys.modules
