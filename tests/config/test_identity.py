"""The identity of a run: which keys and values change it, and that the module of a class does not."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from ssl_bench.config.build import build, directory, find_target
from ssl_bench.config.compose import load
from ssl_bench.config.identity import NOT_HASHED, RETIRED, SCHEDULES, evaluation_id, recipe_id, run_dir, run_id
from ssl_bench.objective.contrast import Contrast
from tests.door.door import refused

GROUPS = sorted(p.name for p in directory().iterdir() if p.is_dir() and p.name not in ("experiment", "local"))


def targets(node: Any) -> Iterator[dict[str, Any]]:
    """All nodes with a ``_target_``, at any depth."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield node
        for value in node.values():
            yield from targets(value)
    elif isinstance(node, list):
        for value in node:
            yield from targets(value)


GIVEN = yaml.safe_load(Path(__file__).with_name("identities.yaml").read_text())


def test_only_keys_that_the_result_depends_on_change_the_identity() -> None:
    base = run_id(load())
    for same in GIVEN["same"]:
        assert run_id(load(same.split())) == base, same
    photos = [run_id(load(["dataset=imagenet", f"dataset.workers={n}"])) for n in (1, 2)]
    assert photos[0] == photos[1] != run_id(load(["dataset=imagenet", "dataset.packed=true"]))
    others = [["seed=1"], ["epochs=41"], ["temperature.tau=0.3"], ["batch_size=b32"], ["optimizer.schedule=constant"]]
    identities = {run_id(load(other)) for other in others}
    assert len(identities | {base}) == len(others) + 1


def test_a_number_counts_by_its_value() -> None:
    same = ["temperature.tau=1 1.0 1e0", "optimizer.lr=3 3.0", "optimizer.weight_decay=0 0.0 -0.0"]
    for each in [*same, "optimizer.milestones=[1,0.5] [1.0,0.5]"]:
        key, texts = each.split("=")
        assert len({run_id(load([f"{key}={text}"])) for text in texts.split()}) == 1, key


@pytest.mark.parametrize("length", ["counts", "is_free"])
def test_the_length_counts_where_something_depends_on_it(length: str) -> None:
    for overrides in GIVEN[f"length_{length}"]:
        identities = {run_id(load([*overrides.split(), f"epochs={n}"])) for n in (4, 8)}
        assert len(identities) == (2 if length == "counts" else 1), overrides


OPTIONS = {"backbone.args": ["backbone=timm", "dataset=cifar10"]}
OPTIONS |= {f"negatives.{key}": ["negatives=random_k"] for key in ("final", "milestones", "schedule")}
OPTIONS |= {"dataset.interpolation": ["dataset=imagenet"]}


@pytest.mark.parametrize("key", NOT_HASHED)
def test_a_key_that_is_not_hashed_may_be_missing_and_any_other_value_is_hashed(key: str) -> None:
    config = load(OPTIONS.get(key, []))
    *group, name = key.split(".")
    missing, other = copy.deepcopy(config), copy.deepcopy(config)
    (missing[group[0]] if group else missing).pop(name, None)
    (other[group[0]] if group else other)[name] = "other"
    assert run_id(missing) == run_id(config) != run_id(other)


@pytest.mark.parametrize(("overrides", "expected"), GIVEN["run_ids"].items())
def test_the_identity_of_a_training_stays(overrides: str, expected: str) -> None:
    assert run_id(load(overrides.split())) == expected


OF_0_4: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "of_0_4.yaml").read_text())


@pytest.mark.parametrize("name", OF_0_4)
def test_a_run_of_an_earlier_version_is_found_by_the_same_command(name: str) -> None:
    """Its configuration has keys that have left it since."""
    config, same = OF_0_4[name]["config"], load(OF_0_4[name]["overrides"].split())
    assert config.keys() & RETIRED and not RETIRED & same.keys()
    assert run_id(config) == run_id(same) == name
    assert recipe_id(config) == recipe_id(same)


@pytest.mark.parametrize("option", [path.stem for path in sorted((directory() / "temperature").glob("*.yaml"))])
def test_a_temperature_that_follows_the_training_says_so_by_a_key(option: str) -> None:
    node = load([f"temperature={option}"])["temperature"]
    temperature, contrast = build(node, "temperature"), Contrast.dense(torch.rand(2, 3), torch.rand(2, 3, 4))
    varies = not torch.equal(temperature(0.1, contrast), temperature(0.7, contrast))
    assert varies == any(key in node for key in SCHEDULES["temperature"])


def test_an_evaluation_is_its_class_and_its_settings() -> None:
    node = load()["evaluate"]["knn"]
    assert evaluation_id("knn", node) == evaluation_id("knn", node | {"k": float(node["k"])})
    others = [("knn", node | {"k": 5}), ("knn", node | {"_target_": "a.Other"}), ("near", node)]
    assert len({evaluation_id(*other) for other in [("knn", node), *others]}) == 4
    places = [load(["evaluate=detection", f"evaluate.detection.data={d}"])["evaluate"]["detection"] for d in "ab"]
    assert len({evaluation_id("detection", each) for each in places}) == 1


def test_the_names_of_classes_count_and_not_their_modules() -> None:
    """Runs of 0.4 name modules that are gone."""
    config = load(["dataset=bits", "augment=multicrop_cifar", "evaluate=knn"])
    del config["evaluate"]
    moved, identities = copy.deepcopy(config), {run_id(config)}
    for number, node in enumerate(targets(moved)):
        node["_target_"] = f"elsewhere.moved.{node['_target_'].rpartition('.')[2]}"
        changed = copy.deepcopy(config)
        list(targets(changed))[number]["_target_"] += "Other"
        identities.add(run_id(changed))
    assert run_id(moved) == run_id(config) and len(identities) == number + 2 > 8
    nested = {"parts": [{"_target_": "a.b.Part"}, 1]}
    assert run_id({"parts": [{"_target_": "c.Part"}, 1]}) == run_id(nested)
    assert run_id({"parts": [{"_target_": "a.b.Other"}, 1]}) != run_id(nested)
    gone = "ssl_bench.data.bits.BitImages"
    for group in ("dataset", "evaluate.on"):
        assert find_target(config["dataset"] | {"_target_": gone}, group) is find_target(config["dataset"], "dataset")
    with refused("dataset._target_=ssl_bench.data.bits.Nothing"):
        find_target({"_target_": "ssl_bench.data.bits.Nothing"}, "dataset")


@pytest.mark.parametrize("group", GROUPS)
def test_classes_of_a_group_have_different_names(group: str) -> None:
    """Two classes of one name would give two configurations the same identity."""
    classes: dict[str, set[Any]] = {}
    for path in (directory() / group).glob("*.yaml"):
        for node in targets(yaml.safe_load(path.read_text())):
            classes.setdefault(node["_target_"].rpartition(".")[2], set()).add(find_target(node, group))
    assert {name: same for name, same in classes.items() if len(same) > 1} == {}
    assert classes or group in ("batch_size", "launcher", "tracking")


def test_the_directory_of_a_run_has_its_name_and_identity() -> None:
    config = load(["name=grids/one", "paths.outputs=results"])
    assert run_dir(config) == Path("results/grids/one") / run_id(config)
