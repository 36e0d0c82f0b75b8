"""The parts of a run from its configuration, and the refusal of parts that do not fit together."""

import math
from typing import Any

import torch

from ssl_bench.build import build
from ssl_bench.data.arrays import Dataset
from ssl_bench.data.views import Views
from ssl_bench.device import Precision, check_devices
from ssl_bench.errors import ConfigError
from ssl_bench.objective.method import Method
from ssl_bench.objective.negatives import Negatives
from ssl_bench.optim import Recipe

Config = dict[str, Any]


def dataset(config: Config) -> Dataset:
    made: Dataset = build(config["dataset"], "dataset", root=config["paths"]["data"])
    return made


def views(config: Config) -> Views:
    made: Views = build(config["augment"], "augment")
    return made


def recipe(config: Config) -> Recipe:
    made: Recipe = build(config["optimizer"], "optimizer")
    return made


def negatives(config: Config) -> Negatives:
    made: Negatives = build(config["negatives"], "negatives")
    return made


def method(config: Config) -> Method:
    """Networks and objective; the weights come from the global generator."""
    backbone = build(config["backbone"], "backbone")
    head = build(config["head"], "head", inputs=backbone.num_features)
    framework = build(config["framework"], "framework", backbone=backbone, head=head)
    temperature, loss = build(config["temperature"], "temperature"), build(config["loss"], "loss")
    try:
        return Method(framework, negatives(config), temperature, loss)
    except ValueError as error:
        raise ConfigError(f"loss={config['choices'].get('loss')}: {error}") from error


def evaluators(config: Config) -> dict[str, Any]:
    """The evaluators by the name that goes before their metrics."""
    nodes = {name: node for name, node in config["evaluate"].items() if isinstance(node, dict)}
    return {name: build(node, f"evaluate.{name}") for name, node in nodes.items()}


def validate(config: Config, here: int) -> None:
    """Makes everything once without data or device, so that what cannot work is refused before anything is touched.

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
    Precision.of(config["precision"], torch.cuda.is_available())
    with torch.random.fork_rng(devices=[]):
        method(config)
    views(config), recipe(config), evaluators(config)
    images = dataset(config).check()
    if size > images:
        name = config["choices"].get("dataset", "dataset")
        raise ConfigError(f"batch_size.size={size} is more than the {images} images of {name}: set {images} or less")
