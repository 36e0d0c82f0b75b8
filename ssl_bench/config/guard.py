"""Refuse what would run code or read a secret when Hydra composes a configuration.

This file alone imports Hydra's private modules, for the class that loads every configuration.
Hydra makes its callbacks, launcher, sweeper and log handlers of classes that a configuration names. Only the launchers
and the sweeper of this package are left, so that a configuration from elsewhere runs no code of its own.
"""

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from hydra._internal import hydra as application
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import DictConfig, OmegaConf
from omegaconf.resolvers import oc

from ssl_bench.config import schema
from ssl_bench.errors import ConfigError

CLASSES = (
    "hydra._internal.core_plugins.basic_launcher.BasicLauncher",
    "hydra._internal.core_plugins.basic_sweeper.BasicSweeper",
    "hydra_plugins.ssl_bench.HalvingSweeper",
    "hydra_plugins.ssl_bench.OptunaSweeper",
    "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher",
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher",
)
SILENT = {"version": 1, "root": None, "disable_existing_loggers": False}  # hydra/job_logging=none
# Keys of Hydra that would run code or change the environment of a run, with what to use.
REFUSED = {
    "callbacks": "there are none",
    "searchpath": "use --config-dir",
    "job.env_copy": "a run has all environment variables",
    "job.env_set": "set environment variables in the shell",
    "job_logging": "a run writes train.log",
    "hydra_logging": "a run writes train.log",
}
READABLE = re.compile(  # by ${oc.env:NAME}
    r"(SSL_BENCH_|SLURM_(?!JWT$))\w+|HOME|USER|TMPDIR|CUDA_VISIBLE_DEVICES|WANDB_(MODE|DISABLED|PROJECT|ENTITY|TAGS)"
)


class GuardedLoader(ConfigLoaderImpl):
    """Hydra's loader, which refuses classes that Hydra would make: in the method that every way of composing calls."""

    def _load_configuration_impl(self, config_name: str | None, *settings: Any, **more: Any) -> DictConfig:
        """Compose as Hydra does.

        Raises:
            ConfigError: a file is no YAML, or Hydra's part of the configuration holds what is refused.
        """
        try:
            composed = super()._load_configuration_impl(config_name, *settings, **more)
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"a YAML file of the configuration cannot be read: {error}") from error
        if config_name is not None:  # None: Hydra shows its own help
            _check_hydra(composed.hydra)
        return composed


def install() -> None:
    """Make Hydra compose every configuration of this process with :class:`GuardedLoader`."""
    application.ConfigLoaderImpl = GuardedLoader  # type: ignore[misc]


def read_environment(name: str, *default: str | None) -> str | None:
    """The value of ``${oc.env:NAME,default}``, of variables that a configuration may hold: it is written to disk.

    ``~`` at its beginning is the home folder.

    Raises:
        ConfigError: it is another variable.
        KeyError: it is not set, and there is no default.
    """
    if not READABLE.fullmatch(name):
        raise ConfigError(f'the environment variable {name} is not read: write "${name}", which the shell replaces')
    value: str | None = oc.env(name, *default)
    return value and os.path.expanduser(value)


def _check_hydra(node: DictConfig) -> None:
    """Refuse settings of Hydra that would run code, and those of a search that have another type."""
    for key, remedy in REFUSED.items():
        if OmegaConf.select(node, key) and OmegaConf.select(node, key) != SILENT:
            raise ConfigError(f"hydra.{key} is set: leave it out: {remedy}")
    for part in ("sweeper", "launcher"):
        if not isinstance(node[part], DictConfig):
            raise ConfigError(f"hydra.{part}={node[part]}: leave it out: write hydra/{part}=NAME, with a slash")
    for path, value in leaves(OmegaConf.to_container(node, resolve=False), "hydra"):
        if path.endswith("._target_") and value not in CLASSES:
            names = " or ".join(name.rpartition(".")[2] for name in CLASSES)
            raise ConfigError(f"{path}={value}: leave it out: Hydra makes a {names} only")
    if "keep" in node.sweeper:
        settings: Any = OmegaConf.to_container(node.sweeper, resolve=True)
        if "???" not in settings.values():  # without a value Hydra refuses to make the sweeper
            schema.check_search({key: value for key, value in settings.items() if key != "_target_"})


def leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a configuration that is no mapping and no list, with its path."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list):
        for value in node:
            yield from leaves(value, path)
    else:
        yield path, node
