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
DAMAGED = f"{RUN}/config.yaml is damaged"
AGAIN = "start the training again, which writes it"

# A key and a value in its place, ``...`` for none, with the key of the refusal.
VARIANTS: list[tuple[str, Any, str]] = [
    ("choices", ..., ""),
    ("choices.dataset", None, ""),
    *[(key, ..., f"({key} is missing: set {key})") for key in ("paths", "seed", "evaluate", "paths.data")],
    ("seed", "text", "(seed=text: set seed to an integer)"),
    ("paths", "text", "(paths=text: set paths to a mapping"),
    ("augment", None, "(augment=null: set augment to one of its options"),
    ("loss", "text", "(loss=text: set loss to one of its options"),
    ("new", 3, "(there is no key new"),
    ("name", "../up", "(name=../up: set name to a folder name"),
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


@pytest.mark.parametrize(("key", "value", "says"), VARIANTS, ids=[f"{key}={value}" for key, value, _ in VARIANTS])
def test_a_damaged_configuration_is_refused_by_its_key(
    key: str, value: Any, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    refuses(f"evaluate {written(key, value)}", f"{DAMAGED} {says} {AGAIN}", capfd)


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
    for command, says in {"evaluate": "is not trained to its end", "export": "start its training again"}.items():
        answer = enter(f"{command} {run}", capfd)
        assert answer.code == 1 and says in answer.err.splitlines()[-1] and len(answer.err.splitlines()) <= 2, answer
        assert all("results.json is damaged" in line for line in answer.err.splitlines()[:-1])
    if change in (None, [], {"config": {}}, {"config": []}):
        refuses(f"train init={run}", "set init to the directory of a finished run", capfd)


def test_a_run_that_is_read_is_not_tracked() -> None:
    assert read_config(written("tracking"))["tracking"]["mode"] == "off"


def test_a_plugin_that_is_allowed_but_not_listed_is_not_run(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("my_losses.py").write_text("raise SystemExit('the code of the plugin ran')\n")
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.setenv("SSL_BENCH_PLUGINS", "my_losses")
    run = written("loss", {"_target_": "my_losses.Evil"})
    refuses(f"evaluate {run}", "loss._target_=my_losses.Evil: set plugins=[my_losses] too", capfd)
    assert "my_losses" not in sys.modules
