"""The identity of a run: a hash of everything that its result depends on, which names its directory."""

import hashlib
import json
from collections.abc import Mapping, Set
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
# Keys that runs of earlier versions do not have, which all had this value.
ABSENT_AT: dict[str, dict[str, Any]] = {
    "framework": {"groups": 1},
    "loss": {"own_view": False},
    "optimizer": {"decay_norms": False},
}


def run_id(config: Mapping[str, Any]) -> str:
    """Ten hexadecimal digits of the SHA-256 of :func:`canonical`."""
    return hashlib.sha256(canonical(config).encode()).hexdigest()[:RUN_ID_DIGITS]


def canonical(config: Mapping[str, Any]) -> str:
    """The configuration without its volatile keys as JSON, the same text for equal configurations.

    A class counts by its name, without its module: moving a class keeps the identity of every run.
    """
    content = {k: _with_class_names(v) for k, v in config.items() if k not in VOLATILE}
    for group, keys in VOLATILE_IN.items():
        if group in content:
            content[group] = _without(content[group], keys)
    if isinstance(evaluate := content.get("evaluate"), Mapping):
        content["evaluate"] = {name: _without(node, VOLATILE_OF.get(name, set())) for name, node in evaluate.items()}
    for group, values in ABSENT_AT.items():
        if isinstance(content.get(group), Mapping):
            content[group] = {k: v for k, v in content[group].items() if k not in values or v != values[k]}
    return json.dumps(content, sort_keys=True)


def _without(node: Any, keys: Set[str]) -> Any:
    """A node without some of its keys."""
    return {k: v for k, v in node.items() if k not in keys} if isinstance(node, Mapping) else node


def _with_class_names(node: Any) -> Any:
    """``node`` with only the last part of each ``_target_``: ``Fixed`` for ``ssl_bench...temperature.Fixed``."""
    if isinstance(node, Mapping):
        return {
            k: v.rpartition(".")[2] if k == "_target_" and isinstance(v, str) else _with_class_names(v)
            for k, v in node.items()
        }
    return [_with_class_names(entry) for entry in node] if isinstance(node, list) else node


def run_dir(config: Mapping[str, Any]) -> Path:
    """Directory of a run: ``<paths.outputs>/<name>/<run_id>``."""
    return Path(config["paths"]["outputs"]) / config["name"] / run_id(config)
