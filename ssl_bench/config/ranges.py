"""Ranges of arguments, which stand in the annotations of constructors: ``tau: Annotated[float, Meta(gt=0)]``.

``Meta`` is msgspec's: ``ge``, ``gt``, ``le``, ``lt``, and ``min_length`` of a list. Its ``description``, if it has one,
stands in the refusal: what to set the argument to.
"""

import difflib
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from ssl_bench.config.identity import leaves
from ssl_bench.errors import InvalidValue

msgspec: Any
try:
    import msgspec
except ImportError:  # PairLoss needs torch alone: its parts check their numbers themselves, and nothing checks types
    msgspec = types.SimpleNamespace(Meta=dict, convert=lambda value, hint: value, ValidationError=ValueError)
Meta: Any = msgspec.Meta

Positive = Annotated[float, Meta(gt=0)]
NotNegative = Annotated[float, Meta(ge=0)]
Probability = Annotated[float, Meta(ge=0, le=1)]
ZeroOrMore = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(gt=0, le=1)]
Count = Annotated[int, Meta(ge=1)]
TwoOrMore = Annotated[int, Meta(ge=2)]

T = TypeVar("T", bound=Callable[..., Any])
_NAMES = {int: "an integer", float: "a number", str: "text in quotes", bool: "true or false", type(None): "null"}


def in_range(constructor: T) -> T:
    """A constructor, or a class with its constructor, that checks its arguments against their annotations first.

    Only annotations that have a range are checked, at each call: not for functions of the training step.

    Raises:
        InvalidValue: an argument is not in its range, or not of the type that has the range.
    """
    if isinstance(constructor, type):
        constructor.__init__ = in_range(constructor.__init__)  # type: ignore[misc]
        return constructor
    signature = inspect.signature(constructor)

    @functools.wraps(constructor)
    def checked(*args: Any, **kwargs: Any) -> Any:
        hints = typing.get_type_hints(constructor, include_extras=True)
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            if "Meta(" in str(hints.get(name)):
                converted(value, hints[name], name)
        return constructor(*args, **kwargs)

    return typing.cast(T, checked)


def converted(value: Any, hint: Any, key: str) -> Any:
    """``value`` in the annotated type and range: an int becomes a float where one is annotated, a list a tuple.

    A value whose annotation msgspec does not know, such as a network, is returned as it is.

    Raises:
        InvalidValue: naming ``key`` and what to set it to.
    """
    try:
        made = msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        if typing.get_origin(hint) is typing.Literal:
            one_of(key, value, typing.get_args(hint))
        raise InvalidValue(key, value, described(hint)) from error
    except TypeError:
        return value
    values = [value for _, value in leaves(made)] if hint is not Any else []
    for number in (part for value in values for part in (value if isinstance(value, list | tuple) else [value])):
        largest = 1e300 if isinstance(number, float) else 2**32
        if isinstance(number, int | float) and not abs(number) < largest:  # not so for NaN
            raise InvalidValue(key, value, "a finite number" if isinstance(number, float) else "a smaller integer")
    return made


def described(hint: Any) -> str:
    """The values that an annotation allows, in words: ``1 or more``, ``a number above 0 and up to 1``."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return inner[1].description or _within(inner[0], inner[1])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(described, inner))
    if origin is typing.Literal:
        return " or ".join(map(str, inner))
    if inspect.isclass(origin) and issubclass(origin, Collection) and not issubclass(origin, Mapping):
        count = f"{len(inner)} " if origin is tuple and (...) not in inner else ""
        return f"a list of {count}values" + ("" if inner[0] is Any else f", each {described(inner[0])}")
    return _NAMES.get(hint, "a mapping")


def _within(kind: Any, bounds: Meta) -> str:
    """A range in words."""
    if bounds.min_length is not None:
        return f"{described(kind)}, {bounds.min_length} or more of them"
    if bounds.le is None and bounds.lt is None:
        return f"{_NAMES[kind]} " + (f"above {bounds.gt}" if bounds.ge is None else f"of {bounds.ge} or more")
    low = f"from {bounds.ge}" if bounds.ge is not None else "" if bounds.gt is None else f"above {bounds.gt} and"
    high = f"below {bounds.lt}" if bounds.le is None else f"up to {bounds.le}"
    return f"{_NAMES[kind]} {low} {high}".replace("  ", " ")


def one_of(key: str, value: Any, options: Sequence[str]) -> None:
    """Raise InvalidValue unless ``value`` is one of ``options``."""
    if value not in options:
        raise InvalidValue(key, value, f"one of {', '.join(options)}{near(str(value), options)}")


def near(word: str, options: Iterable[str]) -> str:
    """`` (did you mean X?)`` for the closest option, or nothing; capitals do not count."""
    by_lower_case = {option.lower(): option for option in options}
    if "infonce" in by_lower_case:
        word = re.sub(r"nt[-_]?xent", "infonce", word.lower())  # its other name
    similar = [by_lower_case[name] for name in difflib.get_close_matches(word.lower(), by_lower_case, 1, 0.6)]
    return f" (did you mean {similar[0]}?)" if similar else ""
