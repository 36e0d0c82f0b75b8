"""Options of conf/ with their defaults, read without Hydra, and the objects that they describe."""

import inspect
import json
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ssl_bench.config import anchors
from ssl_bench.config.build import build, directory, find_target
from ssl_bench.config.ranges import converted, near, one_of
from ssl_bench.errors import ConfigError

Node = dict[str, Any]  # a class as ``_target_``, and its arguments


def names(group: str) -> list[str]:
    """The options of a group of conf/."""
    return sorted(file.stem for file in (directory() / group).glob("*.yaml"))


def node(group: str, name: str) -> Node:
    """An option as conf/ has it, without the entries that are taken from other parts of a configuration.

    Raises:
        InvalidValue: the group has no option of that name.
    """
    one_of(group, name, names(group))
    path = directory() / group / f"{name}.yaml"
    content: Any = anchors.read_yaml(path) if group == "augment" else _flat(path.read_text(encoding="utf-8"))
    based = dict[str, Any](_based(group, content.pop("defaults", []), content))
    return {key: value for key, value in (content | based).items() if not str(value).startswith("${")}


def _flat(text: str) -> Node:
    """The entries of an option without nesting; :class:`ssl_bench.PairLoss` needs no library for YAML."""
    entries = re.findall(r"^(\w+): +([^\s#]+)", text, re.MULTILINE)
    return {key: json.loads(value) if re.match(r"[-\[\d]|true|false|null", value) else value for key, value in entries}


def _based(group: str, defaults: list[str], content: Mapping[str, Any]) -> Iterator[tuple[str, Node]]:
    """Entries that start from another option of the group: ``simclr@first`` is the base of ``first``."""
    for base, _, key in (default.partition("@") for default in defaults):
        yield key, node(group, base) | content[key]


def arguments(part: Node, group: str) -> list[str]:
    """The names of the arguments of a node's class; none of an empty node."""
    parameters = inspect.signature(find_target(part, group)).parameters.values() if part else ()
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]


def check_known(given: Mapping[str, Any], options: list[str], where: str) -> None:
    """Raise ConfigError for the first given option that is none of ``options``; ``where`` says what has been chosen."""
    for name in given:
        if name not in options:
            existing = f"there are {', '.join(options)}" if options else "there are none"
            raise ConfigError(f"{name}: {where} has no such option{near(name, options)}; {existing}")


def make(part: Node, group: str, given: Mapping[str, Any] = {}) -> Any:
    """Make the object of a node; ``given`` arguments replace those of the node.

    Raises:
        ConfigError: an argument is missing or has a value that the object refuses; the group is not in the sentence.
    """
    try:
        return build(part | {name: _plain(value) for name, value in given.items()}, group)
    except ConfigError as error:
        raise ConfigError(str(error).replace(f"{group}.", "")) from error


def checked(function: Callable[..., Any], **given: Any) -> dict[str, Any]:
    """The given arguments of a function in their annotated types; InvalidValue for one that is of another type."""
    hints = typing.get_type_hints(function)
    return {name: converted(_plain(value), hints[name], name) for name, value in given.items()}


def _plain(value: Any) -> Any:
    """A list for a tuple or an array, and Python's number for one of numpy or torch."""
    return value.tolist() if hasattr(value, "tolist") else list(value) if isinstance(value, tuple) else value
