"""Odd values of every key of the default run: each is accepted, or refused in one sentence that names the key."""

from typing import Any

import pytest

from ssl_bench.config.compose import Composer
from ssl_bench.config.guard import leaves
from ssl_bench.config.schema import check
from ssl_bench.errors import ConfigError
from ssl_bench.training.parts import Parts
from tests.conftest import SMALL

BASE = [*SMALL, "evaluate=[knn,linear]"]
COMPOSER = Composer()
KEYS = [
    key
    for key, _ in leaves({k: v for k, v in COMPOSER.load(BASE).items() if k != "choices"})
    if not key.endswith("_target_") and key != "dataset.knn_k"  # which evaluate.knn.k has as its value
]


@pytest.mark.slow
@pytest.mark.parametrize("value", ["-1", "1.5", "nan", "text", "null", "[x,null]", "{a:1}"])
def test_an_odd_value_is_accepted_or_refused_by_its_key(value: str) -> None:
    refused = []
    for key in KEYS:
        try:
            config: dict[str, Any] = COMPOSER.load([*BASE, f"{key}={value}"])
            check(config)
            Parts(config).validate(1)
        except ConfigError as refusal:
            named = {key.partition(".")[0], key.rpartition(".")[2]}
            assert any(name in str(refusal) for name in named) and str(refusal).count("\n") == 0, (key, refusal)
            refused.append(key)
    assert len(KEYS) > 60 and {"epochs", "seed", "evaluate.knn.k"} - {*refused} == set()
