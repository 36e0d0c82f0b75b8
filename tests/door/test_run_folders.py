"""The configuration of a run on disk goes through the same checks as one of the command line."""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ssl_bench.config.build import build, find_target
from ssl_bench.config.compose import load
from ssl_bench.config.identity import ADDED, MOVED, upgraded
from ssl_bench.training.finished import read_config
from ssl_bench.training.parts import Parts
from tests.door.door import enter, refuses

RELEASED = Path(__file__).parents[1] / "config" / "released"
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


@pytest.mark.parametrize("key", ["tracking", "compile_views", "graph"])
def test_a_key_that_is_new_or_not_used_may_be_missing(key: str) -> None:
    config = read_config(written(key))
    assert config["tracking"]["mode"] == "off" and config["graph"] in (False, "auto")


def test_a_plugin_that_is_allowed_but_not_listed_is_not_run(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("my_losses.py").write_text("raise SystemExit('the code of the plugin ran')\n")
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.setenv("SSL_BENCH_PLUGINS", "my_losses")
    run = written("loss", {"_target_": "my_losses.Evil"})
    refuses(f"evaluate {run}", "loss._target_=my_losses.Evil: set plugins=[my_losses] too", capfd)
    assert "my_losses" not in sys.modules


@pytest.mark.parametrize("version", [path.stem for path in sorted(RELEASED.glob("*.yaml"))])
def test_the_configuration_of_every_released_version_is_read(version: str) -> None:
    RUN.mkdir(parents=True)
    (RUN / "config.yaml").write_text((RELEASED / f"{version}.yaml").read_text())
    Parts(read_config(RUN)).validate(1)


def test_keys_that_are_new_get_the_value_of_what_runs_did_before() -> None:
    former = yaml.safe_load((RELEASED / "0.1.0.yaml").read_text())
    config = upgraded(copy.deepcopy(former))
    assert (config["graph"], config["compile_views"]) == (False, False) and "graph" not in former
    assert config["framework"]["_target_"] == "ssl_bench.methods.siamese.Siamese"
    assert former["framework"]["_target_"] == "ssl_bench.models.siamese.Siamese"
    method = Parts(config).method
    assert method.groups == ADDED["0.2.0"]["framework.groups"]
    assert build(config["optimizer"], "optimizer").decay_norms == ADDED["0.2.0"]["optimizer.decay_norms"]


def test_every_class_that_has_moved_is_found() -> None:
    names = ["models.backbones.DigitsResNet", "models.heads.MLP", "models.siamese.Siamese", "optim.SGD"]
    groups = ["backbone", "head", "framework", "optimizer"]
    for group, name, (former, now) in zip(groups, names, MOVED["0.2.0"].items(), strict=True):
        node = {group: {"_target_": f"ssl_bench.{name}"}}
        assert f"ssl_bench.{name}".startswith(former)
        assert find_target(upgraded(node)[group], group).__module__.startswith(now.rstrip("."))
