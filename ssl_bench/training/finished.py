"""A run read back from its directory: its configuration, and its networks with the weights of the last checkpoint."""

import copy
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ssl_bench import files
from ssl_bench.config import anchors, plugins, schema
from ssl_bench.config.compose import evaluated_again
from ssl_bench.config.from_disk import find_prepared
from ssl_bench.config.identity import RETIRED, run_id
from ssl_bench.errors import ConfigError, RunError, in_one_line
from ssl_bench.methods.base import Method
from ssl_bench.record import checkpoint, runs
from ssl_bench.seeding import seed_everything
from ssl_bench.training import build
from ssl_bench.training.precision import Precision

log = logging.getLogger("ssl_bench")


@dataclass(frozen=True)
class LoadedRun:
    """A run from its directory, with the weights of its last checkpoint.

    Attributes:
        run: data, views and optimiser.
        method: networks and objective, with the weights of the checkpoint.
        initial: the encoder at initialisation, if ``evaluate.baselines`` has ``init``, and the weights of the key
            ``init`` are still there.
        step: number of optimiser steps before the checkpoint.
    """

    folder: Path
    run: build.Run
    method: Method
    precision: Precision
    initial: nn.Module | None
    run_id: str
    step: int


def read_config(folder: Path) -> dict[str, Any]:
    """Read the configuration of the run in ``folder``, checked as the configuration of a new run.

    ``epochs`` is taken from ``results.json`` if there is one: a later command may have asked for more in
    ``config.yaml``. ``paths.outputs`` is where the folder is now, which may be a copy. ``tracking`` is off where its
    dashboard is not installed. If ``config.yaml`` is missing, damaged or that of another training, the configuration in
    ``results.json`` is returned.

    Raises:
        ConfigError: there is no run, its configuration is damaged, or a plugin of it cannot be used.
    """
    path, again = folder / "config.yaml", "start the training again, which writes it"
    trained = runs.read_results(folder)
    if trained is None and not path.is_file():
        raise ConfigError(f"{folder} is no run directory: `ssl-bench status` lists them")
    config: Any = anchors.read_yaml(path, dict, named=False, of_a_run=True) or {}
    name = folder.resolve().name
    if trained and run_id(config) != name == run_id(trained["config"]):
        files.say_damaged(path)
        config = trained["config"]
    choices = config.get("choices")
    if not isinstance(choices, dict) or not isinstance(choices.get("dataset"), str):
        raise ConfigError(f"{path} is damaged, or not that of `ssl-bench train`: {again}")
    plugins.versions(config.get("plugins", {}), config)
    config = {key: value for key, value in config.items() if key not in RETIRED}
    off: Any = {"mode": "off", "project": None, "entity": None, "tags": []}
    try:  # a dashboard is not needed to read a run, and may be missing here
        schema.check_tracking(config.setdefault("tracking", off))
    except ConfigError as error:
        files.say_once(f"ssl-bench: {error}; the run is read without tracking")
        config["tracking"] = off
    if trained is not None:
        config["epochs"] = trained["config"].get("epochs", config.get("epochs"))
    try:
        schema.check(config)
        config["paths"] = config["paths"] | {"outputs": str(runs.results_folder(folder, config["name"]))}
    except ConfigError as error:
        raise ConfigError(f"{path} is damaged ({error}): {again}") from error
    return config


def read_again(folder: Path, overrides: Sequence[str], more: Sequence[str] = ()) -> dict[str, Any]:
    """Read the configuration of a run, with overrides of its evaluation, which one process carries out.

    Args:
        more: further keys that overrides may change.

    Raises:
        ConfigError: as :func:`read_config`, or an override concerns the training or cannot be used.
    """
    config = read_config(folder)
    keys = ["device", *more, "paths.data", *(f"dataset.{key}" for key in ("root", "path") if key in config["dataset"])]
    for override in overrides:
        if override.partition("=")[0] not in keys and not override.startswith(("evaluate=", "evaluate.")):
            raise ConfigError(f"{override}: after the training only evaluate, {', '.join(keys)} can be changed")
    changed = evaluated_again(config, overrides) | {"devices": 1, "graph": False}
    schema.check(config | changed)
    return find_prepared(config | changed, training=False)


def load_run(folder: Path, config: dict[str, Any], device: torch.device) -> LoadedRun:
    """Open the run in ``folder`` with its last checkpoint.

    Args:
        config: the result of :func:`read_config`, possibly with another ``evaluate``.
        device: decides the number formats; the networks stay on the CPU.

    Raises:
        ConfigError: the configuration cannot be built.
        RunError: there is no checkpoint, or it cannot be read, or it does not belong to the run's results.
    """
    has_checkpoint = not build.has_no_checkpoint(config, folder)
    state: dict[str, Any] = checkpoint.final(folder) if has_checkpoint else {"run_id": folder.resolve().name, "step": 0}
    precision = Precision.of(config["precision"], device.type == "cuda")
    seed_everything(config["seed"])  # the weights at initialisation are drawn again
    run, drawn = build.build(config), "init" in config["evaluate"]["baselines"]
    try:
        method = build.method(run)
    except build.InitialWeights as error:
        if not has_checkpoint:
            raise
        log.warning("%s; the network at initialisation is left out", error)
        run, drawn = build.build(config | {"init": None}), False
        method = build.method(run)
    method.to(precision.weights)
    initial = copy.deepcopy(method.encoder) if drawn else None
    try:
        if has_checkpoint:  # which has all weights
            method.load_state_dict(state["method"])
    except (AttributeError, LookupError, RuntimeError, TypeError) as error:
        why = f"does not fit its config.yaml ({in_one_line(error)})"
        raise RunError(f"the checkpoint of {folder} {why}") from error
    return LoadedRun(folder, run, method, precision, initial, state["run_id"], state["step"])
