"""The identity of a run: a hash of everything that its weights depend on, which names its directory.

The evaluators of a run are not hashed: :func:`evaluation_id` is the identity of one evaluator and its settings.
Numbers are hashed by their value: 1, 1.0 and 1e0 are equal, and so are 0 and -0.0.

A run depends on its configuration and on files: prepared images, and the sources of plugins. :func:`recipe_id` is the
hash of the configuration alone, which a machine without the images can compute for the cells of a table. The files have
the hashes of :func:`content_hashes`.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

RETIRED = {"halt_at", "fused_norm", "runs_per_gpu", "steady"}  # keys in config.yaml files of earlier versions
# Keys that say where and how a run is carried out. They are not hashed, so that a run that was moved to another machine
# has the same identity there.
NOT_IN_RUN_ID = {"name", "choices", "device", "devices", "threads", "launcher", "images_on", "cosines", "graph"}
NOT_IN_RUN_ID |= {"log_every", "timeout", "checkpoint", "paths", "tracking", "compile_views", "evaluate"} | RETIRED
RUN_ID_DIGITS = 10
COUNTS = {"train_images", "labelled_images", "least_labels"}  # of a dataset's images
NOT_IN_RUN_ID_OF = {"dataset": {"workers", "hashes", *COUNTS}, "init": {"path"}}  # keys of a group that are not hashed
OWN = {"root", "path", "skip_broken", "dataset"}  # nor are these of the user's own images, whose hash is ``content``
SOURCE = " #"  # between the version of a plugin and the hash of its source
# Keys that make a class of this package depend on the length of the training, each with the value that does not.
SCHEDULES: dict[str, dict[str, Any]] = {
    "optimizer": {"schedule": "constant"},
    "temperature": {"slope": None, "cycles": None},
    "framework": {"final_momentum": None},
    "negatives": {"schedule": "constant"},
}
# The keys on which the metrics of a network that is not trained depend, beside its evaluators.
READ_ALONE = {"dataset", "augment", "backbone", "framework", "init", "seed", "precision", "tf32", "plugins"}
READ_BY_LOSS = {"loss", "temperature", "batch_size"}  # further keys, if an evaluator measures a loss
# Keys of evaluators that say where their data is.
NOT_IN_EVALUATION_ID = {"detection": {"data", "images"}}
# Values that are not hashed: a configuration without the key is the same training.
NOT_HASHED: dict[str, Any] = {
    "init": None,
    "similarity": "cosine",
    "positives": {"_target_": "ssl_bench.objective.positives.OtherView"},
    "backbone.args": None,
    "backbone.freeze": False,
    "dataset.interpolation": "bilinear",
    "dataset.share": 1.0,
    "framework.groups": 1,
    "framework.predictor_norm": "none",
    "framework.stop_gradient": False,
    "loss.own_view": False,
    "negatives.final": None,
    "negatives.milestones": [],
    "negatives.schedule": "constant",
    "optimizer.clip": None,
    "optimizer.decay_norms": False,
    "optimizer.factors": [],
    "optimizer.layer_decay": 1.0,
}


def run_id(config: Mapping[str, Any]) -> str:
    """Ten hexadecimal digits of the SHA-256 of the JSON of :func:`hashed`.

    A class counts by its name, without its module: moving a class keeps the identity of every run.
    """
    return _digits(text(hashed(config)))


def recipe_id(config: Mapping[str, Any]) -> str:
    """The run_id of a configuration without the hashes of :func:`content_hashes`."""
    node, plugins = config.get("dataset"), config.get("plugins")
    if isinstance(node, Mapping) and not is_own(node):
        config = {**config, "dataset": _without(node, {"content"})}
    if isinstance(plugins, Mapping):
        config = {**config, "plugins": {name: str(version).partition(SOURCE)[0] for name, version in plugins.items()}}
    return run_id(config)


def content_hashes(config: Mapping[str, Any]) -> dict[str, str]:
    """The hashes of the prepared images (key ``images``) and of each plugin (its name) that a configuration has."""
    node, plugins = config.get("dataset"), config.get("plugins")
    prepared = isinstance(node, Mapping) and not is_own(node) and node.get("content")
    hashes = {"images": str(prepared)} if prepared else {}
    of_plugins = plugins.items() if isinstance(plugins, Mapping) else ()
    return hashes | {name: source for name, version in of_plugins if (source := str(version).partition(SOURCE)[2])}


def hashed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a configuration that is hashed into its run_id."""
    content: dict[str, Any] = _without(config, NOT_IN_RUN_ID | ({"epochs"} if extensible(config) else set()))
    if untrained(config):
        content = {key: value for key, value in content.items() if key in read_alone(config)}
    for group, keys in NOT_IN_RUN_ID_OF.items():
        if group in content:
            content[group] = _of_dataset(content[group]) if group == "dataset" else _without(content[group], keys)
    for path, value in NOT_HASHED.items():
        group, _, key = path.rpartition(".")
        if group and isinstance(node := content.get(group), Mapping) and node.get(key) == value:
            content[group] = _without(node, {key})
        elif not group and text(content.get(key)) == text(value):
            content = _without(content, {key})
    return content


def is_hashed(name: str) -> bool:
    """Whether a setting is a part of the identity of a run, by its name, such as ``optimizer.lr``."""
    group, _, key = name.partition(".")
    not_of_group = NOT_IN_RUN_ID_OF.get(group, set()) | (OWN if group == "dataset" else set())
    return group not in NOT_IN_RUN_ID and key not in not_of_group


def _of_dataset(node: Any) -> Any:
    """A dataset without the keys that do not change its images, such as the folder of the user's own images."""
    if not isinstance(node, Mapping):
        return node
    unknown = {key for key in ("content", "held_out", "train", "test", "group") if node.get(key) is None}
    return _without(node, NOT_IN_RUN_ID_OF["dataset"] | unknown | (OWN if is_own(node) else set()))


def is_own(node: Mapping[str, Any]) -> bool:
    """Whether a dataset is in a folder that the configuration names, and not in the folder of all datasets."""
    return "root" in node or "path" in node


def evaluation_id(name: str, evaluator: Mapping[str, Any]) -> str:
    """Ten hexadecimal digits for an evaluator with its settings; ``name`` is its key below ``evaluate``."""
    return _digits(text([name, settings_of_evaluation(name, evaluator)]))


def settings_of_evaluation(name: str, evaluator: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an evaluator, with hashes in place of the paths of its data."""
    settings: dict[str, Any] = _without(evaluator, NOT_IN_EVALUATION_ID.get(name, set()))
    if isinstance(on := settings.get("on"), Mapping):
        settings["on"] = _of_dataset(on if is_own(on) else _without(on, {"content"}))
    if isinstance(labels := settings.get("labels"), Mapping):
        settings["labels"] = labels["content"]
    return settings


def datasets_of(evaluate: Mapping[str, Any]) -> list[Any]:
    """The data sets of ``evaluate.on``, one or several; [None] means the data set of the training."""
    on = evaluate.get("on")
    return list(on) if isinstance(on, list) and on else [on or None]


def name_of_labels(labels: Any) -> str:
    """The name in metrics of one of ``evaluate.labels``, a share or a list of images; empty for all labels."""
    if isinstance(labels, Mapping):
        return f"labels_{Path(labels['file']).stem}"
    return "" if labels == 1 else f"labels{labels:g}"


def evaluators(node: Mapping[str, Any]) -> dict[str, Any]:
    """The evaluators below ``evaluate``: its mappings but for ``on``, which is a data set."""
    return {name: evaluator for name, evaluator in node.items() if isinstance(evaluator, Mapping) and name != "on"}


def untrained(config: Mapping[str, Any]) -> bool:
    """Whether a network is evaluated without any training step."""
    return config.get("epochs") == 0


def read_alone(config: Mapping[str, Any]) -> Set[str]:
    """The keys on which the metrics of an :func:`untrained` network depend, beside its evaluators."""
    return READ_ALONE | READ_BY_LOSS if config.get("loss") else READ_ALONE


def extensible(config: Mapping[str, Any]) -> bool:
    """Whether a training of more epochs begins with the same steps, because nothing depends on the number of epochs.

    For a class of this package :data:`SCHEDULES` decides; a class of a plugin may depend on it.
    """
    for group, keys in SCHEDULES.items():
        node = config.get(group) or {}
        of_plugin = not str(node.get("_target_", "ssl_bench.")).startswith("ssl_bench.")
        if of_plugin or any(node.get(key, value) != value for key, value in keys.items()):
            return False
    return bool(config.get("optimizer")) and config.get("max_steps") is None


def leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a configuration that is no mapping, with its path."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, node


def text(content: Any) -> str:
    """JSON without the modules of classes, whole numbers without a decimal point."""
    return json.dumps(_plain(content), sort_keys=True)


def _digits(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:RUN_ID_DIGITS]


def _plain(node: Any) -> Any:
    """``node`` with every whole number as an integer, and classes without their modules."""
    if isinstance(node, Mapping):
        plain = {key: _plain(value) for key, value in node.items()}
        return plain | {k: v.rpartition(".")[2] for k, v in plain.items() if k == "_target_" and isinstance(v, str)}
    if isinstance(node, list):
        return [_plain(entry) for entry in node]
    return int(node) if isinstance(node, float) and node.is_integer() else node


def _without(node: Any, keys: Set[str]) -> Any:
    """A node without some of its keys."""
    return {k: v for k, v in node.items() if k not in keys} if isinstance(node, Mapping) else node


def run_dir(config: Mapping[str, Any]) -> Path:
    """Directory of a run: ``<paths.outputs>/<name>/<run_id>``."""
    return Path(config["paths"]["outputs"]) / config["name"] / run_id(config)
