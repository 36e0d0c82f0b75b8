"""The identity of a run: a hash of everything that its result depends on, which names its directory."""

import hashlib
import json
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any

# Keys that say where and how a run is carried out. They are no part of its identity, so that it can be moved and
# resumed elsewhere.
VOLATILE = {"name", "choices", "devices", "runs_per_gpu", "images_on", "cosines", "log_every", "timeout"}
VOLATILE |= {"checkpoint", "paths", "tracking", "compile_views", "graph"}
RUN_ID_DIGITS = 10
VOLATILE_IN = {"dataset": {"workers", "train_images"}, "framework": {"sharded"}}  # keys of a group
# Keys of evaluators that say where their data is.
VOLATILE_OF = {"detection": {"data", "images"}}
# Keys that runs from before a version do not have, with the value that means what they did. Constructors have the value
# of a group's key as their default.
ADDED: dict[str, dict[str, Any]] = {
    "0.2.0": {
        "compile_views": False,
        "graph": False,
        "framework.groups": 1,
        "loss.own_view": False,
        "optimizer.decay_norms": False,
    },
}
# Modules whose classes have another place since a version, the first that begins a ``_target_`` counts.
MOVED: dict[str, dict[str, str]] = {
    "0.2.0": {
        "ssl_bench.models.backbones.": "ssl_bench.networks.backbones.",
        "ssl_bench.models.heads.": "ssl_bench.networks.heads.",
        "ssl_bench.models.": "ssl_bench.methods.",
        "ssl_bench.optim.": "ssl_bench.training.optim.",
    },
}


def upgraded(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a run of an earlier version as one of this version that means the same."""
    added = {key: value for keys in ADDED.values() for key, value in keys.items() if "." not in key}
    return added | {key: _with_targets(value, _moved) for key, value in config.items()}


def _moved(target: str) -> str:
    """Where the class is now that ``_target_`` names."""
    for former, now in (item for modules in MOVED.values() for item in modules.items()):
        if target.startswith(former):
            return now + target.removeprefix(former)
    return target


def run_id(config: Mapping[str, Any]) -> str:
    """Ten hexadecimal digits of the SHA-256 of :func:`canonical`."""
    return hashlib.sha256(canonical(config).encode()).hexdigest()[:RUN_ID_DIGITS]


def canonical(config: Mapping[str, Any]) -> str:
    """The configuration without its volatile keys as JSON, the same text for equal configurations.

    A class counts by its name, without its module: moving a class keeps the identity of every run.
    """
    content = {k: _with_targets(v, lambda target: target.rpartition(".")[2]) for k, v in config.items()}
    content = _without(content, VOLATILE)
    for group, keys in VOLATILE_IN.items():
        if group in content:
            content[group] = _without(content[group], keys)
    if isinstance(evaluate := content.get("evaluate"), Mapping):
        content["evaluate"] = {name: _without(node, VOLATILE_OF.get(name, set())) for name, node in evaluate.items()}
    for path, value in (item for keys in ADDED.values() for item in keys.items()):
        group, _, key = path.rpartition(".")
        if group and isinstance(node := content.get(group), Mapping) and node.get(key) == value:
            content[group] = _without(node, {key})
    return json.dumps(content, sort_keys=True)


def _without(node: Any, keys: Set[str]) -> Any:
    """A node without some of its keys."""
    return {k: v for k, v in node.items() if k not in keys} if isinstance(node, Mapping) else node


def _with_targets(node: Any, change: Callable[[str], str]) -> Any:
    """``node`` with each ``_target_`` changed."""
    if isinstance(node, Mapping):
        return {
            k: change(v) if k == "_target_" and isinstance(v, str) else _with_targets(v, change)
            for k, v in node.items()
        }
    return [_with_targets(entry, change) for entry in node] if isinstance(node, list) else node


def run_dir(config: Mapping[str, Any]) -> Path:
    """Directory of a run: ``<paths.outputs>/<name>/<run_id>``."""
    return Path(config["paths"]["outputs"]) / config["name"] / run_id(config)
