"""Make the object that a node of the configuration describes.

Used instead of ``hydra.utils.instantiate`` for four reasons: a node can only name a class of the kind that its group
declares, the training processes need no Hydra, modules and folders are passed by reference, and every value is checked
against the constructor's annotations with an error that names the key.
"""

import copy
import importlib
import inspect
import re
import typing
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ssl_bench.config import plugins
from ssl_bench.config.ranges import Share, converted, near
from ssl_bench.errors import ConfigError, InvalidValue

# The base classes of each group, by name, since this package imports none of the packages below it.
KINDS = {
    "dataset": ["data.dataset.Dataset"],
    "augment": ["data.views.Views"],
    "backbone": ["networks.backbones.Backbone"],
    "head": ["networks.heads.Head"],
    "framework": ["methods.base.Framework", "methods.base.Method"],
    "loss": ["objective.loss.Loss"],
    "negatives": ["objective.negatives.Negatives"],
    "positives": ["objective.positives.Positives"],
    "temperature": ["objective.temperature.Temperature"],
    "optimizer": ["training.optim.Recipe"],
    "evaluate": ["evaluate.target.Evaluator"],
    "evaluate.on": ["data.dataset.Dataset"],
    "tracking": ["record.dashboard.Dashboard"],  # no part of a run's identity, and it needs no class
}
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def build(node: Any, key: str, /, **extra: Any) -> Any:
    """Call the node's ``_target_`` with the node's other entries and ``extra``.

    Args:
        node: a mapping with ``_target_`` and arguments.
        key: where the node stands in the configuration, such as ``loss`` or ``evaluate.knn``.
        extra: arguments that do not stand in the configuration, such as modules.

    Raises:
        ConfigError: a target that is unknown or not of the kind of its group; an argument that is missing, unknown or
            of the wrong type; a value that the constructor refuses.
    """
    target, arguments = checked_call(node, key, extra)
    try:
        return target(**arguments, **extra)
    except InvalidValue as refusal:
        raise refusal.within(key) from refusal
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not re.search("allocate memory|overflow", str(error)):
            raise
        raise ConfigError(f"{key} needs more memory than this machine has: set smaller numbers in {key}") from error


def checked_call(node: Any, key: str, extra: Collection[str] = ()) -> tuple[Any, dict[str, Any]]:
    """The class that a node names, and its arguments without those that :func:`build` adds, whose names are ``extra``.

    Raises:
        ConfigError: as :func:`build`, except for values that only the constructor refuses.
    """
    target = find_target(node, key)
    arguments = {k: copy.deepcopy(v) for k, v in node.items() if k != "_target_"}
    parameters, hints = signature(target)
    for argument, value in arguments.items():
        if argument not in parameters or argument in extra:
            raise ConfigError(f"{key}.{argument}: {target.__name__} has no such argument{near(argument, parameters)}")
        arguments[argument] = converted(value, hints.get(argument, Any), f"{key}.{argument}")
    required = (p.name for p in parameters.values() if p.default is p.empty and p.name not in extra)
    for missing in (argument for argument in required if argument not in arguments):
        raise ConfigError(f"{key}.{missing} is missing: set {key}.{missing}")
    return target, arguments


def open_dataset(node: Mapping[str, Any], data: str, key: str = "dataset") -> Any:
    """Build a dataset, in its own folder ``root`` or in the folder of all datasets, ``data``; or a ``share`` of it."""
    inner = {name: value for name, value in node.items() if name != "share"}
    made = build(inner, key, **({} if "root" in node else {"root": data}))
    share = converted(node.get("share", 1.0), Share, f"{key}.share")
    return made if share == 1 else located("ssl_bench.data.dataset.Share")(made, share)


def has_argument(node: Any, key: str, argument: str) -> bool:
    """Whether the constructor that a node names has an argument of that name."""
    return argument in signature(find_target(node, key))[0]


def find_target(node: Any, key: str) -> Any:
    """The class that a node's ``_target_`` names, or a function whose annotation says that it returns one.

    Only classes of this package and of the plugins that the user allows are found, and nothing else is imported.

    Raises:
        ConfigError: there is no such class, or it is no subclass of what its group declares in ``KINDS``.
    """
    path = node.get("_target_") if isinstance(node, Mapping) else None
    if path is None:
        raise ConfigError(f"{key} has no _target_: set {key} to one of its options")
    packages = ("ssl_bench", *plugins.allowed())
    declared = KINDS.get(key) or KINDS[key.partition(".")[0]]
    wanted = " or ".join(name.rpartition(".")[2] for name in declared)
    where = f"set it to a {wanted} of {' or '.join(packages)}"
    if not isinstance(path, str) or path.partition(".")[0] not in packages:
        raise ConfigError(f"{key}._target_={path}: {where}; {plugins.CONSENT}")
    if (package := path.partition(".")[0]) != "ssl_bench":
        plugins.loaded(package)
    try:
        target = _located_option(path, "dataset" if key == "evaluate.on" else key.partition(".")[0])
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{key}._target_={path}: there is no such class ({error}): {where}") from error
    made = typing.get_type_hints(target).get("return") if inspect.isfunction(target) else target
    kinds = tuple(located(f"ssl_bench.{name}") for name in declared)
    if not inspect.isclass(made) or not issubclass(made, kinds):
        bases = " or of ".join(f"ssl_bench.{name}" for name in declared)
        raise ConfigError(f"{key}._target_={path} is no {wanted}: set it to a subclass of {bases}")
    if missing := sorted(getattr(target, "__abstractmethods__", ())):
        raise ConfigError(f"{key}._target_={path} has no {' and no '.join(missing)}: add it to the class")
    return target


def _located_option(path: str, group: str) -> Any:
    """The class at ``path``, or the one of its name in the options of the group: a run of an earlier version may name
    another module.
    """
    try:
        return located(path)
    except (ImportError, AttributeError):
        texts = "\n".join(file.read_text(encoding="utf-8") for file in sorted((directory() / group).glob("*.yaml")))
        named = re.findall(rf"\b_target_: (\S+\.{re.escape(path.rpartition('.')[2])})$", texts, re.MULTILINE)
        if not named or named[0] == path:
            raise
        return located(named[0])


def directory() -> Path:
    """Folder of the YAML files: inside the installed package, or beside the package in a checkout."""
    inside = Path(__file__).parents[1] / "conf"
    return inside if inside.is_dir() else Path(__file__).parents[2] / "conf"


def located(path: str) -> Any:
    """Import the object that a dotted path names."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def signature(target: Any) -> tuple[dict[str, inspect.Parameter], dict[str, Any]]:
    """Parameters and annotations; a class that passes ``**keywords`` on to its base has those of the base too."""
    parameters: dict[str, inspect.Parameter] = {}
    hints: dict[str, Any] = {}
    constructors = [vars(c)["__init__"] for c in getattr(target, "__mro__", ()) if "__init__" in vars(c)]
    for call in constructors or [target]:
        of_call = inspect.signature(call).parameters
        parameters = {**{k: p for k, p in of_call.items() if p.kind in _NAMED and k != "self"}, **parameters}
        hints = {**typing.get_type_hints(call, include_extras=True), **hints}
        if not any(p.kind is p.VAR_KEYWORD for p in of_call.values()):
            break
    return parameters, hints
