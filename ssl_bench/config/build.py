"""Make the object that a node of the configuration describes.

Used instead of ``hydra.utils.instantiate`` for three reasons: the training processes need no Hydra, modules and folders
are passed by reference, and every value is checked against the constructor's annotations with an error that names the
key.
"""

import copy
import difflib
import importlib
import inspect
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ssl_bench.errors import ConfigError, InvalidValue, require

TRUSTED = ("ssl_bench.", "torch.", "torchvision.", "timm.")
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def build(node: Mapping[str, Any], key: str, /, **extra: Any) -> Any:
    """Call the node's ``_target_`` with the node's other entries and ``extra``.

    Args:
        node: a mapping with ``_target_`` and arguments.
        key: where the node stands in the configuration, for error messages.
        extra: arguments that are no configuration values, such as modules.

    Raises:
        ConfigError: an untrusted or unknown target, an argument that is missing, unknown or of the wrong type, or a
            value that the constructor refuses.
    """
    arguments = {k: copy.deepcopy(v) for k, v in node.items() if k != "_target_"}
    kind = target_class(node, key)
    parameters, hints = _signature(kind)
    for argument, value in arguments.items():
        if argument not in parameters:
            raise ConfigError(f"{key}.{argument}: {kind.__name__} has no such argument{near(argument, parameters)}")
        arguments[argument] = _converted(value, hints.get(argument, Any), f"{key}.{argument}")
    required = (p.name for p in parameters.values() if p.default is p.empty and p.name not in extra)
    for missing in (argument for argument in required if argument not in arguments):
        raise ConfigError(f"{key}.{missing} is missing: set {key}.{missing}")
    try:
        return kind(**arguments, **extra)
    except InvalidValue as refusal:
        raise refusal.within(key) from refusal
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error


def has_argument(node: Mapping[str, Any], key: str, argument: str) -> bool:
    """Whether the constructor that a node names has an argument of that name."""
    return argument in _signature(target_class(node, key))[0]


def target_class(node: Mapping[str, Any], key: str) -> Any:
    """The class or function that a node's ``_target_`` names.

    Raises:
        ConfigError: it is outside the trusted packages, or there is none of that name.
    """
    path = node.get("_target_")
    if not isinstance(path, str) or not path.startswith(TRUSTED):
        raise ConfigError(f"{key}._target_={path}: set it to a class under {', '.join(t[:-1] for t in TRUSTED)}")
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{key}._target_={path}: there is no such class ({error})") from error


def _signature(target: Any) -> tuple[dict[str, inspect.Parameter], dict[str, Any]]:
    """Parameters and annotations; a class that passes ``**keywords`` on to its base has those of the base too."""
    parameters: dict[str, inspect.Parameter] = {}
    hints: dict[str, Any] = {}
    calls = (
        [vars(c)["__init__"] for c in target.__mro__ if "__init__" in vars(c)] if inspect.isclass(target) else [target]
    )
    for call in calls:
        own = inspect.signature(call).parameters
        parameters = {**{k: p for k, p in own.items() if p.kind in _NAMED and k != "self"}, **parameters}
        hints = {**typing.get_type_hints(call), **hints}
        if not any(p.kind is p.VAR_KEYWORD for p in own.values()):
            break
    return parameters, hints


def _converted(value: Any, hint: Any, key: str) -> Any:
    """``value`` in the annotated type: an int becomes a float where one is annotated, a list becomes a tuple."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        for option in inner:
            try:
                return _converted(value, option, key)
            except ConfigError:
                continue
    elif origin is typing.Literal:
        one_of(key, value, inner)
        return value
    elif hint is type(None) and value is None:
        return None
    elif hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif hint in (int, str, bool) and type(value) is hint:
        return value
    elif origin is tuple and isinstance(value, Sequence) and not isinstance(value, str):
        each = [inner[0]] * len(value) if inner[-1:] == (...,) else list(inner)
        if len(each) == len(value):
            return tuple(_converted(v, h, key) for v, h in zip(value, each, strict=True))
    elif inspect.isclass(origin) and issubclass(origin, Iterable) and isinstance(value, list):
        return [_converted(v, inner[0], key) for v in value]
    elif hint not in (int, float, str, bool) and origin is None:
        return value
    raise InvalidValue(key, value, _described(hint))


def _described(hint: Any) -> str:
    """An annotation in words."""
    names = {int: "an integer", float: "a number", str: "a name", bool: "true or false", type(None): "null"}
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(_described(option) for option in typing.get_args(hint))
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(typing.get_args(hint))
    if typing.get_origin(hint) is tuple and (...) not in typing.get_args(hint):
        return f"a list of {len(typing.get_args(hint))} values"
    return names.get(hint, "a list")


def one_of(key: str, value: Any, options: Sequence[str]) -> None:
    """Raise InvalidValue unless ``value`` is one of ``options``."""
    require(value in options, key, value, f"one of {', '.join(options)}{near(str(value), options)}")


def near(word: str, options: Iterable[str]) -> str:
    """`` (did you mean X?)`` for the closest option, or nothing."""
    found = difflib.get_close_matches(word, list(options), 1, 0.6)
    return f" (did you mean {found[0]}?)" if found else ""
