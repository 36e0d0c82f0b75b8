"""The parts of a run from its configuration, and the refusal of parts that do not fit together."""

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from ssl_bench.config.build import build, has_argument, target_class
from ssl_bench.data.arrays import Dataset
from ssl_bench.data.evalview import EvalView
from ssl_bench.data.views import Views
from ssl_bench.errors import ConfigError
from ssl_bench.evaluate.target import Target
from ssl_bench.hardware import Precision, check_devices
from ssl_bench.methods.base import Contrastive, Method, MissingNeed
from ssl_bench.training.optim import Recipe

Config = dict[str, Any]
OBJECTIVE = ("negatives", "temperature", "loss")


def dataset(config: Config) -> Dataset:
    made: Dataset = build(config["dataset"], "dataset", root=config["paths"]["data"])
    return made


def views(config: Config) -> list[Views]:
    """How each view of an image is made: as many alike as the framework takes, or by name, ``count`` of each."""
    node, kind = config["augment"], target_class(config["framework"], "framework")
    if "_target_" in node:
        return [build(node, "augment")] * kind.views
    made = []
    for name, crop in node.items():
        if not isinstance(crop, dict) or not isinstance(count := crop.get("count"), int) or count < 1:
            raise ConfigError(f"augment.{name}: set augment.{name}.count to a number of views, 1 or more")
        made += [build({k: v for k, v in crop.items() if k != "count"}, f"augment.{name}")] * count
    if len(made) < kind.views:
        name = config["choices"].get("framework")
        raise ConfigError(
            f"augment makes {len(made)} of the {kind.views} views that framework={name} takes: raise the counts"
        )
    return made[: kind.views] if issubclass(kind, Method) else made


def recipe(config: Config) -> Recipe:
    made: Recipe = build(config["optimizer"], "optimizer")
    return made


def method(config: Config) -> Method:
    """Networks and objective; the weights come from the global generator.

    Raises:
        ConfigError: parts that do not fit together.
    """
    backbone = build(config["backbone"], "backbone")
    head = build(config["head"], "head", inputs=backbone.num_features)
    framework = build(config["framework"], "framework", backbone=backbone, head=head, **_instances(config, "framework"))
    chosen = config["choices"]
    if isinstance(framework, Method):  # with an objective of its own
        for group in OBJECTIVE:
            if config[group] is not None:
                name = chosen.get("framework")
                raise ConfigError(f"{group}={chosen.get(group)}: framework={name} has no {group}: leave {group} out")
        return framework
    for group in OBJECTIVE:
        if config[group] is None:
            raise ConfigError(f"{group}=null: framework={chosen.get('framework')} needs one: set {group} to an option")
    negatives, temperature, loss = (build(config[group], group, **_instances(config, group)) for group in OBJECTIVE)
    tiled = {"auto": None, "dense": False, "tiled": True}[config["cosines"]]
    try:
        return Contrastive(framework, negatives, temperature, loss, config["reduction"], tiled, len(views(config)))
    except MissingNeed as unmet:
        raise ConfigError(f"{unmet.group}={chosen.get(unmet.group)} {unmet}") from unmet


def _instances(config: Config, group: str) -> dict[str, int]:
    """The number of images to pre-train on, for a part that asks for ``instances``: it keeps something for each."""
    return {"instances": dataset(config).check()} if has_argument(config[group], group, "instances") else {}


def evaluators(config: Config) -> dict[str, Any]:
    """The evaluators by the name that goes before their metrics."""
    nodes = {name: node for name, node in config["evaluate"].items() if isinstance(node, dict)}
    return {name: build(node, f"evaluate.{name}") for name, node in nodes.items()}


def targets(
    config: Config,
    dataset: Dataset,
    networks: Mapping[str, nn.Module | None],
    device: torch.device,
    precision: Precision,
) -> Iterator[tuple[str, Target]]:
    """What is judged, with what stands between an evaluator and a metric: ``<suffix>/[<probe>/]``.

    Args:
        networks: by their suffix; None judges raw pixels.
    """
    view = EvalView(mean=config["dataset"]["mean"], std=config["dataset"]["std"], **dataset.eval_view)
    augment = (views(config) * 2)[:2]  # a pair, also where training takes one view
    for (name, probe), (suffix, network) in itertools.product(dataset.probes().items(), networks.items()):
        target = Target(
            network,
            probe.train,
            probe.test,
            num_classes=probe.num_classes,
            view=partial(view, dtype=precision.weights),
            device=device,
            seed=config["seed"],
            autocast=precision.autocast,
            augment=augment,
            pretrain=dataset.pretrain,
        )
        yield f"{suffix}/{name}/" if name else f"{suffix}/", target


def validate(config: Config, here: int) -> None:
    """Makes everything once without images or device, so that what cannot work is refused before anything is touched.

    Args:
        here: how many of the ``devices`` processes are on this machine.

    Raises:
        ConfigError: naming the key and what to set.
    """
    devices, size = config["devices"], config["batch_size"]["size"]
    check_devices(here)
    if size % devices:
        raise ConfigError(
            f"batch_size.size={size} cannot be split over devices={devices}: set batch_size.size to a multiple of "
            f"{devices}, such as {math.ceil(size / devices) * devices}, or devices to a divisor of {size}"
        )
    precision = Precision.of(config["precision"], torch.cuda.is_available())
    with torch.random.fork_rng(devices=[]):
        made = method(config)
        try:
            made.facts(size)
        except ValueError as error:
            group = "negatives" if isinstance(made, Contrastive) else "framework"
            raise ConfigError(f"{group}.{error}") from error
    views(config), recipe(config)
    checks = {name: each.check for name, each in evaluators(config).items() if hasattr(each, "check")}
    data = dataset(config)
    images = data.check()
    if data.eval_view and "raw" in config["evaluate"]["baselines"]:
        raise ConfigError("evaluate.baselines: images of many sizes have no raw pixels; set evaluate.baselines=[init]")
    if size > images:
        name = config["choices"].get("dataset", "dataset")
        raise ConfigError(f"batch_size.size={size} is more than the {images} images of {name}: set {images} or less")
    for _, target in targets(config, data, {"": made.encoder}, torch.device("cpu"), precision) if checks else ():
        for name, check in checks.items():
            try:
                check(target)
            except ValueError as error:
                raise ConfigError(_about(config["evaluate"][name], f"evaluate.{name}", error)) from error


def _about(node: Config, key: str, error: ValueError) -> str:
    """An error with the key before it, down to the argument that its sentence begins with."""
    named = re.match(r"\w+", str(error))
    return f"{key}{'.' if named and has_argument(node, key, named[0]) else ': '}{error}"
