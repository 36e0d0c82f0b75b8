"""The shape of plain data, as a type: what a record that was read from a file must look like.

A shape is a TypedDict, a dataclass, ``dict[str, float]``, ``list[int | None]``, a Literal, an Enum, ``Any``. A number
with bounds is ``Annotated[float, Bounds(0)]``. An integer below 2^63 counts as a float too; NaN and infinity are
floats, and within no bounds. A TypedDict or a dataclass stands for a mapping that may have more keys, a tuple for a
list with one value of each of its types.
"""

import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, is_dataclass
from enum import Enum
from typing import Any

from ssl_bench.errors import printable, shown

LARGEST_INTEGER = 2**63  # larger ones do not fit into a float or a database
LONGEST = 60  # characters of a value in a sentence

Check = Callable[[Any], str | None]  # what is wrong in a value, as misfit says it; None: nothing


@dataclass(frozen=True)
class Bounds:
    """The least and the largest value of a number; both are allowed."""

    least: float = -math.inf
    largest: float = math.inf


def fits(value: Any, shape: Any) -> bool:
    """Whether a value that was read from JSON has a shape."""
    return _check(shape)(value) is None


def misfit(value: Any, shape: Any) -> str:
    """The first part of a value that has not its shape, such as ``config.epochs=true``; empty if it fits.

    It begins with ``=`` if that is the whole value.
    """
    wrong = _check(shape)(value)
    return "" if wrong is None else printable(wrong).lstrip(".")


def said(value: Any) -> str:
    """A value at the end of a :func:`misfit`."""
    text = shown(value) if value != "" else "''"
    return f"={text if len(text) <= LONGEST else text[:LONGEST] + '...'}"


@functools.cache
def _check(shape: Any) -> Check:
    """The check of a shape, which is made once."""
    origin, inner = typing.get_origin(shape), typing.get_args(shape)
    if shape is Any:
        return lambda value: None
    if origin is typing.Annotated:
        number, bounds = _check(inner[0]), inner[1]
        return lambda value: number(value) or (None if bounds.least <= value <= bounds.largest else said(value))
    if origin in (typing.Union, types.UnionType):
        return _of_union([_check(option) for option in inner])
    if origin is typing.Literal or (inspect.isclass(shape) and issubclass(shape, Enum)):
        words = frozenset(inner or [str(option.value) for option in shape])
        return lambda value: None if isinstance(value, str) and value in words else said(value)
    if origin is dict:
        item = _check(inner[1])
        return _of_parts(dict, lambda value: ((".{}", key, item, value[key]) for key in value))
    if origin is list:
        item = _check(inner[0])
        return _of_parts(list, lambda value: (("[{}]", place, item, one) for place, one in enumerate(value)))
    if origin is tuple:
        checks, places = [_check(part) for part in inner], ["[{}]"] * len(inner)
        parts = _of_parts(list, lambda value: zip(places, range(len(value)), checks, value, strict=True))
        return lambda value: said(value) if isinstance(value, list) and len(value) != len(checks) else parts(value)
    if typing.is_typeddict(shape) or is_dataclass(shape):
        hints = typing.get_type_hints(shape, include_extras=True)
        optional = getattr(shape, "__optional_keys__", frozenset[str]())
        keys = {name: (_check(_plain(hint)), name in optional) for name, hint in hints.items()}
        return _of_parts(
            dict,
            lambda value: (
                (".{}", name, check, value[name]) if name in value else (".{} is missing", name, lambda _: "", None)
                for name, (check, optional) in keys.items()
                if name in value or not optional
            ),
        )
    if shape in (int, float):
        return lambda value: (
            None
            if type(value) is float is shape or (type(value) is int and abs(value) < LARGEST_INTEGER)
            else said(value)
        )
    kind = types.NoneType if shape is None else shape
    return lambda value: None if type(value) is kind else said(value)


def _plain(hint: Any) -> Any:
    """A hint of a key without ``NotRequired``."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) in (typing.NotRequired, typing.Required) else hint


def _of_union(options: list[Check]) -> Check:
    def check(value: Any) -> str | None:
        wrong = [option(value) for option in options]
        return None if None in wrong else next((one for one in reversed(wrong) if one and one[0] != "="), wrong[-1])

    return check


def _of_parts(kind: type, parts: Callable[[Any], Iterable[tuple[str, Any, Check, Any]]]) -> Check:
    """The check of a list or mapping: of each part how its key is written, the key, its check, and the part."""

    def check(value: Any) -> str | None:
        if not isinstance(value, kind):
            return said(value)
        for name, key, part, item in parts(value):
            wrong = part(item)
            if wrong is not None:
                return name.format(key) + wrong
        return None

    return check
