"""Ranges in annotations: what is in them, what is refused, and by which words."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from msgspec import Meta

from ssl_bench.config.ranges import Count, Positive, Probability, converted, in_range
from ssl_bench.errors import InvalidValue

INSIDE: list[tuple[Any, Any, Any]] = [
    (Positive, 1, 1.0),
    (Count | None, None, None),
    (Sequence[Positive], (1, 2.5), [1.0, 2.5]),
    (tuple[Probability, Probability], [0, 1], (0.0, 1.0)),
]
OUTSIDE: list[tuple[Any, Any, str]] = [
    (Positive, 0, "above 0"),
    (Positive, math.nan, "above 0"),
    (Positive, math.inf, "finite"),
    (Count, 2**32, "smaller"),
    (Count, True, "1 or more"),
    (Probability, 1.5, "from 0 up to 1"),
    (Annotated[float, Meta(gt=0, lt=1)], 1, "above 0 and below 1"),
    (Annotated[Sequence[Positive], Meta(min_length=1)], [], "1 or more"),
    (Sequence[Positive], [1, -1], "above 0"),
]


@pytest.mark.parametrize(("hint", "value", "made"), INSIDE)
def test_a_value_in_its_range_gets_the_annotated_type(hint: Any, value: Any, made: Any) -> None:
    assert converted(value, hint, "key") == made


@pytest.mark.parametrize(("hint", "value", "numbers"), OUTSIDE)
def test_a_value_outside_is_refused_with_the_range(hint: Any, value: Any, numbers: str) -> None:
    with pytest.raises(InvalidValue, match=numbers) as refusal:
        converted(value, hint, "key")
    assert refusal.value.key == "key"


def test_constructors_of_functions_and_dataclasses_are_checked_by_position_and_by_name() -> None:
    @in_range
    @dataclass
    class Recipe:
        lr: Positive
        epochs: Count = 1

    assert Recipe(0.1, epochs=2) == Recipe(lr=0.1, epochs=2)
    for given, key in (({"lr": -1.0}, "lr"), ({"lr": 1.0, "epochs": 0}, "epochs")):
        with pytest.raises(InvalidValue) as refusal:
            Recipe(**given)  # type: ignore[arg-type]
        assert refusal.value.key == key
