"""The check of all runs of a grid, which builds what they have in common once: as each run is checked by itself."""

from typing import Any

import pytest

from ssl_bench.config import compose, schema
from ssl_bench.config.compose import load
from ssl_bench.errors import ConfigError
from ssl_bench.training.parts import Parts
from ssl_bench.training.validate import refusals, validate

RUNS = [
    ["negatives=random_k", "negatives.k=16"],
    ["negatives=random_k", "negatives.k=64", "batch_size=b32"],
    ["negatives=random_k", "negatives.k=64", "batch_size=b32", "seed=1"],
    ["negatives=queue", "negatives.k=64", "batch_size=b32"],
    ["loss=dhel"],
    ["loss=dhel", "negatives=own_view"],
    ["framework=moco_v2", "negatives.k=64"],
    ["framework=moco_v2", "negatives=in_batch"],
    ["framework=npid", "batch_size=b2048"],
    ["backbone.width=-1"],
    ["backbone.width=-1", "seed=1"],
    ["evaluate.knn.k=2000"],
    ["evaluate.knn.k=2000", "seed=1"],
    ["dataset=bits", "evaluate=knn"],
    ["seed=-1"],
]


def by_itself(config: dict[str, Any]) -> str | None:
    try:
        schema.check(config)
        validate(Parts(config), 1)
    except ConfigError as error:
        return str(error)
    return None


def test_each_run_is_refused_as_by_itself() -> None:
    configs = [load(run) for run in RUNS]
    found = [error and str(error) for error in refusals(configs, here=True)]
    assert found == [by_itself(config) for config in configs]
    assert [number for number, error in enumerate(found) if error is None] == [0, 3, 5, 6]


@pytest.mark.parametrize("missing", [["dataset=cifar10"], ["dataset=imagenet"], ["devices=1024", "batch_size=b1024"]])
def test_what_another_machine_may_have_is_refused_on_this_one_only(missing: list[str]) -> None:
    config = compose.load([*missing, "paths.data=nowhere"])
    assert refusals([config], here=False) == [None]
    (error,) = refusals([config], here=True)
    assert str(error).startswith(missing[0].partition("=")[0])
