"""Refusals: the sentence, the key with its group, and values as they are written on the command line."""

from typing import Any

import pytest

from ssl_bench.errors import ConfigError, InvalidValue, RunError, require, shown
from ssl_bench.files import unwritable


def test_require_raises_one_sentence_with_key_value_and_remedy() -> None:
    require(True, "tau", 0.1, "a positive number")
    with pytest.raises(InvalidValue) as caught:
        require(False, "tau", 0, "a positive number")
    assert str(caught.value) == "tau=0: set tau to a positive number"
    assert (caught.value.key, caught.value.value, caught.value.remedy) == ("tau", 0, "a positive number")


def test_an_invalid_value_is_a_configuration_error_and_a_value_error() -> None:
    error = InvalidValue("tau", 0, "a positive number")
    assert isinstance(error, ConfigError) and isinstance(error, ValueError)
    assert error.exit_code == 2 and RunError.exit_code == 1


def test_within_puts_the_group_before_both_keys() -> None:
    error = InvalidValue("k", 0, "1 or more").within("knn")
    assert str(error) == "knn.k=0: set knn.k to 1 or more"
    assert str(error.within("evaluate")) == "evaluate.knn.k=0: set evaluate.knn.k to 1 or more"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (1e38, "1e+38"),
        ("cosine", "cosine"),
        ((0.5, None, True), "[0.5,null,true]"),
        ([[1, 2], "a"], "[[1,2],a]"),
    ],
)
def test_values_are_shown_as_on_the_command_line(value: Any, text: str) -> None:
    assert shown(value) == text
    assert str(InvalidValue("key", value, "another")) == f"key={text}: set key to another"


def test_a_folder_that_cannot_be_written_is_refused_by_name() -> None:
    error = unwritable(PermissionError(13, "Permission denied", "/data/outputs"))
    sentence = "Permission denied; set paths.outputs to a folder that can be written"
    assert str(error) == f"/data/outputs: {sentence}"
    assert str(unwritable(PermissionError(13, "Permission denied"))) == f"paths.outputs: {sentence}"
