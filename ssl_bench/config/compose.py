"""Compose the configuration with Hydra, and put Hydra's errors into one sentence."""

import contextlib
import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from omegaconf import OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from ssl_bench.config.build import near
from ssl_bench.config.schema import Config, directory
from ssl_bench.errors import ConfigError
from ssl_bench.hardware import concurrent_runs

ConfigStore.instance().store("schema", Config)
OmegaConf.register_new_resolver("add", lambda *numbers: sum(numbers), replace=True)  # ${add:3,${dataset.bits}}
OmegaConf.register_new_resolver("jobs", concurrent_runs, replace=True)  # ${jobs:${devices},${runs_per_gpu}}


def resolve(cfg: Any, choices: Mapping[str, Any]) -> dict[str, Any]:
    """Turn a composed configuration into a plain dict without interpolations.

    Its key ``choices`` has the option that was chosen in each group.

    Raises:
        ConfigError: an interpolation has no value, or a value is missing.
    """
    try:
        config: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    except OmegaConfBaseException as error:
        raise ConfigError(explain(error)) from error
    config["choices"] = {k: v for k, v in sorted(choices.items()) if v is not None and "/" not in k and k != "local"}
    return config


def load(overrides: Sequence[str] = (), primary: str = "train") -> dict[str, Any]:
    """Compose ``<primary>.yaml`` with overrides, without Hydra's command line.

    Raises:
        ConfigError: an override names a key or an option that does not exist, or a value of the wrong type.
    """
    try:
        return _load(overrides, primary)
    except (HydraException, ValueError) as error:
        raise ConfigError(explain(error, overrides)) from error


def _load(overrides: Sequence[str], primary: str) -> dict[str, Any]:
    with _hydra():
        cfg = compose(primary, list(overrides), return_hydra_config=True)
        choices = cfg.hydra.runtime.choices
        OmegaConf.set_struct(cfg, False)
        cfg.pop("hydra")
        return resolve(cfg, choices)


class Composer:
    """Composes many configurations: Hydra composes each combination of groups once, values are set in copies of it.

    Hydra takes a tenth of a second for a combination of groups. Setting values takes a few milliseconds, through the
    same functions as in Hydra. Inside Hydra's own application the configuration folders are those of the application.
    """

    def __init__(self) -> None:
        self._bases: dict[tuple[str, tuple[str, ...]], tuple[bytes, Mapping[str, Any]]] = {}
        self._parsed: dict[str, Override] = {}
        self._groups: frozenset[str] | None = None

    def load(self, overrides: Sequence[str], primary: str = "train") -> dict[str, Any]:
        """Compose as :func:`load` does.

        Raises:
            ConfigError: an override names a key or an option that does not exist, or a value of the wrong type.
        """
        try:
            with _hydra():
                return self._with_values(overrides, primary)
        except (HydraException, OmegaConfBaseException, ValueError):
            return load(overrides, primary)  # for anything unusual, and for Hydra's own error

    def split(self, overrides: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The overrides that Hydra has to compose, and those that set a value.

        Raises:
            ValueError: an override adds, removes or moves something.
        """
        if self._groups is None:
            with _hydra():
                self._groups = frozenset(GlobalHydra.instance().config_loader().list_groups(""))
        groups, values = list[str](), list[str]()
        for override in overrides:
            key = override.partition("=")[0]
            if not re.fullmatch(r"[\w./]+", key):
                raise ValueError(override)
            part = groups if key in self._groups or "/" in key or key.startswith("hydra.") else values
            part.append(override)
        return tuple(groups), tuple(values)

    def _with_values(self, overrides: Sequence[str], primary: str) -> dict[str, Any]:
        groups, values = self.split(overrides)
        if (primary, groups) not in self._bases:
            cfg = compose(primary, list(groups), return_hydra_config=True)
            chosen = dict(cfg.hydra.runtime.choices)
            with open_dict(cfg):
                del cfg["hydra"]
            self._bases[primary, groups] = pickle.dumps(cfg), chosen
        pickled, choices = self._bases[primary, groups]
        cfg = pickle.loads(pickled)  # ten times faster than a deep copy
        for value in map(self._parse, values):
            OmegaConf.update(cfg, value.key_or_group, value.value(), merge=True)
        return resolve(cfg, choices)

    def _parse(self, override: str) -> Override:
        if override not in self._parsed:
            parsed = OverridesParser.create().parse_override(override)
            if parsed.is_sweep_override():
                raise ValueError(override)
            self._parsed[override] = parsed
        return self._parsed[override]


def _hydra() -> contextlib.AbstractContextManager[Any]:
    """Hydra with the folder of the YAML files, unless it was started before."""
    if GlobalHydra.instance().is_initialized():
        return contextlib.nullcontext()
    return initialize_config_dir(str(directory()), version_base="1.3")


def explain(error: BaseException, overrides: Sequence[str] = ()) -> str:
    """Put an error of Hydra or OmegaConf into one sentence that names the key and says what to set."""
    text = str(error)
    if text.startswith("Could not override '") or "\nCould not override '" in text or ": Could not override '" in text:
        key = text.split("Could not override '")[1].split("'")[0]
        return f"there is no key {key}{near(key, _keys(overrides))}; `ssl-bench train --cfg job` prints them all"
    if "Could not find '" in text:
        path = text.split("Could not find '")[1].split("'")[0]
        _, _, listed = text.partition("Available options in '")
        if listed:
            group = listed.split("'")[0]
            option = path.removeprefix(f"{group}/")
            options = [line.strip() for line in listed.splitlines() if line.startswith("\t")]
            options = [o for o in options if not o.startswith("provider=")]
            same_folder = [o for o in options if o.startswith(f"{option.rpartition('/')[0]}/")]  # experiment=dcl/...
            options = same_folder or options
            known = ", ".join(options)
            return f"{group}={option}: there is no such option{near(option, options)}; set {group} to one of {known}"
        group, _, option = path.rpartition("/")
        return f"there is no {group}={option} and no group {group}{near(group, _keys(overrides))}"
    if text.startswith("Error merging override ") and error.__cause__ is not None:
        override = text.removeprefix("Error merging override ")
        reason = str(error.__cause__).splitlines()[0].replace("Integer", "an integer").replace("Float", "a number")
        return f"{override}: {reason[:1].lower()}{reason[1:]}"
    text = " ".join(text.split("\nSee http")[0].split())
    if isinstance(error, OverrideParseException):
        return f"{error.override}: cannot be read ({text}); put quotes around a value with spaces, brackets or commas"
    return text


def _keys(overrides: Sequence[str]) -> list[str]:
    """All keys of the configuration with the groups that ``overrides`` choose, for suggestions."""
    groups = {"experiment", *(entry.name for entry in directory().iterdir() if entry.is_dir())}
    chosen = [o for o in overrides if o.split("=")[0] in groups and "," not in o]
    try:
        config = _load(chosen, "train")
    except (ConfigError, HydraException, ValueError):  # explained elsewhere
        return sorted(groups)

    def walk(node: Mapping[str, Any], prefix: str) -> Iterable[str]:
        for key, value in node.items():
            yield prefix + key
            if isinstance(value, Mapping):
                yield from walk(value, f"{prefix}{key}.")

    return sorted({*walk(config, ""), *groups})
