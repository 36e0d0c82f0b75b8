"""Objects from nodes of the configuration: types are converted, and wrong arguments are refused by key."""

import pytest

from ssl_bench.config.build import build
from ssl_bench.config.compose import load
from ssl_bench.errors import ConfigError


def test_arguments_are_checked_against_the_constructor() -> None:
    node = {"_target_": "ssl_bench.objective.temperature.Fixed"}
    assert float(build({**node, "tau": 1}, "temperature").tau) == 1.0  # an integer where a number is expected
    with pytest.raises(ConfigError, match=r"temperature\.tau"):
        build(node, "temperature")
    with pytest.raises(ConfigError, match=r"temperature\.tau=true"):
        build({**node, "tau": True}, "temperature")
    with pytest.raises(ConfigError, match=r"temperature\.tau=nan"):
        build({**node, "tau": float("nan")}, "temperature")
    with pytest.raises(ConfigError, match=r"temperature\._target_=.*Fixd"):
        build({"_target_": "ssl_bench.objective.temperature.Fixd"}, "temperature")


def test_arguments_of_a_base_class_are_checked_too() -> None:
    node = load()["optimizer"]
    with pytest.raises(ConfigError, match=r"optimizer\.rule=cubic.* linear, sqrt, none"):
        build({**node, "rule": "cubic"}, "optimizer")
    with pytest.raises(ConfigError, match=r"optimizer\.betas.* SGD "):
        build({**node, "betas": [0.9, 0.99]}, "optimizer")


def test_a_part_that_does_not_fit_into_the_memory_is_refused() -> None:
    node = load(["head.layers=3", "head.hidden=20000000"])["head"]  # 4e14 weights are beyond the address space
    with pytest.raises(ConfigError, match=r"^head "):
        build(node, "head", inputs=1)
