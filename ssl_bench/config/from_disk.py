"""Read from the disk what a configuration depends on: the user's own images, prepared images, initial weights.

Their hashes and sizes are written into the configuration and so become part of the run's identity. Those of own images
and weights are written before interpolations are resolved, those of prepared images only for a run and not for the cell
of a table.
"""

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict

from ssl_bench import files
from ssl_bench.config.build import find_target, located, open_dataset
from ssl_bench.config.identity import SOURCE, datasets_of, evaluators, is_own
from ssl_bench.errors import ConfigError, InvalidValue, require, shown

FILES_OF_FOLDER = ("model.safetensors", "pytorch_model.bin")  # the weights in a folder that timm has written
# evaluate=auto: without labels no evaluators that need them; backbone.stem=auto: by the size of the images
AUTO = "auto"
SMALL = 65  # images of fewer pixels get the small stem, as in published recipes


def check_computed(config: Mapping[str, Any]) -> None:
    """Refuse keys that ssl-bench computes from files and that a user has set.

    Args:
        config: a configuration, or a part of it, as a user has written it.

    Raises:
        ConfigError: naming the key.
    """
    evaluate = node if isinstance(node := config.get("evaluate"), Mapping) else {}
    values = {"choices": config.get("choices")}
    for key, node in (("dataset", config.get("dataset")), *(("evaluate.on", node) for node in datasets_of(evaluate))):
        if isinstance(node, Mapping):
            computed = ("content", "train_images", "least_labels", "knn_k") if is_own(node) else ("content",)
            values |= {f"{key}.{name}": node[name] for name in computed if node.get(name) is not None}
    labels = evaluate.get("labels")
    for node in labels if isinstance(labels, list) else ():
        values |= {"evaluate.labels": node} if isinstance(node, Mapping) else {}
    for key, value in values.items():
        if value is not None:
            remedy = "write only the file in it" if key == "evaluate.labels" else "leave it out"
            raise ConfigError(f"{key}={shown(value)}: {remedy}: ssl-bench computes this value")


def find_images(cfg: DictConfig, choices: dict[str, Any]) -> None:
    """Write the settings of the user's own images into ``cfg``, and the name of their folder into ``choices``.

    A dataset that has ``content`` already belongs to a run that is read again, and is not changed.
    """
    node: Any = OmegaConf.to_container(cfg.dataset, resolve=True) if cfg.get("dataset") else {}
    if not isinstance(node, dict) or not is_own(node):
        return
    if node["content"] is None:
        dataset = open_dataset(node, cfg.paths.data)
        cfg.dataset.update(dataset.settings_of_images())
        files.say_once(dataset.summary())
    place = Path(str(node.get("root") or node.get("path")))
    choices["dataset"] = f"{choices['dataset'].partition(':')[0]}:{place.name}"


def choose_stem(cfg: DictConfig) -> None:
    """Replace ``backbone.stem=auto``: by cifar for the user's own images below ``SMALL`` pixels, else by imagenet.

    A network with weights from elsewhere has the stem that it was published with.
    """
    backbone: Any = cfg.get("backbone")
    if not isinstance(backbone, DictConfig) or backbone.get("stem") != AUTO:
        return
    small = is_own(cfg.dataset) and cfg.dataset.size < SMALL and not cfg.get("init")
    backbone.stem = "cifar" if small else "imagenet"
    if small:
        size = f"backbone.stem=cifar, as the images have {cfg.dataset.size} pixels, fewer than {SMALL}"
        files.say_once(f"{size}: backbone.stem=imagenet is faster and sees less detail")


def find_prepared(config: dict[str, Any], training: bool = True) -> dict[str, Any]:
    """A resolved configuration with the hashes of prepared images, if these exist: of ``dataset`` and ``evaluate.on``.

    Args:
        training: False if the training has ended: then ``dataset`` stays as it is.
    """
    evaluate, data = config.get("evaluate"), config["paths"].get("data")
    changed = {"dataset": _prepared(config["dataset"], data)} if training else {}
    if isinstance(evaluate, dict) and isinstance(on := evaluate.get("on"), dict | list):
        nodes = [_prepared(node, data) for node in datasets_of(evaluate)]
        changed["evaluate"] = {**evaluate, "on": nodes if isinstance(on, list) else nodes[0]}
    return {**config, **changed}


def _prepared(node: Any, data: str) -> Any:
    """A dataset's node with the settings of its prepared images; unchanged if these are missing."""
    if not isinstance(node, dict) or is_own(node) or node.get("content", "") is not None:
        return node
    inner = {key: value for key, value in node.items() if key != "dataset"}
    try:
        return node | open_dataset(inner, data).settings_of_images()
    except ConfigError:  # a run that needs the images is refused later; a finished run does not need them
        return node


def leave_out(cfg: DictConfig, choices: Mapping[str, Any]) -> None:
    """Remove the evaluators of ``evaluate=auto`` that need labels if no evaluated data set has classes."""
    if choices.get("evaluate") != AUTO:
        return
    nodes = [on or cfg.dataset for on in datasets_of(OmegaConf.to_container(cfg.evaluate, resolve=False))]  # type: ignore[arg-type]
    if any(node.get("num_classes") != 0 for node in nodes):
        return
    named = evaluators(cfg.evaluate).items()
    without = [name for name, evaluator in named if find_target(evaluator, f"evaluate.{name}").needs_labels]
    with open_dict(cfg):
        for name in without:
            del cfg.evaluate[name]
    if without:
        files.say_once(f"{choices['dataset']}: no classes, so {' and '.join(without)} are left out of the evaluation")


def weights_in(folder: Path) -> Path:
    """The file of weights in a folder that timm has written; ``folder`` itself if there is none."""
    return next((path for name in FILES_OF_FOLDER if (path := folder / name).is_file()), folder)


def find_weights(cfg: DictConfig) -> None:
    """Replace ``init``, the directory of a run or a file of weights, by its path and what identifies its weights."""
    given, remedy = cfg.get("init"), "the directory of a finished run, outputs/<name>/<run_id>, or a file of weights"
    if given is None:
        return
    node = dict(given) if isinstance(given, DictConfig) else {"path": given}
    valid = "path" in node and node.keys() <= {"path", "weights", "which"}
    which, words = node.get("which"), "null, trained or momentum"
    require(valid, "init", given, f"{remedy}, or to {{path: FILE, which: momentum}}")
    require(which in (None, "trained", "momentum"), "init.which", which, words)
    path = Path(str(node["path"])).absolute()
    if not (path / "results.json").exists():
        path = weights_in(path)
    if path.is_dir():
        results = located("ssl_bench.record.runs.read_results")(path)
        last, epochs = path / "checkpoints" / "last.pt", results and results["config"].get("epochs")
        if epochs is None:
            raise InvalidValue("init", given, remedy)
        if epochs == 0 and not last.exists():
            raise InvalidValue("init", given, "the file of weights that this run evaluates: it has trained nothing")
        digest = _of_run(path, files.mark(last.stat()) if last.exists() else None)
        weights = f"{results['run_id']} after {epochs} epochs{SOURCE}{digest}"
    else:
        try:
            with files.open_regular(path) as file:
                weights = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        except OSError as error:
            raise InvalidValue("init", given, f"{remedy}: {error.strerror}") from error
    if node.get("weights", weights) != weights:
        raise InvalidValue("init.weights", node["weights"], f"nothing, but init to {path}: what it holds is found")
    with open_dict(cfg):
        cfg.init = {"path": str(path), "weights": weights} | ({"which": which} if which else {})


def find_labels(cfg: DictConfig) -> None:
    """Replace each file in ``evaluate.labels``, a list of images, by its path, its hash and its length."""
    given: Any = cfg.evaluate.get("labels")
    if isinstance(given, ListConfig) and any(isinstance(labels, str) for labels in given):
        given = OmegaConf.to_container(given, resolve=True)
        with open_dict(cfg):
            cfg.evaluate.labels = [_with_hash(labels) if isinstance(labels, str) else labels for labels in given]


def _with_hash(labels: str) -> dict[str, Any]:
    file = files.given_path(labels).absolute()
    names, content = read_names(file)
    return {"file": str(file), "content": content, "images": len({*names})}


def read_names(file: Path) -> tuple[list[str], str]:
    """The lines of a list of images without blank ones, and its hash.

    Raises:
        ConfigError: it cannot be read, or has no line.
    """
    remedy = "shares of the labelled images, or a text file with the name of an image file on each line"
    try:
        content = files.read_bytes(file)
        names = [*filter(None, map(str.strip, content.decode("utf-8-sig").splitlines()))]
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no text in UTF-8"
        raise InvalidValue("evaluate.labels", str(file), f"{remedy}: {why}") from error
    require(bool(names), "evaluate.labels", str(file), f"{remedy}: it is empty")
    return names, hashlib.sha256(content).hexdigest()[:16]


@lru_cache(64)  # the runs of a grid begin with the same weights
def _of_run(folder: Path, last: files.Mark | None) -> str:
    """The hash of the weights that a run has ended with; ``last``: the mark of its checkpoint."""
    return str(located("ssl_bench.record.checkpoint.backbone")(folder)[1])  # the record is no part of a configuration
