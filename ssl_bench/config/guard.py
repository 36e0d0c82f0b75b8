"""Refuse dangerous, unknown and secret entries of a configuration, before Hydra makes anything of it.

This file alone imports Hydra's private modules, for the class that loads every configuration.
Hydra makes its callbacks, launcher, sweeper and log handlers of classes that the configuration names. Only those that
this package uses are left. Keys that nothing reads are refused, and secrets, since a configuration is written to disk.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from hydra._internal import hydra as application
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import DictConfig, OmegaConf
from omegaconf.resolvers import oc

from ssl_bench.config.schema import check_keys, directory, no_key
from ssl_bench.errors import ConfigError

TARGETS = {
    "hydra.launcher": (
        "hydra._internal.core_plugins.basic_launcher.BasicLauncher",
        "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher",
        "hydra_plugins.hydra_submitit_launcher.submitit_launcher.SlurmLauncher",
    ),
    "hydra.sweeper": ("hydra._internal.core_plugins.basic_sweeper.BasicSweeper",),
}
# Keys of Hydra that would run code or change the environment of a run, with what to use.
REFUSED = {
    "hydra.callbacks": "there are none",
    "hydra.job.env_copy": "a run has all environment variables",
    "hydra.job.env_set": "set environment variables in the shell",
    "hydra.searchpath": "use --config-dir",
}
# The same for keys that Hydra would use, or fail at, before the configuration is composed.
UNREAD = {"hydra.searchpath": "use --config-dir", "hydra.sweeper.params": "write values of a grid as key=0,1,2"}
SILENT = {"version": 1, "root": None, "disable_existing_loggers": False}  # hydra/job_logging=none

SECRET = re.compile(r"secret|passw|passphrase|credential|token|jwt|(^|_)pass$|_(pwd|pat|key)$|apikey|^pgpass")
READABLE = re.compile(r"(SSL_BENCH|SLURM)_\w+|HOME|USER|TMPDIR|CUDA_VISIBLE_DEVICES")  # by ${oc.env:NAME}
SHORTEST = 12  # characters of a secret of the environment


class GuardedLoader(ConfigLoaderImpl):
    """Hydra's loader, which refuses what no configuration may hold: in the method that every way of composing calls."""

    def _load_configuration_impl(
        self, config_name: str | None, overrides: list[str], *settings: Any, **more: Any
    ) -> DictConfig:
        """Compose as Hydra does.

        Raises:
            ConfigError: the configuration holds a key or a value that is refused.
        """
        _check_unread(overrides)
        try:
            composed = super()._load_configuration_impl(config_name, overrides, *settings, **more)
        except yaml.MarkedYAMLError as error:
            place = f"{error.problem_mark.name}, line {error.problem_mark.line + 1}" if error.problem_mark else "a file"
            raise ConfigError(f"{place}: {error.problem}: mend the YAML") from error
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(f"a YAML file of the configuration cannot be read: {error}") from error
        config: Any = OmegaConf.to_container(composed, resolve=False)
        hydra = config.pop("hydra", {})
        if config_name is not None:  # None: Hydra shows its own help
            _check_hydra(hydra)
            refuse_secrets(config)
            refuse_unknown(config, config_name)
        return composed


def install() -> None:
    """Make Hydra compose every configuration of this process with :class:`GuardedLoader`."""
    application.ConfigLoaderImpl = GuardedLoader  # type: ignore[misc]


def read_environment(name: str, *default: str | None) -> str | None:
    """The value of ``${oc.env:NAME,default}``, of variables that a configuration may hold.

    Raises:
        ConfigError: it is another variable.
        KeyError: it is not set, and there is no default.
    """
    if not READABLE.fullmatch(name) or SECRET.search(name.lower()):
        raise ConfigError(f'the environment variable {name} is not read: write "${name}", which the shell replaces')
    return oc.env(name, *default)


def _check_unread(overrides: Sequence[str]) -> None:
    """Refuse keys of Hydra of which a package would be imported, or which it cannot read."""
    for override in overrides:
        key = override.partition("=")[0].lstrip("+~")
        if key in ("hydra", "hydra.launcher", "hydra.sweeper"):
            raise ConfigError(f"{override}: leave it out: set keys in it, such as hydra.launcher.n_jobs=2")
        for start, remedy in UNREAD.items():
            if key.startswith(start):
                raise ConfigError(f"{override}: leave it out: {remedy}")


def _check_hydra(config: Mapping[str, Any]) -> None:
    """Refuse keys of Hydra that would run code."""
    for key, remedy in REFUSED.items():
        node: Any = {"hydra": config}
        for name in key.split("."):
            node = (node or {}).get(name)
        if node:
            raise ConfigError(f"{key} is set: leave it out: {remedy}")
    for key in ("job_logging", "hydra_logging"):
        if config.get(key, SILENT) != SILENT:
            raise ConfigError(f"hydra.{key} is set: leave it out: a run writes train.log")
    for path, value in leaves({k: v for k, v in config.items() if k not in ("overrides", "runtime")}, "hydra"):
        group = path.removesuffix("._target_")
        if path.endswith("._target_") and value not in TARGETS.get(group, ()):
            options = " or ".join(target.rpartition(".")[2] for target in TARGETS.get(group, ()))
            raise ConfigError(f"{path}={value}: {f'set it to {options}' if options else f'leave {group} out'}")
        if path != "hydra.job.override_dirname":  # the overrides, whose values are checked where they stand
            _check_secret(path, value)


def refuse_unknown(config: Mapping[str, Any], primary: str) -> None:
    """Refuse keys that nothing reads. What stands in a group with a ``_target_`` is checked by its constructor.

    Args:
        config: without Hydra's part.
        primary: the file that it was composed of.
    """
    if primary == "train":
        check_keys(config, types=False)
        return
    file = yaml.safe_load((directory() / f"{primary}.yaml").read_text())
    known = [*file, *(name for entry in file["defaults"] if isinstance(entry, dict) for name in entry)]
    for key in config:
        if key not in known:
            raise no_key(str(key), known)


def refuse_secrets(config: Mapping[str, Any]) -> None:
    """Refuse a configuration that holds what looks like a secret. The sentence does not repeat the value."""
    for path, value in leaves(config):
        _check_secret(path, value)


def _check_secret(path: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        return
    if SECRET.search(path.rpartition(".")[2].lower().replace("-", "_")):
        raise ConfigError(f"{path} looks like a secret, and the configuration is written to disk: leave it out")
    for name, secret in os.environ.items():
        known = len(secret) >= SHORTEST and SECRET.search(name.lower())
        if known and secret in value:
            raise ConfigError(f"{path} holds the value of the environment variable {name}, a secret: leave it out")


def leaves(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a configuration that is no mapping and no list, with its path; the keys of mappings as well."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    elif isinstance(node, list):
        for value in node:
            yield from leaves(value, path)
    else:
        yield path, node
