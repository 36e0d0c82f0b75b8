"""The configuration: its types, how it is composed, and what is wrong with it in one sentence.

``train.yaml`` holds the values, this file their types. Groups (``loss``, ``dataset`` ...) are open here because each is
typed by the constructor that its ``_target_`` names, which ``build.py`` checks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException, OverrideParseException
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ssl_bench.config.build import near, one_of
from ssl_bench.errors import ConfigError
from ssl_bench.launch.slots import jobs
from ssl_bench.record import wandb as tracking

PRECISIONS = ("auto", "fp32", "fp16", "bf16", "fp64")
SCALES = ("full", "reduced", "smoke")


@dataclass
class Checkpoint:
    every: int = MISSING


@dataclass
class Paths:
    data: str = MISSING
    outputs: str = MISSING


@dataclass
class BatchSize:
    size: int = MISSING
    chunk: int | None = None


@dataclass
class Diagnostics:
    npc_histogram: bool = MISSING
    gradient_snr: float | None = MISSING


@dataclass
class Tracking:
    mode: str = MISSING
    project: str = MISSING
    entity: str | None = MISSING
    tags: list[str] = MISSING


@dataclass
class Config:
    """Types of the top level. ``Any`` is a group whose ``_target_`` types it."""

    name: str = MISSING
    seed: int = MISSING
    scale: str = MISSING
    epochs: int = MISSING
    max_steps: int | None = MISSING
    precision: str = MISSING
    tf32: bool = MISSING
    compile: bool = MISSING
    reduction: str = MISSING
    cosines: str = MISSING
    devices: int = MISSING
    runs_per_gpu: int = MISSING
    images_on: str = MISSING
    log_every: int = MISSING
    timeout: int = MISSING
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    paths: Paths = field(default_factory=Paths)
    batch_size: BatchSize = field(default_factory=BatchSize)
    tracking: Tracking = field(default_factory=Tracking)
    dataset: Any = MISSING
    augment: Any = MISSING
    backbone: Any = MISSING
    head: Any = MISSING
    framework: Any = MISSING
    loss: Any = None
    negatives: Any = None
    temperature: Any = None
    optimizer: Any = MISSING
    evaluate: Any = MISSING


ConfigStore.instance().store("schema", Config)
OmegaConf.register_new_resolver("add", lambda *numbers: sum(numbers), replace=True)  # ${add:3,${dataset.bits}}
OmegaConf.register_new_resolver("jobs", jobs, replace=True)  # ${jobs:${devices},${runs_per_gpu}}


def directory() -> Path:
    """Where the YAML files are: inside the installed package, or beside it in a checkout."""
    inside = Path(__file__).parent.parent / "conf"
    return inside if inside.is_dir() else Path(__file__).parents[2] / "conf"


def resolve(cfg: Any, choices: Mapping[str, Any]) -> dict[str, Any]:
    """A composed configuration as a plain dict without interpolations, with the option chosen in each group.

    Raises:
        ConfigError: an interpolation leads nowhere, or a value is missing.
    """
    try:
        config: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    except OmegaConfBaseException as error:
        raise ConfigError(explain(error)) from error
    config["choices"] = {k: v for k, v in sorted(choices.items()) if v is not None and "/" not in k and k != "local"}
    return config


def load(overrides: Sequence[str] = (), primary: str = "train") -> dict[str, Any]:
    """Composes ``<primary>.yaml`` with overrides, for what does not go through Hydra's own entry point.

    Raises:
        ConfigError: an override does not fit.
    """
    try:
        with initialize_config_dir(str(directory()), version_base="1.3"):
            cfg = compose(primary, list(overrides), return_hydra_config=True)
            choices = cfg.hydra.runtime.choices
            OmegaConf.set_struct(cfg, False)
            cfg.pop("hydra")
            return resolve(cfg, choices)
    except (HydraException, ValueError) as error:
        raise ConfigError(explain(error, overrides)) from error


def check(config: Mapping[str, Any]) -> None:
    """Refuses top-level values that cannot be meant. Imports nothing heavy.

    Raises:
        ConfigError: naming the key and what to set.
    """
    least = {"batch_size.size": (config["batch_size"]["size"], 2), "devices": (config["devices"], 1)}
    least |= {"runs_per_gpu": (config["runs_per_gpu"], 1)}
    least |= {"epochs": (config["epochs"], 1)}
    least |= {"log_every": (config["log_every"], 1), "timeout": (config["timeout"], 1), "seed": (config["seed"], 0)}
    least |= {"checkpoint.every": (config["checkpoint"]["every"], 1)}
    if config["max_steps"] is not None:
        least["max_steps"] = (config["max_steps"], 1)
    if not isinstance(config["evaluate"].get("every"), int):
        raise ConfigError(f"evaluate.every={config['evaluate'].get('every')}: set a number of epochs, or 0")
    least["evaluate.every"] = (config["evaluate"]["every"], 0)
    for key, (value, smallest) in least.items():
        if value < smallest:
            raise ConfigError(f"{key}={value}: set {key} to {smallest} or more")
    one_of("scale", config["scale"], SCALES)
    one_of("precision", config["precision"], PRECISIONS)
    one_of("reduction", config["reduction"], ("mean", "sum"))
    one_of("cosines", config["cosines"], ("auto", "dense", "tiled"))
    one_of("images_on", config["images_on"], ("auto", "device", "host"))
    one_of("tracking.mode", config["tracking"]["mode"], ("offline", "online", "off"))
    tracking.check(config)
    decay = config["diagnostics"]["gradient_snr"]
    if decay is not None and not 0 < decay < 1:
        raise ConfigError(f"diagnostics.gradient_snr={decay}: set a decay between 0 and 1, such as 0.99, or null")
    size, chunk = config["batch_size"]["size"], config["batch_size"]["chunk"]
    if chunk is not None and (chunk < 1 or size % chunk or chunk % config["devices"]):
        raise ConfigError(
            f"batch_size.chunk={chunk}: set batch_size.chunk to a divisor of batch_size.size={size} that is a multiple "
            f"of devices={config['devices']}, or to null"
        )
    for baseline in config["evaluate"]["baselines"]:
        one_of("evaluate.baselines", baseline, ("init", "raw"))
    if not config["name"] or Path(config["name"]).is_absolute() or ".." in Path(config["name"]).parts:
        raise ConfigError(f"name={config['name']!r}: set name to a folder name such as cifar10_grid")


def explain(error: BaseException, overrides: Sequence[str] = ()) -> str:
    """Hydra's and OmegaConf's errors as one sentence that names the key and says what to set."""
    text = str(error)
    if text.startswith("Could not override '") or "\nCould not override '" in text or ": Could not override '" in text:
        key = text.split("Could not override '")[1].split("'")[0]
        return f"there is no key {key}{near(key, _keys(overrides))}; `ssl-bench train --cfg job` prints them all"
    if "Could not find '" in text:
        group, _, option = text.split("Could not find '")[1].split("'")[0].rpartition("/")
        options = [
            line.strip() for line in text.split("Available options", 1)[-1].splitlines() if line.startswith("\t")
        ]
        options = [o for o in options if not o.startswith("provider=")]
        if options:
            known = ", ".join(options)
            return f"{group}={option}: there is no such option{near(option, options)}; set {group} to one of {known}"
        return f"there is no {group}={option} and no group {group}{near(group, _keys(overrides))}"
    if text.startswith("Error merging override ") and error.__cause__ is not None:
        override = text.removeprefix("Error merging override ")
        reason = str(error.__cause__).splitlines()[0].replace("Integer", "an integer").replace("Float", "a number")
        return f"{override}: {reason[:1].lower()}{reason[1:]}"
    text = " ".join(text.split("\nSee http")[0].split())
    if isinstance(error, OverrideParseException):
        return f"{error.override}: cannot be read ({text}); put quotes around what holds spaces, brackets or commas"
    return text


def _keys(overrides: Sequence[str]) -> list[str]:
    """Every key of the configuration that the groups chosen in ``overrides`` make, for suggestions."""
    groups = {entry.name for entry in directory().iterdir() if entry.is_dir()}
    chosen = [o for o in overrides if o.split("=")[0] in groups and "," not in o]
    try:
        config = load(chosen)
    except ConfigError:
        return sorted(groups)

    def walk(node: Mapping[str, Any], prefix: str) -> Iterable[str]:
        for key, value in node.items():
            yield prefix + key
            if isinstance(value, Mapping):
                yield from walk(value, f"{prefix}{key}.")

    return sorted({*walk(config, ""), *groups})
