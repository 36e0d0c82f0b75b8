"""Refusals: the key with its group, and values as they are written on the command line."""

from typing import Any

import pytest

from ssl_bench.errors import ConfigError, InvalidValue, RunError, require, shown
from ssl_bench.files import writing


def test_an_invalid_value_has_key_value_and_remedy_and_the_exit_code_of_a_configuration() -> None:
    require(True, "tau", 0.1, "a positive number")
    with pytest.raises(InvalidValue) as caught:
        require(False, "tau", 0, "a positive number")
    error = caught.value
    assert (error.key, error.value, error.remedy) == ("tau", 0, "a positive number")
    assert isinstance(error, ConfigError) and isinstance(error, ValueError)
    assert error.exit_code == 2 and RunError.exit_code == 1
    nested = InvalidValue("k", 0, "1 or more").within("knn").within("evaluate")
    assert nested.key == "evaluate.knn.k" and str(nested).startswith("evaluate.knn.k=0: ")
    with pytest.raises(ConfigError, match=r"^/data/outputs: "), writing():
        raise PermissionError(13, "Permission denied", "/data/outputs")


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "null"), (True, "true"), (1e38, "1e+38"), ("a", "a"), ((0.5, None), "[0.5,null]"), ([[1], "a"], "[[1],a]")],
)
def test_values_are_shown_as_on_the_command_line(value: Any, text: str) -> None:
    assert shown(value) == text
