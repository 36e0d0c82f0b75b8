"""Shapes of plain data, and what is said of data that do not have them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from ssl_bench.shapes import Bounds, fits, misfit


class Colour(StrEnum):
    RED = "red"


class Inner(TypedDict):
    number: float
    maybe: NotRequired[list[int]]


@dataclass
class Owner:
    name: str
    born: str | None


@pytest.mark.parametrize(
    ("shape", "good", "bad"),
    [
        (Any, [None, 1, {}], []),
        (bool, [True], [1, None]),
        (int, [-3, 0], [True, 1.0, "1", 2**63, -(2**63)]),
        (float, [1, 1.5, float("nan"), float("inf")], [True, "1", None, 2**70]),
        (int | None, [1, None], ["", False]),
        (Annotated[float, Bounds(0, 1)], [0, 1.0], [-0.1, 1.5, float("nan"), float("inf"), "0", True]),
        (dict, [{}, {"x": 1}], [[], None]),
        (dict[str, float], [{}, {"x": 1}], [{"x": "1"}, {"x": 1, "y": None}, []]),
        (list[list[str]], [[], [["x"], []]], [["x"], [[1]], {}]),
        (tuple[int, str], [[1, "x"]], [[1], ["x", 1], [1, "x", 2]]),
        (Literal["", "_raw"], ["", "_raw"], ["_init", None, []]),
        (Colour, ["red"], ["RED", None, {}]),
        (Inner, [{"number": 1}, {"number": 0.5, "maybe": [1], "more": {}}], [{}, {"number": 1, "maybe": None}, []]),
        (Owner, [{"name": "x", "born": None}], [{"name": "x"}, {"name": 1, "born": None}, "x"]),
    ],
)
def test_shapes(shape: Any, good: list[Any], bad: list[Any]) -> None:
    assert all(fits(value, shape) for value in good)
    assert not any(fits(value, shape) for value in bad)


@pytest.mark.parametrize(
    ("value", "shape", "says"),
    [
        ({"number": 1}, Inner, ""),
        ({"number": None}, Inner, "number=null"),
        ({}, Inner, "number is missing"),
        ({"number": 1, "maybe": [1, "2"]}, Inner, "maybe[1]=2"),
        ({"a": {"b": [{"number": ""}]}}, dict[str, dict[str, list[Inner]]], "a.b[0].number=''"),
        ({"a": {"number": True}}, dict[str, Inner | None], "a.number=true"),
        ({"\x1b[2J": 1}, dict[str, str], r"\x1b[2J=1"),
        ([1], dict, "=[1]"),
        ({"number": "x" * 100}, Inner, f"number={'x' * 60}..."),
    ],
)
def test_what_does_not_fit_is_named(value: Any, shape: Any, says: str) -> None:
    assert misfit(value, shape) == says
