"""Look on the disk for what a configuration takes from there: the user's own images, and weights to start from.

They are written into the configuration before anything is interpolated, so that they become part of the run's identity.
"""

import hashlib
import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from ssl_bench import files
from ssl_bench.config.build import find_target, open_dataset
from ssl_bench.config.identity import evaluators
from ssl_bench.errors import InvalidValue

AUTO = "auto"  # the option of evaluate without the evaluators that need labels, where there are none


def find_images(cfg: DictConfig, choices: dict[str, Any]) -> None:
    """Write what is found in the user's own images into ``cfg``, and their folder's name into ``choices``.

    A dataset has such images if it has the key ``content``; one with a value is that of a run, which is not changed.
    """
    node: Any = OmegaConf.to_container(cfg.dataset, resolve=True) if cfg.get("dataset") else {}
    if not isinstance(node, dict) or "content" not in node:
        return
    if node["content"] is None:
        dataset = open_dataset(node, cfg.paths.data)
        cfg.dataset.update(dataset.found())
        _say(dataset.summary())
    place = Path(str(node.get("root") or node.get("path"))).name
    choices["dataset"] = f"{choices['dataset'].partition(':')[0]}:{place}"


def leave_out(cfg: DictConfig, choices: Mapping[str, Any]) -> None:
    """Without classes to evaluate on, leave out the evaluators of ``evaluate=auto`` that need some."""
    node = cfg.evaluate.get("on") or cfg.dataset
    if choices.get("evaluate") != AUTO or node.get("num_classes") != 0:
        return
    named = evaluators(cfg.evaluate)
    without = [name for name, each in named.items() if find_target(each, f"evaluate.{name}").needs_labels]
    with open_dict(cfg):
        for name in without:
            del cfg.evaluate[name]
    if without:
        _say(f"{choices['dataset']}: no classes, so {' and '.join(without)} are left out of the evaluation")


@cache
def _say(sentence: str) -> None:
    """Print a sentence once in this process, on rank 0."""
    if os.environ.get("RANK", "0") == "0":
        print(sentence, file=sys.stderr, flush=True)


def find_weights(cfg: DictConfig) -> None:
    """Replace ``init``, the directory of a run or a file of weights, by its path and what identifies its weights."""
    given, remedy = cfg.get("init"), "the directory of a finished run, outputs/<name>/<run_id>, or a file of weights"
    if given is None or (isinstance(given, DictConfig) and given.keys() == {"path", "weights"}):  # that of a run
        return
    path = Path(str(given)).absolute()
    if path.is_dir():
        results = files.read_json(path / "results.json")
        if not isinstance(results, dict) or "epochs" not in results.get("config", {}):
            raise InvalidValue("init", given, remedy)
        weights = f"{results['run_id']} after {results['config']['epochs']} epochs"
    else:
        try:
            with files.open_regular(path) as file:
                weights = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        except OSError as error:
            raise InvalidValue("init", given, f"{remedy}: {error.strerror}") from error
    with open_dict(cfg):
        cfg.init = {"path": str(path), "weights": weights}
